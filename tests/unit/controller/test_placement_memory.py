"""Memory: what a replica claims, where the number comes from, and what a device can still give."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw_controller.core.catalog import Engine, Weights, WeightsFile, spec_hash
from llmgw_controller.core.claims import rooms
from llmgw_controller.core.explain import Fit, Reason
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.memory import (
    FORMULA_CONSTANT_BYTES,
    UNKNOWN,
    MemoryClaim,
    MemorySource,
    measured_of,
    memory_claim,
    usable_bytes,
)
from llmgw_controller.core.placement import Memo, Placement, explain, never_because, place
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.rows import LoadRecord, Phase
from llmgw_kit.ids import NodeId, ReplicaId
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
)


def weighing(*sizes, **changes):
    files = tuple(WeightsFile(f"{n}.bin", f"file:///{n}.bin", None, size) for n, size in enumerate(sizes))
    return model("m", profile(**changes), weights=Weights("v1", files, "0.bin"))


def load(one, memory_bytes, at=NOW, **changes):
    first = one.profiles[0]
    plain = LoadRecord(
        one.name, first.name, first.gpu_class, 30.0, at,
        memory_bytes=memory_bytes, spec_hash=spec_hash(one, first),
    )  # fmt: skip
    return replace(plain, **changes)


BIG = weighing(20 * GIB, 10 * GIB)


@pytest.mark.parametrize(
    ("one", "loads", "expected"),
    [
        (weighing(GIB, memory_bytes=9 * GIB), True, MemoryClaim(9 * GIB, MemorySource.DECLARED)),
        (weighing(GIB), True, MemoryClaim(7 * GIB, MemorySource.MEASURED)),
        (BIG, False, MemoryClaim(36 * GIB + FORMULA_CONSTANT_BYTES, MemorySource.FORMULA)),
        (
            weighing(30 * GIB, gpus_per_node=4, tensor_parallel=2, pipeline_parallel=2),
            False,
            MemoryClaim(9 * GIB + FORMULA_CONSTANT_BYTES, MemorySource.FORMULA),
        ),
        (
            weighing(30 * GIB, gpus_per_node=2, data_parallel=2),
            False,
            MemoryClaim(36 * GIB + FORMULA_CONSTANT_BYTES, MemorySource.FORMULA),
        ),
        (weighing(GIB, None), False, UNKNOWN),
        (weighing(GIB, engine=Engine.COMMAND, command=("x",)), False, UNKNOWN),
        (replace(BIG, weights=None), False, UNKNOWN),
    ],
    ids=[
        "declared beats all",
        "measured beats the formula",
        "formula",
        "parallelism shares the weights out",
        "a data-parallel copy has all of them",
        "a file of unknown size",
        "what a command does with weights is its own affair",
        "no weights",
    ],
)  # fmt: skip
def test_where_the_claim_comes_from(one, loads, expected):
    measured = measured_of((load(one, 5 * GIB), load(one, 7 * GIB), load(one, 6 * GIB))) if loads else {}
    assert memory_claim(one, one.profiles[0], measured) == expected


def test_another_spec_or_a_start_that_was_not_measured_says_nothing():
    one = weighing(None)
    found = measured_of(
        (load(one, None), load(one, 7 * GIB, spec_hash="other"), load(one, 7 * GIB, spec_hash=None))
    )
    assert memory_claim(one, one.profiles[0], found) == UNKNOWN


@pytest.mark.parametrize(
    ("total", "used", "foreign", "own", "expected"),
    [
        (24, 0, 0, 0, 24),
        (24, 20, 1, 0, 23),
        (24, 20, None, 0, 4),
        (24, 20, None, 18, 22),
        (24, None, None, 0, 24),
        (24, 30, 30, 0, 0),
        (None, 5, 5, 0, None),
    ],
    ids=[
        "empty",
        "what is not foreign is ours, and leaves",
        "whose it is cannot be told",
        "an engine of ours was seen to hold most of it",
        "no reading",
        "never below nothing",
        "unknown size",
    ],
)
def test_what_a_device_can_give(total, used, foreign, own, expected):
    assert usable_bytes(total, used, foreign, own) == expected


NEEDS_23 = model("m", profile(memory_bytes=23 * GIB), replicas=1)
ONE_GPU = node("n1", 1)


@pytest.mark.parametrize(
    ("foreign_mib", "expected"),
    [(0, "free"), (400, "free"), (600, "foreign")],
    ids=["none", "a little", "much"],
)
def test_case_33_foreign_memory_is_subtracted_from_what_a_device_can_give(foreign_mib, expected):
    """23.8 of 24 GiB claimed: 400 MiB of a stranger are no foreign use yet, and still too much."""
    tight = model("m", profile(memory_bytes=int(23.8 * GIB)))
    word = heard(ONE_GPU, devices=(device(ONE_GPU.devices[0], foreign_used_bytes=foreign_mib * 1024**2),))
    found = rooms(snapshot([tight], [ONE_GPU], [], [word]), NOW)
    assert found[NodeId("n1")].devices[0].use.value == expected
    told = explain(tight, tight.profiles[0], found)
    if foreign_mib:
        assert (told.fit, told.filters[0].reason) == (Fit.NEVER, Reason.FOREIGN_USE)
    else:
        assert told.fit is Fit.NOW
    assert explain(NEEDS_23, NEEDS_23.profiles[0], found).fit is (
        Fit.NOW if expected == "free" else Fit.NEVER
    )


def test_case_33_an_idle_replica_whose_device_a_stranger_shares_is_no_near_miss_for_what_needs_it_whole():
    other = model("other")
    row = replica(other, 1, Phase.READY, shard("other/1", "n1", 0))
    tight = model("m", profile(memory_bytes=24 * GIB))
    devices = (device(ONE_GPU.devices[0], memory_used_bytes=20 * GIB, foreign_used_bytes=100 * 1024**2),)
    word = heard(ONE_GPU, [report(row, row.shards[0], ShardState.SERVING)], devices=devices)
    found = rooms(snapshot([tight, other], [ONE_GPU], [row], [word]), NOW)
    evictable = frozenset({row.replica_id})
    assert explain(tight, tight.profiles[0], found, evictable=evictable).fit is Fit.NEVER
    small = model("s", profile(memory_bytes=20 * GIB))
    assert explain(small, small.profiles[0], found, evictable=evictable).fit is Fit.AFTER_EVICTION


def test_readings_from_before_an_exit_do_not_keep_the_next_start_away():
    """Memory is read every half minute; the exit is heard at once."""
    old = replica(NEEDS_23, 1, Phase.STOPPING, shard("m/1", "n1", 0))
    gone = report(
        old, old.shards[0], ShardState.EXITED, memory_used_bytes=((ONE_GPU.devices[0].device_id, 22 * GIB),)
    )
    for foreign in (0, None):
        devices = (device(ONE_GPU.devices[0], memory_used_bytes=22 * GIB, foreign_used_bytes=foreign),)
        found = rooms(snapshot([NEEDS_23], [ONE_GPU], [], [heard(ONE_GPU, [gone], devices=devices)]), NOW)
        assert explain(NEEDS_23, NEEDS_23.profiles[0], found).fit is Fit.NOW


def test_case_21_what_no_device_of_the_class_can_hold_never_fits_and_nobody_leaves_for_it():
    other = model("other", replicas=1)
    row = replica(other, 1, Phase.READY, shard("other/1", "n1", 0))
    huge = model("m", profile(memory_bytes=40 * GIB), replicas=1)
    snap = snapshot([huge, other], [ONE_GPU, node("n2", 1, gpu_class="T4")], [row])
    told = explain(huge, huge.profiles[0], rooms(snap, NOW), evictable=frozenset({row.replica_id}))
    assert (told.fit, told.leaving, told.near_misses) == (Fit.NEVER, (), ())
    assert told.reason() == (
        "needs 1 node with 1 L4 free, 42.9 GB on each GPU (declared); of 2 nodes: "
        "wrong GPU class for the profile: 1, GPUs with too little memory: 1; the largest has 25.8 GB"
    )
    plan = reconcile(snap, NOW)
    touched = {change.replica.replica_id for change in plan.changes if hasattr(change, "replica")}
    assert touched == {ReplicaId("m/1")}, "the other one is left alone"


def test_the_explanation_carries_the_bytes_and_their_source():
    found = rooms(snapshot([BIG], [node("n1", 1)], loads=(load(BIG, 11 * GIB),)), NOW)
    told = explain(BIG, BIG.profiles[0], found)
    assert told.memory == MemoryClaim(11 * GIB, MemorySource.MEASURED)
    assert told.needs == "1 node with 1 L4 free, 11.8 GB on each GPU (measured)"
    assert isinstance(place(BIG, found, replica_id=ReplicaId("m/1"), group_epoch=1), Placement)


def test_a_device_that_cannot_give_what_is_claimed_is_passed_over_for_one_that_can():
    two = node("n1", 2)
    devices = (
        device(two.devices[0], foreign_used_bytes=400 * 1024**2),
        device(two.devices[1]),
    )
    tight = model("m", profile(memory_bytes=24 * GIB))
    found = rooms(snapshot([tight], [two], [], [heard(two, devices=devices)]), NOW)
    assert explain(tight, tight.profiles[0], found).spots[0].device_ids == ("n1:1",)


def test_never_because_speaks_of_the_nodes_as_they_are_known_not_of_what_fills_them():
    full = replica(NEEDS_23, 1, Phase.READY, shard("m/1", "n1", 0))
    busy = rooms(snapshot([NEEDS_23], [ONE_GPU], [full]), NOW)
    assert never_because(NEEDS_23, NEEDS_23.profiles[0], busy) is None
    gang = model("g", profile(nodes=2))
    lone = rooms(snapshot([gang], [node("n1", fabrics=("a",)), node("n2", fabrics=("b",))]), NOW)
    assert never_because(gang, gang.profiles[0], lone) == (
        "needs 2 nodes with 1 L4 free each, on one fabric; of 2 nodes: none on one fabric; "
        "no fabric has more than 1 node that can"
    )


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([None, 8, 16, 24]), st.sampled_from([None, 0, 1, 400])),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(1, 30 * 1024), min_size=1, max_size=12),
)
def test_claims_that_no_device_tells_apart_are_answered_alike(devices, claims_mib):
    """One memo for all of them says of each what a search of its own says."""
    homes, words = [], []
    for number, (size, foreign) in enumerate(devices):
        home = node(f"n{number}", 1)
        row = replace(home.devices[0], memory_total_bytes=None if size is None else size * GIB)
        home = replace(home, devices=(row,))
        used = None if foreign is None else foreign * 1024**2
        homes.append(home)
        words.append(heard(home, devices=(device(row, foreign_used_bytes=used),)))
    models = [
        model(f"m{number}", profile(memory_bytes=claim * 1024**2)) for number, claim in enumerate(claims_mib)
    ]
    found = rooms(snapshot(models, homes, [], words), NOW)
    memo = Memo()
    for one in models:
        told = explain(one, one.profiles[0], found, memo=memo)
        assert told == explain(one, one.profiles[0], found)
        assert told.memory.size_bytes == one.profiles[0].memory_bytes
