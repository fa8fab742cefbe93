"""Driving one engine at rising concurrency, and saying what was measured level by level."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from llmgw_agent.core.load import Answer, Level, Load, Progress, level_of, next_level, prompt, requests_at
from llmgw_agent.core.spec import ShardSpec
from llmgw_agent.loops.waiting import limited, within
from llmgw_agent.ports import LoadLike
from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import Clock
from llmgw_kit.errors import InvalidRequest, Unavailable

#: Between two words on how far a level is.
PROGRESS_S = 0.5


class Driving:
    """One run against the engine at `at`. `look` raises when its shard does not serve any more."""

    def __init__(
        self,
        engine: LoadLike,
        at: HostPort,
        spec: ShardSpec,
        load: Load,
        clock: Clock,
        look: Callable[[], object],
    ) -> None:
        self._engine, self._at, self._spec, self._load = engine, at, spec, load
        self._clock, self._look = clock, look
        #: Over all levels: no prompt is asked twice.
        self._numbers = 0
        self._path = ""

    async def run(self, say: Callable[[Level | Progress], Awaitable[None]]) -> None:
        """Level after level until there is no next. Raises LlmgwError when it cannot be measured."""
        spec = self._spec
        work = self._engine.path(self._at, spec.served_name, spec.engine, spec.credential)
        try:
            self._path = await limited(work, self._clock, self._load.level_timeout_s)
        except TimeoutError:
            raise Unavailable(
                f"no answer to a first request within {self._load.level_timeout_s:g} s", code="no_answer"
            ) from None
        done: tuple[Level, ...] = ()
        while (concurrency := next_level(self._load, done)) is not None:
            level = await self._level(concurrency, say)
            self._look()
            await say(level)
            done = (*done, level)

    async def _level(self, concurrency: int, say: Callable[[Level | Progress], Awaitable[None]]) -> Level:
        wanted = requests_at(self._load, concurrency)
        numbers = iter(range(self._numbers, self._numbers + wanted))
        self._numbers += wanted
        answers: list[Answer] = []
        problems: list[str] = []
        began = self._clock.monotonic_s()
        slots = [
            asyncio.create_task(self._slot(numbers, answers, problems), name=f"slot {slot}")
            for slot in range(concurrency)
        ]
        over = asyncio.gather(*slots)
        until = began + self._load.level_timeout_s
        try:
            while not over.done() and (left_s := until - self._clock.monotonic_s()) > 0:
                await within(over, self._clock, min(PROGRESS_S, left_s))
                await say(Progress(concurrency, len(answers) + len(problems), wanted))
            if over.done():
                over.result()
        finally:
            over.cancel()
            await asyncio.gather(*slots, return_exceptions=True)
        if not answers:
            why = problems[-1] if problems else f"none ended within {self._load.level_timeout_s:g} s"
            raise Unavailable(
                f"no request at concurrency {concurrency} was answered: {why}", code="no_answer"
            )
        return level_of(concurrency, answers, len(problems), self._clock.monotonic_s() - began)

    async def _slot(self, numbers: Iterator[int], answers: list[Answer], problems: list[str]) -> None:
        """One request after another until none is left; the slots share what is left."""
        spec, load = self._spec, self._load
        for number in numbers:
            try:
                answer = await self._engine.ask(
                    self._at, self._path, spec.served_name, spec.engine, spec.credential,
                    prompt(number, load.prompt_tokens), load.output_tokens,
                )  # fmt: skip
            except (Unavailable, InvalidRequest) as e:
                problems.append(e.text)
            else:
                answers.append(answer)
