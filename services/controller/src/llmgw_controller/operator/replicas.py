"""The calls that let replicas go."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.rows import Wish
from llmgw_controller.operator.desk import Context, Desk
from llmgw_controller.replica_changes import let_go
from llmgw_controller.room_changes import make_room
from llmgw_kit.errors import InvalidRequest

#: A hold that outlives whoever remembers it is a change of the catalog.
AWAY_MOST_S = 30 * 86_400.0


class Replicas(Desk):
    """Drained or stopped by name."""

    async def DrainReplica(
        self, request: pb.DrainReplicaRequest, context: Context
    ) -> pb.DrainReplicaResponse:
        """Let replicas finish and stop, all that are named or none; for one model, or for a while."""
        names = [request.replica_id, *request.more_replica_ids]
        away_s = _away_s(request)
        if request.HasField("for_model") and away_s is not None:
            raise InvalidRequest("a drain is for a model or for a while, not both")
        with self._changing() as reign:
            if request.HasField("for_model"):
                model = self._model(reign, request.for_model)
                change, *more = await make_room(reign, names, model, dry_run=request.dry_run)
            else:
                change, *more = await let_go(reign, names, Wish.DRAIN, dry_run=request.dry_run, away_s=away_s)
        return pb.DrainReplicaResponse(change=change, more=more)

    async def StopReplica(self, request: pb.StopReplicaRequest, context: Context) -> pb.StopReplicaResponse:
        """End replicas now, all that are named or none."""
        names = [request.replica_id, *request.more_replica_ids]
        with self._changing() as reign:
            change, *more = await let_go(reign, names, Wish.STOP, dry_run=request.dry_run)
        return pb.StopReplicaResponse(change=change, more=more)


def _away_s(request: pb.DrainReplicaRequest) -> float | None:
    """Raises InvalidRequest for what is no time to be away."""
    if not request.HasField("for_s"):
        return None
    # Also false for what is no number.
    if not 0 < request.for_s <= AWAY_MOST_S:
        raise InvalidRequest(
            f"for_s is {request.for_s:g}; expected more than 0 and at most {AWAY_MOST_S:.0f} (30 days)"
        )
    return request.for_s
