"""`llmgwctl` as a process against a real controller on Postgres: what operators do by hand, and see done."""

import asyncio
import json
import os
import sys
from pathlib import Path

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


async def test_a_model_is_stopped_started_and_pinned_without_losing_its_configuration(
    controllers: Controllers, migrated_dsn: str
) -> None:
    controller = await controllers.start(dsn=migrated_dsn, models=[KEPT]).until_ready()
    async with SimAgent("n1", [controller.address]), SimRouter([controller.address]) as router:
        await router.until_endpoints(1)
        code, out, _ = await ctl(controller, "model", "stop", "tiny", "--dry-run")
        assert code == 0
        assert out.startswith("dry run: tiny is stopped: tiny/1 drains, and requests for it are refused")
        assert router.routable()
        code, out, _ = await ctl(controller, "--output", "json", "model", "stop", "tiny")
        said = json.loads(out)
        assert (code, said["schema"], said["outcome"], said["replicas"]) == (
            0, "llmgw.model-stop/1", "stopped", ["tiny/1"],
        )  # fmt: skip
        await until("it is gone", lambda: not router.endpoints)
        code, _, err = await ctl(controller, "model", "activate", "tiny")
        assert code == 1
        assert "tiny is stopped by an operator" in err
        assert "llmgwctl model start tiny" in err
        # A restart of the controller changes nothing of it.
        await asyncio.to_thread(controller.child.stop, grace_s=8)
        again = controllers.start(dsn=migrated_dsn, models=[KEPT], listen=str(controller.address))
        await again.until_leading()
        code, out, _ = await ctl(again, "--output", "json", "model", "stop", "tiny")
        assert json.loads(out)["outcome"] == "unchanged"
        assert not (await again.status()).replicas

        code, out, _ = await ctl(again, "model", "pin", "tiny")
        assert (code, "tiny is pinned" in out) == (0, True)
        code, out, _ = await ctl(again, "model", "start", "tiny")
        assert code == 0
        assert "its spec keeps 1 replica up" in " ".join(out.split())
        code, out, _ = await ctl(again, "model", "unpin", "tiny")
        assert (code, "not pinned any more" in out) == (0, True)
        code, out, err = await ctl(again, "model", "pin", "tny")
        assert (code, "did you mean 'tiny'" in err) == (64, True)


async def test_a_node_is_drained_without_a_gap_and_a_silent_one_given_up(
    controllers: Controllers, migrated_dsn: str
) -> None:
    controller = await controllers.start(dsn=migrated_dsn, models=[KEPT], unreachable_after_s=3).until_ready()
    addresses = [controller.address]
    async with SimAgent("n1", addresses), SimRouter(addresses) as router:
        (endpoint,) = await router.until_endpoints(1)
        async with SimAgent("n2", addresses) as second:
            await second.until_welcome()
            code, out, _ = await ctl(controller, "node", "drain", "n1", "--dry-run", "--reason", "fan")
            assert code == 0
            assert "its successor starts on n2" in " ".join(out.split())
            assert not second.starts
            code, out, _ = await ctl(controller, "--output", "json", "node", "drain", "n1", "--reason", "fan")
            said = json.loads(out)
            assert (code, said["outcome"]) == (0, "draining")
            assert [(step["replica"], step["outcome"]) for step in said["steps"]] == [("tiny/1", "moves")]
            await until("it moved", lambda: [e.node_id for e in router.routable()] == ["n2"])
            await until("the old one is gone", lambda: endpoint.endpoint_id not in router.endpoints)
            # The new one was ready before the old one left.
            told = [(event.kind, event.subject) for event in reversed(await controller.events())]
            assert told.index(("ready", "tiny/2")) < told.index(("leaving", "tiny/1"))

            async def shown() -> str:
                return " ".join((await ctl(controller, "nodes"))[1].split())

            assert "draining" in await shown()
            code, _, err = await ctl(controller, "node", "confirm-lost", "n2")
            assert (code, "it is not lost" in err) == (1, True)
        code, out, _ = await ctl(controller, "node", "uncordon", "n1")
        assert code == 0

        async def lost() -> bool:
            code, out, _ = await ctl(controller, "node", "confirm-lost", "n2")
            return code == 0 and "n2, silent for" in out

        await until("n2 counts as silent", lost, most_s=40)
        await until("its replica is back on n1", lambda: [e.node_id for e in router.routable()] == ["n1"])
        kinds = {(event.kind, event.subject) for event in await controller.events()}
        assert {("node_draining", "n1"), ("node_lost", "n2")} <= kinds


async def test_a_shipped_model_is_applied_once_its_weights_are_named(
    controllers: Controllers, tmp_path: Path
) -> None:
    controller = await controllers.start(models=[]).until_leading()
    code, out, _ = await ctl(controller, "model", "shipped")
    assert code == 0
    assert "qwen3-8b-gguf" in out
    assert max(len(line) for line in out.splitlines()) <= 100
    code, out, _ = await ctl(controller, "model", "shipped", "bge-m3")
    assert (code, "name: bge-m3" in out) == (0, True)
    code, out, _ = await ctl(controller, "--output", "json", "model", "shipped", "bge-m3")
    assert json.loads(out)["models"][0]["model"]["name"] == "bge-m3"
    code, _, err = await ctl(controller, "model", "shipped", "bge-m4")
    assert (code, "did you mean 'bge-m3'" in err) == (64, True)
    code, _, err = await ctl(controller, "model", "apply", "--shipped", "bge-m3")
    assert (code, "add --weights FILE" in err) == (64, True)
    code, _, err = await ctl(controller, "model", "apply")
    assert (code, "give FILE, or --shipped NAME" in err) == (64, True)
    weights = tmp_path / "weights.yaml"
    weights.write_text(
        "version: r1\nfiles: [{path: model.safetensors, url: 'file:///m/model.safetensors'}]\n"
    )
    words = ["model", "apply", "--shipped", "bge-m3", "--weights", str(weights)]
    code, out, err = await ctl(controller, *words)
    assert (code, out.splitlines()[0]) == (0, "bge-m3: created"), err
    code, out, _ = await ctl(controller, "models")
    assert "bge-m3" in out
