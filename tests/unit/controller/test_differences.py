"""Where the store's rows are not the leader's: what counts, and what is only another way to keep the same."""

from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given

from llmgw_controller.core.differences import differences
from llmgw_controller.core.rows import AttemptRow, EvictionRow, EvictionState, LoadRecord, Phase, Stored
from llmgw_kit.ids import ModelId, NodeId, ReplicaId
from tests.unit.controller.build import NOW, model, node, replica, shard, snapshot
from tests.unit.controller.worlds import fleets

M = ModelId("m")
ONE = replica(model(), 1, Phase.READY, shard("m/1", "a", 0))
ROWS = replace(
    snapshot([model()], [node("a")], [ONE]).stored,
    models={M: '{"name": "m", "replicas": 1}'},
    loads=(LoadRecord(M, "p", "L4", 9.0, NOW - 9), LoadRecord(M, "q", "L4", 8.0, NOW - 9)),
    attempts=(AttemptRow(M, "p", "L4", "h", ReplicaId("m/1"), (NodeId("a"),), "crashed", "boom", NOW),),
    idle_floor=NOW - 100,
)


def receipt(state: EvictionState) -> EvictionRow:
    return EvictionRow("m/1@1#9", ReplicaId("m/1"), M, ModelId("w"), ReplicaId("w/1"), NOW - 90_000, state,
                       "", (), 1, 60.0, None, None)  # fmt: skip


SAME = {
    "a time in microseconds": replace(ROWS, replicas={ONE.replica_id: replace(ONE, since=ONE.since + 4e-7)}),
    "a floor in microseconds": replace(ROWS, idle_floor=NOW - 100 + 4e-7),
    "a spec in other words": replace(ROWS, models={M: '{"replicas":1,"name":"m"}'}),
    "devices in another order": replace(
        ROWS,
        nodes={NodeId("a"): replace(node("a"), devices=tuple(reversed(node("a").devices)))},
    ),
    "loads of one moment": replace(ROWS, loads=tuple(reversed(ROWS.loads))),
}

OTHER = {
    "replicas m/1": replace(ROWS, replicas={ONE.replica_id: replace(ONE, failures=3)}),
    "nodes a": replace(ROWS, nodes={}),
    "nodes b": replace(ROWS, nodes={**ROWS.nodes, NodeId("b"): node("b")}),
    "models m": replace(ROWS, models={M: "{}"}),
    "loads m": replace(ROWS, loads=ROWS.loads[:1]),
    "attempts m": replace(ROWS, attempts=()),
    "epochs m": replace(ROWS, epochs={M: 7}),
    "idle_floor": replace(ROWS, idle_floor=None),
}


@pytest.mark.parametrize("theirs", SAME.values(), ids=SAME)
def test_the_same_rows_kept_in_another_way_do_not_differ(theirs: Stored) -> None:
    assert theirs != ROWS
    assert differences(ROWS, theirs) == ()


@pytest.mark.parametrize("told", OTHER)
def test_what_differs_is_named(told: str) -> None:
    assert differences(ROWS, OTHER[told]) == (told,)


def test_a_receipt_that_is_no_longer_looked_back_on_is_no_difference() -> None:
    done, under_way = receipt(EvictionState.DONE), receipt(EvictionState.DRAINING)
    assert differences(replace(ROWS, evictions={done.eviction_id: done}), ROWS) == ()
    told = differences(replace(ROWS, evictions={under_way.eviction_id: under_way}), ROWS)
    assert told == ("evictions m/1@1#9",)


@given(fleets())
def test_rows_do_not_differ_from_themselves(snap) -> None:
    assert differences(snap.stored, deepcopy(snap.stored)) == ()
