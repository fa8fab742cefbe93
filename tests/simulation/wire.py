"""Between the simulated agents and routers and the messages of the real servicers."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmgw.v1 import agent_pb2 as pb
from llmgw.v1 import routing_pb2
from llmgw_controller import wire_agent
from llmgw_controller.core.availability import Availability
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.heard import DeviceReport, ShardReport
from llmgw_controller.core.routes import CatalogModel, Endpoint, RouteTable
from llmgw_controller.core.rows import Cause, Phase, ReplicaRow, ShardRow, Wish
from llmgw_kit.ids import DeviceId, ModelId, NodeId, ReplicaId, SessionEpoch, ShardId
from tests.simulation.said import Beat, Desired, Hello, Told, Welcome

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

_WISH = {wire: core for core, wire in wire_agent.WISH_TO_WIRE.items()}


def model_json(model: Model) -> str:
    """As an operator applies it."""
    profile = model.profiles[0]
    return json.dumps(
        {
            "name": model.name,
            "replicas": model.replicas,
            "max_replicas": model.max_replicas,
            "idle_after_s": model.idle_after_s,
            "min_residency_s": model.min_residency_s,
            "priority": model.priority,
            "profiles": [
                {
                    "name": profile.name,
                    "engine": "command",
                    "command": ["engine", "{port}"],
                    "gpu_class": profile.gpu_class,
                    "nodes": profile.nodes,
                    "gpus_per_node": profile.gpus_per_node,
                    "context_length": profile.context_length,
                    "extra_ports": list(profile.extra_ports),
                    "drain_timeout_s": profile.drain_timeout_s,
                    "min_uptime_s": profile.min_uptime_s,
                    "stall_timeout_s": profile.stall_timeout_s,
                    "concurrency": profile.concurrency,
                }
            ],
        }
    )


def hello(message: Hello) -> pb.ConnectRequest:
    """An agent's first word."""
    row = message.node
    assert row.engine_ports is not None
    return pb.ConnectRequest(
        hello=pb.Hello(
            node_id=row.node_id,
            boot_id=row.boot_id,
            agent_instance=message.instance,
            version=row.version,
            highest_term_seen=message.highest_term or None,
            inventory=pb.Inventory(
                hostname=row.node_id,
                management_address=row.address,
                devices=[_device(one) for one in message.devices],
                fabrics=row.fabrics,
                engine_ports=pb.PortRange(first=row.engine_ports[0], last=row.engine_ports[1]),
                engines=["command", "llamacpp"],
            ),
            shards=[_shard(one) for one in message.reports],
            tells_applied=message.tells_applied,
        )
    )


def beat(message: Beat) -> list[pb.ConnectRequest]:
    """A beat, and all that is there."""
    epoch = message.epoch
    return [
        pb.ConnectRequest(session_epoch=epoch, beat=pb.Beat(sequence=1)),
        pb.ConnectRequest(
            session_epoch=epoch, device_health=pb.DeviceHealth(devices=[_device(d) for d in message.devices])
        ),
        pb.ConnectRequest(
            session_epoch=epoch,
            shard_status=pb.ShardStatus(
                shards=[_shard(one) for one in message.reports], complete_after=message.applied
            ),
        ),
    ]


def _device(report: DeviceReport) -> pb.Device:
    return pb.Device(
        device_id=report.device_id,
        index=report.index,
        gpu_class=report.gpu_class,
        vendor=report.vendor,
        memory_total_bytes=report.memory_total_bytes,
        foreign_used_bytes=report.foreign_used_bytes,
        state=wire_agent.DEVICE_STATE_TO_WIRE[report.state],
        reason=report.reason,
    )


def _shard(report: ShardReport) -> pb.ObservedShard:
    message = pb.ObservedShard(
        shard_id=report.shard_id,
        replica_id=report.replica_id,
        group_epoch=report.group_epoch,
        spec_hash=report.spec_hash,
        state=wire_agent.SHARD_STATE_TO_WIRE[report.state],
        pid=report.pid,
        pid_start_ticks=report.pid_start_ticks,
        ports=dict(report.ports),
        device_ids=list(report.device_ids),
        probed=report.probed,
        running_requests=report.running,
        running_unknown_reason=report.running_unknown,
        adopted=report.adopted,
        stalled_s=report.stalled_s,
    )
    if report.exit is not None:
        message.exit.reason = report.exit.reason
        message.exit.message = report.exit.message
        if report.exit.code is not None:
            message.exit.code = report.exit.code
        if report.exit.signal is not None:
            message.exit.signal = report.exit.signal
    return message


