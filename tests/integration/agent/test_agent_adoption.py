"""The agent dies; its engines do not. Whoever starts it again finds them as they are."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import aiohttp
import pytest

from llmgw.v1 import agent_pb2 as pb
from llmgw.v1.common_pb2 import WeightsRef
from llmgw_agent.core.progress import Numbers
from llmgw_agent.engines.base import parse_numbers
from llmgw_agent.engines.catalog import ENGINES
from llmgw_kit.testing.ports import free_ports
from tests.integration.agent.agent_bench import (
    Agents,
    controller,
    ctl,
    eventually,
    read_json,
    scripted_engine,
    start_ticks,
)
from tests.integration.agent.mirror_bench import mirror

RUN, DRAIN, STOP = pb.SHARD_WISH_RUN, pb.SHARD_WISH_DRAIN, pb.SHARD_WISH_STOP
SERVING, DRAINING, EXITED = pb.SHARD_STATE_SERVING, pb.SHARD_STATE_DRAINING, pb.SHARD_STATE_EXITED
ROOT = Path(__file__).parents[3]


async def test_a_killed_agents_engine_serves_on_and_is_adopted_as_the_same_process(agents: Agents) -> None:
    async with controller() as leader:
        first = agents.start(leader.address)
        spec = scripted_engine("s1")
        leader.want((spec, RUN))
        before = await leader.shard("s1", lambda s: s.state == SERVING and s.probed, "serving")
        first.kill()
        await first.wait(10)
        assert (await ctl(spec))["pid"] == before.pid, "the engine answers with no agent"

        links = len(leader.links)
        agents.start(leader.address)
        await eventually(lambda: len(leader.links) > links, "the next agent's session")
        told = leader.link.hello.shards[0]
        assert (told.pid, told.pid_start_ticks) == (before.pid, before.pid_start_ticks)
        assert (told.state, told.adopted, told.probed) == (SERVING, True, True)
        assert told.load_s == before.load_s
        assert leader.links[0].hello.agent_instance != leader.link.hello.agent_instance
        assert leader.links[0].hello.boot_id == leader.link.hello.boot_id
        assert (await ctl(spec))["served"] == 1, "no second probe of a shard that had one"
        await leader.shard("s1", lambda s: s.HasField("running_requests"), "its gauge is read again")

        leader.want((spec, STOP))
        gone = await leader.in_state("s1", EXITED)
        # Not our child any more: how it ended is not ours to know.
        assert (gone.exit.reason, gone.exit.HasField("code"), gone.exit.HasField("signal")) == (
            "stopped",
            False,
            False,
        )
        assert start_ticks(before.pid) is None


async def test_real_llama_cpp_outlives_its_agent_in_the_middle_of_a_stream(
    agents: Agents, tmp_path: Path
) -> None:
    tiny = tmp_path / "tiny.gguf"
    subprocess.run(
        [sys.executable, ROOT / "tools" / "make_tiny_gguf.py", tiny], check=True, capture_output=True
    )
    async with (
        controller() as leader,
        mirror("tiny/model", "v1", {"tiny.gguf": tiny.read_bytes()}) as source,
        aiohttp.ClientSession(headers={"Authorization": "Bearer sekret"}) as client,
    ):
        first = agents.start(leader.address)
        port = free_ports(1)[0]
        spec = pb.ShardSpec(
            shard_id="s1", replica_id="r1", group_epoch=1, spec_hash="h", model="tiny", engine="llamacpp",
            served_names=["tiny", "other-name"], device_ids=["gpu-0"], ports={"http": port},
            weights=WeightsRef(model="tiny/model", version="v1", entry_file="tiny.gguf"),
            mirror_urls=[source.url], context_length=4096, args=["--threads", "1", "--embeddings"],
            ready_timeout_s=60, stop_grace_s=5, credential="sekret",
        )  # fmt: skip
        leader.want((spec, RUN))
        before = await leader.shard("s1", lambda s: s.state == SERVING and s.probed, "serving and probed")
        assert leader.history["s1"][-2:] == [pb.SHARD_STATE_LOADING, SERVING]
        shard = await leader.shard("s1", lambda s: s.HasField("running_requests"), "the gauge")
        assert shard.running_requests == 0

        base = f"http://127.0.0.1:{port}"
        asked = {
            "model": "tiny",
            "stream": True,
            "max_tokens": 3500,
            "ignore_eos": True,
            "prompt": "the node",
        }
        async with client.post(f"{base}/v1/completions", json=asked) as stream:
            assert stream.status == 200
            assert (await stream.content.readline()).startswith(b"data: ")
            page = await _metrics(client, base)
            assert page.work is not None
            assert page.running == 1
            for _ in range(3):
                seen = page.work
                page = await eventually(lambda: _more_work(client, base, seen), "work within one request")  # noqa: B023
            first.kill()
            await first.wait(10)
            rest = await stream.content.read()
        assert b"[DONE]" in rest, "the stream finished without an agent"

        links = len(leader.links)
        agents.start(leader.address)
        await eventually(lambda: len(leader.links) > links, "the next agent's session")
        told = leader.link.hello.shards[0]
        assert (told.pid, told.pid_start_ticks, told.adopted) == (before.pid, before.pid_start_ticks, True)
        for part in ("fetch_s", "load_s", "warm_up_s"):
            assert getattr(told, part) == getattr(before, part) > 0.0, f"{part} is remembered"
        assert told.engine_version == shard.engine_version == f"xllamacpp {version('xllamacpp')}"
        async with client.get(f"{base}/v1/models", headers={"Authorization": "Bearer other"}) as answer:
            assert answer.status == 401
        async with client.post(f"{base}/v1/embeddings", json={"model": "tiny", "input": "hi"}) as answer:
            assert answer.status == 200
        assert [(held.model, held.version, held.complete) for held in leader.weights] == [
            ("tiny/model", "v1", True)
        ]
        leader.want((spec, STOP))
        await leader.in_state("s1", EXITED)
        assert start_ticks(before.pid) is None


async def _metrics(client: aiohttp.ClientSession, base: str) -> Numbers:
    engine = ENGINES["llamacpp"]
    async with client.get(f"{base}/metrics") as answer:
        return parse_numbers(await answer.text(), engine.gauge_series, engine.work_series)


async def _more_work(client: aiohttp.ClientSession, base: str, work: float | None) -> Numbers | None:
    """While the request still runs."""
    now = await _metrics(client, base)
    assert now.running == 1
    return now if now.work is not None and work is not None and now.work > work else None


async def test_an_engine_launched_a_moment_before_the_death_is_found_by_its_token(
    agents: Agents,
) -> None:
    async with controller() as leader:
        first = agents.start(leader.address)
        spec = scripted_engine("s1")
        leader.want((spec, RUN))
        before = await leader.in_state("s1", SERVING)
        first.kill()
        await first.wait(10)
        # As the journal stands between the intent and the note of the pid.
        (path,) = (agents.data / "journal").glob("*.json")
        entry = json.loads(path.read_text())
        entry |= {"process": None, "state": "launching", "probed": False, "load_s": None}
        path.write_text(json.dumps(entry))

        agents.start(leader.address)
        told = await leader.shard("s1", lambda s: s.adopted and s.state == SERVING and s.probed, "adopted")
        assert (told.pid, told.pid_start_ticks) == (before.pid, before.pid_start_ticks)


async def test_an_engine_that_ended_unwatched_is_told_as_vanished_with_no_code(agents: Agents) -> None:
    async with controller() as leader:
        first = agents.start(leader.address)
        leader.want((scripted_engine("s1"), RUN))
        before = await leader.in_state("s1", SERVING)
        first.kill()
        await first.wait(10)
        os.kill(before.pid, signal.SIGKILL)
        await eventually(lambda: start_ticks(before.pid) is None, "the engine is gone")
        agents.start(leader.address)
        gone = await leader.in_state("s1", EXITED)
        assert (gone.exit.reason, gone.exit.HasField("code"), gone.exit.HasField("signal")) == (
            "vanished",
            False,
            False,
        )


@pytest.mark.parametrize(
    ("field", "value", "reason"), [("start_ticks", 1, "vanished"), ("boot_id", "x", "rebooted")]
)
async def test_a_process_that_only_shares_the_pid_is_not_touched(
    agents: Agents, field: str, value: object, reason: str
) -> None:
    async with controller() as leader:
        first = agents.start(leader.address)
        leader.want((scripted_engine("s1"), RUN))
        await leader.in_state("s1", SERVING)
        first.kill()
        await first.wait(10)
        stranger = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
        (path,) = (agents.data / "journal").glob("*.json")
        entry = json.loads(path.read_text())
        entry["process"] |= {"pid": stranger.pid, field: value}
        entry["token"] = "of-nobody"
        path.write_text(json.dumps(entry))
        try:
            agents.start(leader.address)
            gone = await leader.in_state("s1", EXITED)
            assert gone.exit.reason == reason
            leader.want()
            await eventually(lambda: not list((agents.data / "journal").glob("*.json")), "forgotten")
            assert stranger.returncode is None
            assert start_ticks(stranger.pid) is not None
        finally:
            stranger.kill()
            await stranger.wait()


async def test_an_agent_stopped_by_sigterm_leaves_engines_and_drains_survive_it(agents: Agents) -> None:
    async with controller() as leader:
        first = agents.start(leader.address)
        spec = scripted_engine("s1")
        leader.want((spec, RUN))
        before = await leader.in_state("s1", SERVING)
        leader.want((spec, DRAIN))
        await leader.in_state("s1", DRAINING)
        first.send_signal(signal.SIGTERM)
        assert await first.wait(10) == 0
        assert "1 engine left running" in first.tail()
        assert start_ticks(before.pid) == before.pid_start_ticks
        leader.history.clear()
        agents.start(leader.address)
        await leader.shard("s1", lambda s: s.adopted, "adopted")
        assert leader.history["s1"] == [DRAINING], "a draining shard is never revived"


async def test_an_interrupted_stop_is_gone_on_with(agents: Agents) -> None:
    async with controller() as leader:
        first = agents.start(leader.address)
        spec = scripted_engine("s1", "--ignore-sigterm", stop_grace_s=60)
        leader.want((spec, RUN))
        before = await leader.in_state("s1", SERVING)
        leader.want((spec, STOP))
        await leader.in_state("s1", pb.SHARD_STATE_STOPPING)
        first.kill()
        await first.wait(10)
        (path,) = (agents.data / "journal").glob("*.json")
        entry = json.loads(path.read_text())
        entry["spec"]["stop_grace_s"] = 0.3
        path.write_text(json.dumps(entry))
        agents.start(leader.address)
        assert (await leader.in_state("s1", EXITED)).exit.reason == "stopped"
        assert start_ticks(before.pid) is None


async def test_an_unlaunched_shard_waits_for_the_controllers_word(agents: Agents) -> None:
    async with controller() as leader, mirror("m", "1", {"f": b"x"}, fetching_for=10_000) as source:
        first = agents.start(leader.address)
        spec = scripted_engine("s1", weights=WeightsRef(model="m", version="1"), mirror_urls=[source.url])
        leader.want((spec, RUN))
        await leader.shard("s1", lambda s: s.progress > 0, "fetching")
        first.kill()
        await first.wait(10)
        leader.desired = None
        source.fetching_for = 0
        listings = source.listings
        agents.start(leader.address)
        await eventually(lambda: len(leader.links) == 2 and leader.link.beats > 3, "a session without a list")
        assert leader.shards["s1"].state == pb.SHARD_STATE_FETCHING
        assert source.listings == listings, "nothing is begun that the controller may have given away"
        leader.want((spec, RUN))
        await leader.in_state("s1", SERVING)


async def test_engines_of_another_agent_here_are_not_reaped(agents: Agents, tmp_path: Path) -> None:
    other = Agents(agents.cage, tmp_path / "other")
    other.folder.mkdir()
    async with controller() as ours, controller() as theirs, contextlib.AsyncExitStack() as stack:
        stack.callback(other.close)
        other.start(theirs.address)
        foreign = scripted_engine("s1")
        theirs.want((foreign, RUN))
        neighbour = await theirs.in_state("s1", SERVING)
        # The same node id, another data folder, and a list in which that shard is absent.
        agents.start(ours.address)
        ours.want()
        await eventually(lambda: ours.links and ours.link.beats > 3, "a session with an empty list")
        assert start_ticks(neighbour.pid) == neighbour.pid_start_ticks


async def test_an_engine_whose_journal_entry_is_lost_ends_with_the_first_list(agents: Agents) -> None:
    async with controller() as leader:
        first = agents.start(leader.address)
        leader.want((scripted_engine("s1"), RUN))
        before = await leader.in_state("s1", SERVING)
        first.kill()
        await first.wait(10)
        (path,) = (agents.data / "journal").glob("*.json")
        path.write_text("{not json")
        leader.desired = None
        agents.start(leader.address)
        await eventually(lambda: len(leader.links) == 2 and leader.link.beats > 3, "a session without a list")
        assert start_ticks(before.pid) == before.pid_start_ticks, "nothing is ended before the list is known"
        leader.want()
        await eventually(lambda: start_ticks(before.pid) is None, "the stray is ended")
        assert path.with_suffix(".unreadable").exists()


async def test_two_agents_never_share_a_data_folder(agents: Agents) -> None:
    async with controller() as leader:
        agents.start(leader.address)
        await eventually(lambda: leader.links, "a session")
        second = agents.start(leader.address)
        assert await second.wait(20) == 1
        assert f"another agent uses the data folder {agents.data}" in second.tail()
        assert "--data-dir" in second.tail()


async def test_ps_and_stop_all_need_no_agent(agents: Agents) -> None:
    async with controller() as leader:
        first = agents.start(leader.address)
        polite = scripted_engine("s1")
        stubborn = scripted_engine("s2", "--ignore-sigterm", stop_grace_s=60)
        leader.want((polite, RUN), (stubborn, RUN))
        pids = {name: (await leader.in_state(name, SERVING)).pid for name in ("s1", "s2")}
        first.kill()
        await first.wait(10)

    status, out = await agents.run("ps")
    assert status == 0
    assert "2 shards, 2 running" in out
    row = next(line for line in out.splitlines() if " s1 " in line)
    for cell in ("m", "command", "serving", str(pids["s1"]), str(polite.ports["http"]), "gpu-0"):
        assert cell in row.split()
    _, out = await agents.run("ps", "--output", "json")
    assert {one["shard_id"]: one["pid"] for one in json.loads(out)["shards"]} == pids

    os.kill(pids["s1"], signal.SIGKILL)
    await eventually(lambda: start_ticks(pids["s1"]) is None, "s1 is gone")
    _, out = await agents.run("ps")
    assert next(line for line in out.splitlines() if " s1 " in line).startswith("!!")

    status, out = await agents.run("stop-all", "--grace-s", "0.3")
    assert status == 0
    assert "s2: killed: it ignored SIGTERM" in out
    assert start_ticks(pids["s2"]) is None
    entry = read_json(agents.data / "journal" / "s2.json")
    assert (entry["state"], entry["exit"]["reason"]) == ("exited", "stopped")
