"""Where replicas go beyond "it fits": whole nodes, spreading, sets of alike nodes, and who comes first."""

from dataclasses import replace

import pytest

from llmgw_controller.core.catalog import Spread
from llmgw_controller.core.claims import rooms
from llmgw_controller.core.explain import Fit, Reason
from llmgw_controller.core.heard import DeviceState, ShardState
from llmgw_controller.core.placement import Placement, explain, place
from llmgw_controller.core.rows import Phase, Schedulability, Wish
from llmgw_kit.ids import NodeId, ReplicaId
from tests.unit.controller.build import (
    NOW,
    Stage,
    activity,
    device,
    heard,
    member,
    model,
    node,
    profile,
    replica,
    router,
    shard,
    snapshot,
    weights_of,
)

OTHER = model("other")


def goes_to(snap, one):
    answer = place(one, rooms(snap, NOW), replica_id=ReplicaId(f"{one.name}/9"), group_epoch=1)
    return tuple(part.node_id for part in answer.shards) if isinstance(answer, Placement) else None


def held(name, *indexes, number=1, phase=Phase.READY, port=20000):
    return replica(OTHER, number, phase, shard(f"other/{number}", name, *indexes, port=port))


# -- whole nodes -------------------------------------------------------------------------------

WHOLE = model("w", profile(gpus_per_node=2, tensor_parallel=2, whole_nodes=True))


def test_a_whole_node_is_taken_with_all_its_devices():
    snap = snapshot([WHOLE], [node("n1", 3)])
    answer = place(WHOLE, rooms(snap, NOW), replica_id=ReplicaId("w/1"), group_epoch=1)
    assert isinstance(answer, Placement)
    assert answer.shards[0].device_ids == ("n1:0", "n1:1", "n1:2")
    told = explain(WHOLE, WHOLE.profiles[0], rooms(snap, NOW))
    assert told.needs == "a whole node of at least 2 L4"


@pytest.mark.parametrize(
    ("snap", "reason"),
    [
        (snapshot([WHOLE, OTHER], [node("n1", 3)], [held("n1", 0)]), Reason.NOT_ENOUGH_FREE),
        (
            snapshot(
                [WHOLE],
                [node("n1", 3)],
                [],
                [
                    heard(
                        node("n1", 3),
                        devices=tuple(
                            device(
                                row, state=DeviceState.UNHEALTHY if row.index == 2 else DeviceState.HEALTHY
                            )
                            for row in node("n1", 3).devices
                        ),
                    )
                ],
            ),
            Reason.UNHEALTHY_DEVICES,
        ),
        (snapshot([WHOLE], [node("n1", 1)]), Reason.TOO_FEW_DEVICES),
    ],
    ids=["one is claimed", "one is unhealthy", "too small"],
)
def test_a_node_that_is_not_wholly_free_is_no_whole_node(snap, reason):
    told = explain(WHOLE, WHOLE.profiles[0], rooms(snap, NOW))
    assert (told.fit, told.filters[0].reason) == (Fit.NEVER, reason)


def test_idle_replicas_in_a_whole_nodes_way_are_all_named():
    rows = [held("n1", 0), held("n1", 2, number=2, port=20001)]
    found = rooms(snapshot([WHOLE, OTHER], [node("n1", 3)], rows), NOW)
    told = explain(WHOLE, WHOLE.profiles[0], found, evictable=frozenset(row.replica_id for row in rows))
    assert (told.fit, told.leaving) == (Fit.AFTER_EVICTION, ("other/1", "other/2"))
    assert (told.near_misses[0].free, told.near_misses[0].needed) == (1, 3)


def test_members_of_a_gang_of_whole_nodes_are_alike():
    gang = model("g", profile(nodes=2, gpus_per_node=2, tensor_parallel=2, whole_nodes=True))

    def on(*sizes):
        return snapshot(
            [gang], [node(f"n{n}", size, fabrics=("ib",)) for n, size in enumerate(sizes, start=1)]
        )

    assert goes_to(on(2, 4), gang) is None
    assert goes_to(on(2, 4, 4), gang) == ("n2", "n3")
    assert goes_to(on(4, 2, 2, 4), gang) in {("n2", "n3"), ("n1", "n4")}


def test_of_two_fabrics_the_one_whose_worst_node_is_best():
    pair = model("g", profile(nodes=2))
    nodes = [node("n1", 1, fabrics=("a",)), node("n2", 4, fabrics=("a",))]
    nodes += [node("n3", 2, fabrics=("b",)), node("n4", 2, fabrics=("b",))]
    assert goes_to(snapshot([pair], nodes), pair) == ("n3", "n4"), "one of a's would be broken up for more"


