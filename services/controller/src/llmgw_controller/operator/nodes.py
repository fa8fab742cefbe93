"""The calls on nodes."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.node_changes import confirm_lost, cordon_node, drain_node, uncordon_nodes
from llmgw_controller.operator.desk import Context, Desk


class Nodes(Desk):
    """Set aside, emptied, taken back, given up."""

    async def CordonNode(self, request: pb.CordonNodeRequest, context: Context) -> pb.CordonNodeResponse:
        """Place nothing new on a node."""
        reason = request.reason if request.HasField("reason") else None
        with self._changing() as reign:
            change = await cordon_node(reign, request.node_id, reason, dry_run=request.dry_run)
        return pb.CordonNodeResponse(change=change)

    async def UncordonNode(
        self, request: pb.UncordonNodeRequest, context: Context
    ) -> pb.UncordonNodeResponse:
        """Take cordoned or draining nodes back, all that are named or none."""
        names = [request.node_id, *request.more_node_ids]
        with self._changing() as reign:
            change, *more = await uncordon_nodes(reign, names, dry_run=request.dry_run)
        return pb.UncordonNodeResponse(change=change, more=more)

    async def DrainNode(self, request: pb.DrainNodeRequest, context: Context) -> pb.DrainNodeResponse:
        """Move what runs on a node elsewhere, where there is room."""
        reason = request.reason if request.HasField("reason") else None
        with self._changing() as reign:
            return await drain_node(reign, request.node_id, reason, dry_run=request.dry_run)

    async def ConfirmLost(self, request: pb.ConfirmLostRequest, context: Context) -> pb.ConfirmLostResponse:
        """Give up a silent node now."""
        with self._changing() as reign:
            change = await confirm_lost(reign, request.node_id, dry_run=request.dry_run)
        return pb.ConfirmLostResponse(change=change)
