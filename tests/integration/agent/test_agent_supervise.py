"""`supervise`: the agent may fall, its engines and their container must not; on stop both end in order."""

import os
import signal
from functools import partial
from pathlib import Path

from llmgw.v1 import agent_pb2 as pb
from tests.integration.agent.agent_bench import Agents, controller, eventually, scripted_engine, start_ticks

RUN = pb.SHARD_WISH_RUN
SERVING = pb.SHARD_STATE_SERVING
SUPERVISE = ("supervise", "--", "serve")


def children(pid: int) -> list[int]:
    """Live children, from /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] not in (b"Z", b"X"):
            found.append(int(path.parent.name))
    return found


def zombies_of(pid: int) -> int:
    """Children that ended and were not reaped."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        count += int(fields[1]) == pid and fields[0] == b"Z"
    return count


async def test_a_killed_agent_is_started_again_and_adopts_and_a_stop_ends_engines_too(agents: Agents) -> None:
    async with controller() as leader:
        supervisor = agents.start(leader.address, command=SUPERVISE)
        leader.want((scripted_engine("s1"), RUN))
        before = await leader.in_state("s1", SERVING)
        (agent,) = children(supervisor.pid)
        os.kill(agent, signal.SIGKILL)
        told = await leader.shard("s1", lambda s: s.adopted, "adopted")
        assert (told.pid, told.pid_start_ticks, told.state) == (before.pid, before.pid_start_ticks, SERVING)
        assert before.pid in children(supervisor.pid), "the orphan's new parent is the supervisor"

        # An orphan that ends is reaped.
        os.kill(before.pid, signal.SIGKILL)
        await leader.in_state("s1", pb.SHARD_STATE_EXITED)
        await eventually(lambda: zombies_of(supervisor.pid) == 0, "no zombie is left")

        leader.want((scripted_engine("s2"), RUN))
        second = await leader.in_state("s2", SERVING)
        supervisor.send_signal(signal.SIGTERM)
        assert await supervisor.wait(30) == 0
        assert start_ticks(second.pid) is None
        assert "s2: stopped" in supervisor.tail(30)


async def test_a_hangup_ends_neither_the_agent_nor_its_supervisor(agents: Agents) -> None:
    """It reads TLS files again; here there are none, and the agent says so."""
    async with controller() as leader:
        supervisor = agents.start(leader.address, command=SUPERVISE)
        leader.want((scripted_engine("s1"), RUN))
        before = await leader.in_state("s1", SERVING)
        (agent,) = agents_of(supervisor.pid)
        supervisor.send_signal(signal.SIGHUP)
        await eventually(lambda: "nothing is read again" in supervisor.tail(60), "the agent heard it")
        assert agents_of(supervisor.pid) == [agent]
        assert start_ticks(before.pid) == before.pid_start_ticks
        supervisor.send_signal(signal.SIGTERM)
        assert await supervisor.wait(30) == 0


async def test_a_stop_while_it_waits_to_start_again_still_ends_the_engines(agents: Agents) -> None:
    async with controller() as leader:
        supervisor = agents.start(leader.address, command=SUPERVISE)
        leader.want((scripted_engine("s1"), RUN))
        before = await leader.in_state("s1", SERVING)
        # Falls in a row make the pauses longer than the next signal takes.
        for _ in range(3):
            (agent,) = await eventually(lambda: agents_of(supervisor.pid), "an agent")
            os.kill(agent, signal.SIGKILL)
            await eventually(partial(gone, agent), "it fell")
        await eventually(lambda: "again in 2 s" in supervisor.tail(60), "the third pause")
        supervisor.send_signal(signal.SIGTERM)
        assert await supervisor.wait(30) == 128 + signal.SIGTERM
        assert start_ticks(before.pid) is None


def gone(pid: int) -> bool:
    """Ended, reaped or not."""
    return start_ticks(pid) is None


def agents_of(supervisor: int) -> list[int]:
    """Its `serve`."""
    return [pid for pid in children(supervisor) if b"llmgw_agent" in command_line(pid)]


def command_line(pid: int) -> bytes:
    """Empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_a_start_that_cannot_work_ends_the_supervisor_with_its_status(agents: Agents) -> None:
    supervisor = agents.start("nowhere", command=SUPERVISE)
    assert await supervisor.wait(30) == 1
    assert "has no port" in supervisor.tail()
    assert "again in" not in supervisor.tail()


async def test_the_supervisor_loads_neither_grpc_nor_aiohttp(agents: Agents) -> None:
    async with controller() as leader:
        supervisor = agents.start(leader.address, command=SUPERVISE)
        await eventually(lambda: leader.links, "a session")
        maps = Path(f"/proc/{supervisor.pid}/maps").read_text()
        assert "cygrpc" not in maps
        assert "uvloop" not in maps
