"""When X dies, with everything else real: streams finish, engines live on, somebody takes over."""

import asyncio
import json
import time
from typing import Any

import openai
import psutil
import pytest

from llmgw_lab.operator import Operator
from llmgw_lab.suite import Suite

pytestmark = pytest.mark.timeout(240)
ASKED: list[Any] = [{"role": "user", "content": "hello there"}]
LEASE_TTL_S = 10.0
#: For a machine that runs several tests at once.
SLACK_S = 3.0
#: Of conftest.py's slow model.
SLOW_TOKENS = 100


async def view(suite: Suite, *words: str) -> Any:
    code, text = await suite.ctl("--output", "json", *words)
    assert code in (0, 1), text
    return json.loads(text)


def engines_below(suite: Suite, word: str) -> list[psutil.Process]:
    """The engine processes of this suite, by a word of their command line; the agent may be dead."""
    return [
        process
        for process in psutil.Process(suite.cage.pid).children(recursive=True)
        if any(word in part for part in process.cmdline())
    ]


async def stream_slow(suite: Suite, begun: asyncio.Event) -> list[str]:
    """The slow model's streamed answer, token by token."""
    url = f"{suite.layout.router_url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        tokens, finished = [], None
        async for chunk in await client.chat.completions.create(model="slow", messages=ASKED, stream=True):
            for choice in chunk.choices:
                if choice.delta.content:
                    tokens.append(choice.delta.content)
                    begun.set()
                finished = choice.finish_reason or finished
        assert finished == "stop"
        return tokens


def assert_whole(tokens: list[str]) -> None:
    assert [int(token.strip().rpartition("-")[2]) for token in tokens] == list(range(SLOW_TOKENS))


async def test_the_leading_controller_dies_in_the_middle_of_a_stream(own_suite: Suite) -> None:
    begun = asyncio.Event()
    streaming = asyncio.create_task(stream_slow(own_suite, begun))
    await asyncio.wait_for(begun.wait(), 60)
    async with Operator(own_suite.layout.controllers.split(",")) as operator:
        first = await operator.leader()
    assert first is not None
    before = [row["id"] for row in (await view(own_suite, "replicas"))["replicas"]]
    (engine,) = engines_below(own_suite, "llmgw_kit.testing.engine")
    await own_suite.kill(first)
    died = time.monotonic()
    async with Operator(own_suite.layout.controllers.split(",")) as operator:
        while (second := await operator.leader()) is None:
            await asyncio.sleep(0.05)
    took_s = time.monotonic() - died
    # What is promised is ttl + 2 s; a machine that runs four tests at once gets a moment more.
    assert took_s <= LEASE_TTL_S + 2 + SLACK_S, f"the standby led {took_s:.1f} s after the death"
    assert second != first
    assert_whole(await streaming)
    assert engine.is_running()
    assert [row["id"] for row in (await view(own_suite, "replicas"))["replicas"]] == before
    begun.clear()
    assert_whole(await stream_slow(own_suite, begun))
    assert engines_below(own_suite, "llmgw_kit.testing.engine") == [engine]


async def test_an_agent_dies_and_its_successor_adopts_the_engine(own_suite: Suite) -> None:
    begun = asyncio.Event()
    streaming = asyncio.create_task(stream_slow(own_suite, begun))
    await asyncio.wait_for(begun.wait(), 60)
    (engine,) = engines_below(own_suite, "llmgw_kit.testing.engine")
    (row,) = (await view(own_suite, "replicas"))["replicas"]
    node = row["shards"][0]["node"]
    ticks = row["shards"][0]["pid_start_ticks"]
    await own_suite.kill(node)
    assert engine.is_running()
    await own_suite.start(node)
    await own_suite.until_ready(node)
    assert_whole(await streaming)
    deadline = time.monotonic() + 30
    while True:
        (row,) = (await view(own_suite, "replicas"))["replicas"]
        shard = row["shards"][0]
        if shard["adopted"] and shard["state"] == "SERVING":
            break
        assert time.monotonic() < deadline, f"not adopted: {row}"
        await asyncio.sleep(0.2)
    assert (shard["pid"], shard["pid_start_ticks"]) == (engine.pid, ticks)
    assert engine.is_running()
    assert row["restarts"] == 0
    assert_whole(await stream_slow(own_suite, asyncio.Event()))
