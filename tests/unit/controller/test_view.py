"""The view of one moment, line by line, and what it says to do."""

from dataclasses import replace

import pytest

from llmgw_controller.core.capacity import Parts
from llmgw_controller.core.catalog import Catalog
from llmgw_controller.core.explain import Fit
from llmgw_controller.core.heard import DeviceFault, DeviceState, FaultClass, ForeignProcess, ShardState
from llmgw_controller.core.hearing import NodeState
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.plan import Severity
from llmgw_controller.core.rows import Phase, Schedulability, Tombstone
from llmgw_controller.core.view import fleet_view
from llmgw_controller.core.why import why
from llmgw_controller.core.words import lasting
from llmgw_kit.ids import NodeId, ReplicaId, ShardId
from tests.unit.controller.build import (
    GIB,
    NOW,
    TERM_STARTED,
    activity,
    device,
    heard,
    member,
    model,
    node,
    profile,
    replica,
    report,
    router,
    shard,
    snapshot,
    usual_reports,
)

M = model("m", replicas=1)
N = model("n", replicas=1)
BIG = model("big", profile("two", gpus_per_node=2, tensor_parallel=2), replicas=1)


def fleet():
    """Two nodes of four: one replica busy, one idle, one starting, one device bad, one foreign."""
    nodes = [node("n1", 4, fabrics=("ib",)), node("n2", 4, fabrics=("ib",))]
    rows = [
        replica(M, 1, Phase.READY, shard("m/1", "n1", 0)),
        replica(M, 2, Phase.READY, shard("m/2", "n2", 0)),
        replica(N, 1, Phase.STARTING, shard("n/1", "n1", 1, port=20001)),
        replica(BIG, 1, Phase.UNPLACEABLE, reason="full", since=NOW - 30),
    ]
    devices = (
        device(nodes[0].devices[0]),
        device(nodes[0].devices[1]),
        device(nodes[0].devices[2], state=DeviceState.UNHEALTHY, reason="xid_48"),
        device(nodes[0].devices[3], foreign_used_bytes=2 * GIB),
    )
    words = [
        heard(nodes[0], usual_reports(nodes[0], rows), devices=devices, at=NOW - 2),
        heard(nodes[1], usual_reports(nodes[1], rows), at=NOW - 1),
    ]
    return snapshot(
        [M, N, BIG],
        nodes,
        rows,
        words,
        activity=activity(router(m__1=3), touched={"m/1": 0.0, "m/2": 500.0}),
        routers={"r1": member()},
        held={BIG.name: 2},
    )


def seen(snap):
    return fleet_view(snap, verdicts(snap, NOW), NOW)


def test_capacity_and_fabrics():
    view = seen(fleet())
    (l4,) = view.capacity
    assert l4.parts == Parts(busy=1, idle=1, starting=1, unhealthy=1, foreign=1, free=3)
    assert (l4.total, l4.memory_total_bytes, l4.memory_free_bytes) == (8, 8 * 24 * GIB, 3 * 24 * GIB)
    (ib,) = view.fabrics
    assert (ib.fabric, ib.nodes, ib.whole_free, ib.whole_free_if_idle_left) == ("ib", 2, 0, 1)
    assert (view.node_counts.heard, view.router_counts.heard, view.age_s) == (2, 1, 2.0)


def test_rows_of_replicas_and_models():
    view = seen(fleet())
    by_id = {line.row.replica_id: line for line in view.replicas}
    assert by_id[ReplicaId("m/1")].in_flight == 3
    assert by_id[ReplicaId("m/2")].last_asked_at == NOW - 500
    assert by_id[ReplicaId("n/1")].verdict is None
    m, n, big = (next(line for line in view.models if line.model == name) for name in ("m", "n", "big"))
    assert (m.ready, m.gpus, m.in_flight, m.last_asked_at) == (2, 2, 3, NOW)
    assert (n.availability.value, n.reason, n.starting) == ("starting", "loading", 1)
    assert (big.availability.value, big.held) == ("unavailable", 2)


