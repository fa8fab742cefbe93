"""Each kind of change as SQL, inside the store's fenced transaction."""

import json
from typing import TYPE_CHECKING, assert_never

import asyncpg

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
from llmgw_controller.core.rows import NodeRow, ReplicaRow, ShardRow
from llmgw_controller.ports import ClaimTaken
from llmgw_kit.ids import LeaseTerm

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

#: Newest measured loads kept of each (model, profile, class): enough for a median and a p90.
LOADS_KEPT = 20
#: Failed starts kept of each (model, profile, class).
ATTEMPTS_KEPT = 20

_PUT_REPLICA = """
INSERT INTO replicas (replica_id, model, profile, spec_hash, cause, wish, phase, reason, until, group_epoch,
                      failures, created_at, since, ready_since, credential, story, revocable, quiet_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, to_timestamp($9), $10, $11, to_timestamp($12), to_timestamp($13),
        to_timestamp($14), $15, $16, $17, to_timestamp($18))
ON CONFLICT (replica_id) DO UPDATE
   SET model = excluded.model, profile = excluded.profile, spec_hash = excluded.spec_hash,
       cause = excluded.cause, wish = excluded.wish, phase = excluded.phase, reason = excluded.reason,
       until = excluded.until, group_epoch = excluded.group_epoch, failures = excluded.failures,
       created_at = excluded.created_at,
       since = excluded.since, ready_since = excluded.ready_since, credential = excluded.credential,
       story = excluded.story, revocable = excluded.revocable, quiet_at = excluded.quiet_at
"""
_PUT_SHARD = """
INSERT INTO shards (shard_id, replica_id, group_epoch, node_id, rank, device_ids, ports, released)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (shard_id) DO UPDATE
   SET group_epoch = excluded.group_epoch, node_id = excluded.node_id, rank = excluded.rank,
       device_ids = excluded.device_ids, ports = excluded.ports, released = excluded.released
"""
_CLAIM_DEVICES = """
INSERT INTO device_claims (node_id, device_id, shard_id, term)
SELECT $1, device_id, $3, $4 FROM unnest($2::text[]) AS device_id
"""
# A port in quarantine is taken over: whether its time is up, the planner has judged. A live lease is not.
_LEASE_PORT = """
INSERT INTO port_leases AS held (node_id, port, shard_id, term) VALUES ($1, $2, $3, $4)
ON CONFLICT (node_id, port) DO UPDATE SET shard_id = excluded.shard_id, until = NULL, term = excluded.term
 WHERE held.shard_id IS NULL
RETURNING 1
"""
_QUARANTINE = """
INSERT INTO port_leases (node_id, port, until, term) VALUES ($1, $2, to_timestamp($3), $4)
ON CONFLICT (node_id, port) DO UPDATE SET until = excluded.until, term = excluded.term
 WHERE port_leases.shard_id IS NULL
"""
_PUT_NODE = """
INSERT INTO nodes (node_id, boot_id, agent_instance, version, address, fabrics, pool, engine_port_first,
                   engine_port_last, schedulability, session_epoch, last_heard, lost_at, reason)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, to_timestamp($12), to_timestamp($13), $14)
ON CONFLICT (node_id) DO UPDATE
   SET boot_id = excluded.boot_id, agent_instance = excluded.agent_instance, version = excluded.version,
       address = excluded.address, fabrics = excluded.fabrics, pool = excluded.pool,
       engine_port_first = excluded.engine_port_first, engine_port_last = excluded.engine_port_last,
       schedulability = excluded.schedulability, session_epoch = excluded.session_epoch,
       last_heard = excluded.last_heard, lost_at = excluded.lost_at, reason = excluded.reason
"""
_PUT_DEVICE = """
INSERT INTO devices (node_id, device_id, index, gpu_class, memory_total_bytes) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (node_id, device_id) DO UPDATE
   SET index = excluded.index, gpu_class = excluded.gpu_class,
       memory_total_bytes = excluded.memory_total_bytes
"""
_USE_EPOCH = """
INSERT INTO group_epochs AS used (model, highest) VALUES ($1, $2)
ON CONFLICT (model) DO UPDATE SET highest = greatest(used.highest, excluded.highest)
"""
_TRIM_LOADS = """
DELETE FROM load_history WHERE model = $1 AND profile = $2 AND gpu_class = $3 AND id NOT IN (
    SELECT id FROM load_history WHERE model = $1 AND profile = $2 AND gpu_class = $3
     ORDER BY at DESC, id DESC LIMIT $4)
"""
_PUT_ATTEMPT = """
INSERT INTO placement_attempts (model, profile, gpu_class, spec_hash, replica_id, node_ids, reason, text, at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, to_timestamp($9))
"""
_TRIM_ATTEMPTS = """
DELETE FROM placement_attempts WHERE model = $1 AND profile = $2 AND gpu_class = $3 AND attempt_id NOT IN (
    SELECT attempt_id FROM placement_attempts WHERE model = $1 AND profile = $2 AND gpu_class = $3
     ORDER BY attempt_id DESC LIMIT $4)
"""
_PUT_EVICTION = """
INSERT INTO evictions (eviction_id, victim_replica_id, victim_model, beneficiary_model,
                       beneficiary_replica_id, decided_at, state, text, evidence, gpus, idle_s,
                       predicted_free_s, reload_s, freed_at, regretted_at, acknowledged_at)
VALUES ($1, $2, $3, $4, $5, to_timestamp($6), $7, $8, $9, $10, $11, $12, $13, to_timestamp($14),
        to_timestamp($15), to_timestamp($16))
ON CONFLICT (eviction_id) DO UPDATE
   SET victim_replica_id = excluded.victim_replica_id, victim_model = excluded.victim_model,
       beneficiary_model = excluded.beneficiary_model,
       beneficiary_replica_id = excluded.beneficiary_replica_id, decided_at = excluded.decided_at,
       state = excluded.state, text = excluded.text, evidence = excluded.evidence, gpus = excluded.gpus,
       idle_s = excluded.idle_s, predicted_free_s = excluded.predicted_free_s,
       reload_s = excluded.reload_s, freed_at = excluded.freed_at, regretted_at = excluded.regretted_at,
       acknowledged_at = excluded.acknowledged_at
"""
_PUT_DEPLOYMENT = """
INSERT INTO deployments (model, stopped, pinned, changed_at) VALUES ($1, $2, $3, to_timestamp($4))
ON CONFLICT (model) DO UPDATE
   SET stopped = excluded.stopped, pinned = excluded.pinned, changed_at = excluded.changed_at
"""
_RAISE_IDLE_FLOOR = """
INSERT INTO idleness_floor AS held (since) VALUES (to_timestamp($1))
ON CONFLICT (one) DO UPDATE SET since = greatest(held.since, excluded.since)
"""


