"""`llmgwctl bench` and `capacity` against a real controller, agent and scripted engine; every early end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmgw.v1 import agent_pb2
from tests.integration.agent.agent_bench import ctl as engine_of
from tests.integration.asks.asks_bench import Ctl, Node, ctl, leading, model
from tests.integration.asks.conftest import Start
from tests.integration.controller.controller_bench import until

pytestmark = pytest.mark.timeout(240)

QUICK = ("--requests", "4", "--prompt-tokens", "8", "--output-tokens", "8")
LONG = ("--requests", "4", "--prompt-tokens", "8", "--output-tokens", "50")
SLOW = ("--tokens", "50", "--token-interval-s", "0.2")


async def engine(node: Node, **knobs: Any) -> dict[str, Any]:
    """What the scripted engine has seen; sets knobs."""
    row = await node.until_ready()
    return await engine_of(agent_pb2.ShardSpec(ports=dict(row.shards[0].ports)), **knobs)


async def listed(node: Node) -> list[dict[str, Any]]:
    code, out, err = await ctl(node, "--output", "json", "bench", "list", "tiny")
    assert code == 0, err
    return list(json.loads(out)["runs"])


async def test_a_run_is_measured_shown_stored_and_answers_for_capacity(module_node: Node) -> None:
    code, out, err = await ctl(module_node, "capacity", "tiny")
    assert code == 2, "never measured is no data"
    assert "llmgwctl bench run tiny" in out
    await module_node.until_ready()
    code, out, err = await ctl(module_node, "bench", "run", "tiny", "--concurrency", "1,2", *QUICK)
    assert code == 0, err
    head, one, two, stored, following = out.splitlines()
    assert head.startswith("AT A TIME  REQUESTS  FAILED")
    assert [one.split()[:3], two.split()[:3]] == [["1", "4", "0"], ["2", "4", "0"]]
    assert all(len(line) <= 100 for line in out.splitlines())
    assert stored == "stored as run 1: tiny, profile p, 1 LAB"
    assert following == "next: llmgwctl capacity tiny --ttft-p95 2s"
    (run,) = await listed(module_node)
    assert [point["concurrency"] for point in run["points"]] == [1, 2]
    first = run["points"][0]
    # The engine waits 5 ms between tokens, and the machine is shared: only the lower bound is sure.
    assert 0.005 <= first["inter_token_seconds"]["p50"] < 1
    assert first["ttft_seconds"]["p50"] <= first["ttft_seconds"]["p99"]
    assert (run["engine"], run["stale_because"], run["weights_version"]) == ("command", None, None)
    code, out, _ = await ctl(module_node, "--output", "json", "capacity", "tiny", "--ttft-p95", "20s")
    (line,) = json.loads(out)["lines"]
    # Two GPUs, one of them taken.
    assert (code, line["concurrent_per_replica"]) == (0, 2)
    assert (line["replicas_running"], line["replicas_on_free"], line["replicas_after_reclaim"]) == (1, 1, 0)
    await module_node.until_quiet()


async def test_levels_rise_by_themselves_until_more_brings_no_more(module_node: Node) -> None:
    code, out, err = await ctl(module_node, "--output", "json", "bench", "run", "tiny", *QUICK)
    assert code == 0, err
    levels = [json.loads(line) for line in out.splitlines()]
    points = [one["concurrency"] for one in levels[:-1]]
    assert points == [2**i for i in range(len(points))]
    assert len(points) >= 2
    assert levels[-1]["schema"] == "llmgw.bench-run/1"


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("bench", "run", "nobody"), 64, "no model nobody"),
        (("bench", "run", "tiny", "--replica", "tiny/9"), 64, "tiny has no replica tiny/9"),
        (("bench", "run", "tiny", "--concurrency", "4,2"), 64, "is no rising list"),
        (("capacity", "tiny", "--ttft-p95", "2"), 64, "is no latency"),
    ],
)
async def test_what_makes_no_sense_is_told(
    module_node: Node, words: tuple[str, ...], status: int, told: str
) -> None:
    code, out, err = await ctl(module_node, *words)
    assert (code, out) == (status, "")
    assert told in err


async def test_an_engine_that_refuses_is_not_measured_and_nothing_is_stored(module_node: Node) -> None:
    runs = len(await listed(module_node))
    await engine(module_node, refuse_status=500)
    code, out, err = await ctl(module_node, "bench", "run", "tiny", "--concurrency", "1", *QUICK)
    await engine(module_node, refuse_status=None)
    assert (code, out) == (2, "")
    assert "nothing stored" in err
    assert "answers 500" in err
    assert len(await listed(module_node)) == runs
    await module_node.until_quiet()


async def test_ctrl_c_ends_a_benchmark_on_the_node(start_node: Start) -> None:
    node = start_node(models=[model("tiny", *SLOW)])
    await node.controller.until_ready()
    await node.until_ready()
    running = await Ctl.start(node.controllers, "bench", "run", "tiny", "--concurrency", "4", *LONG)

    async def driven() -> bool:
        return (await engine(node))["running"] == 4

    await until("the engine is driven", driven)
    # The engine's own gauge says that it is used; forced, the node knows by whom.
    again = await ctl(node, "bench", "run", "tiny", "--concurrency", "1", *QUICK)
    assert again[0] == 1
    assert "clients use tiny/1 now" in again[2]
    again = await ctl(node, "bench", "run", "tiny", "--force", "--concurrency", "1", *QUICK)
    assert again[0] == 2
    assert " is under way" in again[2]
    running.ctrl_c()
    code, _, _ = await running.end()
    assert code == 130

    async def left() -> bool:
        return (await engine(node))["running"] == 0

    await until("nobody drives it", left)
    await node.until_quiet()
    assert await listed(node) == []


@pytest.mark.parametrize("who", ["agent", "engine"])
async def test_a_death_in_mid_benchmark_is_told_and_nothing_is_stored(start_node: Start, who: str) -> None:
    node = start_node(models=[model("tiny", *SLOW)])
    await node.controller.until_ready()
    row = await node.until_ready()
    running = await Ctl.start(node.controllers, "bench", "run", "tiny", "--concurrency", "2,4", *LONG)

    async def driven() -> bool:
        return (await engine(node))["running"] == 2

    await until("the engine is driven", driven)
    if who == "agent":
        node.agents.started[-1].kill()
    else:
        await engine_of(agent_pb2.ShardSpec(ports=dict(row.shards[0].ports)), exit_after_s=0.0)
    code, out, err = await running.end()
    assert (code, out) == (2, "")
    assert ("node node-t went away" if who == "agent" else "nothing stored") in err
    assert await listed(node) == []
    if who == "agent":
        node.start_agent()
    await node.until_quiet()


async def test_a_failover_in_mid_benchmark_is_told_and_the_agent_drives_no_more(
    start_node: Start, migrated_dsn: str
) -> None:
    lease = {"lease_ttl_s": 4, "lease_renew_s": 0.5, "lease_retry_s": 0.3, "lease_margin_s": 1}
    node = start_node(models=[model("tiny", *SLOW)], count=2, dsn=migrated_dsn, **lease)
    leader = await until("somebody leads", lambda: leading(node))
    node.controllers.sort(key=lambda one: one is not leader)
    row = await node.until_ready()
    shard = agent_pb2.ShardSpec(ports=dict(row.shards[0].ports))
    running = await Ctl.start(node.controllers, "bench", "run", "tiny", "--concurrency", "2", *LONG)

    async def runs(count: int) -> bool:
        return (await engine_of(shard))["running"] == count

    await until("the engine is driven", lambda: runs(2))
    leader.child.kill()
    code, _, err = await running.end()
    assert code == 2
    assert "the controller went away in the middle" in err
    await until("nobody drives it", lambda: runs(0))
    node.controllers.reverse()
    await node.until_ready()
    await node.until_quiet()
    assert await listed(node) == []
