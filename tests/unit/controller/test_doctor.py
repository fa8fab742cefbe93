"""Witnesses that disagree, one kind a test; and a healthy fleet, in which none does."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from llmgw_controller.core.disagreement import Disagreement, Witness, told
from llmgw_controller.core.doctor import DatabaseWord, Examination, examine
from llmgw_controller.core.doctor_traffic import RoutesWord
from llmgw_controller.core.heard import DeviceReport, ShardState
from llmgw_controller.core.members import members
from llmgw_controller.core.plan import Severity
from llmgw_controller.core.rows import Phase, Tombstone
from llmgw_controller.core.state import ControllerSeen, Snapshot
from llmgw_kit.ids import DeviceId, NodeId, ReplicaId, RouterId, ShardId
from tests.unit.controller.build import (
    NOW,
    activity,
    device,
    member,
    model,
    node,
    replica,
    report,
    router,
    shard,
    snapshot,
)
from tests.unit.controller.worlds import fleets

M = model("m", replicas=1)
PLACE = shard("m/1", "n1", 0)
ROW = replica(M, 1, Phase.READY, PLACE)


def healthy(**changes: object) -> Snapshot:
    """One replica that serves, one router that has nothing in flight; all clocks are one."""
    watched = activity(router(), touched={"m/1": 60.0}, now=NOW, watching_since=NOW - 5000)
    assert watched.map is not None
    pen = replace(watched.map.routers[RouterId("r1")], at=NOW - 1)
    watched = replace(watched, map=replace(watched.map, routers={RouterId("r1"): pen}))
    plain = snapshot([M], [node("n1")], [ROW], activity=watched, routers={"r1": member()})
    return replace(plain, **changes)  # type: ignore[arg-type]


def seen(
    snap: Snapshot, *, watching: tuple[str, ...] = ("r1",), behind: dict | None = None, **database: object
) -> Examination:
    watchers = frozenset(RouterId(name) for name in watching)
    told = members(snap, watchers, {RouterId("r1"): 7})
    word = DatabaseWord(snap.stored, NOW, NOW)
    return examine(
        snap,
        told,
        RoutesWord(8, behind or {}),
        replace(word, **database),
        NOW,  # type: ignore[arg-type]
    )


def only(found: Examination) -> Disagreement:
    (one,) = found.disagreements
    return one


def says(one: Disagreement) -> list[tuple[str, str]]:
    return [(witness.who, witness.says) for witness in one.witnesses]


def with_reports(snap: Snapshot, *reports) -> Snapshot:
    word = replace(snap.heard[NodeId("n1")], shards={one.shard_id: one for one in reports})
    return replace(snap, heard={NodeId("n1"): word})


def test_a_healthy_fleet_agrees_and_says_what_was_compared():
    found = seen(healthy())
    assert found.disagreements == ()
    assert "1 claimed shard against what 1 agent said" in found.checked
    assert any("1 router" in line for line in found.checked)


def test_a_claim_without_a_shard():
    one = only(seen(with_reports(healthy())))
    assert (one.kind, one.subject, one.severity) == ("claim_without_shard", "m/1.1.0", Severity.TROUBLE)
    assert says(one) == [("database", "ready, holds 1 GPU"), ("agent n1", "no such shard, said 1 s ago")]
    assert one.outcome.startswith("the agent wins")
    assert one.since == ROW.since


def test_what_was_just_told_to_an_agent_is_only_a_note_and_the_database_wins():
    fresh = replica(M, 1, Phase.RESERVED, PLACE, since=NOW - 5)
    snap = healthy(stored=replace(healthy().stored, replicas={fresh.replica_id: fresh}))
    one = only(seen(with_reports(snap)))
    assert (one.severity, one.outcome.split(":")[0]) == (Severity.NOTE, "the database wins")


def test_an_engine_without_a_row():
    ghost = replica(M, 9, Phase.READY, shard("m/9", "n1", 1))
    stray = report(ghost, ghost.shards[0], ShardState.SERVING)
    one = only(seen(with_reports(healthy(), report(ROW, PLACE, ShardState.SERVING), stray)))
    assert (one.kind, one.subject) == ("engine_without_row", "m/9.1.0")
    assert says(one)[1] == ("agent n1", "serving on n1:1, pid 100")
    assert "the database wins" in one.outcome


def test_a_shard_that_holds_other_devices_or_ports():
    other = replace(report(ROW, PLACE, ShardState.SERVING), device_ids=(DeviceId("n1:1"),))
    one = only(seen(with_reports(healthy(), other)))
    assert one.kind == "shard_differs"
    assert says(one) == [("database", "n1:0; http 20000"), ("agent n1", "n1:1; http 20000")]
    assert one.outcome.endswith("llmgwctl replica stop m/1")
    moved = replace(report(ROW, PLACE, ShardState.SERVING), ports=(("http", 20007),))
    assert only(seen(with_reports(healthy(), moved))).kind == "shard_differs"


def test_devices_that_the_inventory_does_not_list_and_such_as_no_row_does():
    snap = healthy()
    listed: tuple[DeviceReport, ...] = (snap.heard[NodeId("n1")].devices[0],)
    word = replace(snap.heard[NodeId("n1")], devices=listed)
    one = only(seen(replace(snap, heard={NodeId("n1"): word})))
    assert (one.kind, one.subject, one.severity) == ("device_differs", "n1:1", Severity.TROUBLE)
    new = replace(device(node("n1").devices[0]), device_id=DeviceId("n1:7"), index=7)
    more = replace(snap.heard[NodeId("n1")], devices=(*snap.heard[NodeId("n1")].devices, new))
    assert only(seen(replace(snap, heard={NodeId("n1"): more}))).severity is Severity.NOTE


def test_a_silent_node_is_no_disagreement():
    snap = healthy()
    silent = replace(snap.heard[NodeId("n1")], heard_at=NOW - 100, shards={}, devices=())
    assert seen(replace(snap, heard={NodeId("n1"): silent})).disagreements == ()


def test_a_tombstone_whose_engine_the_agent_does_not_know():
    stone = Tombstone(NodeId("n1"), ShardId("old/1.1.0"), ReplicaId("old/1"), NOW - 500)
    snap = healthy()
    one = only(seen(replace(snap, stored=replace(snap.stored, tombstones=(stone,)))))
    assert (one.kind, one.severity, one.since) == ("tombstone", Severity.NOTE, NOW - 500)


@pytest.mark.parametrize(("late_s", "severity"), [(3, Severity.NOTE), (40, Severity.TROUBLE)])
def test_a_router_that_has_not_applied_the_routes(late_s, severity):
    one = only(seen(healthy(), behind={RouterId("r1"): NOW - late_s}))
    assert (one.kind, one.severity, one.since) == ("router_behind", severity, NOW - late_s)
    assert says(one) == [
        ("controller", "routes version 8"),
        ("router r1", "all its workers have applied version 7"),
    ]


def test_a_member_that_watches_no_routes():
    one = only(seen(healthy(), watching=()))
    assert (one.kind, one.severity) == ("router_not_watching", Severity.TROUBLE)
    assert one.outcome.endswith("llmgwctl router forget r1")


def test_the_engines_gauge_against_the_routers_counts():
    busy = replace(report(ROW, PLACE, ShardState.SERVING), running=3)
    one = only(seen(with_reports(healthy(), busy)))
    assert (one.kind, says(one)) == (
        "direct_traffic", [("routers", "0 in flight"), ("engine", "3 running")],
    )  # fmt: skip
    snap = healthy()
    assert snap.activity.map is not None
    pen = replace(snap.activity.map.routers[RouterId("r1")], in_flight={ReplicaId("m/1"): 2})
    watched = replace(snap.activity, map=replace(snap.activity.map, routers={RouterId("r1"): pen}))
    assert only(seen(replace(snap, activity=watched))).kind == "in_flight_differs"
    # A gauge that cannot be read, or a router that is not heard, is no witness.
    blind = replace(report(ROW, PLACE, ShardState.SERVING), running=None, running_unknown="HTTP 500")
    assert seen(with_reports(replace(snap, activity=watched), blind)).disagreements == ()


def test_controllers_of_two_configurations():
    both = (ControllerSeen("a", "a:1", "111", "1"), ControllerSeen("b", "b:1", "222", "1"))
    one = only(seen(healthy(controllers=both)))
    assert (one.kind, one.severity, len(one.witnesses)) == ("config_differs", Severity.TROUBLE, 2)


def test_clocks_of_the_database_and_of_redis():
    assert says(only(seen(healthy(), clock_s=NOW + 90)))[0] == ("database", "1 m 30 s ahead")
    snap = healthy()
    assert snap.activity.map is not None
    late = replace(snap.activity.map, now=NOW - 300, routers={})
    snap = replace(snap, activity=replace(snap.activity, map=late))
    snap = replace(snap, stored=replace(snap.stored, routers={}))
    one = only(seen(snap))
    assert (one.subject, says(one)[0]) == ("redis", ("redis", "5 m 00 s behind"))


def test_rows_that_somebody_wrote_beside_the_leader():
    snap = healthy()
    rows = replace(snap.stored, replicas={ROW.replica_id: replace(ROW, phase=Phase.FAILED)})
    one = only(seen(snap, rows=rows))
    assert (one.kind, one.subject) == ("row_differs", "m/1")
    assert says(one)[0] == ("database", "replica: serve, failed, epoch 1")
    gone = only(seen(snap, rows=replace(snap.stored, replicas={})))
    assert says(gone)[0] == ("database", "replica: no such row")
    assert seen(snap, rows=None).disagreements == ()


def test_trouble_stands_before_notes():
    snap = with_reports(healthy())
    found = seen(snap, clock_s=NOW + 90, watching=())
    assert [one.severity for one in found.disagreements] == [
        Severity.TROUBLE,
        Severity.TROUBLE,
        Severity.NOTE,
    ]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleets())
def test_every_disagreement_has_two_witnesses_and_an_outcome(snap):
    told = members(snap, frozenset(), {})
    found = examine(snap, told, RoutesWord(1, {}), DatabaseWord(snap.stored, None, NOW), NOW)
    for one in found.disagreements:
        assert len(one.witnesses) >= 2
        assert one.outcome
        assert one.since is None or one.since <= NOW


def trouble(kind: str, subject: str, outcome: str = "it ends so", **changes: object) -> Disagreement:
    word = Witness("database", "x")
    one = Disagreement(Severity.TROUBLE, kind, subject, (word, word), None, outcome)
    return replace(one, **changes)  # type: ignore[arg-type]


def test_status_is_told_what_a_disagreement_means_and_what_to_do_not_who_says_what():
    gone = replace(healthy(), stored=replace(healthy().stored, routers={RouterId("r1"): member()}))
    (line,) = told(seen(gone, watching=()).disagreements)
    assert line.subject == "r1"
    assert line.text.startswith("this router has no connection to the leader; ")
    assert line.text.endswith("llmgwctl router forget r1")
    for word in ("witness", "stream", "watching", "table", "idleness"):
        assert word not in line.text


def test_many_of_one_kind_are_one_line_and_each_kind_has_its_own():
    found = [trouble("claim_without_shard", f"m/{n}.1.0", since=NOW - n) for n in range(1, 6)]
    found += [trouble("row_differs", "m/9"), trouble("config_differs", "controllers")]
    found += [replace(trouble("shard_differs", "m/7.1.0"), severity=Severity.NOTE)]
    claims, rows = told(found)
    assert (claims.subject, claims.since) == ("m/1.1.0", NOW - 5)
    assert claims.text.endswith("; it ends so (the same of 4 others: m/2.1.0, m/3.1.0, ...)")
    assert rows.subject == "m/9"


def test_a_kind_that_nobody_put_into_words_is_told_all_the_same():
    assert [one.text for one in told([trouble("moon_differs", "m/1")])] == ["moon differs; it ends so"]
