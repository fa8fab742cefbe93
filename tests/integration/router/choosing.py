"""Engines that say who they are, and a router with the choosing that a test wants."""

import json
from collections.abc import Callable
from typing import Any

from llmgw_router.core.config import INTERACTIVE, Choosing, RoutingProfile, WorkerConfig
from tests.integration.router.harness import QUICK, Answer, Router
from tests.integration.router.upstream import SSE_HEAD, Connection, Upstream, answering, chunk, json_answer

LONG = "You are a careful assistant who answers in one sentence. " * 40


def config(*, profiles: dict[str, RoutingProfile] | None = None, **choosing: Any) -> WorkerConfig:
    """Quick cool-downs, so that a test need not wait for them; everything else as shipped."""
    rules: dict[str, Any] = {"cool_down_first_s": 0.1, "cool_down_most_s": 0.4, **choosing}
    return WorkerConfig(
        limits=QUICK,
        profiles={INTERACTIVE: RoutingProfile(), **(profiles or {})},
        choosing=Choosing(**rules),
    )


def chat(prompt: str = "hi", **more: object) -> bytes:
    """A body whose first bytes are whatever `more` says."""
    return json.dumps({**more, "model": "m", "messages": [{"role": "user", "content": prompt}]}).encode()


def fine() -> Upstream:
    return Upstream(answering(json_answer()))


class Moody:
    """An engine that does, for each request, what it is told at that moment."""

    def __init__(self, mood: Callable[[Connection], Any]) -> None:
        self.mood = mood

    async def __call__(self, connection: Connection) -> None:
        while True:
            seen = await connection.request()
            if seen.line.startswith(b"GET "):
                await connection.send(json_answer())
            else:
                await self.mood(connection)


async def well(connection: Connection) -> None:
    await connection.send(json_answer())


def status(line: bytes) -> Callable[[Connection], Any]:
    async def mood(connection: Connection) -> None:
        await connection.send(json_answer(b'{"error":{}}', status=line))

    return mood


async def resets(connection: Connection) -> None:
    connection.reset()
    raise ConnectionResetError


async def breaks(connection: Connection) -> None:
    """An event stream that dies after its first event."""
    await connection.send(SSE_HEAD + chunk(b'data: {"x":1}\n\n'))
    connection.reset()
    raise ConnectionResetError


async def silent(connection: Connection) -> None:
    await connection.closed_by_peer()
    raise ConnectionResetError


async def ask(
    one: Router, body: bytes | None = None, more: bytes = b"", path: bytes = b"/v1/chat/completions"
) -> Answer:
    async with await one.client() as client:
        client.post(chat() if body is None else body, path=path, more=more)
        return await client.answer()


def total(one: Router, name: str) -> int:
    return one.pool.totals()[name]