def test_a_silent_router_makes_sums_unknown_instead_of_small():
    snap = replace(fleet(), activity=activity(router(age_s=60, m__1=3)))
    view = seen(snap)
    assert {line.in_flight for line in view.replicas if line.verdict is not None} == {None}
    assert view.models[1].in_flight is None
    assert view.router_counts.oldest_report_s is None


def trouble(snap):
    return {(one.kind, one.subject): one for one in seen(snap).trouble}


def test_trouble_of_that_fleet():
    found = trouble(fleet())
    assert set(found) == {
        ("device_unhealthy", "n1:2"),
        ("unplaceable", "big"),
        ("foreign_use", "n1:3"),
    }
    assert found["device_unhealthy", "n1:2"].text == "unhealthy: xid_48"
    assert found["unplaceable", "big"].fix == "llmgwctl why big"
    assert found["foreign_use", "n1:3"].severity is Severity.NOTE
    assert [one.severity for one in seen(fleet()).trouble] == [Severity.TROUBLE] * 2 + [Severity.NOTE]


def silent(snap, name, age_s):
    word = replace(snap.heard[NodeId(name)], heard_at=NOW - age_s)
    return replace(snap, heard={**snap.heard, NodeId(name): word})


TROUBLES = {
    "unreachable": (silent(fleet(), "n2", 128), "node_unreachable", "n2"),
    "brake": (silent(silent(fleet(), "n2", 128), "n1", 500), "brake_on", "controller"),
    "learning": (replace(fleet(), heard={}, term_started=NOW - 3), "learning", "controller"),
    "lost": (
        snapshot(
            [],
            [node("n1", lost_at=NOW - 5)],
            [],
            [],
            tombstones=(Tombstone(NodeId("n1"), ShardId("x/1.1.0"), ReplicaId("x/1"), 1.0),),
        ),
        "node_lost",
        "n1",
    ),
    "returning": (
        snapshot(
            [],
            [node("n1", lost_at=NOW - 5)],
            tombstones=(Tombstone(NodeId("n1"), ShardId("x/1.1.0"), ReplicaId("x/1"), 1.0),),
        ),
        "node_returning",
        "n1",
    ),
    "missing": (
        snapshot([], [node("n1")], [], [heard(node("n1"), devices=())]),
        "device_missing",
        "n1:0",
    ),
    "backoff": (
        snapshot(
            [M], [node("n1")], [replica(M, 1, Phase.BACKOFF, failures=2, reason="crashed", until=NOW + 9)]
        ),
        "replica_backoff",
        "m/1",
    ),
    "failed": (
        snapshot([M], [node("n1")], [replica(M, 1, Phase.FAILED, failures=6, reason="crashed")]),
        "replica_failed",
        "m/1",
    ),
    "start overdue": (
        snapshot([M], [node("n1")], [replica(M, 1, Phase.RESERVED, shard("m/1", "n1", 0), since=NOW - 31)]),
        "start_overdue",
        "m/1",
    ),
    "stop overdue": (
        snapshot([M], [node("n1")], [replica(M, 1, Phase.STOPPING, shard("m/1", "n1", 0), since=NOW - 51)]),
        "stop_overdue",
        "m/1",
    ),
    "drain overdue": (
        snapshot([M], [node("n1")], [replica(M, 1, Phase.DRAINING, shard("m/1", "n1", 0), since=NOW - 331)]),
        "drain_overdue",
        "m/1",
    ),
    "watch": (replace(fleet(), activity=activity()), "idleness_unknown", "idleness"),
    "shadowed": (
        replace(fleet(), catalog=Catalog({M.name: M}, shadowed=(M.name,))),
        "model_shadowed",
        "m",
    ),
    "unreadable": (snapshot([], [], stored_models={"z": "{"}), "model_unreadable", "z"),
}


@pytest.mark.parametrize("case", list(TROUBLES))
def test_each_trouble_is_told(case):
    snap, kind, subject = TROUBLES[case]
    assert (kind, subject) in trouble(snap)


