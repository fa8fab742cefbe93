"""Failed starts of a profile: when it rests, when it is started no more, and what brings it back."""

import pytest

from llmgw_controller.core.activity import Verdicts
from llmgw_controller.core.claims import rooms
from llmgw_controller.core.deployments import second_chance
from llmgw_controller.core.failing import failing, profile_rests_until
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.plan import Plan
from llmgw_controller.core.rows import Phase
from llmgw_controller.core.state import Intervals
from llmgw_controller.core.trouble import troubles
from tests.unit.controller.attempts import CRASH, ONE, attempt, end, fleet, with_attempts
from tests.unit.controller.build import NOW, Stage, after, model, node, profile, replica, shard, snapshot


def test_a_profile_that_failed_rests_for_new_replicas_too():
    two = model(replicas=2)
    stage = fleet(two, "n1 n2 n3", attempt(two, "n9", number=1), attempt(two, "n9", number=1, at=NOW))
    stage.step(0)
    waits = {name: (row.phase, row.until) for name, row in stage.rows.items()}
    until = profile_rests_until(stage.snap.stored, two, two.profiles[0], Intervals())
    assert waits == {"m/1": (Phase.BACKOFF, until), "m/2": (Phase.BACKOFF, until)}
    assert 8 <= until - NOW <= 10, "as after two failures of one replica"
    stage.jump(until)
    stage.step()
    assert {row.phase for row in stage.rows.values()} == {Phase.RESERVED}


def test_many_that_failed_together_wait_as_one_that_failed_once():
    two = model(replicas=2)
    stored = fleet(two, "n1", *(attempt(two, "n1", number=n) for n in range(1, 9))).snap.stored
    until = profile_rests_until(stored, two, two.profiles[0], Intervals())
    assert until - (NOW - 1) <= 5


def test_a_preferred_profile_that_rests_is_waited_for_and_one_that_has_no_room_is_not():
    both = model("m", profile("best"), profile("plain", gpus_per_node=2, tensor_parallel=2), replicas=1)
    stage = fleet(both, "n1", attempt(both, "n9"))
    stage.step(0)
    assert stage.rows["m/1"].phase is Phase.BACKOFF
    wide = Stage(
        with_attempts(
            snapshot([both], [node("n1", 2)], [replica(model("o", replicas=1), 1, Phase.READY)]),
            attempt(both, "n9", gpu_class="L4"),
        )
    )
    wide.step(0)
    assert wide.rows["m/1"].phase is Phase.BACKOFF
    other = model("m", profile("best", gpu_class="H100"), profile("plain"), replicas=1)
    alone = fleet(other, "n1", attempt(other, "n9"))
    alone.step(0)
    assert (alone.rows["m/1"].phase, alone.rows["m/1"].profile) == (Phase.RESERVED, "plain")


@pytest.mark.parametrize(
    ("attempts", "fails"),
    [
        ([attempt(ONE, "n1"), attempt(ONE, "n1")], False),
        ([attempt(ONE, "n1"), attempt(ONE, "n2")], True),
        ([attempt(ONE, "n1"), attempt(ONE, "n2", reason="never_ready")], False),
        ([attempt(ONE, "n1", reason="rebooted"), attempt(ONE, "n2", reason="rebooted")], False),
        ([attempt(ONE, "n1"), attempt(ONE, "n2", spec_hash="older")], False),
        ([attempt(ONE, "n1 n2")], False),
        ([attempt(ONE, "n1 n2"), attempt(ONE, "n2 n3")], False),
        ([attempt(ONE, "n1 n2"), attempt(ONE, "n3 n4")], True),
        ([attempt(ONE, "n1"), attempt(ONE, "n2", profile="q")], False),
        ([attempt(ONE, "n1"), attempt(ONE, "n2", model="other")], False),
    ],
    ids=[
        "twice on one node",
        "on two nodes",
        "two different failures",
        "the nodes' own trouble",
        "another spec",
        "one start that broke on two nodes",
        "two starts that share a node",
        "two starts on four nodes",
        "another profile",
        "another model",
    ],
)
def test_when_the_failure_is_the_profiles(attempts, fails):
    found = failing(fleet(ONE, "n1", *attempts).snap.stored, ONE, ONE.profiles[0], Intervals())
    assert (found is not None) is fails


def burn(stage, most=10):
    """Let every start crash; how many there were."""
    starts = 0
    for _ in range(most):
        stage.step(0)
        risen = [row for row in stage.rows.values() if row.phase is Phase.RESERVED]
        if not risen:
            waiting = [row.until for row in stage.rows.values() if row.phase is Phase.BACKOFF]
            if not waiting:
                return starts
            stage.jump(min(waiting))
            continue
        starts += len(risen)
        for row in risen:
            stage.tell(row, ShardState.EXITED, exit=CRASH)
    return starts


def test_the_same_failure_on_two_nodes_burns_no_third():
    stage = fleet(ONE, "n1 n2 n3 n4 n5 n6")
    assert burn(stage) == 2
    row = stage.rows["m/1"]
    assert (row.phase, row.failures) == (Phase.FAILED, 2)
    assert row.reason.startswith("profile failing: p on L4: crashed on n1, n2: crashed with code 1")
    stage.jump(stage.now + 3000)
    assert stage.step().changes == (), "it waits for an operator or a new spec"


