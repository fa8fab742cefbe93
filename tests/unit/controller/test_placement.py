"""Placement: each filter by name, the order of the scores, gangs, ports, and the explanation's sums."""

from dataclasses import replace

import pytest

from llmgw_controller.core.claims import rooms, with_claim
from llmgw_controller.core.explain import Fit, Reason
from llmgw_controller.core.heard import DeviceState, ShardState
from llmgw_controller.core.placement import Placement, Refusal, explain, place
from llmgw_controller.core.rows import DeviceRow, Phase, PortQuarantine, Schedulability, Tombstone
from llmgw_kit.ids import DeviceId, NodeId, ReplicaId, ShardId
from tests.unit.controller.build import (
    GIB,
    NOW,
    device,
    heard,
    model,
    node,
    profile,
    replica,
    report,
    shard,
    snapshot,
    weights_of,
)

TWO = model("m", profile("two", gpus_per_node=2, tensor_parallel=2))
OTHER = model("other")


def placed(snap, one, epoch=1):
    return place(one, rooms(snap, NOW), replica_id=ReplicaId(f"{one.name}/9"), group_epoch=epoch)


def only_reason(snap, one=TWO):
    told = explain(one, one.profiles[0], rooms(snap, NOW))
    assert told.fitting == ()
    assert told.fit is Fit.NEVER
    assert [part.node_ids for part in told.filters] == [("n1",)]
    return told.filters[0].reason


def one_node(row, **changes):
    return snapshot([TWO, OTHER], [row], [], [heard(row, **changes)])


PLAIN = node("n1")
HELD = replica(OTHER, 1, Phase.READY, shard("other/1", "n1", 0))

REFUSALS = {
    Reason.WRONG_CLASS: one_node(node("n1", gpu_class="H100")),
    Reason.TOO_FEW_DEVICES: one_node(node("n1", 1)),
    Reason.TOO_LITTLE_MEMORY: one_node(PLAIN),
    Reason.NOT_WHOLE: one_node(
        node("n1", devices=(*PLAIN.devices, DeviceRow(DeviceId("n1:2"), 2, "T4", 16 * GIB)))
    ),
    Reason.POOL: one_node(node("n1", pool="research")),
    Reason.PINNED_ELSEWHERE: one_node(PLAIN),
    Reason.NO_FABRIC: one_node(PLAIN),
    Reason.LOST: snapshot([TWO], [node("n1", lost_at=NOW - 9)], [], []),
    Reason.UNREACHABLE: one_node(PLAIN, at=NOW - 16),
    Reason.NOT_HEARD: snapshot([TWO], [PLAIN], [], [], term_started=NOW - 3),
    Reason.TOMBSTONES: snapshot(
        [TWO], [PLAIN], [], tombstones=(Tombstone(NodeId("n1"), ShardId("x/1.1.0"), ReplicaId("x/1"), 1.0),)
    ),
    Reason.CORDONED: one_node(node("n1", schedulability=Schedulability.CORDONED)),
    Reason.DRAINING: one_node(node("n1", schedulability=Schedulability.DRAINING)),
    Reason.ENGINE_MISSING: one_node(PLAIN, engines=("vllm",)),
    Reason.UNHEALTHY_DEVICES: one_node(
        PLAIN, devices=(device(PLAIN.devices[0]), device(PLAIN.devices[1], state=DeviceState.MISSING))
    ),
    Reason.FOREIGN_USE: one_node(
        PLAIN, devices=(device(PLAIN.devices[0]), device(PLAIN.devices[1], foreign_used_bytes=GIB))
    ),
    Reason.NOT_ENOUGH_FREE: snapshot([TWO, OTHER], [PLAIN], [HELD]),
    Reason.PORTS_EXHAUSTED: one_node(node("n1", engine_ports=None)),
}
ASKING = {
    Reason.TOO_LITTLE_MEMORY: model("m", profile(gpus_per_node=2, memory_bytes=30 * GIB)),
    Reason.NOT_WHOLE: model("m", profile(gpus_per_node=2, whole_nodes=True)),
    Reason.PINNED_ELSEWHERE: model("m", profile(gpus_per_node=2, node_ids=(NodeId("n7"),))),
    Reason.NO_FABRIC: model("m", profile(nodes=2, gpus_per_node=2)),
}


@pytest.mark.parametrize("reason", list(REFUSALS), ids=lambda reason: reason.value)
def test_each_filter_has_its_word(reason):
    assert only_reason(REFUSALS[reason], ASKING.get(reason, TWO)) is reason


