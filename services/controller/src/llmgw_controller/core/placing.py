"""Placing: find room for every replica that waits for it, large groups before small ones."""

from dataclasses import replace

from llmgw_controller.core.catalog import Model, spec_hash
from llmgw_controller.core.claims import rooms, with_claim
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.hearing import is_learning
from llmgw_controller.core.idleness import idle_replicas
from llmgw_controller.core.placement import Memo, Placement, Refusal, place
from llmgw_controller.core.plan import FetchWeights, PutReplica, Reserve, Severity, Start
from llmgw_controller.core.replica import with_phase
from llmgw_controller.core.state import Phase, ReplicaRow, Wish


def place_waiting(draft: Draft) -> None:
    """Reserve for each that fits; say why for each that does not.

    Large groups first within one pass: a small one leaves them no whole nodes, the reverse is harmless."""
    waiting = [
        (row, model)
        for row in draft.replicas()
        if row.wish is Wish.SERVE and row.phase in (Phase.WANTED, Phase.UNPLACEABLE)
        if (model := draft.snapshot.catalog.models.get(row.model)) is not None
    ]
    if not waiting:
        return
    found = rooms(draft.snapshot, draft.now)
    idle = idle_replicas(draft.snapshot, draft.verdicts)
    memo = Memo()
    for row, model in sorted(waiting, key=_order):
        epoch = max(row.group_epoch, draft.stored.epochs.get(row.model, 0)) + 1
        answer = place(model, found, replica_id=row.replica_id, group_epoch=epoch, evictable=idle, memo=memo)
        if isinstance(answer, Refusal):
            _refuse(draft, row, answer)
            continue
        _reserve(draft, row, model, answer, epoch)
        for shard in answer.shards:
            found = with_claim(
                found,
                row.model,
                row.replica_id,
                shard.node_id,
                shard.device_ids,
                tuple(port for _, port in shard.ports),
            )


def rank(model: Model) -> tuple[int, int, int]:
    """Whose replicas are placed first; the smaller, the sooner."""
    nodes = max(profile.nodes for profile in model.profiles)
    gpus = max(profile.gpus for profile in model.profiles)
    return -model.priority, -nodes, -gpus


def _order(waiting: tuple[ReplicaRow, Model]) -> tuple[int, int, int, float, str]:
    row, model = waiting
    return *rank(model), row.created_at, row.replica_id


def _reserve(draft: Draft, row: ReplicaRow, model: Model, answer: Placement, epoch: int) -> None:
    nodes = ", ".join(shard.node_id for shard in answer.shards)
    placed = replace(
        with_phase(row, Phase.RESERVED, now=draft.now, because=f"placed on {nodes}"),
        profile=answer.profile.name,
        spec_hash=spec_hash(model, answer.profile),
        group_epoch=epoch,
        shards=answer.shards,
    )
    draft.change(Reserve(placed))
    draft.event("placed", row.replica_id, f"on {nodes}, profile {answer.profile.name}")
    if model.weights is not None:
        draft.command(FetchWeights(model.name))
    for shard in answer.shards:
        draft.command(Start(shard.node_id, row.replica_id, shard.shard_id))


def _refuse(draft: Draft, row: ReplicaRow, answer: Refusal) -> None:
    reason = answer.reason()
    if row.phase is Phase.UNPLACEABLE:
        if row.reason != reason:
            draft.change(PutReplica(replace(row, reason=reason)))
        return
    if is_learning(draft.snapshot, draft.now):
        return  # Nodes not heard yet may have the room: no verdict before they had their time.
    draft.change(
        PutReplica(with_phase(row, Phase.UNPLACEABLE, now=draft.now, because="no room", reason=reason))
    )
    draft.event("unplaceable", row.replica_id, reason, Severity.TROUBLE)
