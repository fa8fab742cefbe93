"""Verdicts of busy, idle or unknown: what may be stopped, and only on evidence (architecture.md, Idleness).

Unknown is never idle. A time in the map is evidence only while every router that could have written a
newer one is heard, in the epoch of the map as it stands.
"""

from collections import Counter

from llmgw_controller.core.activity import (
    ActivityMap,
    Busy,
    Idle,
    RouterReport,
    Unknown,
    Verdict,
    Verdicts,
)
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.deployments import effective_pinned
from llmgw_controller.core.heard import ShardReport
from llmgw_controller.core.replica import is_unreachable
from llmgw_controller.core.rows import Phase, ReplicaRow, Stored
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import ReplicaId, RouterId

#: Phases of which a verdict makes sense: an engine that clients may be using.
JUDGED = frozenset({Phase.READY, Phase.DRAINING})


def verdicts(snapshot: Snapshot, now: float) -> Verdicts:
    """One for each replica that is ready or draining."""
    return Verdicts(
        {
            replica_id: verdict(snapshot, row, now)
            for replica_id, row in sorted(snapshot.stored.replicas.items())
            if row.phase in JUDGED
        }
    )


def verdicts_again(snapshot: Snapshot, judged: Stored, known: Verdicts, now: float) -> Verdicts:
    """The same after the rows have moved within one pass: only of those that did is it asked again. `judged`:
    the rows that gave `known`."""
    stored = snapshot.stored
    if any(
        one is not other
        for one, other in (
            (stored.nodes, judged.nodes),
            (stored.routers, judged.routers),
            (stored.idle_floor, judged.idle_floor),
        )
    ):
        return verdicts(snapshot, now)
    found: dict[ReplicaId, Verdict] = {}
    for row in stored.sorted_replicas:
        if row.phase in JUDGED:
            same = judged.replicas.get(row.replica_id) is row
            found[row.replica_id] = known.by_replica[row.replica_id] if same else verdict(snapshot, row, now)
    return Verdicts(found)


def verdict(snapshot: Snapshot, row: ReplicaRow, now: float) -> Verdict:
    activity = snapshot.activity.map
    fresh = fresh_routers(snapshot)
    in_flight = in_flight_of(snapshot)[row.replica_id]
    if in_flight:
        return Busy(in_flight)
    reports = [
        heard.shards[shard.shard_id]
        for shard in row.shards
        if (heard := snapshot.heard.get(shard.node_id)) and shard.shard_id in heard.shards
    ]
    if any(report.running for report in reports):
        return Busy(None, direct_traffic=_is_direct(snapshot, row, fresh))
    if activity is None:
        return Unknown(snapshot.activity.missing_reason)
    witness = _second_witness(snapshot, row, reports, now)
    if witness is not None:
        return Unknown(witness)
    missing = _watch_broken(snapshot, activity, fresh)
    if missing is not None:
        return Unknown(missing)
    return _idle(snapshot, row, activity, reports, now)


def fresh_routers(snapshot: Snapshot) -> dict[RouterId, RouterReport]:
    """Reports of members and strangers alike, by Redis's own clock: a router that no leader has seen
    yet may still be using a replica, so its in-flight counts even though its silence does not."""
    activity = snapshot.activity.map
    if activity is None:
        return {}
    limit = snapshot.intervals.router_stale_s
    # Asked for each replica, and the same for all of them.
    before = snapshot.found.get("fresh routers")
    if before is None or before[0] is not activity or before[1] != limit:
        fresh = {
            name: one for name, one in sorted(activity.routers.items()) if activity.now - one.at <= limit
        }
        before = snapshot.found["fresh routers"] = (activity, limit, fresh)
    found: dict[RouterId, RouterReport] = before[2]
    return found


def in_flight_of(snapshot: Snapshot) -> Counter[ReplicaId]:
    """Requests at each replica that has any, as fresh routers report them."""
    fresh = fresh_routers(snapshot)
    before: tuple[object, Counter[ReplicaId]] | None = snapshot.found.get("in flight")
    if before is None or before[0] is not fresh:
        found: Counter[ReplicaId] = Counter()
        for report in fresh.values():
            found.update(report.in_flight)
        before = snapshot.found["in flight"] = (fresh, found)
    return before[1]


def idle_replicas(snapshot: Snapshot, verdicts: Verdicts) -> frozenset[ReplicaId]:
    """Those whose leaving would cost nobody a running request, whatever their age: what an explanation
    may point an operator to. What may be evicted without asking is `may_leave`, which is narrower."""
    return frozenset(
        row.replica_id
        for row in snapshot.stored.replicas.values()
        if row.phase is Phase.READY
        and isinstance(verdicts.by_replica.get(row.replica_id), Idle)
        and (model := snapshot.catalog.models.get(row.model)) is not None
        and not effective_pinned(snapshot.stored, model)
        and not snapshot.held.get(row.model)
    )