def test_the_table_above_knows_every_reason_but_those_that_need_other_replicas():
    assert set(Reason) - set(REFUSALS) == {Reason.HELD_BY_IDLE, Reason.PROMISED}


def test_a_disconnected_node_takes_nothing_even_while_its_silence_is_short():
    assert only_reason(one_node(PLAIN, connected=False)) is Reason.NOT_HEARD


def test_memory_of_unknown_size_is_not_small():
    bare = node("n1", devices=tuple(replace(one, memory_total_bytes=None) for one in PLAIN.devices))
    asking = ASKING[Reason.TOO_LITTLE_MEMORY]
    assert isinstance(placed(snapshot([asking], [bare]), asking), Placement)


def test_idle_replicas_in_the_way_are_named_fewest_first():
    big = node("n1", 4)
    rows = [
        replica(OTHER, 1, Phase.READY, shard("other/1", "n1", 0)),
        replica(OTHER, 2, Phase.READY, shard("other/2", "n1", 1, port=20001)),
        replica(OTHER, 3, Phase.READY, shard("other/3", "n1", 2, 3, port=20002)),
    ]
    found = rooms(snapshot([TWO, OTHER], [big], rows), NOW)
    every = frozenset(row.replica_id for row in rows)
    told = explain(TWO, TWO.profiles[0], found, evictable=every)
    assert told.fit is Fit.AFTER_EVICTION
    assert told.filters[0].reason is Reason.HELD_BY_IDLE
    assert told.leaving == ("other/3",)
    told = explain(TWO, TWO.profiles[0], found, evictable=every - {ReplicaId("other/3")})
    assert told.leaving == ("other/1", "other/2")
    assert explain(TWO, TWO.profiles[0], found, evictable=frozenset({ReplicaId("other/1")})).fit is Fit.NEVER


def test_a_node_that_would_need_no_eviction_is_not_listed_as_a_near_miss():
    rows = [replica(OTHER, 1, Phase.READY, shard("other/1", "n1", 0))]
    found = rooms(snapshot([TWO, OTHER], [PLAIN, node("n2")], rows), NOW)
    told = explain(TWO, TWO.profiles[0], found, evictable=frozenset({ReplicaId("other/1")}))
    assert (told.fit, told.fitting, told.leaving) == (Fit.NOW, ("n2",), ())
    assert [miss.node_id for miss in told.near_misses] == ["n1"]


SMALL = model("m", profile("small"))
HERE = (weights_of(SMALL),)


@pytest.mark.parametrize(
    ("nodes", "weights_on", "rows", "expected"),
    [
        ([node("n1", 2), node("n2", 4)], "n2", [], "n2"),
        ([node("n1", 4), node("n2", 2)], None, [], "n2"),
        (
            [node("n1", 3), node("n2", 3)],
            None,
            [
                replica(SMALL, 1, Phase.READY, shard("m/1", "n1", 0)),
                replica(OTHER, 1, Phase.READY, shard("other/1", "n2", 0)),
            ],
            "n2",
        ),
        ([node("n1", 2, fabrics=("ib",)), node("n2", 4)], None, [], "n2"),
        ([node("n2", 2), node("n1", 2)], None, [], "n1"),
    ],
    ids=[
        "holds the weights",
        "keeps the larger node whole",
        "another node than its own kind",
        "breaks no whole node of a fabric",
        "by name",
    ],
)
def test_scores_in_order(nodes, weights_on, rows, expected):
    snap = snapshot([SMALL, OTHER], nodes, rows)
    words = {
        key: replace(word, weights=HERE if key == weights_on else ()) for key, word in snap.heard.items()
    }
    answer = placed(replace(snap, heard=words), SMALL)
    assert isinstance(answer, Placement)
    assert answer.shards[0].node_id == expected


def test_profiles_are_tried_in_order_of_preference():
    one = model("m", profile("best", gpu_class="H100"), profile("plain"))
    answer = placed(snapshot([one], [PLAIN]), one)
    assert isinstance(answer, Placement)
    assert answer.profile.name == "plain"
    refused = placed(snapshot([one], []), one)
    assert isinstance(refused, Refusal)
    assert [told.profile for told in refused.explanations] == ["best", "plain"]


GANG = model("m", profile("gang", nodes=2, gpus_per_node=2, extra_ports=("rendezvous",)))


