"""The roster of one model's replicas: who is wanted, how one more begins, how one is told to go."""

from dataclasses import replace

from llmgw_controller.core.catalog import Model, spec_hash
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.plan import PutReplica, Severity
from llmgw_controller.core.replica import taken_back, with_wish
from llmgw_controller.core.state import Cause, Phase, ReplicaRow, Wish
from llmgw_kit.ids import ModelId, ReplicaId

#: Reason of a replica that leaves only because nobody uses it.
IDLE = "idle"


def live(draft: Draft, name: ModelId) -> list[ReplicaRow]:
    """Those wanted to serve, whatever their phase. FAILED counts too: its place is not filled again."""
    return [row for row in draft.stored.by_model.get(name, ()) if row.wish is Wish.SERVE]


def create(draft: Draft, model: Model, cause: Cause) -> None:
    """A WANTED replica under the lowest number that no row has."""
    number = 1
    while ReplicaId(f"{model.name}/{number}") in draft.stored.replicas:
        number += 1
    first = model.profiles[0]
    row = ReplicaRow(
        replica_id=ReplicaId(f"{model.name}/{number}"),
        model=model.name,
        profile=first.name,
        spec_hash=spec_hash(model, first),
        cause=cause,
        wish=Wish.SERVE,
        phase=Phase.WANTED,
        reason=None,
        until=None,
        group_epoch=0,
        failures=0,
        created_at=draft.now,
        since=draft.now,
        ready_since=None,
        credential=None,
        story=(f"wanted by {cause.value}",),
    )
    draft.change(PutReplica(row))
    draft.event("wanted", row.replica_id, f"by {cause.value}")


def leaving_wish(row: ReplicaRow) -> Wish:
    """Drain what may have streams; stop at once what cannot."""
    return Wish.DRAIN if row.phase is Phase.READY else Wish.STOP


def let_go(draft: Draft, row: ReplicaRow, *, because: str, revocable: bool = False) -> None:
    """It is not wanted any more, and goes in the way its phase allows. `revocable`: only if it can end
    well; `cancel_drain` takes the wish back."""
    gone = with_wish(row, leaving_wish(row), because=because)
    draft.change(PutReplica(replace(gone, revocable=revocable and gone.wish is Wish.DRAIN)))
    draft.event("leaving", row.replica_id, because)


def cancel_drain(draft: Draft, row: ReplicaRow, *, because: str, rest_s: float = 0.0) -> None:
    """Take a revocable drain back: it serves again, and is not let go as idle for `rest_s`. Raises
    InvalidTransition where the drain is somebody's wish, or the stop has begun."""
    until = draft.now + rest_s if rest_s else None
    draft.change(PutReplica(taken_back(row, now=draft.now, because=because, until=until)))
    draft.event("drain_cancelled", row.replica_id, because, Severity.NOTE)
