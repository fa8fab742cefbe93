"""What agents are told and do not do, though they are heard: nothing hangs for ever, and nothing is freed."""

from dataclasses import replace

import pytest

from llmgw_controller.core.groups import STEPS_MOST
from llmgw_controller.core.heard import Exit, ShardState
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.overdue import REPLACED_AFTER_S, TAKE_UP_S, deaf_nodes
from llmgw_controller.core.plan import Reserve, Start, Stop
from llmgw_controller.core.rows import Phase, Wish
from llmgw_controller.core.view import fleet_view
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

M = model(replicas=1)
#: Its GPUs are both of n1.
TAKEN = shard("m/1", "n1", 0)


def stage(*nodes, phase: Phase = Phase.RESERVED, one=M, answered=frozenset(), **changes) -> Stage:
    """Agents that beat, and say nothing of what they were told."""
    there = nodes or (node("n1"), node("n2"))
    parts = changes.pop("shards", (TAKEN,))
    row = replica(one, 1, phase, *parts, since=NOW, **changes)
    return Stage(snapshot([one], there, [row], [heard(each, answered=answered) for each in there]))


def held(found: Stage) -> set[tuple[str, str]]:
    return {
        (part.node_id, device)
        for row in found.rows.values()
        for part in row.shards
        if not part.released
        for device in part.device_ids
    }


def test_a_start_that_nobody_takes_up_is_given_up_in_time_and_its_devices_are_not():
    found = stage()
    found.jump(NOW + TAKE_UP_S - 1)
    assert [one for one in found.step(0).commands if isinstance(one, Start)], "said again meanwhile"
    assert found.rows["m/1"].phase is Phase.RESERVED
    found.jump(NOW + TAKE_UP_S)
    plan = found.step(0)
    row = found.rows["m/1"]
    assert (row.phase, row.reason) == (Phase.BACKOFF, "not_taken_up: n1 did not take it up within 1 m 00 s")
    assert [type(one) for one in plan.commands] == [Stop]
    assert held(found) == {("n1", "n1:0")}
    found.jump(NOW + TAKE_UP_S + 60)
    found.step()
    assert held(found) == {("n1", "n1:0")}, "it may still come up"


def test_once_its_exit_is_seen_it_goes_elsewhere():
    found = stage()
    found.jump(NOW + TAKE_UP_S)
    found.step()
    found.tell(found.rows["m/1"], ShardState.EXITED, exit=Exit(None, None, "absent", ""))
    found.jump(NOW + TAKE_UP_S + 8)
    found.step()
    row = found.rows["m/1"]
    assert (row.phase, row.group_epoch, row.shards[0].node_id) == (Phase.RESERVED, 2, "n2")


def test_an_engine_that_comes_up_late_is_stopped_before_its_devices_are_given_away():
    found = stage(node("n1", 1))
    found.jump(NOW + TAKE_UP_S)
    found.step()
    found.tell(found.rows["m/1"], ShardState.LOADING)
    found.jump(NOW + TAKE_UP_S + 30)
    plan = found.step()
    assert [type(one) for one in plan.commands] == [Stop]
    assert found.rows["m/1"].phase is Phase.BACKOFF
    assert held(found) == {("n1", "n1:0")}


def test_where_its_exit_is_never_seen_another_takes_its_place_on_another_node():
    """The first keeps what it holds; of nodes that fit, the deaf one goes last."""
    found = stage(node("n1", 4), node("n2", 8))
    found.jump(NOW + TAKE_UP_S)
    found.step()
    late = found.rows["m/1"].since + M.profiles[0].stop_grace_s + REPLACED_AFTER_S
    found.jump(late - 1)
    found.step(0)
    assert list(found.rows) == ["m/1"]
    assert deaf_nodes(found.snap, found.now) == {"n1"}
    found.jump(late)
    found.step(0)
    first, second = found.rows["m/1"], found.rows["m/2"]
    assert (first.wish, first.phase) == (Wish.STOP, Phase.STOPPING)
    assert first.reason == "its exit on n1 is not seen; another takes its place"
    assert (second.phase, second.shards[0].node_id) == (Phase.RESERVED, "n2")
    assert held(found) == {("n1", "n1:0"), ("n2", "n2:0")}


@pytest.mark.parametrize(
    "why", ["silent", "between two streams", "a new leader", "the leader slept", "learning"]
)
def test_nobody_is_judged_who_may_not_have_heard(why):
    found = stage()
    found.jump(NOW + TAKE_UP_S + 5)
    if why == "silent":
        word = replace(found.snap.heard[NodeId("n1")], heard_at=NOW)
        found.snap = replace(found.snap, heard={**found.snap.heard, NodeId("n1"): word})
    elif why == "between two streams":
        found.say("n1", connected=False)
    elif why == "a new leader":
        found.snap = replace(found.snap, term_started=NOW + TAKE_UP_S - 40)
    elif why == "the leader slept":
        found.snap = replace(found.snap, awake_since=NOW + 30, asleep_since=NOW + 20)
    else:
        words = {key: word for key, word in found.snap.heard.items() if key != "n2"}
        found.snap = replace(found.snap, term_started=found.now - 20, heard=words)
    found.step()
    assert found.rows["m/1"].phase is Phase.RESERVED


def test_of_a_group_only_the_deaf_node_is_blamed():
    gang = model("m", profile(nodes=2, tensor_parallel=2), replicas=1)
    parts = (shard("m/1", "n1", 0), shard("m/1", "n2", 0, rank=1))
    there = [node(f"n{number}", fabrics=("ib",)) for number in (1, 2, 3)]
    found = stage(*there, one=gang, shards=parts)
    row = found.rows["m/1"]
    found.say("n1", shards={parts[0].shard_id: report(row, parts[0], ShardState.FETCHING)})
    found.jump(NOW + TAKE_UP_S)
    plan = found.step()
    assert found.rows["m/1"].phase is Phase.BACKOFF
    assert [one.node_ids for one in found.snap.stored.attempts] == [("n2",)]
    assert sorted(one.node_id for one in plan.commands if isinstance(one, Stop)) == ["n1", "n2"]
    assert not [one for one in plan.changes if isinstance(one, Reserve)]


def told(found: Stage, kind: str) -> str:
    view = fleet_view(found.snap, verdicts(found.snap, found.now), found.now)
    (text,) = [one.text for one in view.trouble if one.kind == kind]
    return text


def test_the_deadline_is_told_before_it_is_over():
    found = stage()
    found.jump(NOW + 40)
    text = told(found, "start_overdue")
    assert text == "told to n1 40 s ago and not taken up; given up in 20 s"
    found.jump(NOW + TAKE_UP_S)
    found.step(0)
    found.jump(found.now + 80)
    assert told(found, "stop_overdue") == (
        "its exit on n1 is not seen for 1 m 20 s; its GPUs stay claimed, "
        "and another takes its place in 1 m 00 s"
    )


def test_a_replica_takes_few_steps_at_one_moment():
    """So that two rules that undo each other are found by the pass, with the story."""
    assert STEPS_MOST == 10
