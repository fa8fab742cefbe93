"""The watchdog (case 31): a group with requests and no token is restarted; nothing missing is judged."""

from dataclasses import replace

import pytest

from llmgw_controller.core.activity import Verdicts
from llmgw_controller.core.claims import rooms
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.plan import PutEvent, Severity, Stop
from llmgw_controller.core.rows import Phase
from llmgw_controller.core.trouble import Trouble, troubles
from llmgw_controller.core.watchdog import hang, stall_of
from llmgw_controller.core.why import why
from tests.unit.controller.build import (
    NOW,
    Stage,
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

LIMIT_S = 60.0


def hung(stalled_s=90.0, *, phase=Phase.READY, limit_s=LIMIT_S, node_says=None, **says):
    """A replica of two shards whose head says that it stands still."""
    one = model("m", profile(nodes=2, stall_timeout_s=limit_s), replicas=1)
    parts = (shard("m/1", "n1", 0), shard("m/1", "n2", 0, rank=1))
    row = replica(one, 1, phase, *parts)
    nodes = [node("n1", fabrics=("ib",)), node("n2", fabrics=("ib",))]
    words = [
        heard(nodes[0], [report(row, parts[0], ShardState.SERVING, running=3, stalled_s=stalled_s, **says)]),
        heard(nodes[1], [report(row, parts[1], ShardState.SERVING, running=None)]),
    ]
    words[0] = replace(words[0], **(node_says or {}))
    return snapshot([one], nodes, [row], words), row


def told(snap) -> list[Trouble]:
    found = troubles(snap, rooms(snap, NOW), Verdicts({}), NOW)
    return [one for one in found if one.kind in ("replica_stalled", "probe_failing", "device_note")]


def test_a_group_that_hangs_is_taken_down_as_a_whole_and_starts_under_a_new_epoch():
    snap, _ = hung()
    stage = Stage(snap)
    plan = stage.step()
    row = stage.rows["m/1"]
    assert (row.phase, row.failures) == (Phase.BACKOFF, 1)
    assert (
        "stalled: no token for 1 m 30 s with 3 requests running, on n1; its profile allows 1 m 00 s"
        in row.reason
    )
    assert {command.shard_id for command in plan.commands if isinstance(command, Stop)} == {
        "m/1.1.0",
        "m/1.1.1",
    }
    events = [change for change in plan.changes if isinstance(change, PutEvent)]
    assert [(one.kind, one.severity) for one in events][:2] == [
        ("stalled", Severity.TROUBLE),
        ("restarting", Severity.TROUBLE),
    ]
    stage.obey()
    stage.jump(row.until + 1)
    stage.step()
    again = stage.rows["m/1"]
    assert (again.phase, again.group_epoch) == (Phase.RESERVED, 2)


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("it gets on", {"stalled_s": 0.0}),
        ("not for so long", {"stalled_s": LIMIT_S - 1}),
        ("no counter, or unreadable", {"stalled_s": None}),
        ("its profile sets no limit", {"limit_s": None}),
        ("not ready yet", {"phase": Phase.STARTING, "probed": False}),
        ("draining: that has its own deadline", {"phase": Phase.DRAINING}),
        ("a report of an earlier start", {"group_epoch": 0}),
        ("its agent is gone", {"node_says": {"connected": False}}),
        ("its agent is silent", {"node_says": {"heard_at": NOW - 100}}),
    ],
)
def test_nothing_is_judged_by_what_is_missing(case, fields):
    snap, row = hung(**fields)
    assert hang(snap, row, NOW) is None, case


def test_a_new_leader_judges_no_stall_while_it_learns():
    snap, row = hung()
    learning = replace(snap, term_started=NOW - 1, heard={"n1": snap.heard["n1"]})
    assert hang(learning, row, NOW) is None
    assert hang(replace(learning, heard=snap.heard), row, NOW) is not None


def test_a_stall_is_shown_before_it_is_acted_on_and_where_nobody_set_a_limit():
    snap, _ = hung(stalled_s=31.0)
    (line,) = told(snap)
    assert (line.severity, line.subject) == (Severity.NOTE, "m/1")
    assert line.text == "no token for 31 s with 3 requests running, on n1; restarted at 1 m 00 s"
    assert told(hung(stalled_s=29.0)[0]) == []
    (line,) = told(hung(stalled_s=61.0, limit_s=None)[0])
    assert line.severity is Severity.TROUBLE
    assert line.fix == "llmgwctl replica stop m/1"
    assert told(hung(stalled_s=59.0, limit_s=None)[0]) == []
    assert stall_of(*hung(stalled_s=5.0, limit_s=None), NOW).seconds == 5.0


def test_an_engine_that_is_up_and_fails_its_probe_is_trouble():
    (line,) = told(hung(stalled_s=0.0, probe_error="/v1/chat/completions answers 500: boom")[0])
    assert line.kind == "probe_failing"
    assert line.text == ("up, and does not answer its probe on n1: /v1/chat/completions answers 500: boom")
    assert told(hung(stalled_s=0.0, probe_error="no", phase=Phase.STARTING)[0]) == []


def test_why_says_what_keeps_a_starting_engine_from_answering():
    says = "/v1/chat/completions answers 503: Loading"
    snap, _ = hung(stalled_s=None, probe_error=says, phase=Phase.STARTING)
    (one,) = snap.catalog.models.values()
    told = why(snap, Verdicts({}), one, NOW).now
    assert told == f"0 of 1 ready; m/1 starting for 16 m 40 s, does not answer its probe on n1: {says}"
    snap, _ = hung(stalled_s=40.0)
    told = why(snap, Verdicts({}), one, NOW).now
    assert told == "1 of 1 ready; m/1 no token for 40 s with 3 requests running, on n1"


def test_notes_of_healthy_devices_are_notes():
    row = node("n1", gpus=1)
    slowed = replace(heard(row), devices=(device(row.devices[0], notes=("slowed down by heat",)),))
    (line,) = told(snapshot([], [row], [], [slowed]))
    assert (line.severity, line.kind, line.subject, line.text) == (
        Severity.NOTE, "device_note", "n1:0", "slowed down by heat",
    )  # fmt: skip
