"""Idle is said only on evidence: whatever the map, the reports, the gauges and the clocks say."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw_controller.core.activity import Activity, ActivityMap, Idle, RouterReport
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.idleness import verdict
from llmgw_controller.core.rows import Phase, RouterRow
from llmgw_controller.core.state import Snapshot, Watched
from llmgw_controller.core.watching import watch
from llmgw_kit.ids import ReplicaId, RouterId
from tests.unit.controller.build import (
    NOW,
    TERM_STARTED,
    heard,
    model,
    node,
    replica,
    report,
    shard,
    snapshot,
)

ONE = model("m")
PARTS = (shard("m/1", "n1", 0), shard("m/1", "n2", 0, rank=1))
NAMES = ("r1", "r2", "r3")
THERE = 500_000.0

AGES = st.floats(0, 3000)
MAYBE_AGE = st.none() | AGES


#: What may be wrong. A world has at most two of it, so that idleness is said often, and hangs by a thread.
DEFECTS = (
    "report missing", "report late", "another life", "older epoch", "in flight", "a stranger's request",
    "map away", "watch lost", "epoch lost", "node silent", "node unheard", "gauge above zero",
    "gauge unreadable", "no gauge",
)  # fmt: skip


@st.composite
def worlds(draw) -> Snapshot:
    """One ready replica of two shards, up to three members, and every way of not knowing."""
    wrong = draw(st.sets(st.sampled_from(DEFECTS), max_size=2))
    row = replica(ONE, 1, Phase.READY, *PARTS, ready_since=NOW - draw(AGES))
    members, reports = {}, {}
    for number, name in enumerate(NAMES[: draw(st.integers(1, 3))]):
        crashed = draw(MAYBE_AGE)
        members[RouterId(name)] = RouterRow(
            RouterId(name), "a", TERM_STARTED, crashed_at=None if crashed is None else NOW - crashed
        )
        hit = number == 0
        if hit and "report missing" in wrong:
            continue
        reports[RouterId(name)] = RouterReport(
            RouterId(name),
            "b" if hit and "another life" in wrong else "a",
            THERE - (draw(st.floats(15.1, 44)) if hit and "report late" in wrong else draw(st.floats(0, 15))),
            "e0" if hit and "older epoch" in wrong else "e1",
            {ReplicaId("m/1"): 2 if hit and "in flight" in wrong else 0},
            {},
        )
    if "a stranger's request" in wrong:
        reports[RouterId("r9")] = RouterReport(
            RouterId("r9"), "a", THERE - 1, "e1", {ReplicaId("m/1"): 1}, {}
        )
    touched, ran, floor = draw(MAYBE_AGE), draw(MAYBE_AGE), draw(MAYBE_AGE)
    there = ActivityMap(
        THERE,
        None if "watch lost" in wrong else THERE - draw(AGES),
        None if "epoch lost" in wrong else "e1",
        {} if touched is None else {ReplicaId("m/1"): THERE - touched},
        reports,
    )
    words = []
    for name, part in zip(("n1", "n2"), PARTS, strict=True):
        hit = name == "n1"
        if hit and "node unheard" in wrong:
            continue
        running: int | None = 1 if hit and "gauge above zero" in wrong else 0
        if hit and wrong & {"gauge unreadable", "no gauge"}:
            running = None
        unknown = "HTTP 500" if hit and "gauge unreadable" in wrong else None
        said = [report(row, part, ShardState.SERVING, running=running, running_unknown=unknown)]
        words.append(heard(node(name), said, at=NOW - (60 if hit and "node silent" in wrong else 1)))
    return snapshot(
        [ONE], [node("n1"), node("n2")], [row], words, term_started=NOW - draw(st.floats(0, 4000)),
        activity=Activity(None, "redis_unreachable") if "map away" in wrong else Activity(there, ""),
        routers=members,
        idle_floor=None if floor is None else NOW - floor,
        watched=Watched(ran_at={} if ran is None else {row.endpoint_id: NOW - ran}),
    )  # fmt: skip


def found(world: Snapshot):
    return verdict(world, world.stored.replicas[ReplicaId("m/1")], NOW)


@settings(max_examples=600, deadline=None)
@given(worlds())
def test_idle_has_a_witness_for_everything(world):
    said = found(world)
    if not isinstance(said, Idle):
        return
    there, row = world.activity.map, world.stored.replicas[ReplicaId("m/1")]
    assert there is not None
    for name, member in world.stored.routers.items():
        own = there.routers[name]
        assert there.now - own.at <= 15
        assert (own.incarnation, own.epoch) == (member.incarnation, there.epoch)
        assert member.crashed_at is None or said.for_s <= NOW - member.crashed_at
    assert not any(
        one.in_flight[row.replica_id] for one in there.routers.values() if there.now - one.at <= 15
    )
    for part in row.shards:
        word = world.heard[part.node_id]
        assert NOW - word.heard_at <= 15
        assert not word.shards[part.shard_id].running
        assert word.shards[part.shard_id].running_unknown is None
    assert there.watching_since is not None
    bounds = [NOW - (row.ready_since or NOW), there.now - there.watching_since]
    bounds += [there.now - at for at in there.touched.values()]
    bounds += [NOW - at for at in world.watched.ran_at.values()]
    if any(one.running is not None for word in world.heard.values() for one in word.shards.values()):
        bounds.append(NOW - world.term_started)
    bounds += [] if world.stored.idle_floor is None else [NOW - world.stored.idle_floor]
    assert said.for_s <= min(bounds) + 1e-6
    assert said.never_asked is (row.replica_id not in there.touched)


@settings(max_examples=300, deadline=None)
@given(worlds(), st.sampled_from(NAMES))
def test_less_evidence_is_never_more_idleness(world, name):
    """A report lost, or the map: what was not idle does not become it."""
    there = world.activity.map
    if there is None:
        return
    said = found(world)
    reports = {key: one for key, one in there.routers.items() if key != name}
    less = found(replace(world, activity=Activity(replace(there, routers=reports), "")))
    if isinstance(less, Idle) and RouterId(name) in world.stored.routers:
        raise AssertionError(f"idle without a word of {name}: {less}")
    if not isinstance(said, Idle) and RouterId(name) not in there.routers:
        assert not isinstance(less, Idle)
    assert not isinstance(found(replace(world, activity=Activity(None, "redis_unreachable"))), Idle)


#: What the head's agent says of the gauge, look by look; "agent": it was restarted and has not read it yet.
GAUGES = st.lists(st.sampled_from([0, 0, 0, 1, 3, "agent"]), min_size=2, max_size=12)


@settings(max_examples=400, deadline=None)
@given(worlds(), GAUGES | st.lists(st.none(), min_size=2, max_size=12), st.data())
def test_a_new_leader_calls_nothing_idle_for_longer_than_the_old_one_would(world, gauges, data):
    """Whatever an engine ran past the routers before the change of leader, or while nobody led."""
    row = world.stored.replicas[ReplicaId("m/1")]
    steps = data.draw(st.lists(st.floats(1, 900), min_size=len(gauges), max_size=len(gauges)))
    change = data.draw(st.integers(1, len(gauges) - 1))
    now, began = NOW, NOW
    old, new = replace(world, term_started=NOW - 1e6, watched=Watched()), None
    for position, (gauge, step_s) in enumerate(zip(gauges, steps, strict=True)):
        now += step_s
        adopted = "agent" in gauges[: position + 1]
        running = None if gauge == "agent" else gauge
        words = {}
        for part in PARTS:
            head = part.rank == 0
            said = report(
                row, part, ShardState.SERVING, running=running if head else None, adopted=adopted and head
            )
            words[part.node_id] = heard(node(part.node_id), [said], at=now)
        old = _look(old, words, now, now - began)
        if position >= change:
            new = _look(new or replace(old, term_started=now - 1, watched=Watched()), words, now, now - began)
            one, other = (verdict(each, row, now) for each in (old, new))
            assert type(one) is type(other)
            if isinstance(one, Idle) and isinstance(other, Idle):
                assert other.for_s <= one.for_s + 1e-6


def _look(before: Snapshot, words, now: float, later_s: float) -> Snapshot:
    """A leader looks; the map's clock has gone on, and every router reports."""
    there = before.activity.map
    if there is not None:
        at = THERE + later_s
        routers = {key: replace(one, at=at) for key, one in there.routers.items()}
        there = replace(there, now=at, routers=routers)
    seen = replace(before, heard=words, activity=replace(before.activity, map=there))
    return replace(seen, watched=watch(before.watched, seen, now))


@settings(max_examples=200, deadline=None)
@given(worlds(), st.floats(-1e5, 1e5))
def test_the_map_s_clock_may_be_anybodys(world, skew):
    there = world.activity.map
    if there is None:
        return
    moved = replace(
        there,
        now=there.now + skew,
        watching_since=None if there.watching_since is None else there.watching_since + skew,
        touched={key: at + skew for key, at in there.touched.items()},
        routers={key: replace(one, at=one.at + skew) for key, one in there.routers.items()},
    )
    one, other = found(world), found(replace(world, activity=Activity(moved, "")))
    assert type(one) is type(other)
    if isinstance(one, Idle) and isinstance(other, Idle):
        assert abs(one.for_s - other.for_s) < 1e-3
