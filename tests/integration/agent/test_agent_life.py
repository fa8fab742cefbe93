"""One shard's life, from the controller's word to its exit, with real processes and real gRPC."""

import asyncio
import os
import signal

import aiohttp
import pytest

from llmgw.v1 import agent_pb2 as pb
from llmgw_kit.testing.ports import free_ports
from tests import metrics_page
from tests.integration.agent.agent_bench import (
    Agents,
    OneTest,
    controller,
    ctl,
    eventually,
    scripted_engine,
    start_ticks,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
RUN, DRAIN, STOP = pb.SHARD_WISH_RUN, pb.SHARD_WISH_DRAIN, pb.SHARD_WISH_STOP
SERVING, DRAINING, EXITED = pb.SHARD_STATE_SERVING, pb.SHARD_STATE_DRAINING, pb.SHARD_STATE_EXITED


async def test_hello_tells_node_devices_and_that_nothing_runs(agents: Agents) -> None:
    async with controller() as leader:
        agents.start(leader.address, LLMGW_AGENT_FABRICS='["ib-1"]', LLMGW_AGENT_POOL="research")
        await eventually(lambda: leader.links, "a session")
        hello = leader.link.hello
        assert hello.node_id == "node-t"
        assert hello.boot_id
        assert not hello.HasField("highest_term_seen")
        assert [(d.device_id, d.gpu_class, d.state) for d in hello.inventory.devices] == [
            ("gpu-0", "LAB", pb.DEVICE_STATE_HEALTHY),
            ("gpu-1", "LAB", pb.DEVICE_STATE_HEALTHY),
        ]
        assert hello.inventory.devices[0].memory_total_bytes == 1 << 30
        assert not hello.inventory.devices[1].HasField("memory_total_bytes")
        assert (list(hello.inventory.fabrics), hello.inventory.pool) == (["ib-1"], "research")
        assert (hello.inventory.engine_ports.first, hello.inventory.engine_ports.last) == (20000, 24999)
        assert "command" in hello.inventory.engines
        assert "llamacpp" in hello.inventory.engines
        assert hello.inventory.disk_free_bytes > 0
        assert not hello.shards
        await eventually(lambda: leader.link.beats >= 3, "beats")
        assert leader.link.epochs_heard == {leader.link.epoch}


async def test_run_drain_stop_is_told_step_by_step_and_forgotten_at_the_end(one: OneTest) -> None:
    spec = one.engine("s1", "--load-s", "0.3", drain_timeout_s=5)
    one.want((spec, RUN))
    shard = await one.shard("s1", lambda s: s.state == SERVING and s.probed, "serving and probed")
    assert one.history("s1")[-2:] == [pb.SHARD_STATE_LOADING, SERVING]
    assert start_ticks(shard.pid) == shard.pid_start_ticks
    assert os.getsid(shard.pid) == shard.pid, "a session of its own"
    assert shard.load_s >= 0.3
    assert not shard.adopted
    assert shard.warm_up_s >= 0.0
    assert shard.fetch_s == 0.0, "it needs no weights"
    assert (await ctl(spec))["served"] >= 1, "the probe is one real request"
    await one.shard("s1", lambda s: s.HasField("running_requests") and s.running_requests == 0, "the gauge")

    await ctl(spec, direct_traffic=3)
    await one.shard("s1", lambda s: s.running_requests == 3, "the gauge follows")
    one.want((spec, DRAIN))
    await one.in_state("s1", DRAINING)
    assert (await ctl(spec))["ready"], "a draining engine goes on"
    one.want((spec, STOP))
    gone = await one.in_state("s1", EXITED)
    assert (gone.exit.reason, gone.exit.code) == ("stopped", 0)
    assert not gone.HasField("running_requests")
    assert start_ticks(shard.pid) is None

    one.want()
    await eventually(lambda: not list((one.agents.data / "journal").glob("*.json")), "the journal forgets it")


async def test_an_engine_that_crashes_is_told_with_code_and_last_words_and_not_restarted(
    agents: Agents,
) -> None:
    async with controller() as leader:
        agents.start(leader.address)
        spec = scripted_engine("s1", "--exit-after-s", "0.3", "--exit-code", "7")
        leader.want((spec, RUN))
        gone = await leader.in_state("s1", EXITED)
        assert (gone.exit.reason, gone.exit.code, gone.exit.HasField("signal")) == ("crashed", 7, False)
        assert "scripted crash" in gone.exit.message
        leader.want((spec, RUN))
        leader.link.say(start_shard=pb.StartShard(command_id="c1", spec=spec))
        result = await eventually(lambda: leader.link.results, "the answer to a start")
        assert (result[0].command_id, result[0].accepted) == ("c1", False)
        assert "exited" in result[0].message


async def test_an_engine_killed_by_the_kernel_is_told_with_its_signal(one: OneTest) -> None:
    one.want((one.engine("s1"), RUN))
    shard = await one.in_state("s1", SERVING)
    os.kill(shard.pid, signal.SIGKILL)
    gone = await one.in_state("s1", EXITED)
    assert (gone.exit.reason, gone.exit.signal, gone.exit.HasField("code")) == ("crashed", 9, False)


async def test_an_engine_that_ignores_sigterm_is_killed_after_its_grace(one: OneTest) -> None:
    spec = one.engine("s1", "--ignore-sigterm", stop_grace_s=0.5)
    one.want((spec, RUN))
    shard = await one.in_state("s1", SERVING)
    one.say(stop_shard=pb.StopShard(command_id="c1", shard_id=one.name("s1"), reason="stopped"))
    gone = await one.in_state("s1", EXITED)
    assert (gone.exit.reason, gone.exit.signal) == ("stopped", 9)
    assert "0.5 s after SIGTERM" in gone.exit.message
    assert start_ticks(shard.pid) is None
    assert one.results[0].accepted


FORKS = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


async def test_children_that_left_the_group_die_with_their_engine(one: OneTest) -> None:
    note = one.agents.folder / one.name("grandchild")
    spec = one.engine("s1", ready_path="/none", stop_grace_s=0.5)
    del spec.command[:]
    spec.command.extend(["python3", "-c", FORKS, str(note)])
    one.want((spec, RUN))
    grandchild = int(await eventually(lambda: note.exists() and note.read_text(), "the grandchild"))
    assert start_ticks(grandchild) is not None
    one.want()
    gone = await one.in_state("s1", EXITED)
    assert gone.exit.reason == "orphan"
    assert start_ticks(grandchild) is None


async def test_a_crash_takes_the_engines_children_along_before_it_is_told(one: OneTest) -> None:
    note = one.agents.folder / one.name("grandchild")
    spec = one.engine("s1", ready_path="/none")
    del spec.command[:]
    spec.command.extend(["python3", "-c", FORKS, str(note)])
    one.want((spec, RUN))
    shard = await one.in_state("s1", pb.SHARD_STATE_LOADING)
    grandchild = int(await eventually(lambda: note.exists() and note.read_text(), "the grandchild"))
    os.kill(shard.pid, signal.SIGSEGV)
    gone = await one.in_state("s1", EXITED)
    assert (gone.exit.reason, gone.exit.signal) == ("crashed", signal.SIGSEGV)
    assert start_ticks(grandchild) is None


async def test_a_taken_port_is_no_crash_and_nothing_is_launched(one: OneTest) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        one.want((one.engine("s1", port=port), RUN))
        gone = await one.in_state("s1", EXITED)
    finally:
        server.close()
    assert gone.exit.reason == "port_taken"
    assert str(port) in gone.exit.message
    assert not gone.HasField("pid")


#: Somebody else, not of the engine's session and without its token, takes the port; then the engine fails.
LOSES_ITS_PORT = """
import os, subprocess, sys
sit = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1])));"
sit += "print('sits', flush=True); time.sleep(60)"
bare = {k: v for k, v in os.environ.items() if not k.startswith("LLMGW_")}
other = subprocess.Popen(
    [sys.executable, "-c", sit, sys.argv[1]], env=bare, start_new_session=True, stdout=subprocess.PIPE
)
other.stdout.readline()
sys.exit("address already in use")
"""


async def test_a_port_taken_between_test_and_launch_is_told_as_taken(one: OneTest) -> None:
    port = free_ports(1)[0]
    spec = one.engine("s1", port=port)
    del spec.command[:]
    spec.command.extend(["python3", "-c", LOSES_ITS_PORT, "{port}"])
    one.want((spec, RUN))
    gone = await one.in_state("s1", EXITED)
    assert (gone.exit.reason, gone.exit.code) == ("port_taken", 1)
    assert "already in use" in gone.exit.message


async def test_an_engine_that_never_gets_ready_is_ended_and_says_so(one: OneTest) -> None:
    one.want((one.engine("s1", "--wrong-port", ready_timeout_s=1.0), RUN))
    gone = await one.in_state("s1", EXITED)
    assert gone.exit.reason == "never_ready"
    assert "not ready within 1 s" in gone.exit.message


async def test_an_engine_that_says_ready_and_answers_nothing_is_not_ready(one: OneTest) -> None:
    one.want((one.engine("s1", "--refuse-status", "500", ready_timeout_s=10.0), RUN))
    gone = await one.in_state("s1", EXITED)
    assert gone.exit.reason == "never_ready"
    assert "answers no request" in gone.exit.message


async def test_a_gauge_that_breaks_is_unknown_and_says_why(one: OneTest) -> None:
    spec = one.engine("s1")
    one.want((spec, RUN))
    await one.shard("s1", lambda s: s.HasField("running_requests"), "a gauge")
    await ctl(spec, gauge="error")
    shard = await one.shard("s1", lambda s: s.HasField("running_unknown_reason"), "an unknown gauge")
    assert not shard.HasField("running_requests")
    assert "500" in shard.running_unknown_reason


async def test_case_31_an_engine_with_requests_and_no_token_is_told_to_stall(one: OneTest) -> None:
    spec = one.engine("s1")
    one.want((spec, RUN))
    shard = await one.shard("s1", lambda s: s.HasField("stalled_s") and s.probed, "a measure")
    assert shard.stalled_s == 0.0
    assert shard.engine_version == "scripted-1"
    await ctl(spec, stall=True)
    asked = asyncio.create_task(_ask(spec))
    try:
        await one.shard("s1", lambda s: s.running_requests >= 1 and s.stalled_s >= 0.4, "a stall")
        served = (await ctl(spec))["served"]
        await one.shard("s1", lambda s: s.stalled_s >= 1.6, "that grows")
        assert (await ctl(spec))["served"] == served, "a busy engine is not probed besides"
        await ctl(spec, gauge="error")
        await one.shard("s1", lambda s: not s.HasField("stalled_s"), "nothing is said of what cannot be read")
        await ctl(spec, gauge="ok", stall=False)
        assert await asyncio.wait_for(asked, 10) == 200
        await one.shard("s1", lambda s: s.HasField("stalled_s") and s.stalled_s == 0.0, "it gets on")
    finally:
        asked.cancel()


async def _ask(spec: pb.ShardSpec) -> int:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    url = f"http://127.0.0.1:{spec.ports['http']}/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        await answer.read()
        return answer.status


async def test_an_engine_at_rest_is_probed_again_and_one_that_fails_it_is_shown_and_left_alone(
    one: OneTest,
) -> None:
    spec = one.engine("s1")
    one.want((spec, RUN))
    before = await one.shard("s1", lambda s: s.state == SERVING and s.probed, "serving and probed")
    served = (await ctl(spec))["served"]
    await eventually(lambda: _served_more_than(spec, served + 1), "probes of an engine at rest")
    await ctl(spec, refuse_status=500)
    shard = await one.shard("s1", lambda s: s.HasField("probe_error"), "a failed probe")
    assert "answers 500" in shard.probe_error
    assert (shard.state, shard.probed, shard.pid) == (SERVING, True, before.pid)
    await ctl(spec, refuse_status=None)
    await one.shard("s1", lambda s: not s.HasField("probe_error"), "it answers again")


async def _served_more_than(spec: pb.ShardSpec, count: int) -> bool:
    return bool((await ctl(spec))["served"] > count)


async def test_an_engine_with_traffic_is_not_probed(one: OneTest) -> None:
    spec = one.engine("s1", "--tokens", "1000", "--token-interval-s", "0.01")
    one.want((spec, RUN))
    await one.shard("s1", lambda s: s.state == SERVING and s.probed, "serving and probed")
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    url = f"http://127.0.0.1:{spec.ports['http']}/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        await answer.content.readline()
        served = (await ctl(spec))["served"]
        for _ in range(150):
            await answer.content.readline()
        assert (await ctl(spec))["served"] == served


async def test_an_engine_that_runs_out_of_memory_says_so_by_a_word_of_its_own(one: OneTest) -> None:
    spec = one.engine("s1")
    del spec.command[:]
    spec.command.extend(["python3", "-c", "raise SystemExit('CUDA error: out of memory')"])
    one.want((spec, RUN))
    gone = await one.in_state("s1", EXITED)
    assert (gone.exit.reason, gone.exit.code) == ("out_of_memory", 1)
    assert "CUDA error" in gone.exit.message


async def test_specs_nobody_can_run_are_refused_with_the_nearest_name(one: OneTest) -> None:
    wrong_engine = one.engine("s1")
    wrong_engine.engine = "lamacpp"
    wrong_device = one.engine("s2")
    wrong_device.device_ids[:] = ["gpu-7"]
    placeholder = one.engine("s3")
    placeholder.command.append("{prot}")
    missing = one.engine("s4")
    missing.command[0] = "/no/such/program"
    one.want(*((spec, RUN) for spec in (wrong_engine, wrong_device, placeholder, missing)))
    said = {}
    for name in ("s1", "s2", "s3", "s4"):
        said[name] = (await one.in_state(name, EXITED)).exit
    assert [said[name].reason for name in sorted(said)] == [
        "refused",
        "refused",
        "refused",
        "engine_absent",
    ]
    assert "did you mean 'llamacpp'" in said["s1"].message
    assert "gpu-7" in said["s2"].message
    assert "{prot} (did you mean 'port'?)" in said["s3"].message
    assert "/no/such/program" in said["s4"].message


async def test_a_stop_of_a_shard_that_is_not_here_is_told_as_an_exit(agents: Agents) -> None:
    async with controller() as leader:
        leader.want((scripted_engine("ghost"), STOP))
        agents.start(leader.address)
        assert (await leader.in_state("ghost", EXITED)).exit.reason == "absent"
        leader.link.say(stop_shard=pb.StopShard(command_id="c1", shard_id="nobody"))
        result = (await eventually(lambda: leader.link.results, "an answer"))[0]
        assert not result.accepted
        assert "no shard nobody" in result.message


async def test_the_old_spec_of_an_id_goes_before_the_new_one_starts(one: OneTest) -> None:
    spec = one.engine("s1")
    one.want((spec, RUN))
    first = await one.in_state("s1", SERVING)
    newer = pb.ShardSpec()
    newer.CopyFrom(spec)
    newer.group_epoch, newer.spec_hash = 2, "hash-2"
    one.want((newer, RUN))
    gone = await one.in_state("s1", EXITED)
    assert (gone.exit.reason, gone.group_epoch) == ("replaced", 1)
    second = await one.shard("s1", lambda s: s.state == SERVING and s.group_epoch == 2, "the new one")
    assert second.pid != first.pid


async def test_a_broken_device_is_told_at_once_and_healed_again(agents: Agents) -> None:
    async with controller() as leader, aiohttp.ClientSession() as session:
        agents.start(leader.address)
        await eventually(lambda: leader.links, "a session")
        url = f"{await agents.admin()}/devices/gpu-1"
        async with session.post(url, json={"state": "unhealthy", "reason": "xid_79"}) as answer:
            assert answer.status == 200
        await eventually(
            lambda: leader.devices["gpu-1"].state == pb.DEVICE_STATE_UNHEALTHY, "the device is unhealthy"
        )
        assert leader.devices["gpu-1"].reason == "xid_79"
        assert leader.devices["gpu-0"].state == pb.DEVICE_STATE_HEALTHY
        async with session.post(url, json={"state": "healthy"}) as answer:
            assert answer.status == 200
        await eventually(
            lambda: leader.devices["gpu-1"].state == pb.DEVICE_STATE_HEALTHY, "it is healthy again"
        )
        async with session.post(f"{await agents.admin()}/devices/gpu-9", json={"state": "missing"}) as answer:
            assert answer.status == 404
        async with session.post(url, json={"state": "ill"}) as answer:
            assert answer.status == 400


async def test_health_metrics_and_shards_of_the_admin_listener(agents: Agents) -> None:
    async with controller() as leader, aiohttp.ClientSession() as session:
        agents.start(leader.address)
        leader.want((scripted_engine("s1", credential="sekret"), RUN))
        await leader.in_state("s1", SERVING)
        base = await agents.admin()
        async with session.get(f"{base}/metrics") as answer:
            page = await answer.text()
        assert 'llmgw_agent_shards{state="serving"} 1.0' in page
        assert 'llmgw_agent_devices{state="healthy"} 2.0' in page
        assert "llmgw_agent_session_up 1.0" in page
        assert metrics_page.scraped(page) == metrics_page.written("agent")
        async with session.get(f"{base}/readyz") as answer:
            assert "session with controller-t" in await answer.text()
        async with session.get(f"{base}/shards") as answer:
            text = await answer.text()
        assert "serving" in text
        assert "sekret" not in text
        status, out = await agents.run("healthcheck")
        assert status == 0, out
