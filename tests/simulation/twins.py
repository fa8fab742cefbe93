"""A second process under the name of an agent: the one before it, which was thought dead and goes on with
what it knew. It calls, is welcomed, says what was true a while ago, and does nothing that it is told.

Whoever of the two called last is listened to, and nobody else: the real agent calls again and takes over.
"""

from typing import TYPE_CHECKING, Any

from llmgw_kit.ids import SessionEpoch
from tests.simulation.said import Beat, Hello, Stream, Welcome

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.sim import Sim

BEAT_S = 5.0


class Twin:
    """Looks to a controller like any agent."""

    def __init__(self, sim: "Sim", agent: "Agent", seconds: float) -> None:
        self.sim = sim
        self.row = agent.row
        #: What wire messages name is looked up here.
        self.journal = dict(agent.journal)
        self._reports = agent.reports()
        self._devices = agent.hardware.reports(agent.row, sim.world.now)
        self._until = sim.world.now + seconds
        #: Goes on talking after it was told that it is not listened to any more.
        self._deaf = sim.world.chance(0.5)
        self._epoch: SessionEpoch | None = None
        self.stream: Stream | None = None
        leader = next((one for one in sim.controllers if one.says_it_leads), None)
        if leader is None:
            return
        sim.world.note(agent.name, "has a twin")
        self.stream = Stream(sim, self, leader)
        instance = f"{agent.name}#twin at {sim.world.now:.0f}"
        self.stream.up.send(
            Hello(agent.row, instance, agent.highest_term, self._reports, self._devices, True)
        )

    def held(self, direction: str) -> bool:
        return False

    def hear(self, stream: Stream, message: Any) -> None:
        if isinstance(message, Welcome):
            self._epoch = message.epoch
            self._beat()
        elif message in ("fenced", "not_leader") and not self._deaf:
            self._hang_up()

    def _beat(self) -> None:
        if self.stream is None or self._epoch is None:
            return
        if self.sim.world.now >= self._until or not self.sim.faulty:
            self._hang_up()
            return
        self.stream.up.send(Beat(self._epoch, self._reports, self._devices, None))
        self.sim.world.at(BEAT_S, self._beat)

    def _hang_up(self) -> None:
        if self.stream is not None:
            self.stream.close()
            self.stream.controller.stream_ended(self.stream)
        self.stream = None
