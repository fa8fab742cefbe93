"""Trouble first: what is wrong now, why, and what to type. Notes are things to know that hurt nobody yet."""

from collections.abc import Iterator
from dataclasses import dataclass

from llmgw_controller.core.activity import Unknown, Verdicts
from llmgw_controller.core.claims import Device, Room, Rooms, Use
from llmgw_controller.core.drains import drain_timeout_s
from llmgw_controller.core.exits import exit_of
from llmgw_controller.core.failing import failing
from llmgw_controller.core.heard import DeviceReport, DeviceState
from llmgw_controller.core.hearing import NodeState, brake, is_learning, last_seen
from llmgw_controller.core.hold import HELD
from llmgw_controller.core.idleness import idle_replicas, silent_members
from llmgw_controller.core.near import Near, nearest
from llmgw_controller.core.overdue import (
    REPLACED_AFTER_S,
    TAKE_UP_S,
    exit_late_s,
    not_taken_up,
    start_waits_s,
)
from llmgw_controller.core.placement import memo_of
from llmgw_controller.core.placing import ask_key, waiting_for_place
from llmgw_controller.core.plan import Severity
from llmgw_controller.core.port_bands import EPHEMERAL, overlaps_ephemeral
from llmgw_controller.core.reach import reach
from llmgw_controller.core.rows import Phase, ReplicaRow, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.turns import LOOKED_MOST, turn_of
from llmgw_controller.core.watchdog import ailing, stall_of
from llmgw_controller.core.weights_held import pressure
from llmgw_controller.core.words import counted, lasting, sized
from llmgw_kit.ids import ModelId

#: Reasons of the whole watch, not of one replica: told once.
_WATCH = {
    "redis_not_configured": "no Redis is configured: nothing can be called idle",
    "redis_unreachable": "Redis does not answer",
    "watch_restarted": "Redis lost its map; routers send theirs again",
    "router_silent": "a member router is not heard",
    "router_resending": "a router has not sent its whole map again yet",
}


#: The silent node has a line of its own.
_OF_THE_NODE = frozenset({"node_silent"})

#: Unplaceable models told with their nearest miss; each costs a search.
NEAR_MISSES_TOLD = 5
#: Silent routers named.
SILENT_TOLD = 3
#: Foreign processes named of one device.
STRANGERS_TOLD = 3

#: An agent takes a start up within a beat or two; and sees an exit soon after the grace before KILL.
LATE_S = 30.0
EXIT_S = 30.0

_ENDING = frozenset({Phase.STOPPING, Phase.BACKOFF, Phase.FAILED})
#: In these something was told to agents and has not happened yet.
_MOVING = frozenset({Phase.RESERVED, Phase.DRAINING, *_ENDING})


@dataclass(frozen=True)
class Trouble:
    severity: Severity
    kind: str
    subject: str
    text: str
    since: float | None = None
    #: A command to type.
    fix: str | None = None
    #: With "unplaceable": the node that lacks least; None: none would come free.
    near: Near | None = None
    #: Of a device: the stable word of its fault.
    reason: str | None = None
    #: Of a silent node: until it is judged lost (None: only an operator will), and the GPUs claimed there.
    lost_in_s: float | None = None
    holds_gpus: int | None = None


def troubles(snapshot: Snapshot, rooms: Rooms, verdicts: Verdicts, now: float) -> tuple[Trouble, ...]:
    """Trouble before notes; within each by where it is, nodes first."""
    found = [
        *_leader(snapshot, now),
        *_controllers(snapshot),
        *(one for room in rooms.values() for one in _node(snapshot, room, now)),
        *_profiles(snapshot),
        *_replicas(snapshot, now),
        *_unplaceable(snapshot, rooms, verdicts, now),
        *_turns(snapshot, rooms, now),
        *_overdue(snapshot, now),
        *(
            one
            for room in rooms.values()
            for device in room.devices
            for one in _device(snapshot, room, device)
        ),
        *_engines(snapshot, now),
        *_watch(snapshot, verdicts),
        *_disks(snapshot),
        *_catalog(snapshot),
    ]
    return tuple(sorted(found, key=lambda one: one.severity is not Severity.TROUBLE))


def _leader(snapshot: Snapshot, now: float) -> Iterator[Trouble]:
    if is_learning(snapshot, now):
        left_s = snapshot.term_started + snapshot.intervals.learning_window_s - now
        text = f"a new leader hears the nodes first, for {lasting(left_s)} at most: nobody is judged yet"
        yield Trouble(Severity.NOTE, "learning", "controller", text, snapshot.term_started)
    brakes = brake(snapshot, now)
    if brakes.on and not is_learning(snapshot, now):
        text = f"{brakes.silent} of {counted(brakes.known, 'node')} silent together: none is judged lost"
        yield Trouble(Severity.TROUBLE, "brake_on", "controller", text)


