"""The agent as witness, through to what an operator sees: engines that hang, GPUs that fail and heal."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from llmgw_kit.testing.processes import Cage
from llmgw_lab import models
from llmgw_lab.checks import free_layout
from llmgw_lab.leftovers import MARK
from llmgw_lab.suite import Suite

pytestmark = pytest.mark.timeout(300)
PATIENCE_S = 60.0
STALL_TIMEOUT_S = 3.0


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    """A cluster that beats quickly, with one model whose profile judges a stall."""
    folder = tmp_path_factory.mktemp("witness")
    hangs = models.scripted_entry("hangs", "--tokens", "4", env={MARK: str(folder)})
    hangs["profiles"] = [hangs["profiles"][0] | {"stall_timeout_s": STALL_TIMEOUT_S, "stop_grace_s": 1.0}]
    quick = {"controller": {"beat_interval_s": 1.0, "backoff_base_s": 1.0}}
    quick |= {"agent": {"refresh_interval_s": 1.0, "probe_interval_s": 2.0}}
    with Cage() as cage:
        suite = Suite(cage, free_layout(folder), models=[hangs | {"replicas": 1}], settings=quick)

        async def up() -> None:
            await suite.start_servers()
            await suite.start(*suite.parts)
            await suite.until_ready(*suite.parts)
            await suite.until_heard(*suite.agents)

        asyncio.run(up())
        yield suite
        asyncio.run(suite.close())


async def view(suite: Suite, *words: str) -> Any:
    code, text = await suite.ctl("--output", "json", *words)
    assert code in (0, 1), text
    return json.loads(text)


async def until(look: Callable[[], Awaitable[Any]], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := await look()):
        assert time.monotonic() < deadline, f"did not come about: {what}"
        await asyncio.sleep(0.2)
    return found


async def ready(suite: Suite, epoch: int = 1) -> Any:
    """The one replica, once it is ready in this epoch or a later one."""
    rows = (await view(suite, "replicas"))["replicas"]
    return next((row for row in rows if row["phase"] == "READY" and row["group_epoch"] >= epoch), None)


async def control(row: Any, **knobs: Any) -> None:
    url = f"http://127.0.0.1:{row['shards'][0]['ports']['http']}/ctl"
    async with aiohttp.ClientSession() as http, http.post(url, json=knobs) as answer:
        assert answer.status == 200, await answer.text()


async def ask(suite: Suite) -> int:
    body = {"model": "hangs", "messages": [{"role": "user", "content": "hi"}]}
    url = f"{suite.layout.router_url}/v1/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as answer:
        await answer.read()
        return answer.status


async def test_case_31_an_engine_that_hangs_with_a_request_is_restarted_and_serves_again(
    suite: Suite,
) -> None:
    row = await until(lambda: ready(suite), "the replica is ready")
    await control(row, stall=True)
    hanging = asyncio.create_task(ask(suite))
    again = await until(lambda: ready(suite, row["group_epoch"] + 1), "ready again under a new epoch")
    assert await asyncio.wait_for(hanging, PATIENCE_S) != 200, "an answer that never came is no answer"
    assert again["shards"][0]["pid"] != row["shards"][0]["pid"]
    events = (await view(suite, "events"))["events"]
    (stalled,) = [one for one in events if one["kind"] == "stalled"]
    assert stalled["subject"] == row["id"]
    assert "no token for" in stalled["text"]
    assert "its profile allows 3 s" in stalled["text"]
    assert await ask(suite) == 200


async def test_an_engine_that_is_up_and_fails_its_probe_is_trouble_and_left_running(suite: Suite) -> None:
    row = await until(lambda: ready(suite), "the replica is ready")
    await control(row, refuse_status=500)

    async def trouble() -> Any:
        found = (await view(suite, "status"))["trouble"]
        return next((one for one in found if one["kind"] == "probe_failing"), None)

    line = await until(trouble, "the failing probe is trouble")
    assert "answers 500" in line["text"]
    _, text = await suite.ctl("replicas")
    assert "up, but its probe fails" in text
    await control(row, refuse_status=None)

    async def quiet() -> bool:
        return await trouble() is None

    await until(quiet, "it answers again")
    after = await ready(suite)
    assert after["shards"][0]["pid"] == row["shards"][0]["pid"]


async def test_a_gpu_that_fails_and_heals_is_seen_by_the_operator_with_its_class_and_time(
    suite: Suite,
) -> None:
    node = suite.agents[0]
    state: Path = suite.layout.data(node) / "state" / "devices.json"

    async def gpu() -> Any:
        found = (await view(suite, "gpus", "--node", node))["gpus"]
        return next(one for one in found if one["id"] == "gpu-1")

    async def is_now(wanted: str) -> Any:
        one = await gpu()
        return one if one["state"].lower() == wanted else None

    before = await gpu()
    assert before["state"].lower() == "healthy"
    foreign = [{"pid": 4242, "name": "python3", "user": "eve", "memory_bytes": 3 << 30}]
    broken = {"gpu-1": {"state": "unhealthy", "reason": "xid_79", "foreign": foreign}}
    state.write_text(json.dumps(broken))
    written = time.monotonic()
    one = await until(lambda: is_now("unhealthy"), "it is unhealthy")
    took_s = time.monotonic() - written
    assert took_s < 15.0, f"{took_s:.1f} s"
    assert (one["reason"], one["fault"]["class"]) == ("xid_79", "fatal")
    assert one["since"] is not None
    assert [(who["pid"], who["name"], who["user"]) for who in one["foreign"]] == [(4242, "python3", "eve")]
    state.unlink()
    healed = await until(lambda: is_now("healthy"), "it is healthy again")
    assert healed["fault"]["reason"] == "xid_79", "what it had is still told"
    events = (await view(suite, "events"))["events"]
    told = {one["kind"]: one for one in events if one["subject"] == f"{node}:1"}
    assert "the GPU has fallen off the bus; needs a reset" in told["device_unhealthy"]["text"]
    assert "it was unhealthy: xid_79" in told["device_healed"]["text"]
