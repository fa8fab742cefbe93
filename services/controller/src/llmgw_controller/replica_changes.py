"""Letting one replica go because an operator says so: drain or stop."""

import logging

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.activity import Idle, Verdicts
from llmgw_controller.core.dismissal import Dismissal, dismiss
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.plan import PutEvent, PutReplica, Severity
from llmgw_controller.core.replica import is_unreachable
from llmgw_controller.core.state import ReplicaRow, Snapshot, Stored, Wish
from llmgw_controller.reign import Reign
from llmgw_kit.errors import NotFound
from llmgw_kit.ids import ModelId, ReplicaId
from llmgw_kit.names import did_you_mean

log = logging.getLogger(__name__)

#: Of a model with many replicas, so many are named.
NAMED_MAX = 8


async def drain_replica(reign: Reign, name: str, *, dry_run: bool) -> pb.ReplicaChange:
    """Take nothing new, finish, stop; or only say what would come of it. Raises NotFound."""
    return await _dismiss(reign, name, Wish.DRAIN, dry_run=dry_run)


async def stop_replica(reign: Reign, name: str, *, dry_run: bool) -> pb.ReplicaChange:
    """End it now; or only say what would come of it. Raises NotFound."""
    return await _dismiss(reign, name, Wish.STOP, dry_run=dry_run)


async def _dismiss(reign: Reign, name: str, wish: Wish, *, dry_run: bool) -> pb.ReplicaChange:
    async with reign.ledger.writing() as stored:
        snapshot, now = reign.snapshot(stored), reign.tenure.now()
        row = stored.replicas.get(ReplicaId(name))
        if row is None:
            raise _unknown(reign, snapshot, name, now)
        found = dismiss(snapshot, row, wish, now)
        if found.row is not None and not dry_run:
            event = PutEvent(now, "leaving", name, found.row.reason or found.outcome, Severity.INFO)
            await reign.ledger.commit([PutReplica(found.row), event])
            log.info("replica %s", found.text)
    reign.hints()
    return _told(name, found)


def _told(name: str, found: Dismissal) -> pb.ReplicaChange:
    return pb.ReplicaChange(
        replica_id=name, outcome=found.outcome, text=found.text, gpus=found.gpus, another=found.another
    )


def _unknown(reign: Reign, snapshot: Snapshot, name: str, now: float) -> NotFound:
    """With the replicas that the name may have meant."""
    stored = snapshot.stored
    model = _model_of(reign, stored, name)
    if model is None:
        return NotFound(
            f"no replica {name}{did_you_mean(name, stored.replicas)}",
            code="replica_not_found",
            next_steps=["try: llmgwctl replicas"],
        )
    judged = verdicts(snapshot, now)
    rows = [row for _, row in sorted(stored.replicas.items()) if row.model == model]
    told = [f"{row.replica_id} ({_state(snapshot, judged, row, now)})" for row in rows[:NAMED_MAX]]
    more = f" and {len(rows) - NAMED_MAX} more" if len(rows) > NAMED_MAX else ""
    has = f"{model} has {', '.join(told)}{more}" if told else f"{model} has no replica now"
    step = f"try: llmgwctl replicas --model {model}"
    return NotFound(f"no replica {name}", code="replica_not_found", next_steps=[has, step])


def _model_of(reign: Reign, stored: Stored, name: str) -> ModelId | None:
    """`chat/9` and `chat` both speak of chat; a model that left the catalog may still have replicas."""
    held = {row.model for row in stored.replicas.values()}
    for candidate in (name, name.rpartition("/")[0]):
        if (model := reign.ledger.catalog.resolve(candidate)) is not None:
            return model.name
        if candidate in held:
            return ModelId(candidate)
    return None


def _state(snapshot: Snapshot, judged: Verdicts, row: ReplicaRow, now: float) -> str:
    words = ["unreachable" if is_unreachable(row, snapshot, now) else row.phase.value]
    if isinstance(judged.by_replica.get(row.replica_id), Idle):
        words.append("idle")
    words += sorted({shard.node_id for shard in row.shards if not shard.released})
    return ", ".join(words)
