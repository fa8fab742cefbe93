"""`llmgwctl` as a process against a real controller on Postgres: what operators do by hand, and see done."""

import asyncio
import json
import os
import sys

from .controller_bench import MODEL, Controller, Controllers, until
from .sim_peers import SimAgent, SimRouter

KEPT = {**MODEL, "replicas": 1}


async def ctl(controller: Controller, *words: str) -> tuple[int, str, str]:
    """Exit status, stdout, stderr."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "llmgw_controller.cli.main", "--controller", str(controller.address), *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")},
    )  # fmt: skip
    out, err = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode is not None
    return child.returncode, out.decode(), err.decode()


async def test_a_drained_replica_is_replaced_and_a_cordoned_node_left_out(
    controllers: Controllers, migrated_dsn: str
) -> None:
    controller = await controllers.start(dsn=migrated_dsn, models=[KEPT]).until_ready()
    async with SimAgent("n1", [controller.address]) as agent, SimRouter([controller.address]) as router:
        (endpoint,) = await router.until_endpoints(1)
        assert endpoint.replica_id == "tiny/1"

        code, out, err = await ctl(controller, "replica", "drain", "tiny/9")
        assert (code, out) == (64, "")
        assert "no replica tiny/9" in err
        assert "tiny has tiny/1 (ready, n1)" in err
        assert "try: llmgwctl replicas --model tiny" in err

        code, out, _ = await ctl(controller, "--output", "json", "replica", "drain", "tiny/1", "--dry-run")
        said = json.loads(out)
        assert code == 0
        assert (said["replica"], said["outcome"], said["gpus"], said["another"]) == (
            "tiny/1", "draining", 1, True,
        )  # fmt: skip
        assert "drain_shard" not in agent.commands

        code, out, _ = await ctl(controller, "replica", "drain", "tiny/1")
        assert code == 0
        assert "tiny/1 drains: it takes nothing new and has 5 s to finish; then its 1 GPU is free" in out
        assert "configuration keeps 1, so another is started where there is room" in " ".join(out.split())
        await until("its successor", lambda: [e.replica_id for e in router.routable()] == ["tiny/2"])
        assert "drain_shard" in agent.commands

        code, out, _ = await ctl(controller, "node", "cordon", "n1", "--reason", "driver update")
        assert code == 0
        assert "n1 is cordoned: nothing new is placed there" in out
        code, out, _ = await ctl(controller, "--output", "json", "node", "cordon", "n1")
        assert (code, json.loads(out)["outcome"]) == (0, "unchanged")
        code, out, _ = await ctl(controller, "replica", "stop", "tiny/2")
        assert code == 0
        assert "tiny/2 stops now: what it has in flight may be cut short" in out

        # What `why` says to type is typed.
        async def fixed_by() -> str:
            _, text, _ = await ctl(controller, "--output", "json", "why", "tiny")
            return str(json.loads(text)["profiles"][0]["fix"])

        async def uncordon() -> bool:
            return await fixed_by() == "llmgwctl node uncordon n1"

        await until("the cordon is in the way", uncordon)
        assert not router.routable()
        code, out, _ = await ctl(controller, *(await fixed_by()).split()[1:])
        assert (code, out.strip()) == (0, "n1 takes work again")
        await router.until_endpoints(1)
        assert len(router.routable()) == 1

        told = [(event.kind, event.text) for event in await controller.events()]
        for expected in (
            ("leaving", "drained by operator"),
            ("leaving", "stopped by operator"),
            ("cordoned", "by operator: driver update"),
            ("uncordoned", "by operator"),
        ):
            assert expected in told


async def test_a_standby_sends_the_command_to_the_leader(controllers: Controllers, migrated_dsn: str) -> None:
    leader = await controllers.start(dsn=migrated_dsn, models=[KEPT]).until_leading()
    standby = await controllers.start(dsn=migrated_dsn, models=[KEPT]).until_ready()
    async with SimAgent("n1", [leader.address]) as agent:
        await agent.until_welcome()
        code, out, err = await ctl(standby, "node", "cordon", "n1")
        assert (code, "n1 is cordoned" in out) == (0, True), err
        code, _, err = await ctl(standby, "node", "uncordon", "n2")
        assert (code, "no node n2" in err) == (64, True)
