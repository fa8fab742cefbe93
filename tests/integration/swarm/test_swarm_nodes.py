"""Several nodes that fetch one version at once, from a real mirror with a narrow link and from each other."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from llmgw_agent.adapters.fetching import FetchLimits, Weights
from llmgw_agent.adapters.metrics_pieces import PieceMetrics
from llmgw_agent.adapters.mirror_client import MirrorClient
from llmgw_agent.adapters.piece_client import PieceClient
from llmgw_agent.adapters.piece_files import PieceFiles
from llmgw_agent.adapters.weights_store import PartialFile, WeightsStore
from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import SystemClock
from llmgw_kit.errors import Unavailable
from llmgw_mirror.adapters.piece_hashes import DISK_TROUBLE, PieceHashes
from llmgw_mirror.core.versions import Source
from tests.integration.mirror.scripted import upstream
from tests.integration.mirror.world import World, content_of, listening, sha256_of, until, world

from .swarm_bench import KEY, Lying, Narrow, Node, narrow, node

PIECE = 64 << 10
#: 60 pieces and a bit, in two files, beside small ones.
FILES = {
    "config.json": b"{}",
    "empty": b"",
    "sub/one.bin": content_of(30 * PIECE + 17, seed=1),
    "two.bin": content_of(30 * PIECE, seed=2),
}
BYTES = sum(len(data) for data in FILES.values())
COUNT = 1 + 31 + 30
#: What one copy takes over the mirror's link.
COPY_S = 2.0


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path / "store") as made, upstream() as hub:
        sources = (Source(path, hub.put(f"/{path}", data), sha256_of(data)) for path, data in FILES.items())
        await made.fetch(*sources)
        yield made


@pytest.fixture
async def at(here: World) -> AsyncIterator[HostPort]:
    async with listening(here, piece_bytes=PIECE) as address:
        yield address


@pytest.fixture
async def link(at: HostPort) -> AsyncIterator[Narrow]:
    async with narrow(at, BYTES / COPY_S) as made:
        yield made


class Held:
    """A method of a class whose calls begin, and go on when they are let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self._real, self._go = getattr(owner, name), threading.Event()
        self._begun = self._ended = 0
        monkeypatch.setattr(owner, name, lambda *args: self._call(*args))

    def _call(self, *args: Any) -> None:
        self._begun += 1
        assert self._go.wait(30)
        self._real(*args)
        self._ended += 1

    async def cancelled(self, fetch: "asyncio.Task[Any]") -> None:
        """Cancel it amid a call, and see that it ends with those that had begun."""
        try:
            await until(lambda: self._begun > 0)
            fetch.cancel()
            for _ in range(1000):
                await asyncio.sleep(0)  # many turns of the loop; it must not end in any
            assert not fetch.done()
        finally:
            self._go.set()
        await asyncio.gather(fetch, return_exceptions=True)
        assert fetch.cancelled()
        assert self._ended == self._begun


async def nodes(stack: AsyncExitStack, folder: Path, count: int) -> list[Node]:
    return [await stack.enter_async_context(node(folder / f"n{n}")) for n in range(count)]


