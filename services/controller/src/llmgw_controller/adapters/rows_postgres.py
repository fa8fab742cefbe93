"""Rows of Postgres to core types: one place that knows the columns for reading."""

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg

from llmgw_controller.core.rows import (
    ActivationRow,
    AttemptRow,
    Cause,
    DeploymentRow,
    DeviceRow,
    EvictionRow,
    EvictionState,
    LoadRecord,
    NodeRow,
    Phase,
    PortQuarantine,
    ReplicaRow,
    RouterRow,
    Schedulability,
    ShardRow,
    Stored,
    Tombstone,
    Wish,
)
from llmgw_kit.ids import DeviceId, ModelId, NodeId, ReplicaId, RouterId, SessionEpoch, ShardId

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

_NODES = """
SELECT *, extract(epoch FROM last_heard)::float8 AS heard, extract(epoch FROM lost_at)::float8 AS lost
  FROM nodes
"""
_DEVICES = "SELECT * FROM devices ORDER BY node_id, index, device_id"
_REPLICAS = """
SELECT *, extract(epoch FROM until)::float8 AS until_s, extract(epoch FROM created_at)::float8 AS created_s,
       extract(epoch FROM since)::float8 AS since_s, extract(epoch FROM ready_since)::float8 AS ready_s,
       extract(epoch FROM quiet_at)::float8 AS quiet_s
  FROM replicas
"""
_SHARDS = "SELECT * FROM shards ORDER BY replica_id, rank"
_TOMBSTONES = """
SELECT node_id, shard_id, replica_id, extract(epoch FROM since)::float8 AS since_s FROM tombstones
 ORDER BY node_id, shard_id
"""
_QUARANTINE = """
SELECT node_id, port, extract(epoch FROM until)::float8 AS until_s FROM port_leases
 WHERE shard_id IS NULL ORDER BY node_id, port
"""
_ACTIVATIONS = """
SELECT model, extract(epoch FROM opened_at)::float8 AS opened_s,
       extract(epoch FROM asked_at)::float8 AS asked_s, extract(epoch FROM kept_until)::float8 AS kept_s
  FROM activations
"""
_ROUTERS = """
SELECT router_id, incarnation, extract(epoch FROM seen_at)::float8 AS seen_s,
       extract(epoch FROM crashed_at)::float8 AS crashed_s
  FROM routers
"""
_LOADS = """
SELECT *, extract(epoch FROM at)::float8 AS at_s
  FROM load_history ORDER BY at, id
"""
_EPOCHS = "SELECT model, highest FROM group_epochs"
_MODELS = "SELECT name, spec, extract(epoch FROM created_at)::float8 AS created_s FROM models"
_DEPLOYMENTS = "SELECT *, extract(epoch FROM changed_at)::float8 AS changed_s FROM deployments"
_ATTEMPTS = "SELECT *, extract(epoch FROM at)::float8 AS at_s FROM placement_attempts ORDER BY attempt_id"
# Finished ones of the last day: what the hourly budgets and regret look back on.
_EVICTIONS = """
SELECT *, extract(epoch FROM decided_at)::float8 AS decided_s,
       extract(epoch FROM freed_at)::float8 AS freed_s,
       extract(epoch FROM regretted_at)::float8 AS regretted_s,
       extract(epoch FROM acknowledged_at)::float8 AS acknowledged_s
  FROM evictions WHERE state = 'draining' OR decided_at > now() - interval '1 day'
 ORDER BY decided_at, eviction_id
"""
_RECEIPTS = """
SELECT *, extract(epoch FROM decided_at)::float8 AS decided_s,
       extract(epoch FROM freed_at)::float8 AS freed_s,
       extract(epoch FROM regretted_at)::float8 AS regretted_s,
       extract(epoch FROM acknowledged_at)::float8 AS acknowledged_s
  FROM evictions
 WHERE ($1::float8 IS NULL OR decided_at >= to_timestamp($1))
   AND ($2::text IS NULL OR $2 IN (victim_model, beneficiary_model))
 ORDER BY decided_at DESC, eviction_id LIMIT $3
"""
_IDLE_FLOOR = "SELECT extract(epoch FROM since)::float8 FROM idleness_floor"

