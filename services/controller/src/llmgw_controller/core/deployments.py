"""Deployments: what operators wish of a model beside its spec, which stays as it is.

A row outlives restarts and changes of the spec, and ends when nothing is wished any more.
"""

from dataclasses import replace

from llmgw_controller.core.catalog import Model, Source
from llmgw_controller.core.plan import Change, ForgetAttempts, PutReplica
from llmgw_controller.core.replica import with_phase, with_wish
from llmgw_controller.core.rows import DeploymentRow, Phase, Stored, Wish
from llmgw_kit.ids import ModelId, ReplicaId

#: Why its replicas leave, and what whoever asks for it is told.
STOPPED = "stopped by an operator"


def wish_of(stored: Stored, name: ModelId) -> DeploymentRow:
    """What is wished now; a row that wishes nothing where there is none."""
    return stored.deployments.get(name) or DeploymentRow(name, stopped=False, pinned=None, changed_at=0.0)


def is_stopped(stored: Stored, name: ModelId) -> bool:
    """An operator stopped it: nothing starts it, neither `replicas` nor a request."""
    wished = stored.deployments.get(name)
    return wished is not None and wished.stopped


def effective_pinned(stored: Stored, model: Model) -> bool:
    """Never evicted and never let go as idle: an operator's word, or else the spec's."""
    wished = stored.deployments.get(model.name)
    return model.pinned if wished is None or wished.pinned is None else wished.pinned


def created_at(stored: Stored, model: Model) -> float | None:
    """When it was first stored. Of a configured one nobody knows since when the file says so."""
    return stored.created.get(model.name) if model.source is Source.STORED else None


def second_chance(stored: Stored, name: ModelId, now: float) -> tuple[list[Change], list[ReplicaId]]:
    """Forget that starts of the model failed: the changes, and the replicas that try again at once."""
    changes: list[Change] = []
    renewed = []
    if any(attempt.model == name for attempt in stored.attempts):
        changes.append(ForgetAttempts(name))
    because = "another chance by operator"
    for _, row in sorted(stored.replicas.items()):
        if row.model != name or row.wish is not Wish.SERVE:
            continue
        if row.phase is Phase.FAILED and row.holds_devices:
            # Its exit is not seen yet, so it cannot be placed afresh: it goes, and another takes its place.
            changes.append(PutReplica(with_wish(row, Wish.STOP, because=because)))
        elif row.phase is Phase.FAILED:
            fresh = replace(row, failures=0)
            changes.append(PutReplica(with_phase(fresh, Phase.WANTED, now=now, because=because)))
        elif row.phase is Phase.BACKOFF and row.failures:
            changes.append(PutReplica(replace(row, failures=0, until=now)))
        else:
            continue
        renewed.append(row.replica_id)
    return changes, renewed
