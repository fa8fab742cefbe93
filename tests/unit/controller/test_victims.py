"""The cheapest set whose leaving makes room, and never one member too many."""

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw_controller.core.claims import Use, rooms, with_claim
from llmgw_controller.core.explain import Fit
from llmgw_controller.core.placement import Memo, explain
from llmgw_controller.core.rows import Phase
from llmgw_controller.core.victims import Candidate, choose
from llmgw_kit.ids import NodeId, ReplicaId
from tests.unit.controller.build import NOW, model, node, profile, replica, shard, snapshot


def fleet(nodes, *held):
    """`held`: (name, {node: device indexes}); each a replica of its own model."""
    rows, models = [], []
    for number, (name, places) in enumerate(held):
        one = model(name)
        parts = [
            shard(f"{name}/1", where, *indexes, rank=rank, port=20000 + 10 * number)
            for rank, (where, indexes) in enumerate(places.items())
        ]
        rows.append(replica(one, 1, Phase.READY, *parts))
        models.append(one)
    return rooms(snapshot(models, nodes, rows), NOW), rows


def candidates(rows, **costs):
    """By model name: (cost, idle seconds), or the cost alone."""
    found = {}
    for row in rows:
        if row.model not in costs:
            continue
        cost, idle = costs[row.model] if isinstance(costs[row.model], tuple) else (costs[row.model], 4000.0)
        places = frozenset(part.node_id for part in row.shards)
        found[row.replica_id] = Candidate(row.replica_id, float(cost), idle, places)
    return found


def leaving(one, found, may):
    choice = choose(one, found, may)
    return None if choice is None else [name.removesuffix("/1") for name in choice.leaving]


TWO = model("two", profile("p", gpus_per_node=2, tensor_parallel=2))
ONE = model("one")


def test_the_cheaper_of_two_leaves():
    found, rows = fleet([node("n1"), node("n2")], ("a", {"n1": (0, 1)}), ("b", {"n2": (0, 1)}))
    assert leaving(TWO, found, candidates(rows, a=90, b=20)) == ["b"]


def test_two_cheap_ones_leave_before_one_dear_one():
    found, rows = fleet(
        [node("n1"), node("n2")], ("a", {"n1": (0, 1)}), ("b", {"n2": (0,)}), ("c", {"n2": (1,)})
    )
    assert leaving(TWO, found, candidates(rows, a=600, b=20, c=20)) == ["b", "c"]
    assert leaving(TWO, found, candidates(rows, a=30, b=20, c=20)) == ["a"]


def test_of_equal_cost_the_fewer_and_then_the_longer_idle_leave():
    found, rows = fleet(
        [node("n1"), node("n2")], ("a", {"n1": (0, 1)}), ("b", {"n2": (0,)}), ("c", {"n2": (1,)})
    )
    assert leaving(TWO, found, candidates(rows, a=40, b=20, c=20)) == ["a"]
    assert leaving(ONE, found, candidates(rows, a=(20, 50.0), b=(20, 9000.0), c=(20, 60.0))) == ["b"]


def test_what_fits_needs_nobody_and_what_never_fits_takes_nobody():
    found, rows = fleet([node("n1")], ("a", {"n1": (0,)}))
    assert choose(ONE, found, candidates(rows, a=1)) is None, "one GPU is free"
    huge = model("huge", profile("p", gpus_per_node=8, tensor_parallel=8))
    assert choose(huge, found, candidates(rows, a=1)) is None
    found, rows = fleet([node("n1")], ("a", {"n1": (0,)}), ("b", {"n1": (1,)}))
    assert choose(TWO, found, candidates(rows, a=1)) is None, "b stays, so a's leaving helps nobody"


def test_a_gang_stays_on_one_fabric_and_a_victim_on_two_nodes_counts_once():
    gang = model("gang", profile("g", nodes=2, gpus_per_node=2, tensor_parallel=4))
    nodes = [node(name, fabrics=(fabric,)) for name, fabric in
             [("n1", "ib-1"), ("n2", "ib-2"), ("n3", "ib-2"), ("n4", "ib-1")]]  # fmt: skip
    found, rows = fleet(
        nodes, ("a", {"n1": (0, 1)}), ("b", {"n2": (0, 1)}), ("c", {"n3": (0, 1)}), ("d", {"n4": (0, 1)})
    )
    # The two cheapest nodes are on two fabrics.
    assert leaving(gang, found, candidates(rows, a=10, b=10, c=50, d=40)) == ["a", "d"]
    found, rows = fleet(nodes[1:3], ("w", {"n2": (0, 1), "n3": (0, 1)}))
    assert leaving(gang, found, candidates(rows, w=30)) == ["w"]


