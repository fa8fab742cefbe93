"""Letting one replica go because an operator says so: drain or stop."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.activity import Idle, Verdicts
from llmgw_controller.core.apply import apply
from llmgw_controller.core.dismissal import Dismissal, another, dismiss, successor
from llmgw_controller.core.hold import held_successor
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.plan import Change, PutEvent, PutReplica, Severity
from llmgw_controller.core.replica import is_unreachable
from llmgw_controller.core.rows import Cause, ReplicaRow, Stored, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.words import lasting
from llmgw_controller.reign import Reign
from llmgw_kit.errors import Conflict, NotFound
from llmgw_kit.ids import ModelId, ReplicaId
from llmgw_kit.names import did_you_mean

log = logging.getLogger(__name__)

#: Of a model with many replicas, so many are named.
NAMED_MAX = 8


async def drain_replica(reign: Reign, name: str, *, dry_run: bool) -> pb.ReplicaChange:
    """Take nothing new, finish, stop; or only say what would come of it. Raises NotFound."""
    (change,) = await let_go(reign, [name], Wish.DRAIN, dry_run=dry_run)
    return change


async def stop_replica(reign: Reign, name: str, *, dry_run: bool) -> pb.ReplicaChange:
    """End it now; or only say what would come of it. Raises NotFound."""
    (change,) = await let_go(reign, [name], Wish.STOP, dry_run=dry_run)
    return change


async def let_go(
    reign: Reign, names: Sequence[str], wish: Wish, *, dry_run: bool, away_s: float | None = None
) -> list[pb.ReplicaChange]:
    """One after another in one commit, each judged with those before it gone; one that is not there refuses
    them all. With `away_s` whoever takes the place of each is not started before. Raises NotFound, and
    Conflict for one in whose place nobody would come."""
    async with reign.ledger.writing() as stored:
        snapshot, now = reign.snapshot(stored), reign.tenure.now()
        changes: list[Change] = []
        told: list[pb.ReplicaChange] = []
        for name in names:
            row = known(reign, snapshot, name, now)
            found = dismiss(snapshot, row, wish, now)
            told.append(_told(name, found))
            if found.row is None:
                continue
            reason = found.row.reason or found.outcome
            mine: list[Change] = [
                PutReplica(found.row),
                PutEvent(now, "leaving", name, reason, Severity.INFO),
            ]
            if away_s is not None:
                held = _held(snapshot, found.row, away_s, now)
                text = f"not before {lasting(away_s)} from now, in the place of {name}"
                mine += [PutReplica(held), PutEvent(now, "held_back", held.replica_id, text, Severity.INFO)]
                told[-1].text = _comes_back(snapshot, found, held, away_s)
            changes += mine
            snapshot = replace(snapshot, stored=apply(snapshot.stored, mine))
        if not dry_run:
            await reign.ledger.commit(changes)
            for change in (one for one in told if one.outcome != "unchanged"):
                log.info("replica %s", change.text)
    reign.hints()
    return told


def known(reign: Reign, snapshot: Snapshot, name: str, now: float) -> ReplicaRow:
    """The row of a replica that was named. Raises NotFound, with those that the name may have meant."""
    row = snapshot.stored.replicas.get(ReplicaId(name))
    if row is None:
        raise _unknown(reign, snapshot, name, now)
    return row


def _held(snapshot: Snapshot, gone: ReplicaRow, away_s: float, now: float) -> ReplicaRow:
    model = successor(snapshot, gone, now)
    if model is None or gone.cause is not Cause.CONFIGURATION:
        why = (
            f"configuration keeps {model.replicas}"
            if model is not None and model.replicas
            else "nothing keeps it up"
        )
        raise Conflict(
            f"{gone.replica_id} would not come back by itself: {why}",
            code="not_kept",
            next_steps=[f"try: llmgwctl replica drain {gone.replica_id}"],
        )
    return held_successor(snapshot, gone, model, until=now + away_s, now=now)


def _comes_back(snapshot: Snapshot, found: Dismissal, held: ReplicaRow, away_s: float) -> str:
    """Not started where there is room, as else, but at its time."""
    goes = found.text.removesuffix(f"; {another(snapshot.catalog.models[held.model])}")
    return (
        f"{goes}; {held.replica_id} takes its place in {lasting(away_s)}, not before. "
        f"Sooner: llmgwctl replica stop {held.replica_id}"
    )


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