def test_of_those_that_leave_together_only_the_one_whose_exit_is_not_seen_is_overdue():
    """The others keep their claims until all have exited, which is no fault of theirs."""
    there = [node("n1"), node("n2")]
    gone = replica(M, 1, Phase.STOPPING, shard("m/1", "n1", 0), since=NOW - 60)
    stays = replica(M, 2, Phase.STOPPING, shard("m/2", "n2", 0), since=NOW - 60)
    words = [
        heard(there[0], [report(gone, gone.shards[0], ShardState.EXITED)]),
        heard(there[1], [report(stays, stays.shards[0], ShardState.STOPPING)]),
    ]
    found = trouble(snapshot([M], there, [gone, stays], words))
    assert [key for key in found if key[0] == "stop_overdue"] == [("stop_overdue", "m/2")]


def test_texts_say_what_follows():
    text = trouble(silent(fleet(), "n2", 128))["node_unreachable", "n2"].text
    assert text == "unreachable for 2 m 08 s; lost in 2 m 52 s. Still claimed there: 1 GPU."
    stale = shard("ghost/1", "n1", 0)
    ghost = report(replica(M, 9, Phase.READY, stale), stale, ShardState.SERVING)
    snap = snapshot([], [node("n1")], [], [heard(node("n1"), [ghost])])
    assert ("stale_engine", "n1:0") in trouble(snap)
    assert seen(snap).capacity[0].parts == Parts(unknown=1, free=1)


def test_a_fix_is_named_where_somebody_has_to_act():
    fixes = {kind: one.fix for case in TROUBLES.values() for (kind, _), one in trouble(case[0]).items()}
    assert fixes["replica_failed"] == "llmgwctl model start m"
    assert fixes["replica_backoff"] == "llmgwctl replica logs m/1"
    assert fixes["drain_overdue"] == "llmgwctl replica stop m/1"
    assert fixes["device_missing"] == "llmgwctl gpus --node n1"
    # Time alone takes a silent node out; held back by the brake it does not.
    assert trouble(silent(fleet(), "n2", 128))["node_unreachable", "n2"].fix is None
    held = trouble(silent(silent(fleet(), "n2", 128), "n1", 500))["node_unreachable", "n1"]
    assert held.fix == "llmgwctl node confirm-lost n1"


def test_faults_near_misses_and_strangers_are_named():
    nodes = [node("n1", 2), node("n2", 2)]
    one = replica(M, 1, Phase.READY, shard("m/1", "n1", 0))
    stuck = replica(BIG, 1, Phase.UNPLACEABLE, reason="full")
    at = NOW - 500
    devices = (
        device(
            nodes[1].devices[0],
            state=DeviceState.MISSING,
            reason="xid_79",
            since=at,
            fault=DeviceFault(FaultClass.FATAL, "xid_79", "fallen off the bus", at),
        ),
        device(
            nodes[1].devices[1],
            foreign_used_bytes=GIB,
            foreign=tuple(ForeignProcess(pid, "python", "mara", GIB) for pid in range(1, 6)),
        ),
    )
    snap = snapshot(
        [M, BIG],
        nodes,
        [one, stuck],
        [heard(nodes[0], usual_reports(nodes[0], [one])), heard(nodes[1], devices=devices)],
        activity=activity(router(), touched={"m/1": 500.0}),
        routers={"r1": member()},
    )
    found = trouble(snap)
    missing = found["device_missing", "n2:0"]
    assert (missing.text, missing.since) == ("missing: xid_79 (fallen off the bus)", at)
    assert found["foreign_use", "n2:1"].text == (
        "foreign use, 1.07 GB by pid 1 (python, mara), pid 2 (python, mara), pid 3 (python, mara), 2 more, "
        "not started by us"
    )
    assert found["unplaceable", "big"].text.endswith("\nNear miss: n1, 1 of 2 free; idle m/1 holds 1.")
    near = found["unplaceable", "big"].near
    assert near is not None
    assert (near.miss.node_id, near.miss.free, near.devices, near.miss.evict) == ("n1", 1, 2, ("m/1",))
    assert (near.nodes_needed, near.nodes_found) == (1, 0)


