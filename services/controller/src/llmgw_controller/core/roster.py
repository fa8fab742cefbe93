"""The roster of one model's replicas: who is wanted, how one more begins, how one is told to go."""

from collections.abc import Iterable
from dataclasses import replace

from llmgw_controller.core.catalog import Model, Source, spec_hash
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.plan import PutReplica, Severity
from llmgw_controller.core.replica import taken_back, with_wish
from llmgw_controller.core.rows import Cause, Phase, ReplicaRow, Wish
from llmgw_controller.core.words import counted
from llmgw_kit.ids import ModelId, ReplicaId

#: Reason of a replica that leaves only because nobody uses it.
IDLE = "idle"
#: Of more than so many, only the number is told.
NAMED_MOST = 8


def live(draft: Draft, name: ModelId) -> list[ReplicaRow]:
    """Those wanted to serve, whatever their phase. FAILED counts too: its place is not filled again."""
    return [row for row in draft.stored.by_model.get(name, ()) if row.wish is Wish.SERVE]


def create(draft: Draft, model: Model, cause: Cause) -> None:
    """A WANTED replica under the lowest number that no row has."""
    number = 1
    while ReplicaId(f"{model.name}/{number}") in draft.stored.replicas:
        number += 1
    first = model.profiles[0]
    kept = cause is Cause.CONFIGURATION and model.source is Source.STORED
    by = "its stored spec" if kept else cause.value
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
        story=(f"wanted by {by}",),
    )
    draft.change(PutReplica(row))
    draft.event("wanted", row.replica_id, f"by {by}")


def goes(rows: Iterable[ReplicaRow]) -> str:
    """How they leave, when they are let go: only what holds devices has anything to drain. "" of none."""
    held: list[str] = []
    waiting: list[str] = []
    for row in rows:
        (held if row.holds_devices else waiting).append(row.replica_id)
    parts = []
    if held:
        parts.append(f"{_named(held)} {'drains' if len(held) == 1 else 'drain'}")
    if waiting:
        why = "goes, for it holds" if len(waiting) == 1 else "go, for they hold"
        parts.append(f"{_named(waiting)} {why} no GPU")
    return " and ".join(parts)


def _named(names: list[str]) -> str:
    return ", ".join(sorted(names)) if len(names) <= NAMED_MOST else counted(len(names), "replica")


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
