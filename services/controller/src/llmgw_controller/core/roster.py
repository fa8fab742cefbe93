"""The roster of one model's replicas: who is wanted, how one more begins, how one is told to go."""

from llmgw_controller.core.catalog import Model, spec_hash
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.plan import PutReplica
from llmgw_controller.core.replica import with_wish
from llmgw_controller.core.state import Cause, Phase, ReplicaRow, Wish
from llmgw_kit.ids import ModelId, ReplicaId

#: Reason of a replica that leaves only because nobody uses it.
IDLE = "idle"


def live(draft: Draft, name: ModelId) -> list[ReplicaRow]:
    """Those wanted to serve, whatever their phase. FAILED counts too: its place is not filled again."""
    return [row for row in draft.replicas() if row.model == name and row.wish is Wish.SERVE]


def create(draft: Draft, model: Model, cause: Cause) -> None:
    """A WANTED replica under the lowest number that no row has."""
    taken = {row.replica_id for row in draft.stored.replicas.values() if row.model == model.name}
    number = 1
    while ReplicaId(f"{model.name}/{number}") in taken:
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


def let_go(draft: Draft, row: ReplicaRow, *, because: str) -> None:
    """It is not wanted any more, and goes in the way its phase allows."""
    draft.change(PutReplica(with_wish(row, leaving_wish(row), because=because)))
    draft.event("leaving", row.replica_id, because)
