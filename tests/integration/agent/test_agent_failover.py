"""Many agents and a change of leader, on a clock that the test holds: soon, and not all at one moment."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from llmgw_agent.core.session import Rotation, TermGate
from llmgw_agent.core.words import Heard, Hello, LeaderBeat, Said, Welcome
from llmgw_agent.loops.connection import Connection
from llmgw_kit.clock import Clock
from llmgw_kit.errors import NotLeader, Unavailable
from llmgw_kit.testing.clock import FakeClock
from tests.integration.agent.test_agent_loops import FakeView

AGENTS = 500
TTL_S = 10.0
BEAT_S = 5.0
#: What the promise leaves beyond the lease: sessions follow within ttl + 2 s.
WITHIN_S = 2.0


@dataclass
class Controllers:
    """c:1 leads until it goes at `gone_at`, its lease was renewed up to `renew` before; c:2 takes over when
    that has run out. `refuses`: a dead process's machine says so at once; a frozen one says nothing."""

    clock: Clock
    refuses: bool
    gone_at: float | None = None
    calls: list[tuple[float, str]] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)

    @property
    def taken_over_at(self) -> float | None:
        # The worst case: the lease was renewed at the very moment.
        return None if self.gone_at is None else self.gone_at + TTL_S

    def leads(self, address: str) -> bool:
        taken = self.taken_over_at
        over = taken is not None and self.clock.monotonic_s() >= taken
        return (address == "c:2") is over

    def gone(self, address: str) -> bool:
        return address == "c:1" and self.gone_at is not None

    def go(self) -> None:
        self.gone_at = self.clock.monotonic_s()
        if self.refuses:
            for stream in self.streams:
                stream.incoming.put_nowait(Unavailable("reset"))

    async def dial(self, address: str) -> Stream:
        self.calls.append((self.clock.monotonic_s(), address))
        stream = Stream(self, address)
        self.streams.append(stream)
        if self.gone(address):
            if self.refuses:
                stream.incoming.put_nowait(Unavailable("refused"))
        elif self.leads(address):
            term = 1 if address == "c:1" else 2
            stream.incoming.put_nowait(Heard(term, Welcome(1, BEAT_S, address, ("c:1", "c:2"))))
            stream.beating = asyncio.create_task(stream.beat(term))
        else:
            stream.incoming.put_nowait(NotLeader("stands by", leader_address="c:1"))
        return stream


@dataclass(eq=False)
class Stream:
    world: Controllers
    address: str
    incoming: asyncio.Queue[Heard | Exception] = field(default_factory=asyncio.Queue)
    beating: asyncio.Task[None] | None = None

    async def beat(self, term: int) -> None:
        while not self.world.gone(self.address):
            self.incoming.put_nowait(Heard(term, LeaderBeat()))
            await self.world.clock.sleep(BEAT_S)

    async def say(self, epoch: int | None, said: Said) -> None:
        return

    async def hear(self) -> Heard | None:
        got = await self.incoming.get()
        if isinstance(got, Exception):
            raise got
        return got

    async def close(self) -> None:
        if self.beating is not None:
            self.beating.cancel()


@pytest.mark.parametrize("refuses", [True, False], ids=["killed", "frozen"])
async def test_five_hundred_agents_follow_a_new_leader_soon_and_not_at_one_moment(
    fake_clock: FakeClock, *, refuses: bool
) -> None:
    """Case 8. The standby names the dead leader for as long as its lease lasts, as it must."""
    world = Controllers(fake_clock, refuses)
    rng = random.Random(8)
    views = [FakeView() for _ in range(AGENTS)]

    def agent(number: int) -> Connection:
        hello: Callable[[int | None], Hello] = lambda highest: Hello(  # noqa: E731
            f"n{number}", "b", "i", "0", highest, views[number].inventory, (), ()
        )
        return Connection(
            world.dial, Rotation(["c:1"]), TermGate(), hello,
            views[number],  # type: ignore[arg-type]  # a view with no node behind it
            fake_clock, rng.random, lambda _: None, lambda _: None,
        )  # fmt: skip

    tasks = [asyncio.create_task(agent(number).run()) for number in range(AGENTS)]
    try:
        # All began at one moment, which is the worst.
        await fake_clock.advance(BEAT_S * 2)
        assert all(view.session is not None and view.session.term == 1 for view in views)
        world.calls.clear()
        world.go()
        gone_at = fake_clock.monotonic_s()
        followed: dict[int, float] = {}
        while len(followed) < AGENTS:
            await fake_clock.advance(0.05)
            now = fake_clock.monotonic_s() - gone_at
            for number, view in enumerate(views):
                if number not in followed and view.session is not None and view.session.term == 2:
                    followed[number] = now
            assert now < TTL_S + 10, f"{AGENTS - len(followed)} agents have no session"
        last = max(followed.values())
        standby = Counter(int((at - gone_at) / 0.1) for at, address in world.calls if address == "c:2")
        print(
            f"\n{AGENTS} agents, leader {'killed' if refuses else 'frozen'}: last session "
            f"{last:.2f} s after, of them {last - TTL_S:.2f} s after the lease; most calls in 0.1 s: "
            f"{max(standby.values())}, all calls of the standby: {sum(standby.values())}"
        )
        assert last <= TTL_S + WITHIN_S
        # No more than a share of the fleet at one moment, before and after the take-over.
        assert max(standby.values()) <= AGENTS * 0.3
        per_agent = sum(standby.values()) / AGENTS
        assert per_agent <= 2 * TTL_S, "asked less than twice a second"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