Records = list[asyncpg.Record]


@dataclass(frozen=True)
class Read:
    """The rows of one moment, as Postgres tells them."""

    devices: Records
    shards: Records
    models: Records
    nodes: Records
    replicas: Records
    tombstones: Records
    quarantine: Records
    activations: Records
    routers: Records
    loads: Records
    epochs: Records
    deployments: Records
    attempts: Records
    evictions: Records
    idle_floor: float | None


async def read(connection: "Connection") -> Read:
    """Everything, in the caller's transaction."""
    return Read(
        devices=await connection.fetch(_DEVICES),
        shards=await connection.fetch(_SHARDS),
        models=await connection.fetch(_MODELS),
        nodes=await connection.fetch(_NODES),
        replicas=await connection.fetch(_REPLICAS),
        tombstones=await connection.fetch(_TOMBSTONES),
        quarantine=await connection.fetch(_QUARANTINE),
        activations=await connection.fetch(_ACTIVATIONS),
        routers=await connection.fetch(_ROUTERS),
        loads=await connection.fetch(_LOADS),
        epochs=await connection.fetch(_EPOCHS),
        deployments=await connection.fetch(_DEPLOYMENTS),
        attempts=await connection.fetch(_ATTEMPTS),
        evictions=await connection.fetch(_EVICTIONS),
        idle_floor=await connection.fetchval(_IDLE_FLOOR),
    )


def stored_of(found: Read) -> Stored:
    """What was read, as core types. Of a large fleet it takes a tenth of a second: not for the loop that
    hears the agents."""
    devices: dict[str, list[DeviceRow]] = defaultdict(list)
    for row in found.devices:
        devices[row["node_id"]].append(
            DeviceRow(DeviceId(row["device_id"]), row["index"], row["gpu_class"], row["memory_total_bytes"])
        )
    shards: dict[str, list[ShardRow]] = defaultdict(list)
    for row in found.shards:
        shards[row["replica_id"]].append(_shard(row))
    nodes = [_node(row, devices[row["node_id"]]) for row in found.nodes]
    replicas = [_replica(row, shards[row["replica_id"]]) for row in found.replicas]
    return Stored(
        nodes={node.node_id: node for node in nodes},
        replicas={replica.replica_id: replica for replica in replicas},
        tombstones=tuple(
            Tombstone(NodeId(r["node_id"]), ShardId(r["shard_id"]), ReplicaId(r["replica_id"]), r["since_s"])
            for r in found.tombstones
        ),
        quarantine=tuple(
            PortQuarantine(NodeId(r["node_id"]), r["port"], r["until_s"]) for r in found.quarantine
        ),
        activations={
            ModelId(r["model"]): ActivationRow(ModelId(r["model"]), r["opened_s"], r["asked_s"], r["kept_s"])
            for r in found.activations
        },
        routers={
            RouterId(r["router_id"]): RouterRow(
                RouterId(r["router_id"]), r["incarnation"], r["seen_s"], r["crashed_s"]
            )
            for r in found.routers
        },
        loads=tuple(
            LoadRecord(
                ModelId(r["model"]),
                r["profile"],
                r["gpu_class"],
                r["seconds"],
                r["at_s"],
                r["fetch_s"],
                r["load_s"],
                r["warm_up_s"],
                r["weights_here"],
                r["memory_bytes"],
                r["engine_version"],
                r["spec_hash"],
            )
            for r in found.loads
        ),
        epochs={ModelId(r["model"]): r["highest"] for r in found.epochs},
        models={ModelId(r["name"]): r["spec"] for r in found.models},
        created={ModelId(r["name"]): r["created_s"] for r in found.models},
        deployments={
            ModelId(r["model"]): DeploymentRow(ModelId(r["model"]), r["stopped"], r["pinned"], r["changed_s"])
            for r in found.deployments
        },
        attempts=tuple(_attempt(row) for row in found.attempts),
        evictions={row["eviction_id"]: _eviction(row) for row in found.evictions},
        idle_floor=found.idle_floor,
    )


