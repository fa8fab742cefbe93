"""Each deadline that fires names itself, its value and the profile it is from (HO09, HO13)."""

import socket
from pathlib import Path

import pytest

from llmgw_router.core.config import RoutingProfile

from .ends import code_of
from .gated import ask, config, error, gone
from .harness import endpoint, router
from .upstream import SSE_HEAD, Connection, Upstream, chunk


async def silent(connection: Connection) -> None:
    await connection.request()
    await connection.closed_by_peer()


async def one_event(connection: Connection) -> None:
    await connection.request()
    await connection.send(SSE_HEAD + chunk(b"data: 1\n\n"))
    await connection.closed_by_peer()


@pytest.mark.parametrize(
    ("limits", "code", "limit"),
    [
        ({"first_byte_s": 0.1, "total_s": 9.0}, "upstream_timeout_first_byte", "first_byte_s=0.1"),
        ({"first_byte_s": 9.0, "total_s": 0.1}, "deadline_exceeded", "total_s=0.1"),
        ({"first_byte_s": None, "total_s": 0.1}, "deadline_exceeded", "total_s=0.1"),
    ],
)
async def test_before_the_answer(
    tmp_path: Path, limits: dict[str, float | None], code: str, limit: str
) -> None:
    """By the profile of the request: the default one would have waited for ten minutes."""
    mine = RoutingProfile(name="mine", **limits)  # type: ignore[arg-type]
    async with Upstream(silent) as up, router(tmp_path, up.port, config=config(profiles=(mine,))) as r:
        c = await ask(r, more=b"x-llmgw-profile: mine\r\n")
        answer = await c.answer()
        assert (answer.status, code_of(answer.body)) == (504, code)
        assert answer.one(b"x-llmgw-limit") == f"{limit}; profile=mine".encode()
        name = limit.partition("=")[0]
        assert f"{name} of the profile `mine`" in error(answer)["message"]
        c.close()
        await gone(r)
        await r.until(lambda: r.heard.records)
        assert (r.heard.records[0].code, r.heard.records[0].profile) == (code, "mine")


async def test_a_connect_that_hangs(tmp_path: Path) -> None:
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(full.getsockname())
        fillers.append(filler)
    async with router(tmp_path, full.getsockname()[1], config=config(connect_s=0.15, max_retries=0)) as r:
        c = await ask(r)
        answer = await c.answer()
        assert (answer.status, code_of(answer.body)) == (504, "upstream_timeout_connect")
        assert answer.one(b"x-llmgw-limit") == b"connect_s=0.15; profile=interactive"
        c.close()
        await gone(r)
    for sock in (full, *fillers):
        sock.close()


async def test_inside_a_stream_it_is_told_in_band(tmp_path: Path) -> None:
    async with Upstream(one_event) as up, router(tmp_path, config=config(idle_s=0.1)) as r:
        await r.push([endpoint(0, up.port)])
        c = await ask(r, stream=True)
        answer = await c.answer()
        assert answer.complete
        assert b"stream_idle_timeout" in answer.body
        assert b"within 0.1 s (idle_s of the profile `interactive`)" in answer.body
        c.close()
        await gone(r)