async def write(connection: "Connection", term: LeaseTerm, change: Change) -> None:
    """One change. Raises ClaimTaken, or asyncpg's UniqueViolationError for a claim that another holds."""
    run = connection.execute
    match change:
        case PutReplica(replica):
            await _put_replica(connection, replica)
        case Reserve(replica):
            await _put_replica(connection, replica)
            await run(_USE_EPOCH, replica.model, replica.group_epoch)
            for shard in replica.shards:
                await _claim(connection, term, shard)
        case Release():
            await _release(connection, term, change)
        case DeleteReplica(replica_id):
            await run("DELETE FROM replicas WHERE replica_id = $1", replica_id)
        case PutNode(node):
            await _put_node(connection, node)
        case JudgeNode(node_id, lost_at):
            await run("UPDATE nodes SET lost_at = to_timestamp($2) WHERE node_id = $1", node_id, lost_at)
        case PutTombstone(stone):
            await run(
                "INSERT INTO tombstones (node_id, shard_id, replica_id, since) "
                "VALUES ($1, $2, $3, to_timestamp($4)) ON CONFLICT (node_id, shard_id) DO NOTHING",
                stone.node_id, stone.shard_id, stone.replica_id, stone.since,
            )  # fmt: skip
        case DropTombstone(node_id, shard_id):
            await run("DELETE FROM tombstones WHERE node_id = $1 AND shard_id = $2", node_id, shard_id)
        case PutActivation(activation):
            await run(
                "INSERT INTO activations (model, opened_at, asked_at, kept_until) "
                "VALUES ($1, to_timestamp($2), to_timestamp($3), to_timestamp($4)) "
                "ON CONFLICT (model) DO UPDATE SET opened_at = excluded.opened_at, "
                "asked_at = excluded.asked_at, kept_until = excluded.kept_until",
                activation.model, activation.opened_at, activation.asked_at, activation.kept_until,
            )  # fmt: skip
        case CloseActivation(model, _):
            await run("DELETE FROM activations WHERE model = $1", model)
        case PutRouter(router):
            await run(
                "INSERT INTO routers (router_id, incarnation, seen_at, crashed_at) "
                "VALUES ($1, $2, to_timestamp($3), to_timestamp($4)) ON CONFLICT (router_id) DO UPDATE "
                "SET incarnation = excluded.incarnation, seen_at = excluded.seen_at, "
                "crashed_at = excluded.crashed_at",
                router.router_id, router.incarnation, router.seen_at, router.crashed_at,
            )  # fmt: skip
        case DropRouter(router_id):
            await run("DELETE FROM routers WHERE router_id = $1", router_id)
        case PutModel(name, model_json, at):
            await run(
                "INSERT INTO models (name, spec, created_at, changed_at) "
                "VALUES ($1, $2, to_timestamp($3), to_timestamp($3)) ON CONFLICT (name) "
                "DO UPDATE SET spec = excluded.spec, changed_at = excluded.changed_at",
                name, model_json, at,
            )  # fmt: skip
        case DropModel(name):
            await run("DELETE FROM models WHERE name = $1", name)
        case PutLoad(load):
            await run(
                "INSERT INTO load_history (model, profile, gpu_class, seconds, at, fetch_s, load_s, "
                "warm_up_s, weights_here, memory_bytes, engine_version, spec_hash) "
                "VALUES ($1, $2, $3, $4, to_timestamp($5), $6, $7, $8, $9, $10, $11, $12)",
                load.model, load.profile, load.gpu_class, load.seconds, load.at, load.fetch_s, load.load_s,
                load.warm_up_s, load.weights_here, load.memory_bytes, load.engine_version, load.spec_hash,
            )  # fmt: skip
            await run(_TRIM_LOADS, load.model, load.profile, load.gpu_class, LOADS_KEPT)
        case PutDeployment(wish):
            if not wish.stopped and wish.pinned is None:
                await run("DELETE FROM deployments WHERE model = $1", wish.model)
            else:
                await run(_PUT_DEPLOYMENT, wish.model, wish.stopped, wish.pinned, wish.changed_at)
        case PutAttempt(one):
            await run(
                _PUT_ATTEMPT, one.model, one.profile, one.gpu_class, one.spec_hash, one.replica_id,
                list(one.node_ids), one.reason, one.text, one.at,
            )  # fmt: skip
            await run(_TRIM_ATTEMPTS, one.model, one.profile, one.gpu_class, ATTEMPTS_KEPT)
        case ForgetAttempts(model, profile):
            await run(
                "DELETE FROM placement_attempts WHERE model = $1 AND ($2::text IS NULL OR profile = $2)",
                model, profile,
            )  # fmt: skip
        case PutEviction(receipt):
            await run(
                _PUT_EVICTION, receipt.eviction_id, receipt.victim_replica_id, receipt.victim_model,
                receipt.beneficiary_model, receipt.beneficiary_replica_id, receipt.decided_at,
                receipt.state.value, receipt.text, list(receipt.evidence), receipt.gpus, receipt.idle_s,
                receipt.predicted_free_s, receipt.reload_s, receipt.freed_at, receipt.regretted_at,
                receipt.acknowledged_at,
            )  # fmt: skip
        case RaiseIdleFloor(floor):
            await run(_RAISE_IDLE_FLOOR, floor)
        case PutEvent(at, kind, subject, text, severity):
            await run(
                "INSERT INTO events (at, term, kind, subject, text, severity) "
                "VALUES (to_timestamp($1), $2, $3, $4, $5, $6)",
                at, term, kind, subject, text, severity.value,
            )  # fmt: skip
        case _:
            assert_never(change)