def told(message: pb.ConnectResponse, agent: "Agent") -> Any:
    """What the agent hears; None: nothing that it would act on."""
    term = message.term
    match message.WhichOneof("body"):
        case "welcome":
            return Welcome(term, SessionEpoch(message.welcome.session_epoch))
        case "desired":
            return Desired(
                term,
                message.desired.version,
                tuple(
                    (*_rows(one.spec, agent), _WISH[one.wish], "desired") for one in message.desired.shards
                ),
            )
        case "start_shard":
            return Told(term, *_rows(message.start_shard.spec, agent), Wish.SERVE, "start")
        case "drain_shard":
            return _known(term, message.drain_shard.shard_id, Wish.DRAIN, "drain", agent)
        case "stop_shard":
            return _known(term, message.stop_shard.shard_id, Wish.STOP, message.stop_shard.reason, agent)
        case "beat":
            return "pong"
        case "reject" | "move_on":
            return "not_leader"
        case _:
            return None


def _rows(spec: pb.ShardSpec, agent: "Agent") -> tuple[ReplicaRow, ShardRow]:
    """As much of the rows as an agent knows."""
    # Ranks meet at their head's port, on its node: only the head binds it.
    bound = {name: port for name, port in spec.ports.items() if spec.rank == 0 or name != "rendezvous"}
    shard = ShardRow(
        ShardId(spec.shard_id),
        NodeId(agent.row.node_id),
        spec.rank,
        tuple(DeviceId(one) for one in spec.device_ids),
        tuple(sorted(bound.items())),
    )
    gang = spec.HasField("head_address")
    row = ReplicaRow(
        replica_id=ReplicaId(spec.replica_id),
        model=ModelId(spec.model),
        profile=spec.profile,
        spec_hash=spec.spec_hash,
        cause=Cause.CONFIGURATION,
        wish=Wish.SERVE,
        phase=Phase.STARTING,
        reason=None,
        until=None,
        group_epoch=spec.group_epoch,
        failures=0,
        created_at=0.0,
        since=0.0,
        ready_since=None,
        credential=None,
        shards=(shard, shard) if gang else (shard,),
    )
    return row, shard


def _known(term: int, shard_id: str, wish: Wish, reason: str, agent: "Agent") -> Told | None:
    held = agent.journal.get(ShardId(shard_id))
    return Told(term, held.row, held.shard, wish, reason) if held is not None else None


def table(before: RouteTable, message: routing_pb2.WatchRoutesResponse) -> RouteTable:
    """The router's table after a message."""
    if message.HasField("snapshot"):
        endpoints = {one.endpoint_id: _endpoint(one) for one in message.snapshot.endpoints}
        models = {ModelId(one.model): _model(one) for one in message.snapshot.models}
    else:
        delta = message.delta
        endpoints = {
            key: one for key, one in before.endpoints.items() if key not in delta.remove_endpoint_ids
        }
        endpoints |= {one.endpoint_id: _endpoint(one) for one in delta.upsert_endpoints}
        models = {key: one for key, one in before.models.items() if key not in delta.remove_model_ids}
        models |= {ModelId(one.model): _model(one) for one in delta.upsert_models}
    return replace(before, endpoints=endpoints, models=models)


def _endpoint(one: routing_pb2.Endpoint) -> Endpoint:
    return Endpoint(
        endpoint_id=one.endpoint_id,
        replica_id=ReplicaId(one.replica_id),
        group_epoch=one.group_epoch,
        model=ModelId(one.model),
        url=one.url,
        pool=one.pool,
        weight=one.weight,
        node_id=NodeId(one.node_id),
        draining=one.draining,
        credential=None,
        concurrency=one.max_concurrency if one.HasField("max_concurrency") else None,
    )


def _model(one: routing_pb2.CatalogModel) -> CatalogModel:
    return CatalogModel(
        ModelId(one.model), tuple(one.aliases), Availability.READY, None, one.activatable, 120.0, 100, None
    )