def test_a_less_preferred_profile_is_taken_where_it_is_cheaper():
    either = model("either", profile("h", gpu_class="H100"), profile("l"))
    nodes = [node("n1", 1, gpu_class="H100"), node("n2", 1)]
    found, rows = fleet(nodes, ("a", {"n1": (0,)}), ("b", {"n2": (0,)}))
    assert leaving(either, found, candidates(rows, a=90, b=20)) == ["b"]
    assert leaving(either, found, candidates(rows, a=20, b=20)) == ["a"], "else the preferred one"


@st.composite
def worlds(draw):
    """Up to three nodes of four GPUs, full of replicas of one to four GPUs each, some of which may leave."""
    count = draw(st.integers(1, 3))
    nodes = [node(f"n{i}", 4, fabrics=draw(st.sampled_from([(), ("ib",)]))) for i in range(count)]
    held, may = [], {}
    for one in nodes:
        free = [device.index for device in one.devices]
        while free and draw(st.integers(0, 4)):
            taken, free = free[: draw(st.integers(1, 2))], free[2:]
            name = f"m{len(held)}"
            held.append((name, {one.node_id: tuple(taken)}))
            if draw(st.integers(0, 3)):
                may[name] = (draw(st.sampled_from([5, 10, 20, 40])), draw(st.sampled_from([50.0, 90.0])))
    asked = draw(st.sampled_from([1, 2, 3, 4]))
    spread = draw(st.sampled_from([1, 1, 2]))
    wanted = model("new", profile("p", nodes=spread, gpus_per_node=asked, tensor_parallel=asked * spread))
    return nodes, held, may, wanted


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_the_set_makes_room_and_no_member_is_too_many_nor_any_set_of_one_node_cheaper(world):
    nodes, held, may, wanted = world
    found, rows = fleet(nodes, *held)
    free = candidates(rows, **may)
    plain = explain(wanted, wanted.profiles[0], found, evictable=frozenset(free))
    choice = choose(wanted, found, free)
    if plain.fit is not Fit.AFTER_EVICTION:
        assert choice is None
        return
    assert choice is not None, "found whenever the ceiling says that it fits"

    def fits(names):
        return explain(wanted, wanted.profiles[0], found, evictable=frozenset(names)).fit is not Fit.NEVER

    assert fits(choice.leaving)
    for name in choice.leaving:
        assert not fits(set(choice.leaving) - {name}), f"{name} need not leave"
    if wanted.profiles[0].nodes > 1:
        return
    price = sum(free[name].cost_s for name in choice.leaving)
    for where in {place for one in free.values() for place in one.node_ids}:
        here: list[ReplicaId] = [name for name, one in free.items() if NodeId(where) in one.node_ids]
        for size in range(1 << len(here)):
            some = {name for bit, name in enumerate(here) if size >> bit & 1}
            assert not fits(some) or sum(free[name].cost_s for name in some) >= price


@settings(max_examples=200, deadline=None)
@given(worlds(), st.data())
def test_what_was_found_of_other_rooms_changes_no_choice(world, data):
    nodes, held, may, wanted = world
    found, rows = fleet(nodes, *held)
    free, memo = candidates(rows, **may), Memo()
    assert choose(wanted, found, free, memo) == choose(wanted, found, free)
    for room in list(found.values()):
        for device in room.devices:
            if device.use is Use.FREE and data.draw(st.booleans()):
                found = with_claim(
                    found, wanted.name, ReplicaId("other/1"), room.node.node_id, (device.device_id,), ()
                )
    assert choose(wanted, found, free, memo) == choose(wanted, found, free)


def test_on_a_node_of_many_small_ones_only_as_many_leave_as_are_needed():
    """More than are tried set by set: the dearest are spared one by one."""
    names = [f"s{i}" for i in range(10)]
    found, rows = fleet([node("n1", 10)], *((name, {"n1": (i,)}) for i, name in enumerate(names)))
    costs = {name: 100 - 10 * i for i, name in enumerate(names)}
    assert leaving(ONE, found, candidates(rows, **costs)) == ["s9"]
    assert leaving(TWO, found, candidates(rows, **costs)) == ["s8", "s9"]


def test_of_a_gang_s_nodes_nobody_leaves_whose_leaving_another_s_makes_needless():
    """One victim stands on both nodes; who is beside it on one of them may stay."""
    gang = model("gang", profile("g", nodes=2, gpus_per_node=1, tensor_parallel=2))
    nodes = [node(name, 2, fabrics=("ib",)) for name in ("n1", "n2")]
    found, rows = fleet(nodes, ("w", {"n1": (0,), "n2": (0,)}), ("a", {"n1": (1,)}), ("b", {"n2": (1,)}))
    # Node by node a is cheaper than w; but w is needed on n2 anyhow.
    assert leaving(gang, found, candidates(rows, w=30, a=20)) == ["w"]
    assert leaving(gang, found, candidates(rows, w=30, a=10, b=10)) == ["a", "b"]