async def _put_replica(connection: "Connection", replica: ReplicaRow) -> None:
    await connection.execute(
        _PUT_REPLICA, replica.replica_id, replica.model, replica.profile, replica.spec_hash,
        replica.cause.value, replica.wish.value, replica.phase.value, replica.reason, replica.until,
        replica.group_epoch,
        replica.failures, replica.created_at, replica.since, replica.ready_since, replica.credential,
        list(replica.story), replica.revocable, replica.quiet_at,
    )  # fmt: skip
    # Shards of an earlier group epoch go; one that still holds claims refuses, by its foreign key.
    await connection.execute(
        "DELETE FROM shards WHERE replica_id = $1 AND shard_id <> ALL($2::text[])",
        replica.replica_id, [shard.shard_id for shard in replica.shards],
    )  # fmt: skip
    for shard in replica.shards:
        await connection.execute(
            _PUT_SHARD, shard.shard_id, replica.replica_id, replica.group_epoch, shard.node_id, shard.rank,
            list(shard.device_ids), json.dumps(dict(shard.ports)), shard.released,
        )  # fmt: skip


async def _claim(connection: "Connection", term: LeaseTerm, shard: ShardRow) -> None:
    await connection.execute(_CLAIM_DEVICES, shard.node_id, list(shard.device_ids), shard.shard_id, term)
    for name, port in shard.ports:
        if await connection.fetchval(_LEASE_PORT, shard.node_id, port, shard.shard_id, term) is None:
            raise ClaimTaken(f"port {port} ({name}) of {shard.node_id} is leased to another shard")


