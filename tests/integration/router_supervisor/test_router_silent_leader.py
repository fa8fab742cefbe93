"""A leader that keeps its connections and answers nothing: noticed by pings, on a clock of the test."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from llmgw_kit.addresses import HostPort
from llmgw_kit.errors import Unavailable
from llmgw_kit.testing.clock import FakeClock
from llmgw_router.board import Board
from llmgw_router.core.learned import Delta, Snapshot
from llmgw_router.core.table import EndpointRow
from llmgw_router.leader import MISSED_PINGS, PING_EVERY_S, LeaderFollower
from llmgw_router.ports import Acknowledgement, MoveOn, Phase, Ready, Refused
from llmgw_router.relay.ipc import ActivationRefused, StartPhase, TableUpdate
from llmgw_router.relay.slots import EndpointActivity

FIRST, SECOND = HostPort("first", 1), HostPort("second", 1)


class Scripted:
    """A session that gives one snapshot and is silent then; pings fail while its address is frozen."""

    def __init__(self, address: HostPort, world: "World") -> None:
        self.address = address
        self._world = world

    async def watch(self, *, highest_term: int | None) -> AsyncGenerator[Snapshot | Delta | MoveOn, None]:
        if self.address in self._world.frozen:
            raise Unavailable("frozen")
        yield Snapshot(term=1, version=1, endpoints=(), models=())
        await asyncio.Event().wait()

    async def acknowledge(self, states: AsyncIterator[Acknowledgement]) -> None:
        await asyncio.Event().wait()

    async def activate(self, model: str, *, waiting: int) -> AsyncGenerator[Phase | Ready | Refused, None]:
        await asyncio.Event().wait()
        yield Ready(1)

    async def ping(self) -> None:
        self._world.pings += 1
        if self.address in self._world.frozen:
            raise Unavailable("no answer")

    async def goodbye(self, *, activity_lost: bool) -> None:
        """Nobody leaves here."""

    async def close(self) -> None:
        self._world.closed.append(self.address)


class World:
    """Opens scripted sessions."""

    def __init__(self) -> None:
        self.frozen: set[HostPort] = set()
        self.pings = 0
        self.closed: list[HostPort] = []

    def open(self, address: HostPort) -> Scripted:
        return Scripted(address, self)


class NoWorkers:
    """Takes tables and has nothing to tell."""

    held: dict[str, int] = {}  # noqa: RUF012 - the protocol's shape

    def push_table(self, update: TableUpdate) -> None: ...

    def refuse(self, refusal: ActivationRefused) -> None: ...

    def tell_phase(self, phase: StartPhase) -> None: ...

    def activity(self) -> list[tuple[EndpointRow, EndpointActivity]]:
        return []


async def test_a_frozen_leader_is_left_after_some_pings_and_one_hiccup_is_forgiven() -> None:
    clock, world = FakeClock(), World()
    follower = LeaderFollower(world, (FIRST, SECOND), Board(NoWorkers(), clock), clock)
    running = asyncio.create_task(follower.run())
    try:
        await clock.advance(PING_EVERY_S)
        assert (follower.leader, world.pings) == (FIRST, 1)
        world.frozen.add(FIRST)
        await clock.advance(PING_EVERY_S)
        world.frozen.clear()
        await clock.advance(PING_EVERY_S * 3)
        assert follower.leader == FIRST
        world.frozen.add(FIRST)
        await clock.advance(PING_EVERY_S * (MISSED_PINGS - 1))
        assert follower.leader == FIRST
        await clock.advance(PING_EVERY_S)
        await clock.advance(1.0)
        assert follower.leader == SECOND
        assert world.closed == [FIRST]
    finally:
        running.cancel()
        await asyncio.wait([running])
