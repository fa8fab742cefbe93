"""The state machine of one replica: one table, one function, and what follows without being stored.

Phases are the controller's word. Whether a replica can be reached or routed to follows from its row,
the agents' reports and the clock, so no stale stamp can outlive the silence that caused it.
"""

from dataclasses import replace

from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.hearing import is_learning, is_silent, report_of
from llmgw_controller.core.rows import Phase, ReplicaRow, Wish
from llmgw_controller.core.state import Snapshot

#: Lines of `story` kept; older ones are in the events.
STORY_LINES = 20

#: One way only, but for `taken_back`. A replica that was told to go is replaced, not revived.
WISH_NEXT: dict[Wish, frozenset[Wish]] = {
    Wish.SERVE: frozenset({Wish.DRAIN, Wish.STOP}),
    Wish.DRAIN: frozenset({Wish.STOP}),
    Wish.STOP: frozenset(),
}

PHASE_NEXT: dict[Phase, frozenset[Phase]] = {
    # Without a start of its own into BACKOFF and FAILED: others have shown that its profile fails.
    Phase.WANTED: frozenset({Phase.RESERVED, Phase.UNPLACEABLE, Phase.BACKOFF, Phase.FAILED, Phase.STOPPED}),
    # A new spec starts over; room found goes on.
    Phase.UNPLACEABLE: frozenset({Phase.WANTED, Phase.RESERVED, Phase.FAILED, Phase.STOPPED}),
    Phase.RESERVED: frozenset({Phase.STARTING, Phase.BACKOFF, Phase.FAILED, Phase.STOPPING}),
    Phase.STARTING: frozenset({Phase.READY, Phase.BACKOFF, Phase.FAILED, Phase.STOPPING}),
    Phase.READY: frozenset({Phase.DRAINING, Phase.STOPPING, Phase.BACKOFF, Phase.FAILED}),
    Phase.DRAINING: frozenset({Phase.STOPPING}),
    Phase.STOPPING: frozenset({Phase.STOPPED}),
    Phase.STOPPED: frozenset(),
    # Through WANTED, so that the next group is placed afresh and under a new epoch.
    Phase.BACKOFF: frozenset({Phase.WANTED, Phase.STOPPING}),
    Phase.FAILED: frozenset({Phase.WANTED, Phase.STOPPING}),
}

#: The wish under which a phase may be entered; all others need SERVE.
WISH_OF_PHASE: dict[Phase, Wish] = {
    Phase.DRAINING: Wish.DRAIN,
    Phase.STOPPING: Wish.STOP,
    Phase.STOPPED: Wish.STOP,
}

#: States in which an engine answers, by whether its replica is draining: told to drain, its agent may not
#: have said so yet; told to serve, an engine that drains takes nothing new.
_ANSWERING = {
    True: frozenset({ShardState.SERVING, ShardState.DRAINING}),
    False: frozenset({ShardState.SERVING}),
}

#: Phases in which the shards of the row are to run.
RUNNING = frozenset({Phase.RESERVED, Phase.STARTING, Phase.READY, Phase.DRAINING})


class InvalidTransition(AssertionError):
    """A bug in the caller, never an operating error. Carries the story."""


def with_wish(row: ReplicaRow, wish: Wish, *, because: str) -> ReplicaRow:
    """The row under a further wish, with `because` as its reason: on whose behalf it goes. Raises
    InvalidTransition when the wish would go back."""
    if wish not in WISH_NEXT[row.wish]:
        raise InvalidTransition(
            f"{row.replica_id}: wish {row.wish.value} -> {wish.value} ({because}); {_story(row)}"
        )
    moved = replace(row, wish=wish, reason=because, revocable=False)
    return _told(moved, f"wish {row.wish.value} -> {wish.value}: {because}")


def taken_back(row: ReplicaRow, *, now: float, because: str, until: float | None = None) -> ReplicaRow:
    """A revocable drain undone: the replica serves again as if nothing had been, and is not let go as idle
    before `until`. Safe for routers that had put it aside: routes are the whole truth each time, and its
    engine was never told. Raises InvalidTransition for a drain that is not revocable, or has ended."""
    if row.wish is not Wish.DRAIN or not row.revocable or row.phase not in (Phase.READY, Phase.DRAINING):
        raise InvalidTransition(
            f"{row.replica_id}: a drain taken back in {row.phase.value} under wish {row.wish.value} "
            f"({because}); {_story(row)}"
        )
    since = now if row.phase is Phase.DRAINING else row.since
    moved = replace(
        row, wish=Wish.SERVE, phase=Phase.READY, reason=None, until=until, since=since, revocable=False,
        quiet_at=None,
    )  # fmt: skip
    return _told(moved, f"drain taken back: {because}")


def with_phase(
    row: ReplicaRow,
    phase: Phase,
    *,
    now: float,
    because: str,
    reason: str | None = None,
    until: float | None = None,
) -> ReplicaRow:
    """The row in its next phase, entered `now`. Raises InvalidTransition for a pair outside the table,
    for a phase that does not go with the wish, and for forgetting devices that are still held."""
    needed = WISH_OF_PHASE.get(phase, Wish.SERVE)
    if phase not in PHASE_NEXT[row.phase] or row.wish is not needed:
        raise InvalidTransition(
            f"{row.replica_id}: {row.phase.value} -> {phase.value} under wish {row.wish.value} "
            f"({because}); {_story(row)}"
        )
    if phase in (Phase.WANTED, Phase.STOPPED) and row.holds_devices:
        raise InvalidTransition(f"{row.replica_id}: {phase.value} while devices are held; {_story(row)}")
    ready_since = row.ready_since if phase is Phase.DRAINING else None
    moved = replace(
        row,
        phase=phase,
        reason=reason,
        until=until,
        since=now,
        ready_since=now if phase is Phase.READY else ready_since,
        shards=() if phase in (Phase.WANTED, Phase.STOPPED) else row.shards,
        quiet_at=None,
    )
    return _told(moved, f"{row.phase.value} -> {phase.value}: {because}")


def is_unreachable(row: ReplicaRow, snapshot: Snapshot, now: float) -> bool:
    """A node that holds a part of it is silent. Says nothing about a replica that holds nothing."""
    return any(not shard.released and is_silent(snapshot, shard.node_id, now) for shard in row.shards)


def is_serving(row: ReplicaRow, snapshot: Snapshot, now: float) -> bool:
    """Every shard is known to serve, and its node is not silent.

    While a new leader learns, the row's word stands for nodes not heard yet: a change of leader must
    not take a running replica from anybody."""
    for shard in row.shards:
        if shard.node_id not in snapshot.heard:
            if not is_learning(snapshot, now):
                return False
            continue
        report = report_of(snapshot, shard)
        if report is None or report.state not in _ANSWERING[row.phase is Phase.DRAINING]:
            return False
        if is_silent(snapshot, shard.node_id, now):
            return False
    return bool(row.shards) and not any(shard.released for shard in row.shards)


def is_routable(row: ReplicaRow, snapshot: Snapshot, now: float) -> bool:
    """New requests may go there."""
    return row.wish is Wish.SERVE and row.phase is Phase.READY and is_serving(row, snapshot, now)


def _told(row: ReplicaRow, line: str) -> ReplicaRow:
    return replace(row, story=(*row.story, line)[-STORY_LINES:])


def _story(row: ReplicaRow) -> str:
    return f"story: {' / '.join(row.story) or 'none'}"
