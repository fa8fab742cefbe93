"""The calls that let replicas go."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.rows import Wish
from llmgw_controller.operator.desk import Context, Desk
from llmgw_controller.replica_changes import let_go


class Replicas(Desk):
    """Drained or stopped by name."""

    async def DrainReplica(
        self, request: pb.DrainReplicaRequest, context: Context
    ) -> pb.DrainReplicaResponse:
        """Let replicas finish and stop, all that are named or none."""
        names = [request.replica_id, *request.more_replica_ids]
        with self._changing() as reign:
            change, *more = await let_go(reign, names, Wish.DRAIN, dry_run=request.dry_run)
        return pb.DrainReplicaResponse(change=change, more=more)

    async def StopReplica(self, request: pb.StopReplicaRequest, context: Context) -> pb.StopReplicaResponse:
        """End replicas now, all that are named or none."""
        names = [request.replica_id, *request.more_replica_ids]
        with self._changing() as reign:
            change, *more = await let_go(reign, names, Wish.STOP, dry_run=request.dry_run)
        return pb.StopReplicaResponse(change=change, more=more)
