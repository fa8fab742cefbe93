"""A leader whose rows died with the one before: what runs is taken up, not ended and started again."""

from dataclasses import replace

import pytest

from llmgw_controller.core.catalog import spec_hash
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.rows import Cause, Phase, Wish
from llmgw_controller.core.strangers import HOLD_S, holds_back, may_adopt, strangers_of
from llmgw_kit.ids import NodeId
from tests.unit.controller.build import (
    NOW,
    Stage,
    heard,
    model,
    node,
    profile,
    replica,
    report,
    shard,
    snapshot,
)

ONE = model(replicas=1)
GANG = model("g", profile("p", nodes=2, tensor_parallel=2), replicas=1)


def running(one, part, state=ShardState.SERVING, number=1, **changes):
    row = replica(one, number, Phase.READY, part)
    return report(row, part, state, credential="secret", **changes)


def world(models, words, nodes, **changes):
    """A leader of two seconds that keeps its rows in memory."""
    return snapshot(models, nodes, [], words, term_started=NOW - 2, adopts=True, **changes)


def stage(models, reports_by_node):
    nodes = [node(name, fabrics=("ib",)) for name in sorted(reports_by_node)]
    words = [heard(one, reports_by_node[one.node_id]) for one in nodes]
    return Stage(world(models, words, nodes))


def test_what_serves_is_ready_at_once_under_its_own_names() -> None:
    part = shard("m/1", "n1", 1, epoch=7)
    made = stage([ONE], {"n1": [running(ONE, part, group_epoch=7)]})
    made.step()
    row = made.rows["m/1"]
    assert (row.phase, row.wish, row.cause) == (Phase.READY, Wish.SERVE, Cause.CONFIGURATION)
    assert (row.shards, row.group_epoch, row.credential) == ((part,), 7, "secret")
    assert made.snap.stored.epochs["m"] == 7
    # It is what is wanted: nothing else is started, also when placing begins.
    for _ in range(4):
        made.step()
    assert list(made.rows) == ["m/1"]
    assert not made.snap.stored.loads, "nobody measured that start"


def test_what_is_loading_goes_on_and_is_measured_by_its_agent() -> None:
    part = shard("m/1", "n1", 0)
    made = stage([ONE], {"n1": [running(ONE, part, ShardState.LOADING)]})
    made.step()
    assert made.rows["m/1"].phase is Phase.STARTING
    made.tell(made.rows["m/1"], ShardState.SERVING, load_s=41.0)
    made.step()
    assert made.rows["m/1"].phase is Phase.READY
    assert [load.seconds for load in made.snap.stored.loads] == [41.0]


def test_a_group_is_taken_up_when_all_of_it_was_heard() -> None:
    parts = [shard("g/1", f"n{rank + 1}", 0, rank=rank) for rank in range(2)]
    made = stage([GANG], {"n1": [running(GANG, parts[0])], "n2": []})
    made.step()
    assert not made.rows["g/1"].shards
    made.say("n2", shards={parts[1].shard_id: running(GANG, parts[1])})
    made.step()
    assert made.rows["g/1"].shards == tuple(parts)
    assert made.rows["g/1"].phase is Phase.READY


@pytest.mark.parametrize(
    "odd",
    [
        {"spec_hash": "another"},
        {"state": ShardState.DRAINING},
        {"state": ShardState.STOPPING},
        {"device_ids": ()},
    ],
    ids=["spec", "draining", "stopping", "devices"],
)
def test_what_is_not_what_the_catalog_says_is_left_to_end(odd: dict) -> None:
    part = shard("m/1", "n1", 0)
    one = replace(running(ONE, part), **odd)
    made = stage([ONE], {"n1": [one]})
    made.step()
    assert not made.rows["m/1"].shards
    word = made.snap.heard[NodeId("n1")]
    assert strangers_of(word, made.snap.stored) == [one]


def test_nothing_is_placed_before_agents_had_time_to_call_again() -> None:
    made = stage([ONE], {"n1": []})
    assert holds_back(made.snap, made.now)
    made.step(HOLD_S)
    assert made.rows["m/1"].phase is Phase.WANTED
    made.step()
    assert made.rows["m/1"].phase is Phase.RESERVED


def test_a_stranger_of_a_name_that_is_placed_by_now_stays_one() -> None:
    made = stage([ONE], {"n1": []})
    made.step(HOLD_S)
    made.step()
    taken = made.rows["m/1"].shards[0]
    late = running(ONE, shard("m/1", "n1", 1, epoch=9, port=20009), group_epoch=9)
    made.say("n1", shards={late.shard_id: late})
    made.step()
    assert made.rows["m/1"].shards[0] == taken


def test_the_younger_of_two_groups_of_one_replica_is_kept() -> None:
    old, new = shard("m/1", "n1", 0, epoch=3), shard("m/1", "n2", 0, epoch=4)
    made = stage([ONE], {"n1": [running(ONE, old, group_epoch=3)], "n2": [running(ONE, new, group_epoch=4)]})
    made.step()
    assert made.rows["m/1"].shards == (new,)


def test_after_the_window_and_with_a_database_nothing_is_taken_up() -> None:
    part = shard("m/1", "n1", 0)
    words = [heard(node("n1"), [running(ONE, part)])]
    late = replace(world([ONE], words, [node("n1")]), term_started=NOW - 31)
    assert not may_adopt(late, NOW)
    for snap in (late, replace(world([ONE], words, [node("n1")]), adopts=False)):
        made = Stage(snap)
        made.step()
        assert made.rows["m/1"].shards != (part,)
        assert made.rows["m/1"].spec_hash == spec_hash(ONE, ONE.profiles[0])
