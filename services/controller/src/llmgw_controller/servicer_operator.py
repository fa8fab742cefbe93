"""OperatorService: what operators see and change, put together from `operator/`, one file a subject."""

from llmgw.v1 import operator_pb2 as pb
from llmgw.v1 import operator_pb2_grpc
from llmgw_controller.operator.benchmarks import Benchmarks
from llmgw_controller.operator.demand import Demand
from llmgw_controller.operator.desk import Context
from llmgw_controller.operator.doctor import Doctor
from llmgw_controller.operator.events import Events
from llmgw_controller.operator.keys import Keys
from llmgw_controller.operator.logs import Logs
from llmgw_controller.operator.models import Models
from llmgw_controller.operator.nodes import Nodes
from llmgw_controller.operator.replicas import Replicas
from llmgw_controller.operator.room import Room
from llmgw_controller.operator.routers import Routers
from llmgw_controller.operator.views import Views
from llmgw_controller.operator.weights import WeightsCalls


class OperatorServicer(
    Views,
    Doctor,
    Events,
    Models,
    Replicas,
    Nodes,
    Routers,
    Room,
    Demand,
    WeightsCalls,
    Logs,
    Benchmarks,
    Keys,
    operator_pb2_grpc.OperatorServiceServicer,
):
    """Leader-only, but for GetLeader."""

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
