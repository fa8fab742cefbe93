"""Words from outside that no store takes, bodies that nobody can read: told as such, never a bug of ours."""

import asyncio
import gzip
import logging
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from llmgw_mirror.core.versions import Source, WeightsState

from .scripted import Exchange, Upstream
from .world import World, content_of, listening, world

DEEP = b"[" * 100_000
BODIES = {
    "deep": (DEEP, {}),
    "deep inside": (b'{"lacks":' + DEEP, {}),
    "unknown charset": (b"{}", {"Content-Type": "application/json; charset=zzz"}),
    "no gzip": (b"this is no gzip", {"Content-Encoding": "gzip"}),
    "half a gzip": (gzip.compress(b'{"lacks":"ff"}')[:12], {"Content-Encoding": "gzip"}),
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("path", ["next", "peers", "paths-info"])
async def test_a_body_that_nobody_can_read_is_refused(
    path: str, body: str, hub: Upstream, here: World, caplog: pytest.LogCaptureFixture
) -> None:
    await here.fetch(Source("w", hub.put("/w", content_of(1000))))
    sent, headers = BODIES[body]
    headers = {"Content-Type": "application/json", **headers}
    where = "/api/models/org/m/paths-info/v1" if path == "paths-info" else f"/v1/weights/org%2Fm/v1/{path}"
    async with listening(here) as at, aiohttp.ClientSession() as session:
        url = URL(f"http://{at}{where}", encoded=True)
        async with session.post(url, data=sent, headers=headers) as answer:
            status = answer.status
    # `{}` is a fair thing to say to `peers`, and names no path.
    fine = body == "unknown charset" and path != "next"
    assert status == (200 if fine else 400)
    assert not [record for record in caplog.records if record.exc_info]


async def odd_header(x: Exchange) -> None:
    await x.send(b"HTTP/1.1 200 OK\r\nContent-Encoding: \xff\xfe\r\nContent-Length: 1\r\n\r\nx")


async def test_a_byte_that_is_no_text_in_a_header_fails_the_file_once(
    hub: Upstream, here: World, caplog: pytest.LogCaptureFixture
) -> None:
    hub.acts += [odd_header] * 1000
    await here.fetch(Source("w", hub.put("/w", content_of(1000))))
    asked = len(hub.requests)
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            await here.built.upkeep.once()
        view = await here.settled()
    assert view.files[0].state is WeightsState.FAILED
    assert view.files[0].error is not None
    view.files[0].error.encode()
    assert len(hub.requests) == asked


async def test_a_failure_that_cannot_be_noted_for_whatever_reason_is_one_all_the_same(
    hub: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "store", attempts=1) as here:

        def bug(*args: object, **more: object) -> None:
            raise ValueError("a bug")

        monkeypatch.setattr(here.store, "put_failure", bug)
        hub.acts += [odd_header] * 1000
        async with asyncio.timeout(20):
            view = await here.fetch(Source("w", hub.put("/w", content_of(1000))))
        asked = len(hub.requests)
        for _ in range(5):
            await here.built.upkeep.once()
        assert view.files[0].state is WeightsState.FAILED
        assert len(hub.requests) == asked
