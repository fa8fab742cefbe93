"""The calls on nodes."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.node_changes import cordon_node, uncordon_node
from llmgw_controller.operator.desk import Context, Desk


class Nodes(Desk):
    """Set aside and taken back."""

    async def CordonNode(self, request: pb.CordonNodeRequest, context: Context) -> pb.CordonNodeResponse:
        """Place nothing new on a node."""
        reason = request.reason if request.HasField("reason") else None
        with self._changing() as reign:
            return pb.CordonNodeResponse(change=await cordon_node(reign, request.node_id, reason))

    async def UncordonNode(
        self, request: pb.UncordonNodeRequest, context: Context
    ) -> pb.UncordonNodeResponse:
        """Take a cordoned node back."""
        with self._changing() as reign:
            return pb.UncordonNodeResponse(change=await uncordon_node(reign, request.node_id))
