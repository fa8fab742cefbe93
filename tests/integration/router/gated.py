"""An engine that answers only when it is told to, and counts what runs in it at once."""

import asyncio
import json
from dataclasses import dataclass, field

import msgspec

from llmgw_router.core.config import INTERACTIVE, Admission, Limits, RoutingProfile, Telemetry, WorkerConfig
from llmgw_router.relay.ipc import EndpointRow

from .harness import Answer, Client, Router, endpoint
from .upstream import Connection, Upstream, json_answer


@dataclass
class Gated:
    """The script of an Upstream, and its brake."""

    running: int = 0
    most: int = 0
    served: int = 0
    #: `user` of each request in order of arrival.
    order: list[str] = field(default_factory=list)
    _allowed: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, connection: Connection) -> None:
        while True:
            seen = await connection.request()
            self.order.append(str(json.loads(seen.body).get("user")))
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                while self._allowed <= self.served:
                    news = self._news
                    await news.wait()
                self.served += 1
            finally:
                self.running -= 1
            await connection.send(json_answer())

    def allow(self, more: int = 1) -> None:
        """Let so many more answers out."""
        self._allowed += more
        news, self._news = self._news, asyncio.Event()
        news.set()

    def upstream(self) -> Upstream:
        return Upstream(self)


def busy(index: int, port: int, concurrency: int | None = 1) -> EndpointRow:
    return msgspec.structs.replace(endpoint(index, port), concurrency=concurrency)


def config(
    *, admission: Admission | None = None, profiles: tuple[RoutingProfile, ...] = (), **profile: object
) -> WorkerConfig:
    """A sweep that is exact to 20 ms; `profile` changes the interactive one."""
    interactive = RoutingProfile(**profile)  # type: ignore[arg-type]
    return WorkerConfig(
        limits=Limits(sweep_s=0.02),
        profiles={INTERACTIVE: interactive, **{one.name: one for one in profiles}},
        admission=admission or Admission(),
        telemetry=Telemetry(access_log=True),
    )


def body(user: str = "", *, model: str = "m", stream: bool = False) -> bytes:
    return json.dumps({"model": model, "messages": [], "user": user, "stream": stream}).encode()


async def ask(r: Router, user: str = "", *, more: bytes = b"", stream: bool = False) -> Client:
    client = await r.client()
    client.post(body(user, stream=stream), more=more)
    return client


async def ask_in_order(r: Router, count: int, *, more: bytes = b"") -> list[Client]:
    """One after the other, each in the queue before the next comes."""
    made = []
    for index in range(count):
        before = sum(r.pool.held.values())
        made.append(await ask(r, str(index), more=more))
        await r.until(lambda before=before: sum(r.pool.held.values()) > before)
    return made


async def gone(r: Router) -> None:
    """Every gauge is back at 0, by the slots and by the tally."""
    await r.until(
        lambda: (
            r.quiet()
            and not r.pool.held
            and all(
                r.pool.totals()[name] == 0
                for name in ("requests_held", "requests_queued", "requests_running")
            )
        )
    )


def error(answer: Answer) -> dict[str, str]:
    return dict(json.loads(answer.body)["error"])
