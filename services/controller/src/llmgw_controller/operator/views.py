"""The calls that only look."""

import asyncio

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller import wire_explained, wire_nodes, wire_operator
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.why import why
from llmgw_controller.history import status_at
from llmgw_controller.operator.desk import Context, Desk, moment
from llmgw_controller.whole_status import whole_status
from llmgw_kit.errors import NotFound
from llmgw_kit.ids import ModelId
from llmgw_kit.names import did_you_mean


class Views(Desk):
    """One view of one moment each."""

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """The whole view, now or as it was recorded."""
        at = moment(request, "at_unix_s")
        reign = await self._reign()
        if at is not None:
            return await status_at(reign.world.store, at, reign.tenure.now())
        return await whole_status(reign)

    async def ListNodes(self, request: pb.ListNodesRequest, context: Context) -> pb.ListNodesResponse:
        """Every known node."""
        reign, view = await self._view()
        nodes, _ = wire_operator.each_node(view.nodes, view.at)
        return pb.ListNodesResponse(info=self._info(reign, view), nodes=nodes)

    async def ListDevices(self, request: pb.ListDevicesRequest, context: Context) -> pb.ListDevicesResponse:
        """Every device, or those of one node."""
        reign, view = await self._view()
        lines = view.devices
        if request.HasField("node_id"):
            names = [node.node_id for node in view.nodes]
            if request.node_id not in names:
                raise NotFound(
                    f"no node {request.node_id}{did_you_mean(request.node_id, names)}",
                    code="node_not_found",
                    next_steps=["try: llmgwctl nodes"],
                )
            lines = tuple(line for line in lines if line.device.node_id == request.node_id)
        devices = [wire_nodes.device(line, view.at) for line in lines]
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
        replicas, _ = wire_operator.each_replica(lines, view.at)
        return pb.ListReplicasResponse(info=self._info(reign, view), replicas=replicas)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """The catalog with what runs of it."""
        reign, view = await self._view()
        models, _ = wire_operator.each_model(view.models, view.at)
        return pb.ListModelsResponse(info=self._info(reign, view), models=models)

    async def Why(self, request: pb.WhyRequest, context: Context) -> pb.WhyResponse:
        """From the planner's own search."""
        reign, view = await self._view()
        model = self._model(reign, request.model)
        snapshot = reign.snapshot(reign.ledger.stored)
        # In a thread: it asks several passes.
        found = await asyncio.to_thread(why, snapshot, verdicts(snapshot, view.at), model, view.at)
        asked = next((line.last_asked_at for line in view.models if line.model == model.name), None)
        return wire_explained.why(found, self._info(reign, view), asked)
