"""Activation: what becomes of a request for a model that is not up.

One decision for the leader's pass, which closes what is decided, and for the stream a router waits on,
which tells it; both read the same rows, so they cannot disagree.
"""

from dataclasses import dataclass

from llmgw_controller.core.catalog import Model
from llmgw_controller.core.deployments import STOPPED, is_stopped
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.hearing import is_learning, report_of
from llmgw_controller.core.loads import eta_of, held_somewhere
from llmgw_controller.core.overdue import exit_is_overdue
from llmgw_controller.core.plan import CloseActivation, Severity
from llmgw_controller.core.replica import is_routable
from llmgw_controller.core.rows import ActivationRow, Cause, Phase, ReplicaRow, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import ModelId

#: Capacity is not announced ahead: a client that is told "no room" may as well ask again so much later.
NO_ROOM_RETRY_S = 30.0

#: The code of that refusal.
NO_CAPACITY = "no_capacity"

_PLACED = frozenset({Phase.RESERVED, Phase.STARTING, Phase.READY})


@dataclass(frozen=True)
class Ready:
    """Routes name an endpoint for it."""


@dataclass(frozen=True)
class Pending:
    #: "placing", "fetching", "loading", "restarting", "unreachable", ...
    phase: str
    #: 0..1 of that phase; None: unknown.
    progress: float | None
    #: Seconds until ready, from measured starts; None: none was measured, or this one takes longer.
    eta_s: float | None


@dataclass(frozen=True)
class Refused:
    code: str
    text: str
    retry_after_s: float | None


Decision = Ready | Pending | Refused


def decide(snapshot: Snapshot, name: ModelId, now: float) -> Decision:
    """What to tell whoever waits for the model."""
    model = snapshot.catalog.models.get(name)
    if model is None:
        return Refused("model_not_found", f"{name} is not in the catalog", None)
    rows = [row for row in snapshot.stored.by_model.get(name, ()) if row.wish is Wish.SERVE]
    if any(is_routable(row, snapshot, now) for row in rows):
        return Ready()
    if is_stopped(snapshot.stored, name):
        return Refused("stopped", f"{name} is {STOPPED}", None)
    if not rows:
        if not model.activate_on_demand and model.replicas == 0:
            return Refused("not_activatable", f"{name} is not started on demand", None)
        return Pending("placing", None, cold_eta_s(snapshot, model))
    return _nearest(snapshot, model, rows, now)


def close_decided(draft: Draft) -> None:
    """Close what is ready or refused, and what nobody asks for any more. An operator's waits for room too:
    nobody would ask again."""
    for name in sorted(draft.stored.activations):
        activation = draft.stored.activations[name]
        decision = decide(draft.snapshot, name, draft.now)
        match decision:
            case Ready():
                draft.change(CloseActivation(name, "ready"))
                draft.event(
                    "activated", name, f"{draft.now - activation.opened_at:.0f} s after the first ask"
                )
            case Refused("no_capacity", text, _) if _is_kept(activation, draft.now):
                if _news(draft, name):
                    draft.event("activation_waits", name, text, Severity.NOTE)
            case Refused(code, text, _):
                draft.change(CloseActivation(name, "refused"))
                if _news(draft, name):
                    draft.event("activation_refused", name, f"{code}: {text}", Severity.TROUBLE)
            case Pending():
                stale = draft.now - activation.asked_at > draft.snapshot.intervals.activation_stale_s
                if stale and not _is_kept(activation, draft.now):
                    draft.change(CloseActivation(name, "abandoned"))
                    draft.event("activation_abandoned", name, "nobody waits for it any more")


def _is_kept(activation: ActivationRow, now: float) -> bool:
    return activation.kept_until is not None and now < activation.kept_until


def _news(draft: Draft, name: ModelId) -> bool:
    """Clients ask again and again; only a state entered in this very pass is worth another event."""
    rows = draft.stored.by_model.get(name, ())
    return not rows or any(_entered(draft.found.replicas.get(row.replica_id), row) for row in rows)


def _entered(before: ReplicaRow | None, row: ReplicaRow) -> bool:
    """Its present phase, in this pass."""
    return before is None or (before.phase, before.since) != (row.phase, row.since)


