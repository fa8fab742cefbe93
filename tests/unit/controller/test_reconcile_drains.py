"""Draining and stopping: who is drained, when a drain ends, and when what it held comes free."""

from dataclasses import replace

import pytest

from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.plan import Drain
from llmgw_controller.core.routes import routes
from llmgw_controller.core.rows import Cause, Phase
from tests.unit.controller.build import (
    NOW,
    Stage,
    activity,
    member,
    model,
    node,
    profile,
    replica,
    router,
    shard,
    snapshot,
)
from tests.unit.controller.stages import ready_stage


def test_surplus_drains_the_longest_idle_first():
    one = model(replicas=3)
    stage = ready_stage(
        one,
        3,
        activity=activity(router(), touched={"m/1": 5, "m/2": 900, "m/3": 50}),
        routers={"r1": member()},
    )
    stage.step()
    assert all(row.phase is Phase.READY for row in stage.rows.values())
    stage.catalog(replace(one, replicas=2))
    plan = stage.step()
    assert stage.rows["m/2"].phase is Phase.DRAINING
    assert plan.commands == (Drain("n2", "m/2.1.0"),)
    assert routes(stage.snap, stage.now).endpoints["m/2@1"].draining


@pytest.mark.parametrize(
    ("drained", "running", "unknown", "stops"),
    [
        (True, 0, None, True),
        (True, None, None, True),
        (True, 2, None, False),
        (True, None, "HTTP 500", False),
        (False, 0, None, False),
    ],
    ids=["both zero", "no gauge", "engine still runs", "gauge unreadable", "a router has not acknowledged"],
)
def test_a_drain_ends_only_when_routers_and_engine_agree(drained, running, unknown, stops):
    one = model()
    row = replica(one, 1, Phase.DRAINING, shard("m/1", "n1", 0), since=NOW - 10)
    stage = Stage(
        snapshot(
            [one],
            [node("n1")],
            [row],
            routers={"r1": member()},
            drained=frozenset({"m/1@1"} if drained else ()),
        )
    )
    stage.tell(row, ShardState.DRAINING, running=running, running_unknown=unknown)
    stage.step()
    assert (stage.rows["m/1"].phase is Phase.STOPPING) is stops


def test_a_drain_past_its_deadline_is_cut():
    one = model("m", profile(drain_timeout_s=30.0))
    row = replica(one, 1, Phase.DRAINING, shard("m/1", "n1", 0), since=NOW - 31)
    stage = Stage(snapshot([one], [node("n1")], [row], routers={"r1": member()}))
    stage.tell(row, ShardState.DRAINING, running=1)
    plan = stage.step()
    assert stage.rows["m/1"].phase is Phase.STOPPING
    assert [change.kind for change in plan.changes if hasattr(change, "kind")] == ["drain_cut"]


@pytest.mark.parametrize(
    ("reason", "waited", "running", "phase"),
    [
        ("replaced", 16, 0, Phase.STOPPING),
        ("replaced", 9, 0, Phase.DRAINING),
        ("replaced", 16, 1, Phase.DRAINING),
        ("replaced", 16, None, Phase.DRAINING),
        ("replaced", 300, 1, Phase.STOPPING),
        ("idle", 16, 0, Phase.DRAINING),
        ("idle", 30, 0, Phase.READY),
    ],
    ids=[
        "quiet twice", "too early", "something runs", "no gauge", "at the deadline",
        "only idle: waits for all", "only idle: taken back",
    ],
)  # fmt: skip
def test_a_router_that_never_acknowledges(reason, waited, running, phase):
    """Cases 12, 13, 14."""
    one = model()
    row = replica(
        one, 1, Phase.DRAINING, shard("m/1", "n1", 0), since=NOW - waited, reason=reason,
        revocable=reason == "idle", cause=Cause.ACTIVATION,
    )  # fmt: skip
    # An agent is not told of a drain that may be taken back.
    told = ShardState.SERVING if row.revocable else ShardState.DRAINING
    stage = Stage(snapshot([one], [node("n1")], [row], routers={"r1": member()}))
    stage.tell(row, told, running=running)
    stage.step(seconds=5.0)
    assert stage.rows["m/1"].phase is not Phase.STOPPING or waited == 300, "a single zero is no evidence"
    stage.tell(row, told, running=running)
    stage.step()
    assert stage.rows["m/1"].phase is phase


def test_devices_are_freed_only_by_a_seen_exit_and_the_port_rests():
    """Case 7."""
    one = model()
    row = replica(one, 1, Phase.STOPPING, shard("m/1", "n1", 0))
    stage = Stage(snapshot([one], [node("n1")], [row]))
    stage.step()
    assert stage.rows["m/1"].holds_devices
    stage.tell(row, ShardState.EXITED)
    stage.step()
    assert stage.rows == {}
    assert [(q.port, q.until > stage.now) for q in stage.snap.stored.quarantine] == [(20000, True)]