# -- pack and spread ---------------------------------------------------------------------------


def lives(one, count, nodes, holders=()):
    """Place `count` replicas one after the other; whoever has the weights already is in `holders`."""
    snap = snapshot([replace(one, replicas=count), OTHER], nodes)
    words = {
        key: replace(word, weights=(weights_of(one),) if key in holders else ())
        for key, word in snap.heard.items()
    }
    stage = Stage(replace(snap, heard=words))
    stage.step()
    return sorted(str(row.shards[0].node_id) for row in stage.rows.values() if row.shards)


def test_packed_replicas_share_a_node_and_spread_ones_do_not():
    nodes = [node("n1", 4), node("n2", 4), node("n3", 4)]
    assert lives(model("m"), 3, nodes) == ["n1", "n1", "n1"]
    assert lives(model("m", spread=Spread.SPREAD), 3, nodes) == ["n1", "n2", "n3"]
    assert lives(model("m", spread=Spread.SPREAD), 4, nodes) == ["n1", "n1", "n2", "n3"], "and then again"


def test_spread_weighs_more_than_weights_that_are_here():
    """What runs has brought its weights along, or nothing would ever be spread."""
    nodes = [node("n1", 4), node("n2", 4)]
    spread = model("m", spread=Spread.SPREAD)
    assert lives(spread, 2, nodes, holders={"n1"}) == ["n1", "n2"]
    assert lives(model("m"), 2, nodes, holders={"n2"}) == ["n2", "n2"]


@pytest.mark.parametrize(
    ("nodes", "rows", "expected"),
    [
        ([node("n1", 4), node("n2", 8)], [held("n2", 0)], "n2"),
        ([node("n1", 4), node("n2", 1)], [], "n2"),
        ([node("n1", 2, fabrics=("ib",)), node("n2", 2)], [held("n1", 0), held("n2", 0, number=2)], "n2"),
        ([node("n1", 2, fabrics=("ib",)), node("n2", 4)], [held("n1", 0)], "n1"),
        ([node("n1", 1, fabrics=("ib",)), node("n2", 8)], [], "n2"),
    ],
    ids=[
        "a broken node before a whole one",
        "a node it fills before one it breaks",
        "off the fabric where it needs none",
        "a broken node of a fabric before a whole one without",
        "a whole node of a fabric last",
    ],
)
def test_whole_nodes_stay_whole(nodes, rows, expected):
    assert goes_to(snapshot([model("m"), OTHER], nodes, rows), model("m")) == (expected,)


# -- pools, pins, and what is set aside --------------------------------------------------------


@pytest.mark.parametrize(
    ("asks", "has", "fits"),
    [(None, None, True), (None, "a", False), ("a", None, False), ("a", "a", True), ("a", "b", False)],
)
def test_a_pool_takes_only_what_names_it_and_what_names_one_goes_nowhere_else(asks, has, fits):
    one = model("m", profile(pool=asks))
    assert (goes_to(snapshot([one], [node("n1", pool=has)]), one) is not None) is fits


def test_a_pin_holds_for_every_member_of_a_gang():
    nodes = [node(f"n{n}", fabrics=("ib",)) for n in (1, 2, 3)]
    pinned = model("m", profile(nodes=2, node_ids=(NodeId("n1"), NodeId("n3"))))
    assert goes_to(snapshot([pinned], nodes), pinned) == ("n1", "n3")
    alone = model("m", profile(nodes=2, node_ids=(NodeId("n1"),)))
    assert goes_to(snapshot([alone], nodes), alone) is None


# -- who comes first ---------------------------------------------------------------------------

HIGH = model("high", profile(gpus_per_node=2, tensor_parallel=2), replicas=1, priority=5)
LOW = model("low", replicas=1)


def leaving(name, *indexes):
    return replace(held(name, *indexes, phase=Phase.DRAINING), wish=Wish.DRAIN)


def test_room_that_comes_free_for_a_higher_one_is_not_taken_by_a_lower():
    """One of two devices leaves; the high one waits for both."""
    stage = Stage(snapshot([HIGH, LOW, OTHER], [node("n1", 2)], [leaving("n1", 0)]))
    stage.step()
    assert stage.rows["high/1"].phase is Phase.UNPLACEABLE
    low = stage.rows["low/1"]
    assert low.phase is Phase.UNPLACEABLE
    assert low.reason is not None and "GPUs kept for a replica that is placed first: 1" in low.reason
    stage.tell(stage.rows["other/1"], ShardState.EXITED)
    stage.step()
    stage.step()
    assert stage.rows["high/1"].phase is Phase.RESERVED
    assert stage.rows["low/1"].phase is Phase.UNPLACEABLE