def may_leave(snapshot: Snapshot, row: ReplicaRow, model: Model, verdicts: Verdicts, now: float) -> bool:
    """Rule 6: the replica is idle beyond doubt and long enough, past its residency, and nobody waits for
    its model. The caller sees to it that nothing leaves while the leader learns."""
    found = verdicts.by_replica.get(row.replica_id)
    return (
        row.phase is Phase.READY
        and row.ready_since is not None
        and isinstance(found, Idle)
        and model.idle_after_s is not None
        and not effective_pinned(snapshot.stored, model)
        and found.for_s >= model.idle_after_s
        and now - row.ready_since >= model.min_residency_s
        and (row.until is None or now >= row.until)
        and not snapshot.held.get(row.model)
        and row.model not in snapshot.stored.activations
    )


def _second_witness(
    snapshot: Snapshot, row: ReplicaRow, reports: list[ShardReport], now: float
) -> str | None:
    """Rule 5: why the engine itself cannot confirm that it is unused; None when it does, or has no gauge."""
    if is_unreachable(row, snapshot, now):
        return "node_silent"
    if len(reports) < len(row.shards):
        return "shard_not_heard"
    if any(report.running is None and report.running_unknown for report in reports):
        return "engine_gauge_unreadable"
    return None


def _watch_broken(
    snapshot: Snapshot, activity: ActivityMap, fresh: dict[RouterId, RouterReport]
) -> str | None:
    """Rules 1 to 4: why the map cannot be trusted as a whole; None when it can."""
    if activity.watching_since is None or activity.epoch is None:
        return "watch_restarted"
    for router_id in sorted(snapshot.stored.routers):
        if _is_mute(snapshot, router_id, fresh):
            return "router_silent"
        if fresh[router_id].epoch != activity.epoch:
            return "router_resending"
    return None


def silent_members(snapshot: Snapshot) -> tuple[RouterId, ...]:
    """Members of whose present life no report is fresh: nothing is idle without them."""
    fresh = fresh_routers(snapshot)
    return tuple(name for name in sorted(snapshot.stored.routers) if _is_mute(snapshot, name, fresh))


def _is_mute(snapshot: Snapshot, router_id: RouterId, fresh: dict[RouterId, RouterReport]) -> bool:
    report = fresh.get(router_id)
    return report is None or report.incarnation != snapshot.stored.routers[router_id].incarnation


def unused_s(snapshot: Snapshot, row: ReplicaRow, now: float) -> float:
    """Seconds since the newest sign of use, or since one that may have been lost, as far as anybody knows. To
    be asked only of a replica whose verdict is Idle."""
    activity = snapshot.activity.map
    assert activity is not None, f"{row.replica_id}: without a map"
    assert activity.watching_since is not None, f"{row.replica_id}: not watched"
    touched = activity.touched.get(row.replica_id)
    # Redis's clock and the term clock are two: only ages cross from one to the other.
    ages = [now - row.ready_since if row.ready_since is not None else 0.0]
    # What a router picked in its last tick died with it, and that outlives its row: a router that crashed,
    # came back and said goodbye is no member, and its lost word is lost all the same.
    if snapshot.stored.idle_floor is not None:
        ages.append(now - snapshot.stored.idle_floor)
    ages += [now - one.crashed_at for one in snapshot.stored.routers.values() if one.crashed_at is not None]
    # An engine that was seen to run something nobody of ours had sent: the routers' map knows nothing of it.
    ran_at = snapshot.watched.ran_at.get(row.endpoint_id)
    if ran_at is not None:
        ages.append(now - ran_at)
    # A time from before the watch began may be too old: a router that said goodbye before a flush cannot
    # resend its own, newer one. So nothing is idle for longer than it was watched.
    ages.append(activity.now - max(touched or 0.0, activity.watching_since))
    return max(0.0, min(ages))


def last_asked_at(snapshot: Snapshot, replica_id: ReplicaId, now: float) -> float | None:
    """Through a router, as a time of the term clock; None: never, as far as the map goes back."""
    activity = snapshot.activity.map
    if activity is None or replica_id not in activity.touched:
        return None
    # An age crosses from Redis's clock to ours; a time would not.
    return now - max(0.0, activity.now - activity.touched[replica_id])


def _idle(
    snapshot: Snapshot, row: ReplicaRow, activity: ActivityMap, reports: list[ShardReport], now: float
) -> Idle:
    for_s = unused_s(snapshot, row, now)
    # What is sent past the routers only the gauge tells, and this leader knows only what it told in its term.
    if any(_may_have_gauge(report) for report in reports):
        for_s = min(for_s, max(0.0, now - snapshot.term_started))
    return Idle(for_s, never_asked=row.replica_id not in activity.touched)


def _may_have_gauge(report: ShardReport) -> bool:
    """An agent that took the engine over tells of no gauge until it has read it."""
    return report.running is not None or report.adopted


def _is_direct(snapshot: Snapshot, row: ReplicaRow, fresh: dict[RouterId, RouterReport]) -> bool:
    """Whether what the engine runs was sent by none of our routers. Not said while a member is silent, for
    the request may be its own; nor while the map has a touch so young that the two words, a tick and a
    beat apart, may be of the same request."""
    activity = snapshot.activity.map
    if activity is None or any(name not in fresh for name in snapshot.stored.routers):
        return False
    touched = activity.touched.get(row.replica_id)
    return touched is None or activity.now - touched > snapshot.intervals.router_stale_s
