"""A row that no message carries is named, and hides none of the others: in routes and in a status."""

from dataclasses import replace

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller import wire_operator
from llmgw_controller.catalog_file import parse_models
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.routes import RouteTable, routes
from llmgw_controller.core.rows import Phase
from llmgw_controller.core.view import fleet_view
from llmgw_controller.routes_board import RoutesBoard
from llmgw_kit.ids import LeaseTerm
from llmgw_kit.testing.clock import FakeClock
from tests.unit.controller.build import NOW, model, node, replica, shard, snapshot

from .reigns import KEPT, hello, reign_on

#: No field holds it.
TOO_MUCH = 2**70


def table(*models: Model) -> RouteTable:
    """Of a fleet that has these models, none of them up."""
    return routes(snapshot(models, [node("a")]), NOW)


def test_routes_go_on_without_a_model_that_cannot_be_told() -> None:
    board, good, bad = RoutesBoard(LeaseTerm(1)), model("good"), model("bad", max_held=TOO_MUCH)
    board.publish(table(good, bad), NOW)
    assert board.table is not None
    assert list(board.table.models) == ["good"]
    assert [one.subject for one in board.untold] == ["model bad"]
    version = board.version
    board.publish(table(good, bad), NOW)
    assert board.version == version, "what is left out again is no change"
    board.publish(table(good, replace(bad, max_held=3)), NOW)
    assert list(board.table.models) == ["bad", "good"]
    assert board.untold == ()


def test_a_model_that_can_be_told_no_more_leaves_the_routes() -> None:
    board, good, bad = RoutesBoard(LeaseTerm(1)), model("good"), model("bad")
    board.publish(table(good, bad), NOW)
    board.publish(table(good, replace(bad, max_held=TOO_MUCH)), NOW)
    assert board.table is not None
    assert list(board.table.models) == ["good"]


def test_a_status_shows_the_others_and_names_what_it_leaves_out() -> None:
    good, bad = model("good"), model("bad")
    rows = [
        replica(good, 1, Phase.READY, shard("good/1", "a", 0)),
        replica(bad, 1, Phase.READY, shard("bad/1", "a", 1, port=TOO_MUCH)),
    ]
    snap = snapshot([good, bad], [node("a")], rows)
    status = wire_operator.status(fleet_view(snap, verdicts(snap, NOW), NOW), pb.ViewInfo())
    assert [row.replica_id for row in status.replicas] == ["good/1"]
    assert [row.model for row in status.models] == ["bad", "good"]
    assert (status.trouble[0].kind, status.trouble[0].subject) == ("row_untold", "replica bad/1")


async def test_the_leader_lives_and_tells_of_it_once(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock, models=(KEPT, {**KEPT, "name": "bad"}))
    models = parse_models([KEPT, {**KEPT, "name": "bad"}], where="test")
    reign.ledger._configured = [
        replace(one, max_held=TOO_MUCH) if one.name == "bad" else one for one in models
    ]
    await reign.fleet.open(hello())
    for _ in range(4):
        await reign._passes.once()
    assert reign.board.table is not None
    assert list(reign.board.table.models) == [KEPT["name"]]
    told = await reign.world.store.events(since=None, subject="model bad", limit=9)
    assert [one.kind for one in told] == ["row_untold"]
