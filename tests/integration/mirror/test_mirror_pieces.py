"""What nodes that fetch one version together get from the mirror: hashes, each other, and pieces."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from llmgw_kit.addresses import HostPort
from llmgw_kit.errors import Unavailable
from llmgw_kit.pieces import Layout, bits_to_hex
from llmgw_kit.testing.clock import FakeClock
from llmgw_mirror.adapters.piece_hashes import PieceHashes
from llmgw_mirror.core.versions import Source

from .scripted import Exchange, Upstream
from .world import World, content_of, listening, sha256_of, until, world

PIECE = 64 << 10
BIG, SMALL = content_of(5 * PIECE + 100), content_of(PIECE - 1, seed=2)
FILES = {"a.bin": SMALL, "b.bin": BIG, "empty": b""}
LAYOUT = Layout(PIECE, [len(data) for data in FILES.values()])
ALL = bits_to_hex(LAYOUT.all, LAYOUT.count)
VERSION = "/v1/weights/org%2Fm/v1"


@dataclass
class Node:
    session: aiohttp.ClientSession
    at: HostPort

    async def get(self, path: str) -> tuple[int, Any, Mapping[str, str]]:
        async with self.session.get(URL(f"http://{self.at}{VERSION}/{path}", encoded=True)) as answer:
            return answer.status, json.loads(await answer.read()), answer.headers

    async def post(self, path: str, body: Any) -> tuple[int, bytes, Mapping[str, str]]:
        url = URL(f"http://{self.at}{VERSION}/{path}", encoded=True)
        async with self.session.post(url, data=json.dumps(body)) as answer:
            return answer.status, await answer.read(), answer.headers

    async def whole(self) -> Any:
        """The pieces, once all of them are hashed."""
        async with asyncio.timeout(20):
            while True:
                status, body, headers = await self.get("pieces")
                assert status == 200
                if all(file["pieces"] is not None for file in body["files"]):
                    assert "Retry-After" not in headers
                    return body
                assert headers["Retry-After"] == "1"
                await asyncio.sleep(0.01)


@pytest.fixture
async def node(hub: Upstream, here: World) -> AsyncIterator[Node]:
    await here.fetch(*(Source(path, hub.put(f"/{path}", data)) for path, data in FILES.items()))
    async with listening(here, piece_bytes=PIECE) as at, aiohttp.ClientSession() as session:
        yield Node(session, at)


def hashes(data: bytes) -> list[str]:
    return [sha256_of(data[at : at + PIECE]) for at in range(0, len(data), PIECE)]


async def test_each_piece_has_its_hash(node: Node) -> None:
    body = await node.whole()
    assert body["piece_bytes"] == PIECE
    assert {file["path"]: file["pieces"] for file in body["files"]} == {
        path: hashes(data) for path, data in FILES.items()
    }
    assert [file["path"] for file in body["files"]] == sorted(FILES)


async def test_hashes_are_made_once_and_made_again_when_lost_or_damaged(node: Node, here: World) -> None:
    first = await node.whole()
    kept = list((here.store.root / "pieces").glob("*/*.json"))
    assert [path.stem for path in kept] == [sha256_of(BIG)], "one piece is hashed by its file's own checksum"
    for damage in ("gone", "{", '{"format": 1}'):
        if damage == "gone":
            kept[0].unlink()
        else:
            kept[0].write_text(damage)
        async with listening(here, piece_bytes=PIECE) as at:
            assert await Node(node.session, at).whole() == first
        assert json.loads(kept[0].read_text())["pieces"] == hashes(BIG)


async def test_no_node_is_told_the_pieces_of_content_that_rotted(here: World, hub: Upstream) -> None:
    view = await here.fetch_one(hub.put("/w", BIG), sha256=sha256_of(BIG))
    assert view.sha256 is not None
    blob = here.store.blob(view.sha256)
    blob.chmod(0o600)
    blob.write_bytes(BIG[:PIECE] + b"\0" + BIG[PIECE + 1 :])
    told: list[str] = []
    made = PieceHashes(here.store, FakeClock(), piece_bytes=PIECE, on_damaged=told.append)
    assert await made.of(view.sha256, len(BIG)) is None
    await until(lambda: not made.making)
    assert told == [view.sha256]
    with pytest.raises(Exception, match="found damaged"):
        await made.of(view.sha256, len(BIG))
    assert not list((here.store.root / "pieces").glob("*/*.json"))
    await made.close()


async def test_pieces_that_cannot_be_noted_are_told_all_the_same(here: World, hub: Upstream) -> None:
    """A full or read-only disk: it is no fault of the content."""
    await here.fetch_one(hub.put("/w", BIG))
    (here.store.root / "pieces").write_bytes(b"")
    told: list[str] = []
    made = PieceHashes(here.store, FakeClock(), piece_bytes=PIECE, on_damaged=told.append)
    assert await made.of(sha256_of(BIG), len(BIG)) is None
    await until(lambda: not made.making)
    assert await made.of(sha256_of(BIG), len(BIG)) == tuple(hashes(BIG))
    assert told == []
    await made.close()


async def test_content_that_cannot_be_read_is_not_called_damaged(
    here: World, hub: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.fetch_one(hub.put("/w", BIG))
    (here.store.root / "aside").mkdir()
    told: list[str] = []
    clock = FakeClock()
    made = PieceHashes(here.store, clock, piece_bytes=PIECE, on_damaged=told.append)
    with monkeypatch.context() as patched:
        # What open(2) refuses here even to root, as a failing disk refuses read(2).
        patched.setattr(here.store, "blob", lambda sha256: here.store.root / "aside")
        assert await made.of(sha256_of(BIG), len(BIG)) is None
        await until(lambda: not made.making)
    with pytest.raises(Unavailable, match="Is a directory") as refused:
        await made.of(sha256_of(BIG), len(BIG))
    assert refused.value.code == "disk_trouble"
    assert "damaged" not in refused.value.text
    assert told == []
    await clock.advance(60.0)
    assert await made.of(sha256_of(BIG), len(BIG)) is None, "it is tried again"
    await until(lambda: not made.making)
    assert await made.of(sha256_of(BIG), len(BIG)) == tuple(hashes(BIG))
    await made.close()


async def test_what_was_found_wrong_is_remembered_for_a_minute_only(here: World, hub: Upstream) -> None:
    clock = FakeClock()
    made = PieceHashes(here.store, clock, piece_bytes=PIECE)
    for n in range(3):
        data = content_of(2 * PIECE, seed=10 + n)
        await here.fetch(Source("w", hub.put(f"/{n}", data)), version=f"v{n}")
        blob = here.store.blob(sha256_of(data))
        blob.chmod(0o600)
        blob.write_bytes(b"\0" * len(data))
        await made.of(sha256_of(data), len(data))
        await until(lambda: not made.making)
        assert made.refused == 1
        await clock.advance(61.0)
    await made.close()


async def test_what_is_published_is_hashed_before_anybody_asks(here: World, hub: Upstream) -> None:
    clock = FakeClock()
    made = PieceHashes(here.store, clock, piece_bytes=PIECE)
    watching = asyncio.create_task(made.watch(5.0))
    await until(lambda: clock.sleepers == 1)
    await here.fetch_one(hub.put("/w", BIG))
    await clock.advance(5.0)
    path = here.store.root / "pieces" / sha256_of(BIG)[:2] / f"{sha256_of(BIG)}.json"
    await until(path.exists)
    watching.cancel()
    await made.close()
    here.store.unlink_blob(sha256_of(BIG))
    made.sweep()
    assert not path.exists(), "hashes go with their content"


async def test_the_mirror_sends_each_piece_once_before_any_twice(node: Node) -> None:
    sent = []
    for _ in range(LAYOUT.count):
        status, body, headers = await node.post("next", {"lacks": ALL})
        assert status == 200
        piece = int(headers["X-Llmgw-Piece"])
        place = LAYOUT.place(piece)
        data = FILES[sorted(FILES)[place.file]]
        assert body == data[place.offset : place.offset + place.length]
        sent.append(piece)
    assert sorted(sent) == list(range(LAYOUT.count))
    assert await node.post("next", {"lacks": ALL}) is not None


async def test_only_what_a_node_lacks_is_sent(node: Node) -> None:
    for piece in (3, 3, 5):
        _, _, headers = await node.post("next", {"lacks": bits_to_hex(1 << piece, LAYOUT.count)})
        assert int(headers["X-Llmgw-Piece"]) == piece


async def test_nodes_hear_of_each_other_until_they_leave(node: Node) -> None:
    def says(n: int, **more: Any) -> dict[str, Any]:
        return {"url": f"http://node-{n}.test:8073", "have": bits_to_hex(1 << n, LAYOUT.count), **more}

    assert json.loads((await node.post("peers", says(0)))[1])["peers"] == []
    await node.post("peers", says(1, have=ALL))
    told = json.loads((await node.post("peers", says(2)))[1])
    assert told["interval_s"] == 5.0
    assert told["fetching"] == 1, "node 1 has it all, node 2 asks"
    assert {one["url"]: (one["have"], one["done"]) for one in told["peers"]} == {
        "http://node-0.test:8073": (says(0)["have"], False),
        "http://node-1.test:8073": (ALL, True),
    }
    assert len(json.loads((await node.post("peers", {}))[1])["peers"]) == 3, (
        "who gives nothing is not among them"
    )
    await node.post("peers", {"url": says(1)["url"], "left": True})
    told = json.loads((await node.post("peers", says(2)))[1])
    assert [one["url"] for one in told["peers"]] == ["http://node-0.test:8073"]


async def test_nodes_that_come_in_one_moment_are_one_swarm(node: Node) -> None:
    """The cold start of many nodes: none may begin a swarm that the others are not in."""

    def says(n: int) -> dict[str, Any]:
        return {"url": f"http://node-{n}.test:8073", "have": bits_to_hex(0, LAYOUT.count)}

    first = await asyncio.gather(*(node.post("next", {"lacks": ALL}) for _ in range(LAYOUT.count)))
    assert sorted(int(headers["X-Llmgw-Piece"]) for _, _, headers in first) == list(range(LAYOUT.count))
    await asyncio.gather(*(node.post("peers", says(n)) for n in range(10)))
    told = json.loads((await node.post("peers", says(10)))[1])
    assert len(told["peers"]) == 10


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("peers", []),
        ("peers", {"url": "ftp://node.test:1", "have": ALL}),
        ("peers", {"url": "http://node.test:1/path", "have": ALL}),
        ("peers", {"url": "http://user@node.test:1", "have": ALL}),
        ("peers", {"url": "http://node.test", "have": ALL}),
        ("peers", {"url": "http://node.test:99999", "have": ALL}),
        ("peers", {"url": "http://node.test:1\n", "have": ALL}),
        ("peers", {"url": "http://node.test:1", "have": "zz"}),
        ("peers", {"url": "http://node.test:1", "have": "ff" * 100}),
        ("peers", {"url": "http://node.test:1", "have": "ff"}),
        ("next", {"lacks": 7}),
        ("next", {"lacks": "00"}),
        ("next", {}),
    ],
)
async def test_nonsense_is_refused_in_words(node: Node, path: str, body: Any) -> None:
    status, said, _ = await node.post(path, body)
    assert status == 400
    assert json.loads(said)["error"]["message"]


async def test_versions_that_are_not_here_have_no_pieces(node: Node, here: World, hub: Upstream) -> None:
    async def status(version: str) -> int:
        url = URL(f"http://{node.at}/v1/weights/org%2Fm/{version}/pieces", encoded=True)
        async with node.session.get(url) as answer:
            return answer.status

    assert await status("v2") == 404

    async def gone(exchange: Exchange) -> None:
        await exchange.head(404, Content_Length=0)

    hub.acts_on["/gone"] = gone
    await here.fetch(Source("w", hub.url("/gone")), version="v3")
    assert await status("v3") == 503


async def test_who_comes_later_waits_in_line_until_a_reader_is_done(tmp_path: Path, hub: Upstream) -> None:
    """And a reader that left is done: it does not keep its place."""
    large = os.urandom(32 << 20)
    async with world(tmp_path / "store", piece_uploads=1) as here:
        await here.fetch_one(hub.put("/w", large))
        async with listening(here, piece_bytes=len(large)) as at, aiohttp.ClientSession() as session:
            url = URL(f"http://{at}{VERSION}/next", encoded=True)
            takes_nothing = await session.post(url, data='{"lacks": "01"}')
            assert here.answers is not None
            assert here.answers.served.open == 1
            second = asyncio.create_task(Node(session, at).post("next", {"lacks": "01"}))
            for _ in range(5):  # others are answered meanwhile, it is not
                await Node(session, at).post("peers", {})
            assert (second.done(), here.answers.served.open) == (False, 1)
            takes_nothing.close()
            async with asyncio.timeout(20):
                status, body, _ = await second
            assert (status, body == large) == (200, True)


def test_the_numbering_is_that_of_the_listing() -> None:
    assert [LAYOUT.place(n).file for n in range(LAYOUT.count)] == [0] + [1] * 6
    assert LAYOUT.place(6).length == 100
