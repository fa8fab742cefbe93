"""What a level counts when its time is over: an engine that the test times, on a clock that it moves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from llmgw_agent.core.load import Answer, Level, Load, Progress, next_level
from llmgw_agent.core.spec import ShardSpec
from llmgw_agent.loops.driving import Driving
from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import Clock
from llmgw_kit.errors import Unavailable
from llmgw_kit.ids import ReplicaId, ShardId
from llmgw_kit.testing.clock import FakeClock

SPEC = ShardSpec(ShardId("m/1.1.0"), ReplicaId("m/1"), 1, "h", "m", "vllm", served_names=("m",))


@dataclass
class Engine:
    """Answers in turn after so many seconds, with so many tokens."""

    clock: Clock
    times: Iterator[float]
    tokens: int | None = None

    async def path(self, at: HostPort, model: str, engine: str, credential: str | None) -> str:
        return "/v1/completions"

    async def ask(
        self,
        at: HostPort,
        path: str,
        model: str,
        engine: str,
        credential: str | None,
        prompt: str,
        tokens: int,
    ) -> Answer:
        took_s = next(self.times)
        await self.clock.sleep(took_s)
        return Answer(took_s, 0.0, self.tokens or tokens)


async def driven(clock: FakeClock, engine: Engine, load: Load, *, advance_s: float) -> list[Level]:
    said: list[Level] = []

    async def say(what: Level | Progress) -> None:
        if isinstance(what, Level):
            said.append(what)

    driving = Driving(engine, HostPort("127.0.0.1", 1), SPEC, load, clock, lambda: None)
    task = asyncio.create_task(driving.run(say))
    await clock.advance(advance_s)
    await asyncio.wait_for(task, 5)
    return said


def slow_tail() -> Iterator[float]:
    """The warm-up and three quick ones; what follows outlasts every level."""
    yield from (0.1, 1.0, 1.0, 1.0)
    while True:
        yield 1000.0


async def test_what_is_in_flight_at_the_limit_has_failed(fake_clock: FakeClock) -> None:
    """Else the slowest are left out, and an engine looks the better the more it is overloaded."""
    load = Load((4, 8), 4, prompt_tokens=4, output_tokens=8, level_timeout_s=10)
    (level,) = await driven(fake_clock, Engine(fake_clock, slow_tail()), load, advance_s=40)
    assert (level.requests, level.failed) == (3, 1)
    assert level.failure == "no end within the level's 10 s"
    assert next_level(load, (level,)) is None, "a fourth has failed: there is no next level"


async def test_what_never_began_before_the_limit_is_not_counted(fake_clock: FakeClock) -> None:
    load = Load((1,), 9, prompt_tokens=4, output_tokens=8, level_timeout_s=10)
    (level,) = await driven(fake_clock, Engine(fake_clock, slow_tail()), load, advance_s=40)
    assert (level.requests, level.failed) == (3, 1)


async def test_a_level_in_which_none_ended_is_no_level(fake_clock: FakeClock) -> None:
    load = Load((2,), 2, prompt_tokens=4, output_tokens=8, level_timeout_s=10)
    engine = Engine(fake_clock, iter([0.1, 99.0, 99.0]))
    with pytest.raises(Unavailable, match="no request at concurrency 2 was answered: no end within"):
        await driven(fake_clock, engine, load, advance_s=40)


async def test_an_answer_that_ends_by_itself_has_not_failed(fake_clock: FakeClock) -> None:
    """The model's own end, before as many tokens as were asked for."""
    load = Load((2,), 4, prompt_tokens=4, output_tokens=128, level_timeout_s=10)
    engine = Engine(fake_clock, iter([0.1] * 5), tokens=3)
    (level,) = await driven(fake_clock, engine, load, advance_s=5)
    assert (level.requests, level.failed, level.output_tokens) == (4, 0, 12)