def _controllers(snapshot: Snapshot) -> Iterator[Trouble]:
    by_hash: dict[str, list[str]] = {}
    for one in snapshot.controllers:
        by_hash.setdefault(one.config_hash, []).append(one.name)
    if len(by_hash) > 1:
        told = ", ".join(f"{digest} ({' '.join(sorted(names))})" for digest, names in sorted(by_hash.items()))
        text = f"their configurations differ, and so would what they decide: {told}"
        yield Trouble(Severity.TROUBLE, "config_differs", "controllers", text)


def _node(snapshot: Snapshot, room: Room, now: float) -> Iterator[Trouble]:
    node_id = room.node.node_id
    held = sum(device.use is Use.CLAIMED for device in room.devices)
    if room.state is NodeState.UNREACHABLE and not is_learning(snapshot, now):
        seen = last_seen(snapshot, node_id)
        left_s = seen + snapshot.intervals.lost_after_s - now
        when = f"lost in {lasting(left_s)}" if left_s > 0 else "held back from lost by the brake"
        text = f"unreachable for {lasting(now - seen)}; {when}. "
        text += f"Still claimed there: {counted(held, 'GPU')}." if held else "It holds nothing."
        # Time alone will not do it: somebody who knows must say so.
        fix = f"llmgwctl node confirm-lost {node_id}" if left_s <= 0 else None
        yield Trouble(
            Severity.TROUBLE, "node_unreachable", node_id, text, seen, fix,
            lost_in_s=left_s if left_s > 0 else None, holds_gpus=held,
        )  # fmt: skip
    elif room.state is NodeState.LOST:
        text = f"lost; {counted(room.tombstones, 'engine')} given up there"
        yield Trouble(Severity.TROUBLE, "node_lost", node_id, text, room.node.lost_at)
    elif room.tombstones:
        text = f"back from lost; takes work when {counted(room.tombstones, 'old engine')} exited"
        yield Trouble(Severity.NOTE, "node_returning", node_id, text, room.node.lost_at)
    if (ports := room.node.engine_ports) is not None and overlaps_ephemeral(ports):
        text = f"engine ports {ports[0]}-{ports[1]} overlap those that Linux hands to clients, "
        text += f"{EPHEMERAL[0]}-{EPHEMERAL[1]} unless told otherwise: an engine may find its port taken"
        yield Trouble(Severity.NOTE, "engine_ports", node_id, text)


def _device(snapshot: Snapshot, room: Room, device: Device) -> Iterator[Trouble]:
    subject = f"{device.node_id}:{device.index}"
    report = device.report
    if device.use is Use.UNHEALTHY:
        missing = report is None or report.state is DeviceState.MISSING
        holds = f"; {device.replica_id} is on it" if device.replica_id else ""
        kind, word = ("device_missing", "missing") if missing else ("device_unhealthy", "unhealthy")
        text = f"{word}: {_fault_of(report, missing=missing)}{holds}"
        fix = f"llmgwctl gpus --node {device.node_id}"
        since, why = (report.since, report.reason) if report else (None, None)
        yield Trouble(Severity.TROUBLE, kind, subject, text, since, fix, reason=why)
    if report and (report.foreign_used_bytes or 0) >= snapshot.intervals.foreign_bytes:
        used = f"foreign use, {sized(report.foreign_used_bytes or 0)}"
        yield Trouble(Severity.NOTE, "foreign_use", subject, f"{used} by {_strangers(report)}")
    for note in report.notes if report and report.state is DeviceState.HEALTHY else ():
        yield Trouble(Severity.NOTE, "device_note", subject, note)
    if device.stale and room.state is not NodeState.LOST:
        text = f"held by an engine of {device.replica_id} that no row knows; it is being ended"
        yield Trouble(Severity.NOTE, "stale_engine", subject, text)


def _engines(snapshot: Snapshot, now: float) -> Iterator[Trouble]:
    """Up, and does not do what it is there for."""
    unreachable = reach(snapshot, now).unreachable
    for row in snapshot.stored.sorted_replicas:
        if row.phase is not Phase.READY or row.replica_id in unreachable:
            continue
        told = ailing(snapshot, row, now)
        stall = stall_of(snapshot, row, now)
        if told is None:
            continue
        if stall is None or not stall.told:
            yield Trouble(Severity.TROUBLE, "probe_failing", row.replica_id, f"up, and {told}")
        elif stall.limit_s is None:
            text = f"{told}; its profile sets no stall_timeout_s"
            fix = f"llmgwctl replica stop {row.replica_id}"
            yield Trouble(Severity.TROUBLE, "replica_stalled", row.replica_id, text, None, fix)
        else:
            text = f"{told}; restarted at {lasting(stall.limit_s)}"
            yield Trouble(Severity.NOTE, "replica_stalled", row.replica_id, text)