async def test_four_nodes_cost_the_mirror_little_more_than_one_copy(link: Narrow, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        four = await nodes(stack, tmp_path, 4)
        await asyncio.gather(*(one.fetch(link.url) for one in four))
        assert all(one.files() == FILES for one in four)
        assert link.passed < 2 * BYTES, f"{link.passed / BYTES:.2f} copies left the mirror"
        assert sum(one.pieces.from_peers for one in four) > 2 * BYTES
        seen = pages(*four)
        assert seen["given"] >= seen["node"], "and some of it twice, at the end"
        assert seen["node"] + seen["mirror"] >= 4 * BYTES
        print(f"{link.passed / BYTES:.2f} copies left the mirror for four nodes")


def pages(*nodes: Node) -> dict[str, float]:
    """What the metrics pages of these say of pieces, together."""
    total: dict[str, float] = {}
    for one in nodes:
        for metric in PieceMetrics(one.pieces, one.sharing).collect():
            for sample in metric.samples:
                assert sample.name in (
                    "llmgw_agent_pieces_taken_bytes_total",
                    "llmgw_agent_pieces_given_bytes_total",
                )
                name = sample.labels.get("source", "given")
                total[name] = total.get(name, 0) + sample.value
    return total


async def test_with_peers_off_each_node_costs_a_copy(link: Narrow, tmp_path: Path) -> None:
    link.bytes_s = BYTES * 10
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        two = [await stack.enter_async_context(node(tmp_path / f"n{n}", peers=False)) for n in range(2)]
        await asyncio.gather(*(one.fetch(link.url) for one in two))
        assert all(one.files() == FILES for one in two)
        assert link.passed > 2 * BYTES
        assert not any(one.pieces.from_peers or one.sharing.sent_bytes for one in two)


async def test_a_mirror_whose_disk_gives_no_pieces_is_asked_for_whole_files(
    link: Narrow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def of(hashes: PieceHashes, sha256: str, size: int) -> None:
        raise Unavailable(f"content {sha256} cannot be read", code=DISK_TROUBLE, retry_after_s=60.0)

    monkeypatch.setattr(PieceHashes, "of", of)
    link.bytes_s = BYTES * 10
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        (one,) = await nodes(stack, tmp_path, 1)
        await one.fetch(link.url)
        assert one.files() == FILES


async def test_a_node_that_dies_half_way_stops_nobody(link: Narrow, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        four = await nodes(stack, tmp_path, 4)
        fetches = [asyncio.create_task(one.fetch(link.url)) for one in four]
        await until(lambda: four[0].sharing.sent_bytes > 5 * PIECE)
        fetches[0].cancel()
        await four[0].die()
        await asyncio.gather(*fetches[1:])
        assert all(one.files() == FILES for one in four[1:])
        assert link.passed < 3 * BYTES


async def test_a_node_that_lies_is_blamed_and_its_pieces_come_from_others(
    link: Narrow, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        liar = await stack.enter_async_context(node(tmp_path / "liar", sharing=Lying()))
        three = await nodes(stack, tmp_path, 3)
        # It has all of it when the others come, so that they hear of it before they are done.
        await liar.fetch(link.url)
        await asyncio.gather(*(one.fetch(link.url) for one in three))
        assert all(one.files() == FILES for one in (liar, *three))
        assert isinstance(liar.sharing, Lying)
        # So many may have been on their way when the first was found out.
        assert 1 <= liar.sharing.lies <= 3 * 2
        assert f"from {liar.url} is wrong" in caplog.text


async def went_round(one: Node, other: Node) -> None:
    """Until one of the two has all that is out: the first to come hears of the second 5 s later. Bounded."""
    client = PieceClient(*one.sessions)
    async with asyncio.timeout(30):
        while True:
            here, there = [await client.have(node.url, KEY, COUNT) for node in (one, other)]
            if here | there in (here, there):
                return
            await asyncio.sleep(0.01)


async def test_the_mirror_gone_half_way_is_waited_for_while_nodes_share_what_is_out(
    link: Narrow, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        two = await nodes(stack, tmp_path, 2)
        fetches = [asyncio.create_task(one.fetch(link.url)) for one in two]
        await until(lambda: link.passed > BYTES // 2)
        link.break_off()
        await went_round(*two)
        link.cut = False
        await asyncio.gather(*fetches)
        assert all(one.files() == FILES for one in two)
        assert link.passed < 2 * BYTES


async def test_whoever_comes_later_gets_it_from_those_that_are_done(link: Narrow, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        first, second = await nodes(stack, tmp_path, 2)
        await first.fetch(link.url)
        passed = link.passed
        await second.fetch(link.url)
        assert second.files() == FILES
        assert second.pieces.from_peers > BYTES // 2
        assert link.passed - passed < BYTES


async def test_a_fetch_goes_on_with_the_pieces_that_are_here_and_right(link: Narrow, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        (one,) = await nodes(stack, tmp_path, 1)
        fetch = asyncio.create_task(one.fetch(link.url))
        await until(lambda: link.passed > BYTES // 2)
        fetch.cancel()
        await asyncio.gather(fetch, return_exceptions=True)
        partial = one.weights.store.partial(KEY) / "files"
        assert not one.weights.store.folder(KEY).exists()
        # A bit that turned on the disk meanwhile costs its piece.
        victim = next(path for path in (partial / "two.bin", partial / "sub/one.bin") if path.exists())
        data = bytearray(victim.read_bytes())
        data[-1] ^= 1
        victim.write_bytes(data)
        before = link.passed
        await one.fetch(link.url)
        assert one.files() == FILES
        assert link.passed - before < BYTES * 0.75


async def test_a_cancelled_fetch_ends_when_its_writers_have(
    link: Narrow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes next may remove the files, or publish them."""
    held = Held(monkeypatch, PieceFiles, "write")
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        (one,) = await nodes(stack, tmp_path, 1)
        await held.cancelled(asyncio.create_task(one.fetch(link.url)))


async def test_a_cancelled_fetch_of_whole_files_leaves_what_came_and_nothing_twice(
    link: Narrow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, PartialFile, "append")
    link.bytes_s = BYTES * 10
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        store, limits = WeightsStore(tmp_path / "n"), FetchLimits(reserve_bytes=0)
        weights = Weights(store, MirrorClient(session), SystemClock(), limits)
        await held.cancelled(asyncio.create_task(weights.fetch(KEY, [link.url], lambda _: None)))
        partial = store.partial(KEY) / "files"
        came = {
            str(path.relative_to(partial)): path.read_bytes() for path in partial.rglob("*") if path.is_file()
        }
        assert any(came.values())
        assert all(FILES[path].startswith(data) for path, data in came.items())


async def test_a_version_that_is_removed_is_shared_no_more(link: Narrow, tmp_path: Path) -> None:
    link.bytes_s = BYTES * 10
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        first, second = await nodes(stack, tmp_path, 2)
        await first.fetch(link.url)
        client = PieceClient(*second.sessions)
        assert await client.have(first.url, KEY, COUNT) == (1 << COUNT) - 1
        await first.weights.remove(KEY)
        with pytest.raises(Unavailable, match="404"):
            await client.have(first.url, KEY, COUNT)
        await second.fetch(link.url)
        assert second.files() == FILES
        assert second.pieces.from_peers == 0
