"""One small fleet as the operator's messages, for rendering tests: two nodes, trouble on one."""

from llmgw.v1 import agent_pb2, routing_pb2
from llmgw.v1 import operator_pb2 as pb

NOW = 1_796_049_120.0  # 30 Nov 2026 14:32 UTC
GIB = 1024**3


def info() -> pb.ViewInfo:
    return pb.ViewInfo(
        cluster="lab", at_unix_s=NOW, age_s=1.2, leader_name="controller-1", term=3, store="postgres"
    )


def idle(since: float, *, never: bool = False) -> pb.Idleness:
    return pb.Idleness(kind=pb.IDLENESS_KIND_IDLE, since_unix_s=since, never_asked=never)


BUSY = pb.Idleness(kind=pb.IDLENESS_KIND_BUSY)
UNKNOWN = pb.Idleness(kind=pb.IDLENESS_KIND_UNKNOWN, unknown_reason="engine_gauge_unreadable")


def device(node: str, index: int, use: "pb.DeviceUse.ValueType", replica: str | None = None) -> pb.DeviceRow:
    bad = use == pb.DEVICE_USE_UNHEALTHY
    return pb.DeviceRow(
        node_id=node,
        device=agent_pb2.Device(
            device_id=f"{node}-{index}",
            index=index,
            gpu_class="L4",
            vendor="nvidia",
            memory_total_bytes=24 * GIB,
            memory_used_bytes=(20 * GIB if replica else 0),
            state=agent_pb2.DEVICE_STATE_MISSING if bad else agent_pb2.DEVICE_STATE_HEALTHY,
            reason="xid_79" if bad else None,
        ),
        use=use,
        replica_id=replica,
        idleness=None if replica is None else (BUSY if use == pb.DEVICE_USE_BUSY else idle(NOW - 2520)),
    )


def devices() -> list[pb.DeviceRow]:
    return [
        device("n1", 0, pb.DEVICE_USE_BUSY, "chat/1"),
        device("n1", 1, pb.DEVICE_USE_IDLE, "chat/2"),
        device("n2", 0, pb.DEVICE_USE_UNHEALTHY),
        device("n2", 1, pb.DEVICE_USE_FREE),
    ]


def replicas() -> list[pb.ReplicaRow]:
    return [
        pb.ReplicaRow(
            replica_id="chat/1",
            model="chat",
            profile="l4",
            phase=pb.REPLICA_PHASE_READY,
            gpus=1,
            in_flight=5,
            idleness=BUSY,
            last_asked_unix_s=NOW - 1,
            group_epoch=1,
            shards=[pb.ShardRow(shard_id="chat/1.1.0", node_id="n1")],
        ),
        pb.ReplicaRow(
            replica_id="chat/2",
            model="chat",
            profile="l4",
            phase=pb.REPLICA_PHASE_READY,
            gpus=1,
            in_flight=0,
            idleness=idle(NOW - 2520),
            last_asked_unix_s=NOW - 2520,
            group_epoch=1,
            shards=[pb.ShardRow(shard_id="chat/2.1.0", node_id="n1")],
        ),
        pb.ReplicaRow(
            replica_id="big/1",
            model="big",
            profile="h100",
            phase=pb.REPLICA_PHASE_UNPLACEABLE,
            reason="8 H100 on one node: no node of that class",
            gpus=0,
            idleness=UNKNOWN,
        ),
        pb.ReplicaRow(
            replica_id="odd/1",
            model="odd",
            profile="l4",
            phase=pb.REPLICA_PHASE_READY,
            gpus=1,
            idleness=UNKNOWN,
            shards=[pb.ShardRow(shard_id="odd/1.1.0", node_id="n1")],
        ),
    ]


def models() -> list[pb.ModelRow]:
    return [
        pb.ModelRow(
            model="chat",
            availability=routing_pb2.MODEL_AVAILABILITY_READY,
            wanted=2,
            ready=2,
            gpus=2,
            in_flight=5,
            last_asked_unix_s=NOW - 1,
            source="configuration",
            profiles=["l4"],
        ),
        pb.ModelRow(
            model="big",
            availability=routing_pb2.MODEL_AVAILABILITY_UNAVAILABLE,
            reason="no node of class H100",
            wanted=1,
            in_flight=0,
            source="stored",
            profiles=["h100"],
        ),
    ]


def status() -> pb.GetStatusResponse:
    return pb.GetStatusResponse(
        info=info(),
        trouble=[
            pb.Trouble(
                severity=pb.TROUBLE_SEVERITY_TROUBLE,
                kind="unplaceable",
                subject="big",
                text="cannot be placed: no node of class H100",
                since_unix_s=NOW - 600,
                fix="llmgwctl why big",
            ),
            pb.Trouble(
                severity=pb.TROUBLE_SEVERITY_NOTE,
                kind="idleness_unknown",
                subject="odd/1",
                text="idleness unknown",
            ),
        ],
        capacity=[
            pb.ClassCapacity(
                gpu_class="L4",
                total=4,
                parts=pb.DeviceParts(busy=1, idle=1, unhealthy=1, free=1),
                memory_total_bytes=96 * GIB,
                memory_free_bytes=24 * GIB,
            )
        ],
        nodes=pb.NodeCounts(heard=2),
        routers=pb.RouterCounts(members=1, heard=1),
        models=models(),
        replicas=replicas(),
        nobody_asked=[
            pb.IdleHolding(
                replica_id="chat/2",
                model="chat",
                gpu_class="L4",
                gpus=1,
                idle_s=2520,
                last_asked_unix_s=NOW - 2520,
                gpu_hours=0.7,
            ),
            pb.IdleHolding(
                replica_id="chat/3", model="chat", gpu_class="L4", gpus=1, idle_s=20, gpu_hours=0.0
            ),
        ],
        eviction="suggest",
        suggestions=[
            pb.EvictionProposal(
                beneficiary_model="big",
                victim_replica_ids=["chat/2"],
                text="chat/2 could leave for big/1",
                frees_in_s=20,
                reload_s=75,
            )
        ],
    )