def _fault_of(report: DeviceReport | None, *, missing: bool) -> str:
    if report is None:
        return "not in the inventory"
    if report.fault is not None and report.fault.reason == report.reason and report.fault.text:
        return f"{report.reason} ({report.fault.text})"
    return report.reason or ("not in the inventory" if missing else "no reason told")


def _strangers(report: DeviceReport) -> str:
    """Who uses it, where the agent can see them."""
    told = [
        f"pid {one.pid} ({', '.join(part for part in (one.name, one.user) if part) or 'unknown'})"
        for one in report.foreign[:STRANGERS_TOLD]
    ]
    if len(report.foreign) > STRANGERS_TOLD:
        told.append(f"{len(report.foreign) - STRANGERS_TOLD} more")
    return f"{', '.join(told) or 'processes'}, not started by us"


def _unplaceable(snapshot: Snapshot, rooms: Rooms, verdicts: Verdicts, now: float) -> Iterator[Trouble]:
    """Once a model, with the nearest miss of the planner's own search."""
    oldest: dict[ModelId, ReplicaRow] = {}
    for row in snapshot.stored.sorted_replicas:
        if row.wish is Wish.SERVE and row.phase is Phase.UNPLACEABLE:
            known = oldest.get(row.model)
            oldest[row.model] = row if known is None or row.since < known.since else known
    idle = idle_replicas(snapshot, verdicts)
    memo = memo_of(snapshot, rooms)
    for position, (name, row) in enumerate(sorted(oldest.items())):
        text = f"cannot be placed for {lasting(now - row.since)}: {row.reason or 'no reason was told'}"
        model = snapshot.catalog.models.get(name)
        near = None
        if model is not None and position < NEAR_MISSES_TOLD:
            near = nearest(model, rooms, idle, memo)
            text += f"\nNear miss: {near.text()}." if near is not None else ""
        yield Trouble(Severity.TROUBLE, "unplaceable", name, text, row.since, f"llmgwctl why {name}", near)


def _turns(snapshot: Snapshot, rooms: Rooms, now: float) -> Iterator[Trouble]:
    """More wait than one pass looks for: whoever is not placed at once should know why."""
    waiting = waiting_for_place(snapshot)
    turn = turn_of(waiting, lambda one: ask_key(snapshot, one[1], rooms), now)
    if turn.passes > 1:
        text = (
            f"{counted(len(waiting), 'replica')} wait for a place and ask for {turn.asks} different things: "
            f"each pass looks for {LOOKED_MOST} of them, the first by rank and the others in turn, all "
            f"within about {turn.passes} passes"
        )
        yield Trouble(Severity.NOTE, "placed_in_turns", "placement", text)


def _profiles(snapshot: Snapshot) -> Iterator[Trouble]:
    for name in sorted({attempt.model for attempt in snapshot.stored.attempts}):
        model = snapshot.catalog.models.get(name)
        for profile in model.profiles if model is not None else ():
            assert model is not None
            one = failing(snapshot.stored, model, profile, snapshot.intervals)
            if one is not None:
                text = f"{one.told()}. It is not started again"
                fix = f"llmgwctl model start {name}"
                yield Trouble(Severity.TROUBLE, "profile_failing", name, text, one.since, fix)


def _replicas(snapshot: Snapshot, now: float) -> Iterator[Trouble]:
    for row in snapshot.stored.sorted_replicas:
        if row.wish is not Wish.SERVE:
            continue
        reason = row.reason or "no reason was told"
        if row.phase is Phase.BACKOFF and row.failures:
            left = lasting((row.until or now) - now)
            text = f"start {row.failures} failed: {reason}; again in {left}"
            fix = f"llmgwctl replica logs {row.replica_id}"
            yield Trouble(Severity.TROUBLE, "replica_backoff", row.replica_id, text, row.since, fix)
        elif row.phase is Phase.BACKOFF and reason.startswith(HELD) and row.until is not None:
            # No fix: it is as somebody wished it.
            text = f"{reason}; started in {lasting(row.until - now)}"
            text += f", or sooner: llmgwctl replica stop {row.replica_id}"
            yield Trouble(Severity.NOTE, "replica_held_back", row.replica_id, text, row.since)
        elif row.phase is Phase.FAILED:
            text = f"given up after {counted(row.failures, 'start')}" if row.failures else "not started"
            text += f": {reason}"
            fix = f"llmgwctl model start {row.model}"
            yield Trouble(Severity.TROUBLE, "replica_failed", row.replica_id, text, row.since, fix)


