"""`llmgwctl replica logs` from a terminal to an engine's file and back, and every way that it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import psutil
import pytest

from llmgw.v1 import operator_pb2 as pb
from llmgw.v1 import operator_pb2_grpc
from llmgw_kit import rpc
from tests.integration.asks.asks_bench import Ctl, Node, ctl, leading
from tests.integration.asks.conftest import Start
from tests.integration.controller.controller_bench import until

HOSTILE = b"plain\n\x1b]0;owned\x07\x1b[2Jcleared\xc2\x9b\n\xff\xfe half\n\xe2\x80\xaereversed\n50 %\r100 %\n"

pytestmark = pytest.mark.timeout(240)


async def test_the_end_of_a_log_is_shown_and_cannot_hurt_the_terminal(module_node: Node) -> None:
    row = await module_node.until_ready()
    shard = row.shards[0].shard_id
    with module_node.log(shard).open("ab") as log:
        log.write(HOSTILE)
    code, out, err = await ctl(module_node, "replica", "logs", "tiny/1", "--tail", "5")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "plain", "^[]0;owned^G^[[2Jcleared<9B>", "\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} half",
        "<U+202E>reversed", "50 %", "100 %",
    ]  # fmt: skip
    code, out, _ = await ctl(module_node, "--output", "json", "replica", "logs", "tiny/1", "--tail", "1")
    said = [json.loads(line) for line in out.splitlines()]
    assert [one.get("line") for one in said] == ["50 %", "100 %", None]
    assert said[-1] == {"schema": "llmgw.replica-logs/1", "shard": shard, "end": True, "error": None}
    await module_node.until_quiet()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("tiny/9",), "no replica tiny/9"),
        (("tiny/1", "--rank", "3"), "tiny/1 has no shard of rank 3; it has 0"),
    ],
)
async def test_a_wrong_name_or_rank_is_told(module_node: Node, words: tuple[str, ...], told: str) -> None:
    code, out, err = await ctl(module_node, "replica", "logs", *words)
    assert (code, out) == (64, "")
    assert told in err


async def test_a_follow_goes_on_over_a_cut_until_ctrl_c_which_ends_it_on_the_node(module_node: Node) -> None:
    row = await module_node.until_ready()
    log = module_node.log(row.shards[0].shard_id)
    following = await Ctl.start(module_node.controllers, "replica", "logs", "tiny/1", "-f", "--tail", "0")
    await until("it is followed", lambda: _commands(module_node))
    with log.open("ab") as file:
        file.write(b"first\n")
    assert await following.line() == "first"
    os.truncate(log, 0)
    with log.open("ab") as file:
        file.write(b"after the cut\n")
    assert "lines are missing here" in await following.line()
    assert await following.line() == "after the cut"
    following.ctrl_c()
    code, _, err = await following.end()
    assert (code, err.strip()) == (130, "")
    await module_node.until_quiet()


async def _commands(node: Node) -> bool:
    return await node.figure("llmgw_agent_commands") == 1


async def test_a_terminal_that_reads_nothing_costs_no_memory_and_sees_the_gap(
    module_node: Node,
) -> None:
    row = await module_node.until_ready()
    log = module_node.log(row.shards[0].shard_id)
    before = _memory(module_node)
    channel = rpc.channel(module_node.controller.address)
    try:
        request = pb.ReadReplicaLogsRequest(replica_id="tiny/1", tail_lines=0, follow=True)
        call = operator_pb2_grpc.OperatorServiceStub(channel).ReadReplicaLogs(request)
        await until("it is followed", lambda: _commands(module_node))
        line = b"x" * 1023 + b"\n"
        for _ in range(24):
            with log.open("ab") as file:
                file.write(line * 1024)
            await asyncio.sleep(0.25)
        with log.open("ab") as file:
            file.write(b"the newest\n")
        assert _memory(module_node) - before < 48 << 20
        seen, gaps = b"", 0
        async with asyncio.timeout(60):
            async for message in call:
                seen = (seen + message.data)[-2000:]
                gaps += message.gap
                if b"the newest" in seen:
                    break
        assert gaps >= 1
        call.cancel()
    finally:
        await channel.close()
    await module_node.until_quiet()
    os.truncate(log, 0)


def _memory(node: Node) -> int:
    """Of controller and agent together, resident."""
    pids = [node.controller.child.pid, node.agents.started[-1].pid]
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


async def test_the_log_of_an_engine_that_died_is_still_there(start_node: Start) -> None:
    node = start_node()
    await node.controller.until_ready()
    row = await node.until_ready()
    shard = row.shards[0]
    following = await Ctl.start(node.controllers, "replica", "logs", "tiny/1", "-f")
    await following.until_line("model loaded")
    with node.log(shard.shard_id).open("ab") as file:
        file.write(b"CUDA out of memory\n")
    os.kill(shard.observed.pid, signal.SIGKILL)
    code, out, err = await following.end()
    assert (code, err) == (0, ""), "a follow ends by itself when the engine has"
    assert "CUDA out of memory" in out
    code, out, err = await ctl(node, "replica", "logs", "tiny/1", "--tail", "1")
    assert (code, out.strip()) == (0, "CUDA out of memory"), err


async def test_an_agent_that_dies_in_mid_follow_is_told(start_node: Start) -> None:
    node = start_node()
    await node.controller.until_ready()
    await node.until_ready()
    following = await Ctl.start(node.controllers, "replica", "logs", "tiny/1", "-f")
    await following.until_line("model loaded")
    agent = node.agents.started[-1]
    agent.kill()
    code, _, err = await following.end()
    assert code == 1
    assert "node node-t went away" in err
    node.start_agent()

    async def read_again() -> bool:
        code, out, _ = await ctl(node, "replica", "logs", "tiny/1")
        return code == 0 and "model loaded" in out

    await until("its successor reads the same log", read_again)
    await node.until_quiet()


async def test_a_failover_in_mid_follow_is_told_and_the_new_leader_reads_on(
    start_node: Start, migrated_dsn: str
) -> None:
    lease = {"lease_ttl_s": 4, "lease_renew_s": 0.5, "lease_retry_s": 0.3, "lease_margin_s": 1}
    node = start_node(count=2, dsn=migrated_dsn, **lease)
    leader = await until("somebody leads", lambda: leading(node))
    node.controllers.sort(key=lambda one: one is not leader)
    await node.until_ready()
    following = await Ctl.start(node.controllers, "replica", "logs", "tiny/1", "-f")
    await following.until_line("model loaded")
    leader.child.kill()
    code, _, err = await following.end()
    assert code == 2
    assert "the controller went away in the middle" in err
    node.controllers.reverse()

    async def read_again() -> bool:
        code, out, _ = await ctl(node, "replica", "logs", "tiny/1")
        return code == 0 and "model loaded" in out

    await until("the new leader reads it", read_again)
    await node.until_quiet()
