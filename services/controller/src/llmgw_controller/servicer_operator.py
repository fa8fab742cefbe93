"""OperatorService: what operators see and change. Every answer of one call comes from one view."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llmgw.v1 import operator_pb2 as pb
from llmgw.v1 import operator_pb2_grpc
from llmgw_controller import wire_operator
from llmgw_controller.core.activation import Pending, Ready, Refused, decide
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.view import FleetView, fleet_view
from llmgw_controller.core.why import why
from llmgw_controller.model_changes import MEMORY_WARNING, apply_model, remove_model
from llmgw_controller.node_changes import cordon_node, uncordon_node
from llmgw_controller.office import Office
from llmgw_controller.ports import Fenced
from llmgw_controller.reign import Reign
from llmgw_controller.replica_changes import drain_replica, stop_replica
from llmgw_kit.errors import Conflict, LlmgwError, NotFound, Unavailable
from llmgw_kit.ids import ModelId
from llmgw_kit.names import did_you_mean

log = logging.getLogger(__name__)

#: grpc.aio's generics exist in its type stubs only, and no method here looks at it.
Context = Any

#: A leader reads its rows within milliseconds; who asks just then waits for that.
VIEW_WAIT_S = 2.0

#: Events in one answer unless fewer are asked for.
EVENTS_MAX = 1000


class OperatorServicer(operator_pb2_grpc.OperatorServiceServicer):
    """Leader-only, but for GetLeader."""

    def __init__(self, office: Office, *, store_kind: str, config_hash: str) -> None:
        self._office = office
        self._store_kind = store_kind
        self._config_hash = config_hash

    async def GetLeader(self, request: pb.GetLeaderRequest, context: Context) -> pb.GetLeaderResponse:
        """Who leads; answered by everybody."""
        message = pb.GetLeaderResponse(
            name=self._office.name,
            address=self._office.address,
            leading=self._office.reign is not None,
            store=self._store_kind,
            config_hash=self._config_hash,
        )
        leader = self._office.leader
        if leader is not None:
            message.leader_name = leader.holder
            message.leader_address = leader.address
            message.term = leader.term
        return message

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """The whole view."""
        reign, view = await self._view()
        return wire_operator.status(view, self._info(reign, view))

    async def ListNodes(self, request: pb.ListNodesRequest, context: Context) -> pb.ListNodesResponse:
        """Every known node."""
        reign, view = await self._view()
        nodes = [wire_operator.node(line, view.at) for line in view.nodes]
        return pb.ListNodesResponse(info=self._info(reign, view), nodes=nodes)

    async def ListDevices(self, request: pb.ListDevicesRequest, context: Context) -> pb.ListDevicesResponse:
        """Every device, or those of one node."""
        reign, view = await self._view()
        lines = view.devices
        if request.HasField("node_id"):
            names = [node.node_id for node in view.nodes]
            if request.node_id not in names:
                raise NotFound(f"no node {request.node_id}{did_you_mean(request.node_id, names)}")
            lines = tuple(line for line in lines if line.device.node_id == request.node_id)
        devices = [wire_operator.device(line, view.at) for line in lines]
        return pb.ListDevicesResponse(info=self._info(reign, view), devices=devices)

    async def ListReplicas(
        self, request: pb.ListReplicasRequest, context: Context
    ) -> pb.ListReplicasResponse:
        """Every replica, or those of one model; also of a model that has just left the catalog."""
        reign, view = await self._view()
        lines = view.replicas
        if request.HasField("model"):
            model = reign.ledger.catalog.resolve(request.model)
            name = model.name if model is not None else ModelId(request.model)
            lines = tuple(line for line in lines if line.row.model == name)
            if model is None and not lines:
                raise self._no_model(reign, request.model)
        replicas = [wire_operator.replica(line, view.at) for line in lines]
        return pb.ListReplicasResponse(info=self._info(reign, view), replicas=replicas)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """The catalog with what runs of it."""
        reign, view = await self._view()
        models = [wire_operator.model(line) for line in view.models]
        return pb.ListModelsResponse(info=self._info(reign, view), models=models)

    async def ListEvents(self, request: pb.ListEventsRequest, context: Context) -> pb.ListEventsResponse:
        """The log, newest first."""
        reign, view = await self._view()
        rows = await reign.world.store.events(
            since=request.since_unix_s if request.HasField("since_unix_s") else None,
            subject=request.subject if request.HasField("subject") else None,
            limit=min(request.limit or EVENTS_MAX, EVENTS_MAX),
        )
        events = [wire_operator.event(row) for row in rows]
        return pb.ListEventsResponse(info=self._info(reign, view), events=events)

    async def Why(self, request: pb.WhyRequest, context: Context) -> pb.WhyResponse:
        """From the planner's own search."""
        reign, view = await self._view()
        model = self._model(reign, request.model)
        snapshot = reign.snapshot(reign.ledger.stored)
        found = why(snapshot, verdicts(snapshot, view.at), model, view.at)
        return wire_operator.why(found, self._info(reign, view))

    async def ApplyModel(self, request: pb.ApplyModelRequest, context: Context) -> pb.ApplyModelResponse:
        """Add or change a stored model."""
        reign = self._office.require()
        with _fenced_is_not_leading(self._office):
            answer = await apply_model(reign, request.model_json, dry_run=request.dry_run)
        answer.store = self._store_kind
        return answer

    async def RemoveModel(self, request: pb.RemoveModelRequest, context: Context) -> pb.RemoveModelResponse:
        """Remove a stored model; its replicas drain and stop."""
        reign = self._office.require()
        with _fenced_is_not_leading(self._office):
            return await remove_model(reign, request.model, dry_run=request.dry_run)

    async def ActivateModel(
        self, request: pb.ActivateModelRequest, context: Context
    ) -> pb.ActivateModelResponse:
        """Start a cold model, as a request for it would."""
        reign = self._office.require()
        await reign.ledger.until_known(VIEW_WAIT_S)
        model = self._model(reign, request.model)
        match decide(reign.snapshot(reign.ledger.stored), model.name, reign.tenure.now()):
            case Ready():
                return pb.ActivateModelResponse(outcome="ready")
            case Refused("not_activatable" as code, text, _):
                raise Conflict(text, code=code, next_steps=["set activate_on_demand or replicas in its spec"])
            case Refused(code, text, retry_after_s):
                raise Unavailable(text, code=code, retry_after_s=retry_after_s)
            case Pending(_, _, eta_s):
                with _fenced_is_not_leading(self._office):
                    await reign.activations.ask(frozenset({model.name}))
                reign.hints()
                if self._store_kind == "memory":
                    log.warning("model %s is activated: %s", model.name, MEMORY_WARNING)
                return pb.ActivateModelResponse(outcome="starting", eta_s=eta_s)

    async def DrainReplica(
        self, request: pb.DrainReplicaRequest, context: Context
    ) -> pb.DrainReplicaResponse:
        """Let one replica finish and stop."""
        reign = self._office.require()
        with _fenced_is_not_leading(self._office):
            change = await drain_replica(reign, request.replica_id, dry_run=request.dry_run)
        return pb.DrainReplicaResponse(change=change)

    async def StopReplica(self, request: pb.StopReplicaRequest, context: Context) -> pb.StopReplicaResponse:
        """End one replica now."""
        reign = self._office.require()
        with _fenced_is_not_leading(self._office):
            change = await stop_replica(reign, request.replica_id, dry_run=request.dry_run)
        return pb.StopReplicaResponse(change=change)

    async def CordonNode(self, request: pb.CordonNodeRequest, context: Context) -> pb.CordonNodeResponse:
        """Place nothing new on a node."""
        reign = self._office.require()
        reason = request.reason if request.HasField("reason") else None
        with _fenced_is_not_leading(self._office):
            return pb.CordonNodeResponse(change=await cordon_node(reign, request.node_id, reason))

    async def UncordonNode(
        self, request: pb.UncordonNodeRequest, context: Context
    ) -> pb.UncordonNodeResponse:
        """Take a cordoned node back."""
        reign = self._office.require()
        with _fenced_is_not_leading(self._office):
            return pb.UncordonNodeResponse(change=await uncordon_node(reign, request.node_id))

    async def _view(self) -> tuple[Reign, FleetView]:
        reign = self._office.require()
        await reign.ledger.until_known(VIEW_WAIT_S)
        snapshot, now = reign.snapshot(reign.ledger.stored), reign.tenure.now()
        return reign, await asyncio.to_thread(_viewed, snapshot, now)

    def _info(self, reign: Reign, view: FleetView) -> pb.ViewInfo:
        read_at = reign.ledger.read_at
        assert read_at is not None
        return wire_operator.info(
            view,
            cluster=reign.rules.cluster,
            leader_name=reign.name,
            store=self._store_kind,
            rows_age_s=max(0.0, view.at - read_at),
        )

    def _model(self, reign: Reign, name: str) -> Model:
        model = reign.ledger.catalog.resolve(name)
        if model is None:
            raise self._no_model(reign, name)
        return model

    def _no_model(self, reign: Reign, name: str) -> LlmgwError:
        known = reign.ledger.catalog.models
        return NotFound(
            f"no model {name} in the catalog{did_you_mean(name, known)}",
            code="model_not_found",
            next_steps=["try: llmgwctl models"],
        )


def _viewed(snapshot: Snapshot, now: float) -> FleetView:
    """In a thread: of a large fleet it takes long."""
    return fleet_view(snapshot, verdicts(snapshot, now), now)


@contextmanager
def _fenced_is_not_leading(office: Office) -> Iterator[None]:
    """A write that met the fence means: ask the new leader."""
    try:
        yield
    except Fenced:
        raise office.not_leading() from None