def _overdue(snapshot: Snapshot, now: float) -> Iterator[Trouble]:
    """What was told to agents and does not happen. Silent nodes have a line of their own."""
    unreachable = reach(snapshot, now).unreachable
    for row in snapshot.stored.sorted_replicas:
        if row.phase not in _MOVING:
            continue
        # Of several that make room together one may have exited, and keeps its claims until all have.
        held = [one for one in row.shards if not one.released and exit_of(snapshot, row, one) is None]
        if not held or row.replica_id in unreachable:
            continue
        model = snapshot.catalog.models.get(row.model)
        profile = model.profile(row.profile) if model else None
        grace_s = profile.stop_grace_s if profile else 0.0
        nodes = ", ".join(sorted({shard.node_id for shard in held}))
        waited = lasting(now - row.since)
        if row.phase is Phase.RESERVED and now - row.since > LATE_S:
            left_s = TAKE_UP_S - start_waits_s(snapshot, row, now)
            deaf = ", ".join(not_taken_up(snapshot, row))
            text = f"told to {deaf} {waited} ago and not taken up"
            text += f"; given up in {lasting(left_s)}" if left_s > 0 else ""
            yield Trouble(Severity.TROUBLE, "start_overdue", row.replica_id, text, row.since)
        elif row.phase is Phase.DRAINING and now - row.since > drain_timeout_s(snapshot, row) + EXIT_S:
            text = (
                f"drains for {waited}, past its deadline: something still runs there, or a router is silent"
            )
            fix = f"llmgwctl replica stop {row.replica_id}"
            yield Trouble(Severity.TROUBLE, "drain_overdue", row.replica_id, text, row.since, fix)
        elif row.phase in _ENDING and now - row.since > grace_s + EXIT_S:
            left_s = REPLACED_AFTER_S - exit_late_s(snapshot, row, now)
            text = f"its exit on {nodes} is not seen for {waited}; its GPUs stay claimed"
            if row.phase is Phase.BACKOFF and left_s > 0:
                text += f", and another takes its place in {lasting(left_s)}"
            yield Trouble(Severity.TROUBLE, "stop_overdue", row.replica_id, text, row.since)


def _watch(snapshot: Snapshot, verdicts: Verdicts) -> Iterator[Trouble]:
    by_reason: dict[str, list[str]] = {}
    for replica_id, verdict in sorted(verdicts.by_replica.items()):
        if isinstance(verdict, Unknown) and verdict.reason not in _OF_THE_NODE:
            by_reason.setdefault(verdict.reason, []).append(replica_id)
    for reason, names in sorted(by_reason.items()):
        if reason in _WATCH:
            text = f"idleness of {counted(len(names), 'replica')} unknown: {_WATCH[reason]}"
            fix = None
            if reason == "router_silent":
                silent = silent_members(snapshot)
                shown = ", ".join(silent[:SILENT_TOLD])
                more = f" and {len(silent) - SILENT_TOLD} more" if len(silent) > SILENT_TOLD else ""
                text += f" ({shown}{more})"
                fix = "llmgwctl router list"
            yield Trouble(Severity.NOTE, "idleness_unknown", "idleness", text, None, fix)
        else:
            for name in names:
                text = f"idleness unknown: {reason.replace('_', ' ')}"
                yield Trouble(Severity.NOTE, "idleness_unknown", name, text)


def _disks(snapshot: Snapshot) -> Iterator[Trouble]:
    for one in pressure(snapshot):
        text = (
            f"{sized(one.free_bytes)} of disk free; {one.model} {one.version} needs "
            f"{sized(one.needed_bytes)} and is not there"
        )
        if one.spare_bytes:
            text += f"; {sized(one.spare_bytes)} there are wanted by nobody"
        fix = f"llmgwctl weights list --node {one.node_id}"
        yield Trouble(Severity.NOTE, "disk_pressure", one.node_id, text, None, fix)


def _catalog(snapshot: Snapshot) -> Iterator[Trouble]:
    for name in snapshot.catalog.shadowed:
        text = "stored and configured: the configuration is used"
        yield Trouble(Severity.NOTE, "model_shadowed", name, text)
    for name in sorted(snapshot.stored.models):
        if name not in snapshot.catalog.models:
            text = "its stored form cannot be read; what runs of it is left alone"
            yield Trouble(
                Severity.TROUBLE, "model_unreadable", name, text, None, f"llmgwctl model remove {name}"
            )