def test_nothing_wrong_is_no_trouble():
    one = replica(M, 1, Phase.READY, shard("m/1", "n1", 0))
    snap = snapshot([M], [node("n1")], [one], activity=activity(router()), routers={"r1": member()})
    assert seen(snap).trouble == ()


@pytest.mark.parametrize(
    ("age_s", "heard_at_all", "lost_at", "state"),
    [
        (1, True, None, NodeState.READY),
        (16, True, None, NodeState.UNREACHABLE),
        (0, False, None, NodeState.UNREACHABLE),
        (16, True, NOW - 10, NodeState.LOST),
        (1, True, NOW - 10, NodeState.READY),
    ],
)
def test_node_states(age_s, heard_at_all, lost_at, state):
    row = node("n1", lost_at=lost_at)
    words = [heard(row, at=NOW - age_s)] if heard_at_all else []
    assert seen(snapshot([], [row], [], words)).nodes[0].state is state


def test_a_known_node_not_heard_by_a_fresh_leader_is_enrolled():
    view = seen(snapshot([], [node("n1")], [], [], term_started=NOW - 3))
    assert (view.nodes[0].state, view.nodes[0].beat_age_s) == (NodeState.ENROLLED, None)
    assert view.capacity[0].parts == Parts(cordoned=2)
    assert TERM_STARTED < NOW


def asked(snap, one):
    return why(snap, verdicts(snap, NOW), one, NOW)


def test_why_it_fits_now():
    assert asked(snapshot([BIG], [node("n1")]), BIG).profiles[0].fix is None, "the next pass starts it"
    cold = replace(BIG, replicas=0)
    answer = asked(snapshot([cold], [node("n1")]), cold)
    assert (answer.fit, answer.profiles[0].fix) == (Fit.NOW, "llmgwctl model activate big")
    assert answer.profiles[0].explanation.spots[0].device_ids == ("n1:0", "n1:1")


def test_why_it_fits_after_an_eviction():
    one = replica(M, 1, Phase.READY, shard("m/1", "n1", 0))
    snap = snapshot(
        [M, BIG],
        [node("n1"), node("n2", 1), node("n3", gpu_class="H100")],
        [one],
        activity=activity(router(), touched={"m/1": 11_400}),
        routers={"r1": member()},
        term_started=NOW - 20_000,
    )
    snap = replace(
        snap,
        stored=replace(snap.stored, replicas={one.replica_id: replace(one, ready_since=NOW - 20_000)}),
    )
    answer = asked(snap, BIG)
    (told,) = answer.profiles
    assert answer.fit is Fit.AFTER_EVICTION
    assert told.fix == "llmgwctl replica drain m/1"
    assert [line.text for line in told.near] == ["1 of 2 free; m/1 holds 1, idle 3 h 10 m"]
    assert [(part.reason.value, len(part.node_ids)) for part in told.explanation.filters] == [
        ("wrong_class", 1),
        ("too_few_devices", 1),
        ("held_by_idle", 1),
    ]


def test_why_it_never_fits_and_the_cordon_that_is_in_the_way():
    cordoned = node("n1", schedulability=Schedulability.CORDONED)
    answer = asked(snapshot([BIG], [cordoned]), BIG)
    assert (answer.fit, answer.profiles[0].fix) == (Fit.NEVER, "llmgwctl node uncordon n1")
    assert asked(snapshot([BIG], [node("n1", 1)]), BIG).profiles[0].fix is None
    busy = snapshot([M, BIG], [node("n1")], [replica(M, 1, Phase.READY, shard("m/1", "n1", 0))])
    answer = asked(busy, BIG)
    assert (answer.fit, answer.now) == (Fit.NEVER, "cold: no replica is wanted")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59.9, "59 s"), (128, "2 m 08 s"), (11_400, "3 h 10 m"), (525_700, "6 d 02 h"), (-3, "0 s")],
)
def test_durations(seconds, words):
    assert lasting(seconds) == words
