"""Following the leading controller over real gRPC: failover, stale terms, gaps, acks, kept routes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from llmgw.v1 import routing_pb2 as pb
from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import SystemClock
from llmgw_kit.errors import StartupError
from llmgw_kit.listeners import bind
from llmgw_kit.telemetry import serve_http
from llmgw_router.activations import Activations
from llmgw_router.adapters.controller import GrpcControllers, Identity
from llmgw_router.adapters.probe import HttpProbe
from llmgw_router.adapters.routes_file import RoutesFile, StateFolder
from llmgw_router.board import Board, Source
from llmgw_router.core.table import EndpointRow
from llmgw_router.leader import LeaderFollower
from llmgw_router.loops import keep_routes, use_kept_routes
from llmgw_router.relay.ipc import ActivationRefused, StartPhase, TableUpdate
from llmgw_router.relay.slots import EndpointActivity

from .routing_bench import BOUND_S, RoutingBench, benches, endpoint, model, until

URL = "http://127.0.0.1:9"
IDENTITY = Identity(router_id="r1", incarnation="i1", version="0.1.0")


class Workers:
    """Takes tables as a pool does, and applies them when the test says so."""

    def __init__(self) -> None:
        self.tables: list[TableUpdate] = []
        self.refused: list[ActivationRefused] = []
        self.phases: list[StartPhase] = []
        self.held: dict[str, int] = {}

    def push_table(self, update: TableUpdate) -> None:
        self.tables.append(update)

    def refuse(self, refusal: ActivationRefused) -> None:
        self.refused.append(refusal)

    def tell_phase(self, phase: StartPhase) -> None:
        self.phases.append(phase)

    def activity(self) -> list[tuple[EndpointRow, EndpointActivity]]:
        return []


class Follower:
    """The loops of one router, running."""

    def __init__(self, *addresses: HostPort) -> None:
        self.workers = Workers()
        self.board = Board(self.workers, SystemClock())
        self.follower = LeaderFollower(GrpcControllers(IDENTITY), addresses, self.board, SystemClock())

    @property
    def endpoints(self) -> list[str]:
        return sorted(self.board.routes.endpoints)


@contextlib.asynccontextmanager
async def following(*addresses: HostPort) -> AsyncIterator[Follower]:
    one = Follower(*addresses)
    task = asyncio.create_task(one.follower.run())
    try:
        yield one
    finally:
        assert not task.done(), task
        task.cancel()
        await asyncio.wait([task])


async def test_a_snapshot_then_deltas_reach_the_workers_whole() -> None:
    async with RoutingBench() as bench:
        bench.endpoints["a/1@1"] = endpoint("a/1@1", "a", URL)
        bench.models["a"] = model("a", pb.MODEL_AVAILABILITY_READY)
        async with following(bench.address) as one:
            await until(lambda: one.board.source is Source.CONTROLLER, "snapshot")
            bench.put(endpoint("a/2@1", "a", URL))
            await until(lambda: one.endpoints == ["a/1@1", "a/2@1"], "second endpoint")
            bench.drop("a/1@1")
            await until(lambda: one.endpoints == ["a/2@1"], "removal")
    assert [sorted(row.endpoint_id for row in table.endpoints) for table in one.workers.tables] == [
        ["a/1@1"],
        ["a/1@1", "a/2@1"],
        ["a/2@1"],
    ]
    assert [(table.term, table.version) for table in one.workers.tables] == [(1, 1), (1, 2), (1, 3)]
    watch = bench.watches[0]
    assert (watch.router_id, watch.incarnation, watch.version) == ("r1", "i1", "0.1.0")
    assert not watch.HasField("highest_term_seen")


async def test_a_standby_is_left_for_the_leader_it_names_even_if_no_list_has_it() -> None:
    leader = RoutingBench()
    async with leader:
        standby = RoutingBench(leading=False, leader=leader.address)
        async with standby, following(standby.address) as one:
            await until(lambda: one.follower.leader == leader.address, "leader")


async def test_routing_goes_on_without_a_controller_and_the_next_leader_is_found() -> None:
    first, second = RoutingBench(term=4), RoutingBench(term=5, leading=False)
    first.endpoints["a/1@1"] = endpoint("a/1@1", "a", URL)
    async with benches(first, second):
        second.leader = first.address
        async with following(second.address, first.address) as one:
            await until(lambda: one.endpoints == ["a/1@1"], "routes of the first leader")
            await first.stop()
            await until(lambda: one.follower.leader is None, "loss")
            assert one.endpoints == ["a/1@1"]
            assert len(one.workers.tables) == 1
            second.endpoints = dict(first.endpoints)
            second.put(endpoint("a/1@2", "a", URL))
            second.leading = True
            await until(lambda: one.follower.leader == second.address, "second leader")
            assert one.endpoints == ["a/1@1", "a/1@2"]
            assert second.watches[-1].highest_term_seen == 4


async def test_a_leader_of_a_past_term_is_not_believed() -> None:
    new, old = RoutingBench(term=7), RoutingBench(term=6)
    new.endpoints["a/1@1"] = endpoint("a/1@1", "a", URL)
    async with benches(new, old), following(new.address, old.address) as one:
        await until(lambda: one.endpoints == ["a/1@1"], "routes")
        await new.stop()
        await until(lambda: len(old.watches) >= 2, "second look at the old leader")
        assert one.endpoints == ["a/1@1"]
        assert one.follower.leader is None


async def test_after_a_gap_a_snapshot_is_asked_for() -> None:
    async with RoutingBench() as bench, following(bench.address) as one:
        await until(lambda: bench.followers == 1, "stream")
        bench.skip_a_version()
        bench.put(endpoint("a/1@1", "a", URL))
        await until(lambda: one.endpoints == ["a/1@1"], "snapshot after the gap")
        assert len(bench.watches) == 2
        assert one.board.routes.version == bench.version


async def test_a_new_term_on_an_open_stream_needs_a_snapshot_too() -> None:
    async with RoutingBench() as bench, following(bench.address) as one:
        await until(lambda: bench.followers == 1, "stream")
        bench.term = 2
        bench.put(endpoint("a/1@1", "a", URL))
        await until(lambda: one.board.routes.term == 2, "snapshot of the new term")


async def test_move_on_leads_to_the_successor() -> None:
    first, second = RoutingBench(term=1), RoutingBench(term=2)
    async with benches(first, second), following(first.address) as one:
        await until(lambda: first.followers == 1, "stream")
        move_on = pb.RoutesMoveOn(leader_address=str(second.address))
        first.say(pb.WatchRoutesResponse(term=1, version=1, move_on=move_on))
        await until(lambda: one.follower.leader == second.address, "successor")


async def test_routes_that_cannot_be_read_change_nothing() -> None:
    async with RoutingBench() as bench, following(bench.address) as one:
        await until(lambda: bench.followers == 1, "stream")
        bad = pb.RouteDelta(upsert_endpoints=[pb.Endpoint(endpoint_id="x@1")])
        bench.say(pb.WatchRoutesResponse(term=1, version=2, delta=bad))
        await until(lambda: len(bench.watches) == 2, "another look")
        assert one.endpoints == []


async def test_acknowledged_is_what_all_workers_applied_and_drains_are_told_to_every_leader() -> None:
    first, second = RoutingBench(term=1), RoutingBench(term=2)
    leaving = endpoint("a/1@1", "a", URL, draining=True)
    first.endpoints["a/1@1"] = second.endpoints["a/1@1"] = leaving
    async with benches(first, second), following(first.address, second.address) as one:
        await until(lambda: bool(one.workers.tables), "table")
        assert first.acks == []
        one.board.applied()
        await until(lambda: len(first.acks) == 1, "acknowledgement")
        assert (first.acks[0].term, first.acks[0].version) == (1, 1)
        assert list(first.acks[0].drained_endpoint_ids) == []
        one.board.drained(frozenset({"a/1@1"}))
        await until(lambda: len(first.acks) == 2, "drain mark")
        assert list(first.acks[1].drained_endpoint_ids) == ["a/1@1"]
        await first.stop()
        await until(lambda: one.board.routes.term == 2, "second leader")
        one.board.applied()
        await until(lambda: any(ack.term == 2 for ack in second.acks), "acknowledgement to the second")
        newest = second.acks[-1]
        assert (newest.router_id, list(newest.drained_endpoint_ids)) == ("r1", ["a/1@1"])


async def test_a_version_that_changes_no_row_is_acknowledged_without_a_push() -> None:
    async with RoutingBench() as bench, following(bench.address) as one:
        bench.endpoints["a/1@1"] = endpoint("a/1@1", "a", URL)
        await until(lambda: bench.followers == 1, "stream")
        bench.put(endpoint("a/1@1", "a", URL))
        await until(lambda: one.board.routes.version == 2, "table")
        pushes = len(one.workers.tables)
        bench.put()
        await until(lambda: one.board.routes.version == 3, "heartbeat")
        assert bench.acks == []
        one.board.applied()
        await until(lambda: [ack.version for ack in bench.acks] == [3], "acknowledgement")
        bench.put()
        await until(lambda: [ack.version for ack in bench.acks] == [3, 4], "another")
        assert len(one.workers.tables) == pushes


async def test_an_activation_is_reissued_to_a_new_leader_while_wanted_and_ends_when_not() -> None:
    first, second = RoutingBench(term=1), RoutingBench(term=2)
    async with benches(first, second), following(first.address, second.address) as one:
        activations = Activations(one.follower, one.workers, SystemClock())
        activations.want("m", 1)
        await until(lambda: len(first.activations) == 1, "activation")
        activations.want("m", 5)
        await first.stop()
        await until(lambda: len(second.activations) == 1, "the same of the second leader")
        assert second.activations[0].request.waiting == 5
        assert len(first.activations) == 1
        activations.unwant("m")
        async with asyncio.timeout(BOUND_S):
            await second.activations[0].ended.wait()
        await activations.close()
    assert one.workers.refused == []


async def test_a_leader_that_says_it_leads_no_more_is_left_even_if_its_stream_is_open() -> None:
    first, second = RoutingBench(term=1), RoutingBench(term=2)
    async with benches(first, second), following(first.address) as one:
        await until(lambda: one.follower.leader == first.address, "stream")
        one.board.applied()
        await until(lambda: len(first.acks) == 1, "open acknowledgement call")
        first.leading, first.leader = False, second.address
        activations = Activations(one.follower, one.workers, SystemClock())
        activations.want("m", 1)
        await until(lambda: len(second.activations) == 1, "activation at the successor")
        assert one.follower.leader == second.address
        await activations.close()


async def test_goodbye_goes_to_whoever_leads_by_then() -> None:
    first, second = RoutingBench(term=1), RoutingBench(term=2)
    async with benches(first, second):
        async with following(first.address) as one:
            await until(lambda: first.followers == 1, "stream")
        first.leading, first.leader = False, second.address
        await one.follower.goodbye(activity_lost=True)
        assert [(bye.router_id, bye.activity_lost) for bye in second.goodbyes] == [("r1", True)]
        # And with nobody there it ends as well.
        await first.stop()
        async with asyncio.timeout(BOUND_S):
            await one.follower.goodbye(activity_lost=True)


async def test_a_refusal_reaches_the_workers_with_its_reason() -> None:
    async with RoutingBench() as bench, following(bench.address) as one:
        activations = Activations(one.follower, one.workers, SystemClock())
        activations.want("m", 1)
        await until(lambda: len(bench.activations) == 1, "activation")
        bench.activations[0].refuse(1, "no_room", "2 x L4 wanted, none free", 30.0)
        await until(lambda: len(one.workers.refused) == 1, "refusal")
        refused = one.workers.refused[0]
        assert (refused.model, refused.code, refused.retry_after_s) == ("m", "no_room", 30.0)
        assert "L4" in refused.text
        # Wanted again later: asked again.
        activations.unwant("m")
        activations.want("m", 1)
        await until(lambda: len(bench.activations) == 2, "second activation")
        await activations.close()


@contextlib.asynccontextmanager
async def engine(status: int) -> AsyncIterator[str]:
    async def health(request: web.Request) -> web.Response:
        assert "Cookie" not in request.headers
        return web.Response(status=status)

    app = web.Application()
    app.add_routes([web.get("/health", health)])
    [sock] = bind(HostPort("127.0.0.1", 0), flag="--listen")
    port = sock.getsockname()[1]
    runner = await serve_http(app, [sock])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def test_kept_routes_serve_a_restart_without_controllers_after_a_probe(tmp_path: Path) -> None:
    store = RoutesFile(tmp_path)
    bench = RoutingBench(term=3)
    async with engine(200) as up, engine(503) as loading, engine(401) as guarded:
        for name, url in {"up": up, "loading": loading, "guarded": guarded, "down": URL}.items():
            bench.endpoints[f"{name}@1"] = endpoint(f"{name}@1", "m", url, key="k3y")
        bench.models["m"] = model("m", pb.MODEL_AVAILABILITY_READY)
        async with bench, following(bench.address) as one:
            keeping = asyncio.create_task(keep_routes(one.board, store, SystemClock()))
            await until(lambda: (tmp_path / "routes.json").exists(), "kept routes")
            keeping.cancel()
        assert (tmp_path / "routes.json").stat().st_mode & 0o777 == 0o600

        kept = RoutesFile(tmp_path).load()
        assert kept is not None
        # The same address, once the controller is there again.
        again = Follower(bench.address)
        again.follower.recall(kept)
        using = asyncio.create_task(use_kept_routes(kept, again.board, HttpProbe(), SystemClock()))
        await until(lambda: again.board.source is Source.KEPT, "kept routes in force")
        assert again.endpoints == ["guarded@1", "up@1"]
        assert again.board.routes.endpoints["up@1"].credential == "k3y"

        # The leader is back: its word replaces what was kept, and a past term is not believed.
        bench.endpoints = {"up@1": bench.endpoints["up@1"]}
        running = asyncio.create_task(again.follower.run())
        try:
            async with bench:
                await until(lambda: again.board.source is Source.CONTROLLER, "the leader's word")
                assert again.endpoints == ["up@1"]
                assert bench.watches[-1].highest_term_seen == 3
        finally:
            for task in (running, using):
                task.cancel()
            await asyncio.wait([running, using])


UNREADABLE = {
    "empty": "",
    "cut": "{",
    "fields missing": '{"format":1}',
    "a later format": '{"format":2,"term":1,"version":1,"endpoints":[],"models":[],"fleet":null}',
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_kept_file_that_cannot_be_read_is_no_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "routes.json").write_text(content)
    assert RoutesFile(tmp_path).load() is None


def test_a_state_folder_belongs_to_one_router(tmp_path: Path) -> None:
    first = StateFolder(tmp_path / "s")
    with pytest.raises(StartupError, match="another router"):
        StateFolder(tmp_path / "s")
    first.close()
    StateFolder(tmp_path / "s").close()
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="cannot be used"):
        StateFolder(tmp_path / "file" / "s")