def fabric_node(name, *fabrics, gpus=2):
    return node(name, gpus, fabrics=fabrics)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([fabric_node("n1", "a"), fabric_node("n2", "a")], ("n1", "n2")),
        ([fabric_node("n1", "a"), fabric_node("n2", "b"), fabric_node("n3", "b")], ("n2", "n3")),
        ([fabric_node("n1", "a"), fabric_node("n2", "b")], None),
        ([fabric_node("n1", "a"), fabric_node("n2", "a", gpus=1)], None),
        ([fabric_node("n1", "a"), node("n2")], None),
        ([fabric_node("n1", "a", "b"), fabric_node("n2", "b"), fabric_node("n3", "a", gpus=1)], ("n1", "n2")),
        ([fabric_node(f"n{number}", "a", gpus=4 - number % 3) for number in range(1, 5)], ("n1", "n2")),
    ],
    ids=[
        "one fabric",
        "the fabric that holds all",
        "one on each is none",
        "half is none",
        "on no fabric",
        "a node on two fabrics",
        "fullest nodes first",
    ],
)
def test_a_gang_lands_on_one_fabric_or_nowhere(nodes, expected):
    answer = placed(snapshot([GANG], nodes), GANG)
    if expected is None:
        assert isinstance(answer, Refusal)
        return
    assert isinstance(answer, Placement)
    assert tuple(part.node_id for part in answer.shards) == expected
    assert [part.rank for part in answer.shards] == [0, 1]
    assert [part.shard_id for part in answer.shards] == ["m/9.1.0", "m/9.1.1"]
    assert all([name for name, _ in part.ports] == ["http", "rendezvous"] for part in answer.shards)


def test_a_gang_short_of_one_node_says_how_many_it_found():
    told = placed(snapshot([GANG], [fabric_node("n1", "a"), fabric_node("n2", "b")]), GANG)
    assert isinstance(told, Refusal)
    assert told.reason().startswith("needs 2 nodes with 2 L4 free each, on one fabric; of 2 nodes: 2 free")


def test_ports_skip_leases_and_rest_and_stale_engines():
    stale = shard("ghost/1", "n1", 1, port=20002)
    ghost = report(replica(OTHER, 1, Phase.READY, stale), stale, ShardState.SERVING)
    big = node("n1", 4)
    snap = snapshot(
        [SMALL, OTHER],
        [big],
        [HELD],
        [heard(big, [report(HELD, HELD.shards[0], ShardState.SERVING), ghost])],
        quarantine=(
            PortQuarantine(NodeId("n1"), 20001, NOW + 1),
            PortQuarantine(NodeId("n1"), 20003, NOW - 1),
        ),
    )
    answer = placed(snap, SMALL)
    assert isinstance(answer, Placement)
    assert answer.shards[0].port("http") == 20003
    assert answer.shards[0].device_ids == ("n1:2",), "0 is claimed, 1 is held by the stale engine"


def test_rooms_after_a_claim_are_as_if_read_from_the_rows():
    snap = snapshot([SMALL], [PLAIN])
    answer = placed(snap, SMALL)
    assert isinstance(answer, Placement)
    part = answer.shards[0]
    after = with_claim(
        rooms(snap, NOW), SMALL.name, ReplicaId("m/9"), part.node_id, part.device_ids, (20000,)
    )
    row = replica(SMALL, 9, Phase.RESERVED, part)
    assert after == rooms(snapshot([SMALL], [PLAIN], [row]), NOW)


def test_unhealthy_comes_before_claimed_and_claimed_before_foreign():
    row = replica(OTHER, 1, Phase.READY, shard("other/1", "n1", 0, 1))
    devices = (
        device(PLAIN.devices[0], state=DeviceState.UNHEALTHY, reason="xid_48"),
        device(PLAIN.devices[1], foreign_used_bytes=GIB),
    )
    word = heard(PLAIN, [report(row, row.shards[0], ShardState.SERVING)], devices=devices)
    found = rooms(snapshot([OTHER], [PLAIN], [row], [word]), NOW)[NodeId("n1")]
    assert [one.use.value for one in found.devices] == ["unhealthy", "claimed"]
    assert all(one.replica_id == "other/1" for one in found.devices)


def test_a_device_that_left_the_inventory_is_missing():
    word = heard(PLAIN, devices=(device(PLAIN.devices[0]),))
    found = rooms(snapshot([], [PLAIN], [], [word]), NOW)[NodeId("n1")]
    assert {one.device_id: one.use.value for one in found.devices} == {
        DeviceId("n1:0"): "free",
        DeviceId("n1:1"): "unhealthy",
    }
