"""`llmgwctl` as a process against real controllers on Postgres: what operators look at, now and looking back,
with a leader and without one."""

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import Process
from datetime import UTC, datetime
from typing import Any

import grpc.aio

from llmgw.v1 import agent_pb2, operator_pb2
from llmgw_kit.testing.ports import free_ports

from .controller_bench import MODEL, Controller, Controllers, until
from .sim_peers import SimAgent, SimRouter
from .test_operator_commands import ctl

KEPT = {**MODEL, "replicas": 1}
BIG = {
    "name": "big",
    "replicas": 1,
    "profiles": [
        {
            "engine": "command", "gpu_class": "L4", "gpus_per_node": 2, "tensor_parallel": 2,
            "command": ["engine", "{port}"],
        }
    ],
}  # fmt: skip


async def as_json(controller: Controller, *words: str) -> tuple[int, dict[str, Any]]:
    code, out, err = await ctl(controller, "--output", "json", *words)
    assert out, err
    return code, json.loads(out)


async def follow(addresses: str, *words: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "llmgw_controller.cli.main", "--controller", addresses, "--output", "json",
        "events", "--follow", *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")},
    )  # fmt: skip


async def read_until(child: Process, kind: str) -> list[dict[str, Any]]:
    """Events up to the first of this kind."""
    assert child.stdout is not None
    seen: list[dict[str, Any]] = []
    async with asyncio.timeout(60):
        while not seen or seen[-1]["kind"] != kind:
            line = await child.stdout.readline()
            assert line, (await child.stderr.read()).decode() if child.stderr else "ended"
            seen.append(json.loads(line))
    return seen


async def disagreements(controller: Controller) -> list[tuple[str, str]]:
    async with controller.operator() as stub:
        told = await stub.Doctor(operator_pb2.DoctorRequest(), timeout=10)
    return [(one.kind, one.subject) for one in told.disagreements]


async def nodes_at(controller: Controller, at: float) -> int | None:
    """As recorded then; None: nothing is."""
    async with controller.operator() as stub:
        try:
            told = await stub.GetStatus(operator_pb2.GetStatusRequest(at_unix_s=at - 0.1), timeout=10)
        except grpc.aio.AioRpcError:
            return None
    return told.nodes.heard + told.nodes.silent + told.nodes.lost


async def test_the_views_of_one_fleet_agree(controllers: Controllers, migrated_dsn: str) -> None:
    controller = await controllers.start(dsn=migrated_dsn, models=[KEPT, BIG]).until_ready()
    async with SimAgent("n1", [controller.address]), SimRouter([controller.address]) as router:
        await router.until_endpoints(1)

        async def stuck() -> bool:
            return any(one.kind == "unplaceable" for one in (await controller.status()).trouble)

        await until("one of the two waits for room", stuck)
        code, status = await as_json(controller, "status")
        assert (code, status["exit_code"]) == (1, 1)
        _, nodes = await as_json(controller, "nodes")
        _, gpus = await as_json(controller, "gpus")
        _, replicas = await as_json(controller, "replicas")
        _, models = await as_json(controller, "models")
        (capacity,) = status["capacity"]
        assert capacity["total"] == len(gpus["gpus"]) == len(nodes["nodes"][0]["devices"]) == 2
        uses = [one["use"] for one in gpus["gpus"]]
        assert {part: uses.count(part) for part in capacity["parts"]} == capacity["parts"]
        assert [one["id"] for one in status["replicas"]] == [one["id"] for one in replicas["replicas"]]
        assert sum(one["gpus"] for one in models["models"]) == sum(
            one["gpus"] for one in replicas["replicas"]
        )
        assert status["node_loss"]["risks"][0]["node"] == "n1", "a single node is not spare"

        waiting = next(one["model"] for one in replicas["replicas"] if one["phase"] == "UNPLACEABLE")
        code, why = await as_json(controller, "why", waiting)
        (profile,) = why["profiles"]
        assert sum(one["count"] for one in profile["filtered"]) + len(profile["fitting"]) == 1
        assert code == why["exit_code"] == 11, "idleness is unknown without Redis, so nobody may be evicted"
        _, fabrics = await as_json(controller, "fabrics")
        assert fabrics["fabrics"] == []

        for words in (["status"], ["nodes"], ["gpus"], ["replicas"], ["models"], ["fabrics"], ["events"],
                      ["why", waiting], ["doctor"]):  # fmt: skip
            _, out, err = await ctl(controller, *words)
            assert not err, words
            assert max(map(len, out.split("\n"))) <= 100, words
            assert "data" in out.split("\n")[0], "the age of what is shown comes first"


