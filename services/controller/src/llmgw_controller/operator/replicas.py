"""The calls on single replicas."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.operator.desk import Context, Desk
from llmgw_controller.replica_changes import drain_replica, stop_replica


class Replicas(Desk):
    """One replica at a time."""

    async def DrainReplica(
        self, request: pb.DrainReplicaRequest, context: Context
    ) -> pb.DrainReplicaResponse:
        """Let one replica finish and stop."""
        with self._changing() as reign:
            change = await drain_replica(reign, request.replica_id, dry_run=request.dry_run)
        return pb.DrainReplicaResponse(change=change)

    async def StopReplica(self, request: pb.StopReplicaRequest, context: Context) -> pb.StopReplicaResponse:
        """End one replica now."""
        with self._changing() as reign:
            change = await stop_replica(reign, request.replica_id, dry_run=request.dry_run)
        return pb.StopReplicaResponse(change=change)
