"""Overdue: what an agent was told and does not do, although it is heard.

A start that nobody takes up is given up after a while, and an exit that is not seen does not keep a replica
from starting elsewhere. Neither frees anything: an agent that wakes up may still do what it was told, so the
devices stay claimed until the exit is seen or the node is LOST. Of silent nodes nothing is judged here.
"""

from llmgw_controller.core.draft import Draft
from llmgw_controller.core.exits import exit_of
from llmgw_controller.core.heard import Exit
from llmgw_controller.core.hearing import is_learning, is_silent, report_of
from llmgw_controller.core.roster import let_go
from llmgw_controller.core.rows import Phase, ReplicaRow, ShardRow, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.words import lasting
from llmgw_kit.ids import NodeId

#: An agent takes a start up within a beat or two, whatever has to be fetched for it afterwards.
TAKE_UP_S = 60.0

#: An exit is seen soon after the grace before KILL. Later than that its node goes last for new work.
EXIT_S = 30.0

#: So long beyond the grace another replica takes the place of one whose exit is not seen.
REPLACED_AFTER_S = 120.0

#: How the reason of such a one begins.
STUCK = "its exit on "

_ENDING = frozenset({Phase.STOPPING, Phase.BACKOFF, Phase.FAILED})


def not_taken_up(snapshot: Snapshot, row: ReplicaRow) -> tuple[NodeId, ...]:
    """Nodes that were told to start a part of it and have not said that they did, in order."""
    if row.phase is not Phase.RESERVED:
        return ()
    return tuple(sorted({one.node_id for one in row.shards if report_of(snapshot, one) is None}))


def start_waits_s(snapshot: Snapshot, row: ReplicaRow, now: float) -> float:
    """For how long this leader has waited for them, its own sleep left out."""
    return now - max(row.since, snapshot.term_started, snapshot.awake_since or row.since)


def given_up(snapshot: Snapshot, row: ReplicaRow, now: float) -> tuple[Exit, tuple[NodeId, ...]] | None:
    """The end of a start that was not taken up in time, and by whom; None: it may still be."""
    deaf = not_taken_up(snapshot, row)
    if not deaf or is_learning(snapshot, now) or start_waits_s(snapshot, row, now) < TAKE_UP_S:
        return None
    if any(_is_away(snapshot, node_id, now) for node_id in deaf):
        return None
    told = f"{' and '.join(deaf)} did not take it up within {lasting(TAKE_UP_S)}"
    return Exit(None, None, "not_taken_up", told), deaf


def unseen_exits(snapshot: Snapshot, row: ReplicaRow) -> tuple[ShardRow, ...]:
    """Of a replica that is to end: its shards that may still run, by all that was heard."""
    if row.phase not in _ENDING:
        return ()
    return tuple(one for one in row.shards if not one.released and exit_of(snapshot, row, one) is None)


def exit_late_s(snapshot: Snapshot, row: ReplicaRow, now: float) -> float:
    """How long after the grace before KILL it is now; negative while that lasts."""
    model = snapshot.catalog.models.get(row.model)
    profile = model.profile(row.profile) if model is not None else None
    return now - row.since - (profile.stop_grace_s if profile is not None else 0.0)


def exit_is_overdue(snapshot: Snapshot, row: ReplicaRow, now: float) -> bool:
    """It is to end, and its exit should have been seen: nobody knows when its devices come free."""
    if row.phase not in _ENDING or not (_is_stuck(row) or exit_late_s(snapshot, row, now) >= EXIT_S):
        return False
    return bool(unseen_exits(snapshot, row))


def deaf_nodes(snapshot: Snapshot, now: float) -> frozenset[NodeId]:
    """Nodes that do not do what they are told: whoever can goes elsewhere."""
    found: set[NodeId] = set()
    for row in snapshot.stored.sorted_replicas:
        if row.phase is Phase.RESERVED and start_waits_s(snapshot, row, now) >= EXIT_S:
            found.update(not_taken_up(snapshot, row))
        elif exit_is_overdue(snapshot, row, now):
            found.update(one.node_id for one in unseen_exits(snapshot, row))
    return frozenset(found)


def replace_stuck(draft: Draft, row: ReplicaRow) -> None:
    """One that waits to start again, and cannot for its last group is not seen to be gone, leaves, so that
    another is made for it. It keeps what it holds."""
    stuck = unseen_exits(draft.snapshot, row)
    if row.phase is not Phase.BACKOFF or row.wish is not Wish.SERVE or not stuck:
        return
    if is_learning(draft.snapshot, draft.now):
        return
    if exit_late_s(draft.snapshot, row, draft.now) < REPLACED_AFTER_S:
        return
    if any(_is_away(draft.snapshot, one.node_id, draft.now) for one in stuck):
        return
    where = " and ".join(sorted({one.node_id for one in stuck}))
    let_go(draft, row, because=f"{STUCK}{where} is not seen; another takes its place")


def _is_stuck(row: ReplicaRow) -> bool:
    """It was given up as such: how long it has waited began before its present phase."""
    return (row.reason or "").startswith(STUCK)


def _is_away(snapshot: Snapshot, node_id: NodeId, now: float) -> bool:
    """Silent, or between two streams: then UNREACHABLE and LOST are what counts."""
    heard = snapshot.heard.get(node_id)
    return heard is None or not heard.connected or is_silent(snapshot, node_id, now)