async def _release(connection: "Connection", term: LeaseTerm, change: Release) -> None:
    shard_ids = list(change.shard_ids)
    await connection.execute("DELETE FROM device_claims WHERE shard_id = ANY($1::text[])", shard_ids)
    await connection.execute("DELETE FROM port_leases WHERE shard_id = ANY($1::text[])", shard_ids)
    await connection.execute("UPDATE shards SET released = true WHERE shard_id = ANY($1::text[])", shard_ids)
    # What is long over goes along: quarantine needs no sweeper of its own.
    await connection.execute(
        "DELETE FROM port_leases WHERE until < clock_timestamp() - interval '10 minutes'"
    )
    for port in change.quarantine:
        await connection.execute(_QUARANTINE, port.node_id, port.port, port.until, term)


async def _put_node(connection: "Connection", node: NodeRow) -> None:
    first, last = node.engine_ports or (None, None)
    await connection.execute(
        _PUT_NODE, node.node_id, node.boot_id, node.agent_instance, node.version, node.address,
        list(node.fabrics), node.pool, first, last, node.schedulability.value, node.session_epoch,
        node.last_heard, node.lost_at, node.reason,
    )  # fmt: skip
    await connection.execute(
        "DELETE FROM devices WHERE node_id = $1 AND device_id <> ALL($2::text[])",
        node.node_id, [device.device_id for device in node.devices],
    )  # fmt: skip
    await connection.executemany(
        _PUT_DEVICE,
        [
            (node.node_id, device.device_id, device.index, device.gpu_class, device.memory_total_bytes)
            for device in node.devices
        ],
    )
