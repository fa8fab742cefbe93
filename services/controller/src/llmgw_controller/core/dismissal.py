"""Dismissal: an operator lets one replica go. What that makes of its row, and what follows from it."""

from dataclasses import dataclass, replace

from llmgw_controller.core.activity import Verdicts
from llmgw_controller.core.apply import apply
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.drains import drain_timeout_s
from llmgw_controller.core.plan import PutReplica
from llmgw_controller.core.replica import WISH_NEXT, is_unreachable, with_wish
from llmgw_controller.core.roster import leaving_wish, live
from llmgw_controller.core.rows import Phase, ReplicaRow, Wish
from llmgw_controller.core.scale import target
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.words import counted, lasting


@dataclass(frozen=True)
class Dismissal:
    """Told to the operator before it happens and after, in the same words."""

    #: As it is to be written; None: it is leaving already, and nothing changes.
    row: ReplicaRow | None
    outcome: str
    text: str
    #: What it holds until its exit is seen.
    gpus: int
    #: The model wants as many as before.
    another: bool


def dismiss(snapshot: Snapshot, row: ReplicaRow, wish: Wish, now: float) -> Dismissal:
    """Let the replica go under `wish`, DRAIN or STOP. One way, as every wish: it is replaced, not revived."""
    gpus = row.gpus_held
    firm = wish is Wish.DRAIN and row.revocable and row.wish is Wish.DRAIN
    if wish not in WISH_NEXT[row.wish] and not firm:
        return Dismissal(None, "unchanged", _leaving_already(row, now), gpus, another=False)
    because = f"{'drained' if wish is Wish.DRAIN else 'stopped'} by operator"
    if firm:
        # It drains already, but only as long as nobody asks for it; now somebody wants it gone.
        gone = replace(row, revocable=False, reason=because)
    else:
        gone = with_wish(row, leaving_wish(row) if wish is Wish.DRAIN else wish, because=because)
    # One that drains already is not counted on: its successor is on its way.
    model = successor(snapshot, gone, now) if row.wish is Wish.SERVE else None
    parts = [_how(snapshot, gone)]
    if gpus:
        silent = " (its node is silent: when it is heard again, or lost)"
        when = silent if is_unreachable(row, snapshot, now) else ""
        parts.append(f"then its {counted(gpus, 'GPU')} {'is' if gpus == 1 else 'are'} free{when}")
    if model is not None:
        parts.append(another(model))
    outcome = "draining" if gone.wish is Wish.DRAIN else "stopping"
    return Dismissal(gone, outcome, f"{row.replica_id} {'; '.join(parts)}", gpus, another=model is not None)


def successor(snapshot: Snapshot, gone: ReplicaRow, now: float) -> Model | None:
    """The model, when it wants another replica in the place of this one."""
    model = snapshot.catalog.models.get(gone.model)
    if model is None:
        return None
    draft = Draft(replace(snapshot, stored=apply(snapshot.stored, (PutReplica(gone),))), now, Verdicts())
    return model if target(draft, model) > len(live(draft, model.name)) else None


def _how(snapshot: Snapshot, gone: ReplicaRow) -> str:
    if gone.wish is Wish.DRAIN:
        return f"drains: it takes nothing new and has {drain_timeout_s(snapshot, gone):.0f} s to finish"
    if gone.phase in (Phase.READY, Phase.DRAINING):
        return "stops now: what it has in flight may be cut short"
    return f"stops now: it is {gone.phase.value} and has nothing to finish"


def _leaving_already(row: ReplicaRow, now: float) -> str:
    if row.phase is Phase.DRAINING and row.wish is Wish.DRAIN:
        return (
            f"{row.replica_id} drains already, for {lasting(now - row.since)}; "
            f"to end it now: llmgwctl replica stop {row.replica_id}"
        )
    return f"{row.replica_id} is leaving already ({row.reason or row.wish.value})"


def another(model: Model) -> str:
    """Why one takes its place."""
    why = f"configuration keeps {model.replicas}" if model.replicas else "requests wait for it"
    return f"{why}, so another is started where there is room"
