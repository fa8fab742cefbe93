"""Driving one engine at rising concurrency, and saying what was measured level by level."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from llmgw_agent.core.load import (
    Answer,
    Level,
    Load,
    Progress,
    level_of,
    next_level,
    prompt,
    requests_at,
    words_for,
)
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
        self._words = load.prompt_tokens

    async def run(self, say: Callable[[Level | Progress], Awaitable[None]]) -> None:
        """Level after level until there is no next. Raises LlmgwError when it cannot be measured."""
        try:
            await limited(self._prepare(), self._clock, self._load.level_timeout_s)
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

    async def _prepare(self) -> None:
        """What it answers, and how long its vocabulary makes a prompt; warms it up, too."""
        spec = self._spec
        self._path = await self._engine.path(self._at, spec.served_name, spec.engine, spec.credential)
        answer = await self._ask(2)
        self._words = words_for(
            self._load.prompt_tokens, asked_words=self._words, counted=answer.prompt_tokens
        )

    async def _ask(self, output_tokens: int) -> Answer:
        """The next prompt."""
        spec = self._spec
        self._numbers += 1
        text = prompt(self._numbers, self._words)
        return await self._engine.ask(
            self._at, self._path, spec.served_name, spec.engine, spec.credential, text, output_tokens
        )

    async def _level(self, concurrency: int, say: Callable[[Level | Progress], Awaitable[None]]) -> Level:
        wanted = requests_at(self._load, concurrency)
        left = iter(range(wanted))
        answers: list[Answer] = []
        problems: list[str] = []
        began = self._clock.monotonic_s()
        slots = [
            asyncio.create_task(self._slot(left, answers, problems), name=f"slot {slot}")
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
            # In flight at the limit: failed. Were they left out, only the quick ones of an overloaded level
            # would count. A slot that is not done is in a request: it takes its next without a pause.
            late = sum(not slot.done() for slot in slots)
            problems += [f"no end within the level's {self._load.level_timeout_s:g} s"] * late
        finally:
            over.cancel()
            await asyncio.gather(over, *slots, return_exceptions=True)
        if not answers:
            raise Unavailable(
                f"no request at concurrency {concurrency} was answered: {problems[-1]}", code="no_answer"
            )
        return level_of(concurrency, answers, problems, self._clock.monotonic_s() - began)

    async def _slot(self, left: Iterator[int], answers: list[Answer], problems: list[str]) -> None:
        """One request after another until none is left; the slots share what is left."""
        for _ in left:
            try:
                answers.append(await self._ask(self._load.output_tokens))
            except (Unavailable, InvalidRequest) as e:
                problems.append(e.text)
