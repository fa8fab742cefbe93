"""One suite for upstreams, over HTTP and from the file system: the same answers to the same requests."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from llmgw_kit import telemetry
from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import SystemClock
from llmgw_kit.listeners import bind, bound_address
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.upstream_file import FileUpstream
from llmgw_mirror.adapters.upstream_http import HttpUpstream
from llmgw_mirror.core.headers import ContentRange
from llmgw_mirror.core.transfer import Head
from llmgw_mirror.ports import Interrupted, Refused, Upstream

CONTENT = bytes(range(256)) * 20_000
SIZE = len(CONTENT)


@dataclass
class Place:
    """One upstream and the folder it serves."""

    upstream: Upstream
    folder: Path
    url: Callable[[str], str]


@pytest.fixture(params=["http", "file"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    (tmp_path / "w").write_bytes(CONTENT)
    if request.param == "file":
        threads = DiskThreads(2)
        yield Place(FileUpstream([tmp_path], threads), tmp_path, lambda name: (tmp_path / name).as_uri())
        threads.close()
        return
    app = web.Application()

    async def file(given: web.Request) -> web.StreamResponse:
        return web.FileResponse(tmp_path / given.match_info["name"])

    app.add_routes([web.get("/{name}", file)])
    sockets = bind(HostPort("127.0.0.1", 0), flag="--x")
    runner = await telemetry.serve_http(app, sockets)
    at = bound_address(sockets, "127.0.0.1")
    http = HttpUpstream(clock=SystemClock(), tokens={})
    yield Place(http, tmp_path, lambda name: f"http://{at}/{name}")
    await http.close()
    await runner.cleanup()


async def ask(place: Place, *, offset: int = 0, validator: str | None = None) -> tuple[Head, bytes]:
    async with place.upstream.open(place.url("w"), offset=offset, validator=validator) as answer:
        body = b"".join([piece async for piece in answer.body()]) if answer.head.status < 400 else b""
        return answer.head, body


async def test_everything(place: Place) -> None:
    head, body = await ask(place)
    assert head.status == 200
    assert head.content_length == SIZE
    assert head.validator is not None
    assert head.validator.startswith('"')
    assert head.delimited
    assert body == CONTENT


async def test_the_rest_if_it_is_still_the_same(place: Place) -> None:
    first, _ = await ask(place)
    head, body = await ask(place, offset=1_000_000, validator=first.validator)
    assert head.status == 206
    assert head.content_range == ContentRange(1_000_000, SIZE - 1, SIZE)
    assert body == CONTENT[1_000_000:]


async def test_past_the_end(place: Place) -> None:
    head, _ = await ask(place, offset=SIZE)
    assert head.status == 416
    assert head.content_range == ContentRange(None, None, SIZE)


async def test_a_changed_file_shows(place: Place) -> None:
    first, _ = await ask(place)
    (place.folder / "w").write_bytes(CONTENT + b"!")
    second, _ = await ask(place)
    assert second.validator != first.validator


async def test_what_is_not_there(place: Place) -> None:
    """A file system refuses at once; a server says so in its head."""
    try:
        async with place.upstream.open(place.url("absent"), offset=0, validator=None) as answer:
            assert answer.head.status == 404
    except Refused as e:
        assert "absent" in e.text


async def test_leaving_in_mid_body_is_allowed(place: Place) -> None:
    async with place.upstream.open(place.url("w"), offset=0, validator=None) as answer:
        async for piece in answer.body():
            assert CONTENT.startswith(piece)
            break
    head, body = await ask(place)
    assert (head.status, body) == (200, CONTENT)


async def test_a_file_cut_short_under_a_reader_is_not_whole(tmp_path: Path) -> None:
    """Of files only: what a server does is tested with the scripted one."""
    (tmp_path / "w").write_bytes(CONTENT)
    threads = DiskThreads(1)
    upstream = FileUpstream([tmp_path], threads)
    received = 0
    async with upstream.open((tmp_path / "w").as_uri(), offset=0, validator=None) as answer:
        async for piece in answer.body():
            received += len(piece)
            (tmp_path / "w").write_bytes(CONTENT[:1_500_000])
    threads.close()
    assert received < SIZE
    assert answer.head.content_length == SIZE


async def test_nobody_there_is_passing() -> None:
    http = HttpUpstream(clock=SystemClock(), tokens={}, connect_timeout_s=1.0)
    with pytest.raises(Interrupted, match="does not answer"):
        async with http.open("http://127.0.0.1:1/w", offset=0, validator=None):
            pass
    await http.close()