async def test_doctor_finds_a_healthy_fleet_in_agreement_and_then_what_was_done_to_it(
    controllers: Controllers, migrated_dsn: str
) -> None:
    controller = await controllers.start(dsn=migrated_dsn, models=[KEPT]).until_ready()
    async with SimAgent("n1", [controller.address]) as agent, SimRouter([controller.address]) as router:
        await router.until_endpoints(1)

        async def calm() -> bool:
            return not await disagreements(controller)

        await until("all agree", calm)
        code, told = await as_json(controller, "doctor")
        assert told["controllers"][0]["leading"] is True
        assert len(told["checked"]) == 7
        # An engine that nobody asked for.
        (shard,) = agent.shards.values()
        ghost = agent_pb2.ObservedShard()
        ghost.CopyFrom(shard)
        ghost.shard_id, ghost.replica_id = "ghost/1.1.0", "ghost/1"
        ghost.device_ids[:] = []
        agent.say(shard_status=agent_pb2.ShardStatus(shards=[ghost]))

        async def found() -> bool:
            return ("engine_without_row", "ghost/1.1.0") in await disagreements(controller)

        await until("the stranger is told", found)
        code, out, _ = await ctl(controller, "doctor")
        assert code == 1
        assert "engine without row" in out
        assert "agent n1" in out


async def test_doctor_without_a_leader_tells_what_each_address_said(
    controllers: Controllers, migrated_dsn: str
) -> None:
    controller = await controllers.start(dsn=migrated_dsn, models=[KEPT]).until_ready()
    (nobody,) = free_ports(1)
    both = f"127.0.0.1:{nobody},{controller.address}"
    _, out, _ = await ctl(controller, "--controller", both, "--output", "json", "doctor")
    told = json.loads(out)
    assert [one["error"] is None for one in told["controllers"]] == [False, True]
    code, out, err = await ctl(controller, "--controller", f"127.0.0.1:{nobody}", "doctor")
    assert (code, err) == (2, "")
    assert f"127.0.0.1:{nobody}" in out
    assert "no answer" in out
    assert "llmgw-agent ps" in out


async def test_a_follower_goes_on_at_the_next_leader_without_a_gap_or_a_repeat(
    controllers: Controllers, migrated_dsn: str
) -> None:
    first = await controllers.start(dsn=migrated_dsn, models=[KEPT]).until_ready()
    await first.until_leading()
    second = await controllers.start(dsn=migrated_dsn, models=[KEPT]).until_ready()
    addresses = f"{first.address},{second.address}"
    child = await follow(addresses, "--since", "1h")
    try:
        seen = await read_until(child, "leading")
        async with SimAgent("n1", [first.address, second.address]):
            seen += await read_until(child, "ready")
            await asyncio.to_thread(first.child.stop)
            await second.until_leading()
            seen += await read_until(child, "leading")
        listed = [event.event_id for event in reversed(await second.events())]
        ids = [event["id"] for event in seen]
        assert ids == sorted(set(ids)), "each once, in order"
        assert ids == listed[: len(ids)], "none left out"
    finally:
        child.kill()
        await child.wait()


async def test_the_status_of_a_time_that_has_passed(controllers: Controllers, migrated_dsn: str) -> None:
    controller = await controllers.start(dsn=migrated_dsn, models=[KEPT]).until_ready()
    await controller.until_leading()

    async def recorded() -> bool:
        return await nodes_at(controller, time.time()) is not None

    await until("the first record", recorded)
    then = time.time()
    typed = datetime.fromtimestamp(then, UTC).isoformat()
    code, early = await as_json(controller, "status", "--at", typed)
    assert early["nodes"]["total"] == 0
    assert early["recorded_at"] is not None
    async with SimAgent("n1", [controller.address]):

        async def later() -> bool:
            return await nodes_at(controller, time.time()) == 1

        await until("a record with the node", later)
    code, out, _ = await ctl(controller, "status", "--at", "-1s")
    assert out.startswith("AS IT WAS at ")
    code, out, err = await ctl(controller, "status", "--at", "-9d")
    assert (code, out) == (64, "")
    assert "no status is recorded from" in err
    assert "records go from" in err
    code, out, err = await ctl(controller, "status", "--at", "2090-01-01")
    assert (code, out) == (64, "")
    assert "has not come yet" in err