async def receipts(
    connection: "Connection", since: float | None, model: ModelId | None, limit: int
) -> list[EvictionRow]:
    """Evictions, newest first, however old."""
    return [_eviction(row) for row in await connection.fetch(_RECEIPTS, since, model, limit)]


def _node(row: asyncpg.Record, devices: list[DeviceRow]) -> NodeRow:
    first, last = row["engine_port_first"], row["engine_port_last"]
    return NodeRow(
        node_id=NodeId(row["node_id"]),
        boot_id=row["boot_id"],
        agent_instance=row["agent_instance"],
        version=row["version"],
        address=row["address"],
        fabrics=tuple(row["fabrics"]),
        pool=row["pool"],
        engine_ports=None if first is None or last is None else (first, last),
        devices=tuple(devices),
        schedulability=Schedulability(row["schedulability"]),
        session_epoch=SessionEpoch(row["session_epoch"]),
        last_heard=row["heard"],
        lost_at=row["lost"],
        reason=row["reason"],
    )


def _attempt(row: asyncpg.Record) -> AttemptRow:
    return AttemptRow(
        model=ModelId(row["model"]),
        profile=row["profile"],
        gpu_class=row["gpu_class"],
        spec_hash=row["spec_hash"],
        replica_id=ReplicaId(row["replica_id"]),
        node_ids=tuple(NodeId(node) for node in row["node_ids"]),
        reason=row["reason"],
        text=row["text"],
        at=row["at_s"],
    )


def _eviction(row: asyncpg.Record) -> EvictionRow:
    beneficiary = row["beneficiary_replica_id"]
    return EvictionRow(
        eviction_id=row["eviction_id"],
        victim_replica_id=ReplicaId(row["victim_replica_id"]),
        victim_model=ModelId(row["victim_model"]),
        beneficiary_model=ModelId(row["beneficiary_model"]),
        beneficiary_replica_id=None if beneficiary is None else ReplicaId(beneficiary),
        decided_at=row["decided_s"],
        state=EvictionState(row["state"]),
        text=row["text"],
        evidence=tuple(row["evidence"]),
        gpus=row["gpus"],
        idle_s=row["idle_s"],
        predicted_free_s=row["predicted_free_s"],
        reload_s=row["reload_s"],
        freed_at=row["freed_s"],
        regretted_at=row["regretted_s"],
        acknowledged_at=row["acknowledged_s"],
    )


def _shard(row: asyncpg.Record) -> ShardRow:
    ports: dict[str, Any] = json.loads(row["ports"])
    return ShardRow(
        shard_id=ShardId(row["shard_id"]),
        node_id=NodeId(row["node_id"]),
        rank=row["rank"],
        device_ids=tuple(DeviceId(device) for device in row["device_ids"]),
        ports=tuple(sorted(ports.items())),
        released=row["released"],
    )


def _replica(row: asyncpg.Record, shards: list[ShardRow]) -> ReplicaRow:
    return ReplicaRow(
        replica_id=ReplicaId(row["replica_id"]),
        model=ModelId(row["model"]),
        profile=row["profile"],
        spec_hash=row["spec_hash"],
        cause=Cause(row["cause"]),
        wish=Wish(row["wish"]),
        phase=Phase(row["phase"]),
        reason=row["reason"],
        until=row["until_s"],
        group_epoch=row["group_epoch"],
        failures=row["failures"],
        created_at=row["created_s"],
        since=row["since_s"],
        ready_since=row["ready_s"],
        credential=row["credential"],
        shards=tuple(shards),
        story=tuple(row["story"]),
        revocable=row["revocable"],
        quiet_at=row["quiet_s"],
    )