def cold_eta_s(snapshot: Snapshot, model: Model) -> float | None:
    """Of a start that has not begun: the preferred measured profile's median, of starts whose weights were
    where they are now."""
    if model.name not in snapshot.stored.loads_of:
        return None
    for profile in model.profiles:
        found = eta_of(snapshot.stored, model, profile, here=held_somewhere(snapshot, model, profile))
        if found is not None:
            return found.p50_s
    return None


def progress_of(snapshot: Snapshot, row: ReplicaRow) -> float | None:
    """The least of its shards: the group is as far as its slowest."""
    found = [
        report.progress
        for shard in row.shards
        if (report := report_of(snapshot, shard)) is not None and report.progress is not None
    ]
    return min(found, default=None)


def starting_eta_s(snapshot: Snapshot, row: ReplicaRow, now: float) -> float | None:
    """What is left of a start under way: to the median, past it to the p90, past that unknown."""
    model = snapshot.catalog.models.get(row.model)
    profile = model.profile(row.profile) if model else None
    if model is None or profile is None:
        return None
    here = snapshot.watched.held_before.get(row.endpoint_id)
    if row.phase is Phase.BACKOFF or here is None:
        here = held_somewhere(snapshot, model, profile)
    found = eta_of(snapshot.stored, model, profile, here=here)
    if found is None:
        return None
    elapsed = now - row.since
    left = next((mark - elapsed for mark in (found.p50_s, found.p90_s) if mark > elapsed), None)
    if row.phase is Phase.BACKOFF:
        return found.p50_s + max(0.0, (row.until or now) - now)
    return left


def _nearest(snapshot: Snapshot, model: Model, rows: list[ReplicaRow], now: float) -> Decision:
    """Of several replicas that do not serve, the one nearest to serving speaks."""
    for phase in (Phase.STARTING, Phase.RESERVED):
        for row in rows:
            if row.phase is phase:
                return Pending(
                    _word(snapshot, row), progress_of(snapshot, row), starting_eta_s(snapshot, row, now)
                )
    for row in rows:
        if row.phase is Phase.WANTED:
            return Pending("placing", None, cold_eta_s(snapshot, model))
        if row.phase is Phase.BACKOFF:
            return Pending("restarting", None, starting_eta_s(snapshot, row, now))
    for row in rows:
        if row.phase is Phase.UNPLACEABLE:
            # A new leader that has not heard all nodes cannot say that there is no room.
            if _room_is_coming(snapshot, now) or is_learning(snapshot, now):
                return Pending("waiting_for_room", None, None)
            return Refused(NO_CAPACITY, f"{model.name}: {row.reason}", NO_ROOM_RETRY_S)
    if any(row.phase is Phase.READY for row in rows):
        return Pending("unreachable", None, None)
    failed = rows[0]
    retry_s = None
    if failed.cause is not Cause.CONFIGURATION:
        retry_s = max(1.0, failed.since + snapshot.intervals.backoff_max_s - now)
    return Refused("start_failed", f"{failed.replica_id}: {failed.reason}", retry_s)


def _room_is_coming(snapshot: Snapshot, now: float) -> bool:
    """Asked for each model that waits, and the same for all of them. Where an exit should have been seen long
    ago nobody knows when, and whoever waits is told so."""
    rows = snapshot.stored.replicas
    before: tuple[object, tuple[ReplicaRow, ...]] | None = snapshot.found.get("leaving")
    if before is None or before[0] is not rows:
        leaving = tuple(row for row in rows.values() if row.wish is not Wish.SERVE and row.holds_devices)
        before = snapshot.found["leaving"] = (rows, leaving)
    return any(not exit_is_overdue(snapshot, row, now) for row in before[1])


def _word(snapshot: Snapshot, row: ReplicaRow) -> str:
    """The state of the shard that is furthest behind."""
    order = list(ShardState)
    states = [report.state for shard in row.shards if (report := report_of(snapshot, shard))]
    if len(states) < len(row.shards):
        return "placing"
    return min(states, key=order.index, default=ShardState.FETCHING).value
