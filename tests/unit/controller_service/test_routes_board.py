"""Routes in versions, for routers that come, fall behind, and acknowledge."""

import asyncio
from dataclasses import replace

import pytest

from llmgw.v1 import routing_pb2 as pb
from llmgw_controller.core.routes import Endpoint, FleetSummary, RouteTable
from llmgw_controller.routes_board import DELTAS_KEPT, HEARTBEAT_S, Acknowledged, RoutesBoard, Watcher
from llmgw_kit.errors import Conflict
from llmgw_kit.ids import LeaseTerm, ModelId, NodeId, ReplicaId, RouterId

R1, R2 = RouterId("r1"), RouterId("r2")


def endpoint(name: str, *, draining: bool = False) -> Endpoint:
    return Endpoint(
        endpoint_id=f"{name}@1", replica_id=ReplicaId(name), group_epoch=1, model=ModelId("m"),
        url="http://h:1", pool="", weight=1, node_id=NodeId("n"), draining=draining, credential=None,
    )  # fmt: skip


def table(*rows: Endpoint, ready: int = 0) -> RouteTable:
    return RouteTable({row.endpoint_id: row for row in rows}, {}, FleetSummary(replicas_ready=ready))


class Reader:
    """A router that applies what it hears."""

    def __init__(self, board: RoutesBoard, router_id: RouterId = R1, incarnation: str = "i") -> None:
        self.watcher: Watcher = board.watch(router_id, incarnation)
        self._messages = board.messages(self.watcher)
        self.version = 0
        self.names: set[str] = set()
        self.kinds: list[str] = []

    async def take(self) -> None:
        message: pb.WatchRoutesResponse = await asyncio.wait_for(anext(self._messages), 5)
        kind = message.WhichOneof("body")
        self.kinds.append(str(kind))
        if kind == "snapshot":
            self.names = {row.endpoint_id for row in message.snapshot.endpoints}
        else:
            assert message.version == self.version + 1
            self.names -= set(message.delta.remove_endpoint_ids)
            self.names |= {row.endpoint_id for row in message.delta.upsert_endpoints}
        self.version = message.version


@pytest.fixture
def board() -> RoutesBoard:
    return RoutesBoard(LeaseTerm(7))


async def test_a_snapshot_first_then_deltas_without_a_gap(board: RoutesBoard) -> None:
    board.publish(table(endpoint("m/1")), 0.0)
    reader = Reader(board)
    await reader.take()
    board.publish(table(endpoint("m/1"), endpoint("m/2")), 1.0)
    board.publish(table(endpoint("m/2")), 2.0)
    await reader.take()
    await reader.take()
    assert reader.kinds == ["snapshot", "delta", "delta"]
    assert (reader.names, reader.version) == ({"m/2@1"}, board.version)


async def test_a_watcher_before_the_first_pass_waits_for_it(board: RoutesBoard) -> None:
    reader = Reader(board)
    taking = asyncio.create_task(reader.take())
    await asyncio.sleep(0)
    assert not taking.done()
    board.publish(table(), 0.0)
    await taking
    assert reader.kinds == ["snapshot"]


async def test_who_is_too_far_behind_gets_the_whole_table(board: RoutesBoard) -> None:
    board.publish(table(), 0.0)
    reader = Reader(board)
    await reader.take()
    for number in range(DELTAS_KEPT + 1):
        board.publish(table(endpoint(f"m/{number}")), 1.0)
    await reader.take()
    assert reader.kinds == ["snapshot", "snapshot"]
    assert reader.names == {f"m/{DELTAS_KEPT}@1"}


async def test_an_unchanged_table_is_said_again_only_after_a_while(board: RoutesBoard) -> None:
    board.publish(table(), 0.0)
    board.publish(table(), HEARTBEAT_S - 0.1)
    assert board.version == 1
    board.publish(table(), HEARTBEAT_S)
    assert board.version == 2


async def test_the_end_of_a_term_ends_every_stream(board: RoutesBoard) -> None:
    board.publish(table(), 0.0)
    watcher = board.watch(R1, "i")
    ending = asyncio.create_task(_all(board, watcher))
    await asyncio.sleep(0)
    board.end()
    assert [message.version for message in await ending] == [1]


async def test_a_second_stream_of_a_router_ends_the_first(board: RoutesBoard) -> None:
    board.publish(table(), 0.0)
    first = board.watch(R1, "a")
    ending = asyncio.create_task(_all(board, first))
    await asyncio.sleep(0)
    second = board.watch(R1, "b")
    with pytest.raises(Conflict):
        await ending
    board.leave(first)
    assert board.watching == {R1}
    board.leave(second)
    assert board.watching == frozenset()


async def _all(board: RoutesBoard, watcher: Watcher) -> list[pb.WatchRoutesResponse]:
    return [message async for message in board.messages(watcher)]


DRAINING = endpoint("m/1", draining=True)
MEMBERS = [(R1, "a"), (R2, "b")]


def word(incarnation: str, *drained: str) -> Acknowledged:
    return Acknowledged(incarnation, 1, frozenset(drained))


@pytest.mark.parametrize(
    ("words", "members", "drained"),
    [
        ({}, MEMBERS, set()),
        ({R1: word("a", "m/1@1")}, MEMBERS, set()),
        ({R1: word("a", "m/1@1"), R2: word("b")}, MEMBERS, set()),
        ({R1: word("a", "m/1@1"), R2: word("older", "m/1@1")}, MEMBERS, set()),
        ({R1: word("a", "m/1@1"), R2: word("b", "m/1@1")}, MEMBERS, {"m/1@1"}),
        ({R1: word("a", "m/1@1", "m/2@1")}, MEMBERS[:1], {"m/1@1"}),
        ({}, [], {"m/1@1"}),
    ],
    ids=[
        "nobody",
        "one",
        "one not yet",
        "an earlier life",
        "both",
        "not draining is not drained",
        "no routers",
    ],
)
def test_drained_is_what_every_member_has_seen_through(
    board: RoutesBoard,
    words: dict[RouterId, Acknowledged],
    members: list[tuple[RouterId, str]],
    drained: set[str],
) -> None:
    board.publish(table(DRAINING, endpoint("m/2")), 0.0)
    for router_id, said in words.items():
        board.acknowledge(router_id, said)
    assert board.drained(members) == drained


def test_only_news_of_drains_is_worth_a_pass(board: RoutesBoard) -> None:
    assert board.acknowledge(R1, word("a"))
    assert not board.acknowledge(R1, replace(word("a"), version=2))
    assert board.acknowledge(R1, word("a", "m/1@1"))
    assert board.acknowledge(R1, word("b", "m/1@1"))


async def test_a_mark_that_went_and_came_back_wants_a_word_of_its_own(board: RoutesBoard) -> None:
    """A drain was taken back and begun again: what a router said of the first says nothing of the second."""
    board.publish(table(endpoint("m/1", draining=True)), 0.0)
    board.acknowledge(R1, Acknowledged("i", board.version, frozenset({"m/1@1"})))
    assert board.drained([(R1, "i")]) == {"m/1@1"}
    board.publish(table(endpoint("m/1")), 1.0)
    assert board.drained([(R1, "i")]) == frozenset()
    board.publish(table(endpoint("m/1", draining=True)), 2.0)
    assert board.drained([(R1, "i")]) == frozenset()
    assert board.acknowledge(R1, Acknowledged("i", board.version, frozenset({"m/1@1"}))), "news for a pass"
    assert board.drained([(R1, "i")]) == {"m/1@1"}
    assert not board.acknowledge(R1, Acknowledged("i", board.version, frozenset({"m/1@1"})))
