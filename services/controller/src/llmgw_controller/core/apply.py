"""What a plan's changes make of the rows. The in-memory store commits with it; reconcile reads its own
writes by it; Postgres must agree with it, which the contract suite shows.

Changes apply in order and all together: the caller keeps the old value when one of them raises.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from llmgw_controller.core.plan import (
    Change,
    CloseActivation,
    DeleteReplica,
    DropModel,
    DropRouter,
    DropTombstone,
    ForgetAttempts,
    JudgeNode,
    PutActivation,
    PutAttempt,
    PutDeployment,
    PutEvent,
    PutEviction,
    PutLoad,
    PutModel,
    PutNode,
    PutReplica,
    PutRouter,
    PutTombstone,
    RaiseIdleFloor,
    Release,
    Reserve,
)
from llmgw_controller.core.rows import AttemptRow, DeploymentRow, LoadRecord, ReplicaRow, Stored
from llmgw_kit.errors import Conflict
from llmgw_kit.ids import DeviceId, ModelId, NodeId, ReplicaId

K = TypeVar("K")
V = TypeVar("V")

#: Load records kept of each (model, profile, class): enough for a p90, few enough to follow a change.
LOADS_KEPT = 20

#: Failed starts kept of each (model, profile, class).
ATTEMPTS_KEPT = 20


class Claimed(Conflict):
    """A device or port of the plan is held by another shard: decide again on newer rows."""

    code_default = "claim_taken"


def apply(stored: Stored, changes: Iterable[Change]) -> Stored:
    """The rows after all of `changes`. Raises Claimed, and AssertionError for a plan that forgets a claim."""
    for change in changes:
        stored = _apply(stored, change)
    return stored


def _apply(stored: Stored, change: Change) -> Stored:
    match change:
        case PutReplica(row):
            _keeps_claims(stored.replicas.get(row.replica_id), row)
            return _with_replica(stored, row)
        case Reserve(row):
            return _reserve(stored, row)
        case Release():
            return _release(stored, change)
        case DeleteReplica(replica_id):
            row_gone = stored.replicas[replica_id]
            assert not row_gone.holds_devices, f"{replica_id}: deleted while it holds devices"
            return _without_replica(stored, row_gone)
        case PutNode(node):
            return _but(stored, nodes={**stored.nodes, node.node_id: node})
        case JudgeNode(node_id, lost_at):
            judged = replace(stored.nodes[node_id], lost_at=lost_at)
            return _but(stored, nodes={**stored.nodes, node_id: judged})
        case PutTombstone(stone):
            stones = {(s.node_id, s.shard_id): s for s in (*stored.tombstones, stone)}
            return _but(stored, tombstones=tuple(stones[key] for key in sorted(stones)))
        case DropTombstone(node_id, shard_id):
            left = tuple(s for s in stored.tombstones if (s.node_id, s.shard_id) != (node_id, shard_id))
            return _but(stored, tombstones=left)
        case PutActivation(activation):
            return _but(stored, activations={**stored.activations, activation.model: activation})
        case CloseActivation(model, _):
            return _but(stored, activations=_without(stored.activations, model))
        case PutRouter(router):
            return _but(stored, routers={**stored.routers, router.router_id: router})
        case DropRouter(router_id):
            return _but(stored, routers=_without(stored.routers, router_id))
        case PutModel(name, text, at):
            created = {name: at, **stored.created}  # Of a change the first time stays.
            return _but(stored, models={**stored.models, name: text}, created=created)
        case DropModel(name):
            return _but(stored, models=_without(stored.models, name), created=_without(stored.created, name))
        case PutLoad(load):
            return _but(stored, loads=_with_load(stored.loads, load))
        case PutDeployment(deployment):
            return _but(stored, deployments=_with_deployment(stored.deployments, deployment))
        case PutAttempt(attempt):
            return _but(stored, attempts=_with_attempt(stored.attempts, attempt))
        case ForgetAttempts(model, profile):
            kept = tuple(
                a
                for a in stored.attempts
                if a.model != model or (profile is not None and a.profile != profile)
            )
            return _but(stored, attempts=kept)
        case PutEviction(eviction):
            return _but(stored, evictions={**stored.evictions, eviction.eviction_id: eviction})
        case RaiseIdleFloor(at):
            floor = at if stored.idle_floor is None else max(at, stored.idle_floor)
            return _but(stored, idle_floor=floor)
        case PutEvent():
            return stored  # Events are written, never decided on.


def _reserve(stored: Stored, row: ReplicaRow) -> Stored:
    devices: set[tuple[NodeId, DeviceId]] = set()
    ports: set[tuple[NodeId, int]] = set()
    nodes = {shard.node_id for shard in row.shards}
    for node_id in nodes:
        for other in stored.by_node.get(node_id, ()):
            for shard in other.shards:
                if shard.node_id == node_id and not shard.released:
                    devices.update((node_id, device) for device in shard.device_ids)
                    ports.update((node_id, port) for _, port in shard.ports)
    taken: set[tuple[NodeId, int]] = set()
    for shard in row.shards:
        for device in shard.device_ids:
            if (shard.node_id, device) in devices:
                raise Claimed(f"device {device} of {shard.node_id} is claimed already")
            devices.add((shard.node_id, device))
        for _, port in shard.ports:
            if (shard.node_id, port) in ports:
                raise Claimed(f"port {port} of {shard.node_id} is leased already")
            ports.add((shard.node_id, port))
            taken.add((shard.node_id, port))
    # The planner leases a quarantined port only when its time is over: the lease replaces it.
    quarantine = tuple(q for q in stored.quarantine if (q.node_id, q.port) not in taken)
    highest = max(row.group_epoch, stored.epochs.get(row.model, 0))
    epochs = {**stored.epochs, row.model: highest}
    return _with_replica(_but(stored, quarantine=quarantine, epochs=epochs), row)


def _release(stored: Stored, change: Release) -> Stored:
    row = stored.replicas[change.replica_id]
    shards = tuple(
        replace(shard, released=True) if shard.shard_id in change.shard_ids else shard for shard in row.shards
    )
    fresh = {(q.node_id, q.port): q for q in (*stored.quarantine, *change.quarantine)}
    resting = tuple(fresh[key] for key in sorted(fresh))
    return _with_replica(_but(stored, quarantine=resting), replace(row, shards=shards))


def _but(stored: Stored, **changes: Any) -> Stored:
    """Other fields than `replicas`: what was found of those stays true."""
    changed = replace(stored, **changes)
    for name in ("sorted_replicas", "by_model", "by_node"):
        if name in stored.__dict__:
            changed.__dict__[name] = stored.__dict__[name]
    return changed


def _with_replica(stored: Stored, row: ReplicaRow) -> Stored:
    changed = replace(stored, replicas={**stored.replicas, row.replica_id: row})
    before = stored.replicas.get(row.replica_id)
    assert before is None or before.model == row.model, f"{row.replica_id}: another model's"
    _refile(stored, changed, before, row)
    return changed


def _without_replica(stored: Stored, gone: ReplicaRow) -> Stored:
    changed = replace(stored, replicas=_without(stored.replicas, gone.replica_id))
    _refile(stored, changed, gone, None)
    return changed


def _refile(stored: Stored, changed: Stored, before: ReplicaRow | None, after: ReplicaRow | None) -> None:
    """Carry over what was found of the rows, but for the one that moved."""
    rows = [row for row in (before, after) if row is not None]
    models = {row.model for row in rows}
    nodes = {shard.node_id for row in rows for shard in row.shards}
    stays = set() if after is None else {after.model, *(shard.node_id for shard in after.shards)}
    for name, moved in (("by_model", models), ("by_node", nodes)):
        found = stored.__dict__.get(name)
        if found is None:
            continue
        filed = {**found}
        for key in moved:
            others = [one for one in found.get(key, ()) if one.replica_id != rows[0].replica_id]
            kept = sorted([*others, after] if after and key in stays else others, key=_by_id)
            if kept:
                filed[key] = tuple(kept)
            else:
                filed.pop(key, None)
        changed.__dict__[name] = filed


def _by_id(row: ReplicaRow) -> ReplicaId:
    return row.replica_id


def _keeps_claims(before: ReplicaRow | None, after: ReplicaRow) -> None:
    """PutReplica moves a row; only Reserve takes and only Release frees."""
    held = {shard.shard_id for shard in before.shards if not shard.released} if before else set()
    kept = {shard.shard_id for shard in after.shards if not shard.released}
    assert held == kept, f"{after.replica_id}: written with claims {sorted(kept)}, holds {sorted(held)}"


def _with_load(loads: tuple[LoadRecord, ...], load: LoadRecord) -> tuple[LoadRecord, ...]:
    key = (load.model, load.profile, load.gpu_class)
    same = [old for old in loads if (old.model, old.profile, old.gpu_class) == key]
    others = tuple(old for old in loads if (old.model, old.profile, old.gpu_class) != key)
    return (*others, *sorted([*same, load], key=lambda one: one.at)[-LOADS_KEPT:])


def _with_deployment(
    rows: dict[ModelId, DeploymentRow], deployment: DeploymentRow
) -> dict[ModelId, DeploymentRow]:
    if not deployment.stopped and deployment.pinned is None:
        return _without(rows, deployment.model)
    return {**rows, deployment.model: deployment}


def _with_attempt(attempts: tuple[AttemptRow, ...], attempt: AttemptRow) -> tuple[AttemptRow, ...]:
    key = (attempt.model, attempt.profile, attempt.gpu_class)
    same = [old for old in attempts if (old.model, old.profile, old.gpu_class) == key]
    dropped = set(map(id, same[: max(0, len(same) + 1 - ATTEMPTS_KEPT)]))
    return (*(old for old in attempts if id(old) not in dropped), attempt)


def _without(rows: dict[K, V], key: K) -> dict[K, V]:
    return {name: row for name, row in rows.items() if name != key}
