"""What simulated agents and controllers say to each other, and the stream on which they say it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmgw_controller.core.heard import DeviceReport, ShardReport
from llmgw_controller.core.rows import NodeRow, ReplicaRow, ShardRow, Wish
from llmgw_kit.ids import SessionEpoch
from tests.simulation.world import Pipe

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.controller import Controller
    from tests.simulation.sim import Sim
    from tests.simulation.twins import Twin


@dataclass(frozen=True)
class Hello:
    node: NodeRow
    instance: str
    highest_term: int
    reports: tuple[ShardReport, ...]
    devices: tuple[DeviceReport, ...]
    #: Its beats say what it has applied.
    tells_applied: bool


@dataclass(frozen=True)
class Beat:
    epoch: SessionEpoch
    reports: tuple[ShardReport, ...]
    devices: tuple[DeviceReport, ...]
    #: Version of the Desired that it had applied before; None: none in this session, or it is too old to say.
    applied: int | None


@dataclass(frozen=True)
class Welcome:
    term: int
    epoch: SessionEpoch


@dataclass(frozen=True)
class Desired:
    term: int
    version: int
    shards: tuple[tuple[ReplicaRow, ShardRow, Wish, str], ...]


@dataclass(frozen=True)
class Told:
    """StartShard, DrainShard or StopShard."""

    term: int
    row: ReplicaRow
    shard: ShardRow
    wish: Wish
    reason: str


class Stream:
    """One attempt at a session; both ends hold it, either may find it dead."""

    def __init__(self, sim: "Sim", agent: "Agent | Twin", controller: "Controller") -> None:
        self.agent = agent
        self.controller = controller
        self.up = Pipe(sim.world, lambda message: controller.hear(self, message), lambda: agent.held("up"))
        self.down = Pipe(sim.world, lambda message: agent.hear(self, message), lambda: agent.held("down"))

    def close(self) -> None:
        self.up.open = self.down.open = False
