"""What nodes get over HTTP: states, ranges as curl uses them, verified bytes only."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from llmgw_kit.addresses import HostPort
from llmgw_mirror.core.versions import Source

from . import scripted
from .scripted import Upstream
from .world import World, content_of, listening, sha256_of, until, world

BIG = content_of(2_000_000)
SHA = sha256_of(BIG)
SIZE = len(BIG)
VERSION = "/v1/weights/org%2Fm/v1"
FILE = VERSION + "/files/sub/w.bin"


@dataclass
class Answer:
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    session: aiohttp.ClientSession
    at: HostPort

    async def __call__(self, path: str, method: str = "GET", **headers: str) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        url = URL(f"http://{self.at}{path}", encoded=True)
        async with self.session.request(method, url, headers=given) as answer:
            return Answer(answer.status, answer.headers, await answer.read())


@pytest.fixture
async def get(here: World) -> AsyncIterator[Client]:
    # One connection for everything: what is left in it of one answer would spoil the next.
    connector = aiohttp.TCPConnector(limit=1)
    async with (
        listening(here) as at,
        aiohttp.ClientSession(connector=connector, auto_decompress=False) as session,
    ):
        yield Client(session, at)


@pytest.fixture
async def present(hub: Upstream, here: World) -> None:
    await here.fetch(Source("sub/w.bin", hub.put("/w", BIG), SHA), Source("empty", hub.put("/e", b"")))


@pytest.mark.usefixtures("present")
async def test_what_a_version_consists_of(get: Client) -> None:
    answer = await get(VERSION)
    assert answer.status == 200
    assert answer.json["state"] == "present"
    assert (answer.json["model"], answer.json["version"]) == ("org/m", "v1")
    (empty, weights) = answer.json["files"]
    assert (weights["path"], weights["size"], weights["sha256"]) == ("sub/w.bin", SIZE, SHA)
    assert (empty["path"], empty["size"]) == ("empty", 0)


@pytest.mark.usefixtures("present")
async def test_a_whole_file_again_and_again_over_one_connection(get: Client) -> None:
    for _ in range(3):
        answer = await get(FILE)
        assert answer.status == 200
        assert answer.body == BIG
        assert answer.headers["ETag"] == f'"{SHA}"'
        assert answer.headers["Accept-Ranges"] == "bytes"
        assert answer.headers["Content-Length"] == str(SIZE)
        assert "Content-Encoding" not in answer.headers


@pytest.mark.usefixtures("present")
@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-", 0, SIZE),
        ("bytes=5-9", 5, 10),
        ("bytes=0-0", 0, 1),
        (f"bytes={SIZE - 1}-", SIZE - 1, SIZE),
        (f"bytes=100-{SIZE * 2}", 100, SIZE),
        ("bytes=-7", SIZE - 7, SIZE),
        (f"bytes=-{SIZE * 2}", 0, SIZE),
        ("bytes=700000-", 700_000, SIZE),
    ],
)
async def test_ranges(get: Client, asked: str, start: int, end: int) -> None:
    answer = await get(FILE, Range=asked)
    assert answer.status == 206
    assert answer.headers["Content-Range"] == f"bytes {start}-{end - 1}/{SIZE}"
    assert answer.headers["Content-Length"] == str(end - start)
    assert answer.body == BIG[start:end]


@pytest.mark.usefixtures("present")
@pytest.mark.parametrize("asked", [f"bytes={SIZE}-", f"bytes={SIZE + 5}-{SIZE + 9}", "bytes=-0"])
async def test_ranges_that_cannot_be_had(get: Client, asked: str) -> None:
    answer = await get(FILE, Range=asked)
    assert answer.status == 416
    assert answer.headers["Content-Range"] == f"bytes */{SIZE}"
    assert (await get(FILE, Range="bytes=0-0")).body == BIG[:1]


@pytest.mark.usefixtures("present")
@pytest.mark.parametrize("asked", ["bytes=0-1,5-6", "bytes=9-5", "items=0-1", "bytes=x"])
async def test_ranges_that_are_not_understood_are_ignored(get: Client, asked: str) -> None:
    answer = await get(FILE, Range=asked)
    assert (answer.status, len(answer.body)) == (200, SIZE)


@pytest.mark.usefixtures("present")
async def test_conditions(get: Client) -> None:
    same, other = f'"{SHA}"', '"another"'
    assert (await get(FILE, Range="bytes=5-", If_Range=same)).status == 206
    assert (await get(FILE, Range="bytes=5-", If_Range=other)).status == 200
    assert (await get(FILE, Range="bytes=5-", If_Range="Mon, 30 Nov 2026 06:00:00 GMT")).status == 200
    unchanged = await get(FILE, If_None_Match=same)
    assert (unchanged.status, unchanged.body) == (304, b"")
    assert (await get(FILE, If_None_Match=other)).status == 200


@pytest.mark.usefixtures("present")
async def test_head(get: Client) -> None:
    answer = await get(FILE, "HEAD", Range="bytes=5-")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["Content-Length"] == str(SIZE)
    assert answer.headers["ETag"] == f'"{SHA}"'
    assert (await get(FILE, Range="bytes=0-0")).body == BIG[:1]


@pytest.mark.usefixtures("present")
async def test_an_empty_file(get: Client) -> None:
    answer = await get(VERSION + "/files/empty")
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", "0")


@pytest.mark.usefixtures("present")
async def test_a_quoted_slash_in_a_path_is_a_slash(get: Client) -> None:
    assert (await get(VERSION + "/files/sub%2Fw.bin", Range="bytes=0-2")).body == BIG[:3]


@pytest.mark.usefixtures("present")
@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/weights/org%2Fm/v2", 404, "unknown_version"),
        ("/v1/weights/org/m/v1", 404, "unknown_url"),
        ("/v1/weights/org%2Fm", 404, "unknown_url"),
        ("/v1/weights/", 404, "unknown_url"),
        (VERSION + "/files", 404, "unknown_url"),
        (VERSION + "/files/other", 404, "unknown_file"),
        (VERSION + "/files/..%2f..%2fstore.json", 400, "invalid_request"),
        (VERSION + "/files/../../store.json", 400, "invalid_request"),
        (VERSION + "/files/%2e%2e/x", 400, "invalid_request"),
        (VERSION + "/files//etc/passwd", 400, "invalid_request"),
        (VERSION + "/files/a%00b", 400, "invalid_request"),
        (VERSION + "/files/a%ffb", 400, "invalid_request"),
        ("/v1/weights/..%2f..%2fx/v1", 400, "invalid_request"),
        ("/v1/other", 404, "unknown_url"),
    ],
)
async def test_other_addresses(get: Client, path: str, status: int, code: str) -> None:
    answer = await get(path)
    assert answer.status == status
    assert answer.json["error"]["code"] == code
    assert "Traceback" not in answer.body.decode()


async def test_a_method_that_is_not_offered(get: Client) -> None:
    answer = await get(VERSION, "DELETE")
    assert answer.status == 405
    assert "GET" in answer.headers["Allow"]


async def test_on_its_way(hub: Upstream, here: World, get: Client) -> None:
    hub.acts.extend([scripted.stall(1_000_000), scripted.silent])
    await here.mirror.fetch("org/m", "v1", [Source("sub/w.bin", hub.put("/w", BIG), SHA, SIZE)])
    await here.received(1_000_000)
    for path in (VERSION, FILE):
        answer = await get(path)
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.json["state"] == "fetching"
        assert (answer.json["received_bytes"], answer.json["total_bytes"]) == (1_000_000, SIZE)
        assert "eta_s" in answer.json


async def test_a_file_that_is_here_is_served_while_another_is_not(
    hub: Upstream, here: World, get: Client
) -> None:
    files = [Source("small", hub.put("/s", b"small")), Source("w", hub.put("/w", BIG))]
    hub.acts_on["/w"] = scripted.stall(0)
    await here.mirror.fetch("org/m", "v1", files)
    await until(lambda: len(here.blobs()) == 1)
    while (answer := await get(VERSION + "/files/small")).status == 503:
        await asyncio.sleep(0.01)
    assert answer.body == b"small"
    assert (await get(VERSION)).status == 503


async def test_failed(hub: Upstream, here: World, get: Client) -> None:
    hub.acts.append(scripted.status(404))
    await here.fetch(Source("sub/w.bin", hub.put("/w", BIG)))
    for path in (VERSION, FILE):
        answer = await get(path)
        assert answer.status == 502
        assert answer.json["state"] == "failed"
        assert "sub/w.bin: upstream answered 404" in answer.json["error"]


@pytest.mark.usefixtures("present")
async def test_a_reader_finishes_although_the_version_is_removed(here: World, get: Client) -> None:
    async with get.session.get(URL(f"http://{get.at}{FILE}", encoded=True)) as answer:
        first = await answer.content.readexactly(1000)
        await here.removed("org/m", "v1")
        assert here.blobs() == []
        assert first + await answer.read() == BIG
    assert (await get(FILE)).status == 404


@pytest.mark.usefixtures("present")
async def test_twenty_readers_at_once(here: World) -> None:
    async with listening(here) as at, aiohttp.ClientSession() as session:
        client = Client(session, at)
        answers = await asyncio.gather(*(client(FILE, Range=f"bytes={n * 1000}-") for n in range(20)))
    for n, answer in enumerate(answers):
        assert answer.body == BIG[n * 1000 :]


async def test_a_client_that_leaves_or_takes_nothing_costs_nobody_else(
    hub: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # More than the kernel holds for a connection nobody reads.
    huge = content_of(16_000_000)
    async with world(tmp_path / "store", send_stall_s=0.2) as here:
        await here.fetch(Source("sub/w.bin", hub.put("/w", huge)))
        async with listening(here) as at, aiohttp.ClientSession() as session:
            lazy_reader, lazy = await asyncio.open_connection(at.host, at.port, limit=1024)
            lazy.write(f"GET {FILE} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            _, rude = await asyncio.open_connection(at.host, at.port)
            rude.write(f"GET {FILE} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await rude.drain()
            rude.transport.abort()
            assert (await Client(session, at)(FILE)).body == huge
            # It reads its head, then no more; the mirror gives up on it, and the rest never comes.
            await lazy_reader.readuntil(b"\r\n\r\n")
            answers = here.answers
            assert answers is not None
            await until(lambda: answers.served.open == 0)
            taken = 0
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                while piece := await lazy_reader.read(1 << 20):
                    taken += len(piece)
                raise asyncio.IncompleteReadError(b"", len(huge))
            assert taken < len(huge)
            assert [r for r in caplog.records if r.levelname == "ERROR"] == []
            lazy.close()