def test_only_what_it_will_need_is_kept_and_elsewhere_is_free():
    kept = replace(OTHER, replicas=1)
    rows = [leaving("n1", 0), held("n1", 1, number=2, port=20001)]
    stage = Stage(snapshot([HIGH, LOW, kept], [node("n1", 3)], rows))
    stage.step()
    assert stage.rows["low/1"].phase is Phase.UNPLACEABLE, (
        "the third device is needed beside the one that leaves"
    )
    wide = Stage(snapshot([HIGH, LOW, OTHER], [node("n1", 2), node("n2", 1)], [leaving("n1", 0)]))
    wide.step()
    assert [str(part.node_id) for part in wide.rows["low/1"].shards] == ["n2"]


def test_nothing_is_kept_for_what_nobody_makes_room_for():
    """What holds the other device stays: the low one may as well run."""
    kept = replace(OTHER, replicas=1)
    stage = Stage(snapshot([HIGH, LOW, kept], [node("n1", 2)], [held("n1", 0)]))
    stage.step()
    assert stage.rows["high/1"].phase is Phase.UNPLACEABLE
    assert stage.rows["low/1"].phase is Phase.RESERVED


def test_where_a_higher_one_would_fit_if_idle_ones_left_a_lower_goes_last():
    """Whether they leave is decided after placing, and must not be made useless by it."""
    idle = model("idle", replicas=1)
    row = replica(idle, 1, Phase.READY, shard("idle/1", "n1", 0), since=NOW - 9000, ready_since=NOW - 9000)
    watched = {"activity": activity(router(), touched={"idle/1": 8000}), "routers": {"r1": member()}}
    stage = Stage(snapshot([HIGH, LOW, idle], [node("n1", 2), node("n2", 1)], [row], **watched))
    stage.step()
    assert stage.rows["high/1"].phase is Phase.UNPLACEABLE
    assert [str(part.node_id) for part in stage.rows["low/1"].shards] == ["n2"], "n1 is fuller, and spared"
    alone = Stage(snapshot([HIGH, LOW, idle], [node("n1", 2)], [row], **watched))
    alone.step()
    assert [str(part.node_id) for part in alone.rows["low/1"].shards] == ["n1"], "nothing else is free"


def test_a_gang_keeps_its_free_node_while_the_other_one_empties():
    gang = model("gang", profile(nodes=2, gpus_per_node=2, tensor_parallel=2), replicas=1, priority=1)
    nodes = [node("n1", 2, fabrics=("ib",)), node("n2", 2, fabrics=("ib",))]
    stage = Stage(snapshot([gang, LOW, OTHER], nodes, [leaving("n2", 0, 1)]))
    stage.step()
    assert stage.rows["gang/1"].phase is Phase.UNPLACEABLE
    assert stage.rows["low/1"].phase is Phase.UNPLACEABLE
    stage.tell(stage.rows["other/1"], ShardState.EXITED)
    stage.step()
    stage.step()
    assert [str(part.node_id) for part in stage.rows["gang/1"].shards] == ["n1", "n2"]


def test_the_higher_priority_is_placed_first_and_of_one_priority_the_larger():
    small = model("a", replicas=2)
    large = model("b", profile(gpus_per_node=2, tensor_parallel=2), replicas=1)
    stage = Stage(snapshot([small, large], [node("n1", 2)]))
    stage.step()
    assert stage.rows["b/1"].phase is Phase.RESERVED
    raised = Stage(snapshot([replace(small, priority=1), large], [node("n1", 2)]))
    raised.step()
    assert raised.rows["b/1"].phase is Phase.UNPLACEABLE


# -- case 27 -----------------------------------------------------------------------------------


def test_case_27_a_gang_short_of_one_node_holds_nothing_at_all():
    gang = model("g", profile(nodes=3, gpus_per_node=2, tensor_parallel=2), replicas=1)
    nodes = [node(f"n{n}", 2, fabrics=("ib",)) for n in (1, 2)]
    cordoned = node("n3", 2, fabrics=("ib",), schedulability=Schedulability.CORDONED)
    stage = Stage(snapshot([gang], [*nodes, cordoned]))
    stage.step()
    row = stage.rows["g/1"]
    assert (row.phase, row.shards) == (Phase.UNPLACEABLE, ())
    nodes_now = {
        **stage.snap.stored.nodes,
        NodeId("n3"): replace(cordoned, schedulability=Schedulability.SCHEDULABLE),
    }
    stage.snap = replace(stage.snap, stored=replace(stage.snap.stored, nodes=nodes_now))
    stage.step()
    assert len(stage.rows["g/1"].shards) == 3, "all in one transaction"
