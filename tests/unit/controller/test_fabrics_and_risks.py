"""Free whole nodes, the largest replica that fits, and what one node's end would leave without a place."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings

from llmgw_controller.core import risk
from llmgw_controller.core.claims import rooms
from llmgw_controller.core.explain import Fit
from llmgw_controller.core.fabrics import LargestFit, fabrics, largest_fit
from llmgw_controller.core.idleness import idle_replicas, verdicts
from llmgw_controller.core.placement import explain
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.risk import risks
from llmgw_controller.core.rows import Phase, Schedulability
from tests.unit.controller.build import (
    NOW,
    activity,
    after,
    member,
    model,
    node,
    profile,
    replica,
    router,
    shard,
    snapshot,
)
from tests.unit.controller.worlds import fleets

thorough = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])

M = model("m", replicas=1)
PAIR = model("pair", profile("x2", nodes=2, gpus_per_node=2, tensor_parallel=2), replicas=1)


def lines(snap):
    found = verdicts(snap, NOW)
    return {one.fabric: one for one in fabrics(rooms(snap, NOW), idle_replicas(snap, found))}


def test_largest_fit_now_and_if_idle_left():
    nodes = [node(f"n{number}", 4, fabrics=("ib",)) for number in (1, 2, 3)] + [node("solo", 2)]
    rows = [
        replica(M, 1, Phase.READY, shard("m/1", "n1", 0)),
        replica(M, 2, Phase.READY, shard("m/2", "solo", 0)),
    ]
    snap = snapshot(
        [M], nodes, rows, activity=activity(router(m__2=1), touched={"m/1": 900.0}), routers={"r1": member()}
    )
    ib, none = lines(snap)["ib"], lines(snap)[""]
    assert (ib.nodes, ib.whole_free, ib.whole_free_if_idle_left) == (3, 2, 3)
    assert ib.largest_fit == LargestFit(2, 4, "L4")
    assert ib.largest_fit_if_idle_left == LargestFit(3, 4, "L4")
    assert (none.whole_free, none.largest_fit) == (0, LargestFit(1, 1, "L4")), "on no fabric it is one node"


def test_nodes_that_take_no_work_or_are_of_another_pool_are_no_room_together():
    nodes = [
        node("n1", 4, fabrics=("ib",), pool="batch"),
        node("n2", 4, fabrics=("ib",)),
        node("n3", 4, fabrics=("ib",), schedulability=Schedulability.CORDONED),
    ]
    assert lines(snapshot([], nodes))["ib"].largest_fit == LargestFit(1, 4, "L4")


def test_no_free_gpu_is_no_fit():
    row = replica(M, 1, Phase.STARTING, shard("m/1", "n1", 0))
    assert lines(snapshot([M], [node("n1", 1, fabrics=("ib",))], [row]))["ib"].largest_fit is None


@thorough
@given(fleets())
def test_the_planner_would_place_the_largest_fit_and_nothing_larger(snap):
    found = rooms(snap, NOW)
    for name in sorted({fabric for room in found.values() for fabric in room.node.fabrics}):
        mine = {key: room for key, room in found.items() if name in room.node.fabrics}
        best = largest_fit(mine.values(), frozenset(), gang=True)
        for pool in {room.node.pool for room in mine.values()}:
            for nodes, gpus in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 4), (3, 4)):
                for gpu_class in ("L4", "H100"):
                    whole = nodes > 1
                    one = profile("t", nodes=nodes, gpus_per_node=gpus, gpu_class=gpu_class, pool=pool)
                    told = explain(M, one, mine)
                    free = all(
                        all(device.use.value == "free" for device in mine[spot.node_id].devices)
                        for spot in told.spots
                    )
                    if told.fit is Fit.NOW and (free or not whole):
                        assert best is not None
                        assert best.gpus >= nodes * gpus
        if best is not None:
            sizes = profile("t", nodes=best.nodes, gpus_per_node=best.gpus_per_node, gpu_class=best.gpu_class)
            assert any(
                explain(M, replace(sizes, pool=pool), mine).fit is Fit.NOW
                for pool in {room.node.pool for room in mine.values()}
            )


def test_a_full_fleet_is_not_spare_and_a_loose_one_is():
    nodes = [node("n1", 1), node("n2", 1)]
    row = replica(M, 1, Phase.READY, shard("m/1", "n1", 0))
    assert risks(snapshot([M], nodes, [row]), NOW) == ()
    other = replica(M, 2, Phase.READY, shard("m/2", "n2", 0))
    told = risks(snapshot([replace(M, replicas=2)], nodes, [row, other]), NOW)
    assert [(one.node_id, one.homeless) for one in told] == [("n1", ("m/1",)), ("n2", ("m/2",))]
    assert told[0].text == "without n1 no place for m/1 (1 GPU)"


def test_a_gangs_other_nodes_come_free_with_it():
    nodes = [node(f"n{number}", 2, fabrics=("ib",)) for number in (1, 2, 3)]
    row = replica(PAIR, 1, Phase.READY, shard("pair/1", "n1", 0, 1), shard("pair/1", "n2", 0, 1, rank=1))
    assert risks(snapshot([PAIR], nodes, [row]), NOW) == (), "n2 or n1 with n3"
    told = risks(snapshot([PAIR], nodes[:2], [row]), NOW)
    assert [one.node_id for one in told] == ["n1", "n2"]


@thorough
@given(fleets())
def test_who_is_called_homeless_is_who_the_pass_would_not_place(snap):
    """Against the pass itself: the node is gone, exits are seen, one pass."""
    snap = after(snap, reconcile(snap, NOW))
    told = {one.node_id: set(one.homeless) for one in risks(snap, NOW)}
    for node_id in list(snap.stored.nodes):
        homeless = told.get(node_id, set())
        gone = {
            row.replica_id
            for row in snap.stored.replicas.values()
            if any(part.node_id == node_id and not part.released for part in row.shards)
            and row.wish.value == "serve"
        }
        assert homeless <= gone
        if node_id not in told:
            continue
        rows = {
            key: replace(row, phase=Phase.WANTED, shards=(), until=None) if key in gone else row
            for key, row in snap.stored.replicas.items()
        }
        nodes = {key: one for key, one in snap.stored.nodes.items() if key != node_id}
        words = {
            key: replace(
                word,
                shards={name: said for name, said in word.shards.items() if said.replica_id not in gone},
            )
            for key, word in snap.heard.items()
            if key != node_id
        }
        without = replace(snap, stored=replace(snap.stored, replicas=rows, nodes=nodes), heard=words)
        left = after(without, reconcile(without, NOW)).stored.replicas
        placed = {key for key in gone if key in left and left[key].holds_devices}
        assert not placed & homeless, (node_id, placed, homeless)


@thorough
@given(fleets())
def test_looking_at_a_few_nodes_first_changes_no_finding(snap):
    snap = after(snap, reconcile(snap, NOW))
    kept = risk.FEW
    try:
        risk.FEW = 1
        one = risks(snap, NOW)
        risk.FEW = 10_000
        assert risks(snap, NOW) == one
    finally:
        risk.FEW = kept
