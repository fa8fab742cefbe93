"""What was told of a shard before is told again only while nothing of it has moved."""

from dataclasses import replace

from hypothesis import given

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller import wire_operator
from llmgw_controller.core.apply import apply
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.rows import Phase
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.view import FleetView, fleet_view
from llmgw_controller.wire_replicas import ToldShards
from tests.unit.controller.build import NOW, model, node, replica, shard, snapshot
from tests.unit.controller.worlds import fleets


def viewed(snap: Snapshot) -> FleetView:
    return fleet_view(snap, verdicts(snap, NOW), NOW)


@given(fleets())
def test_a_status_is_the_same_whatever_was_told_before_it(snap: Snapshot) -> None:
    told, about = ToldShards(), pb.ViewInfo()
    wire_operator.status(viewed(snap), about, (), told)
    heard = {
        name: replace(word, shards={key: replace(one, progress=0.5) for key, one in word.shards.items()})
        for name, word in snap.heard.items()
    }
    rows = apply(snap.stored, reconcile(snap, NOW).changes)
    for later in (replace(snap, heard=heard), replace(snap, stored=rows), snap):
        view = viewed(later)
        assert wire_operator.status(view, about, (), told) == wire_operator.status(view, about, ())


def test_shards_that_are_gone_are_forgotten() -> None:
    one, told = model(), ToldShards()
    full = snapshot(
        [one], [node("a")], [replica(one, n, Phase.READY, shard(f"m/{n}", "a", n)) for n in range(4)]
    )
    wire_operator.status(viewed(full), pb.ViewInfo(), (), told)
    empty = replace(full, stored=replace(full.stored, replicas={}))
    wire_operator.status(viewed(empty), pb.ViewInfo(), (), told)
    assert not told.kept