def test_the_verdict_falls_with_the_failure_and_not_with_the_next_start():
    stage = fleet(ONE, "n1 n2 n3")
    stage.step(0)
    stage.jump(end(stage).until)
    stage.step(0)
    assert end(stage).phase is Phase.FAILED


def test_the_next_profile_is_tried_when_one_fails():
    both = model("m", profile("best"), profile("plain", context_length=1024), replicas=1)
    stage = fleet(both, "n1 n2 n3 n4")
    for _ in range(2):
        stage.step(0)
        assert stage.rows["m/1"].profile == "best"
        stage.jump(end(stage).until)
    stage.step()
    row = stage.rows["m/1"]
    assert (row.phase, row.profile) == (Phase.RESERVED, "plain")
    kinds = [one.kind for one in troubles(stage.snap, rooms(stage.snap, stage.now), Verdicts(), stage.now)]
    assert "profile_failing" in kinds, "it is told although something else serves"


def test_a_failing_profile_is_trouble_with_the_command_that_helps():
    stage = fleet(ONE, "n1 n2 n3")
    burn(stage)
    found = {
        one.kind: one for one in troubles(stage.snap, rooms(stage.snap, stage.now), Verdicts(), stage.now)
    }
    assert found["profile_failing"].subject == "m"
    assert found["profile_failing"].fix == "llmgwctl model start m"
    assert "crashed on n1, n2" in found["profile_failing"].text
    assert found["replica_failed"].text.startswith("given up after 2 starts: profile failing")


def test_replicas_that_were_never_started_are_not_started_either():
    many = model(replicas=4)
    stage = fleet(many, "n1 n2 n3 n4", attempt(many, "n8"), attempt(many, "n9"))
    assert burn(stage) == 0
    assert {(row.phase, row.failures) for row in stage.rows.values()} == {(Phase.FAILED, 0)}
    told = [one.text for one in troubles(stage.snap, rooms(stage.snap, NOW), Verdicts(), NOW)]
    assert sum(text.startswith("not started: profile failing") for text in told) == 4


def test_a_new_spec_is_a_new_chance():
    stage = fleet(ONE, "n1 n2 n3")
    burn(stage)
    stage.catalog(model("m", profile(context_length=512), replicas=1))
    stage.step(0)
    assert stage.rows["m/1"].phase is Phase.RESERVED
    assert stage.snap.stored.attempts == (), "what the old spec did says nothing any more"


def test_an_operator_gives_another_chance():
    stage = fleet(ONE, "n1 n2 n3")
    burn(stage)
    changes, renewed = second_chance(stage.snap.stored, ONE.name, stage.now)
    stage.snap = after(stage.snap, Plan(tuple(changes)))
    assert renewed == ["m/1"]
    stage.step(0)
    assert (stage.rows["m/1"].phase, stage.rows["m/1"].failures) == (Phase.RESERVED, 0)


def test_attempts_are_forgotten_when_a_later_start_came_up_and_stayed():
    stage = fleet(ONE, "n1 n2")
    stage.step(0)
    stage.jump(end(stage).until)
    stage.step(0)
    stage.obey()
    stage.step(0)
    stage.step(0)
    assert stage.rows["m/1"].phase is Phase.READY
    stage.jump(stage.now + 59)
    stage.step(1)
    assert len(stage.snap.stored.attempts) == 1, "it must stay for min_uptime_s"
    stage.step(0)
    assert stage.snap.stored.attempts == ()


def test_one_that_served_before_the_failures_proves_nothing():
    two = model(replicas=2)
    old = replica(two, 1, Phase.READY, shard("m/1", "n1", 0))
    snap = snapshot([two], [node(f"n{n}", 1) for n in (1, 2, 3)], [old])
    stage = Stage(with_attempts(snap, attempt(two, "n2", number=2, at=NOW - 500)))
    stage.step(0)
    assert len(stage.snap.stored.attempts) == 1


def test_what_failed_for_its_profile_comes_back_when_the_profile_is_proven():
    """Another replica was on its way up when the verdict fell, came up after all and stays."""
    two = model(replicas=2)
    rising = replica(two, 1, Phase.STARTING, shard("m/1", "n3", 0), since=NOW - 1)
    snap = snapshot([two], [node(f"n{n}", 1) for n in (1, 2, 3)], [rising])
    stage = Stage(with_attempts(snap, attempt(two, "n1", number=2), attempt(two, "n2", number=2)))
    stage.step(0)
    assert stage.rows["m/2"].phase is Phase.FAILED
    stage.obey()
    stage.step(0)
    stage.jump(stage.now + 61)
    stage.step(0)
    assert stage.rows["m/2"].phase is Phase.RESERVED


def test_an_end_after_a_long_life_is_no_failed_start():
    """Queries of death reach every replica: crashes of what had long served must not fail the profile."""
    two = model(replicas=2)
    rows = [replica(two, n, Phase.READY, shard(f"m/{n}", f"n{n}", 0)) for n in (1, 2)]
    stage = Stage(snapshot([two], [node(f"n{n}", 1) for n in (1, 2, 3)], rows))
    for name in ("m/1", "m/2"):
        row = end(stage, name)
        assert (row.phase, row.failures) == (Phase.BACKOFF, 1)
    assert stage.snap.stored.attempts == ()
