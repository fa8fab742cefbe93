"""Calls that ask nodes, on a reign in memory: several shards in one log, whom a benchmark may drive, and that
nothing is left behind, whoever goes first."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llmgw.v1 import agent_pb2
from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.activity import Busy, Idle, Unknown, Verdicts
from llmgw_controller.core.rows import Phase
from llmgw_controller.fleet import Session
from llmgw_controller.office import Office
from llmgw_controller.operator.benchmarks import Benchmarks, _target
from llmgw_controller.operator.logs import Logs
from llmgw_controller.reign import Reign
from llmgw_kit.errors import Conflict, NotFound, NotLeader
from llmgw_kit.ids import ReplicaId
from llmgw_kit.testing.clock import FakeClock
from tests.unit.controller.build import NOW, model, node, replica, shard, snapshot

from .reigns import KEPT, hello, reign_on

Response = pb.ReadReplicaLogsResponse


def logs_of(reign: Reign) -> Logs:
    office = SimpleNamespace(
        require=lambda: reign, reign=reign, clock=reign.world.clock,
        not_leading=lambda: NotLeader("stands by", leader_address="other:1"),
    )  # fmt: skip
    return Logs(cast("Office", office), store_kind="memory", config_hash="x")


def benchmarks_of(reign: Reign) -> Benchmarks:
    office = SimpleNamespace(require=lambda: reign, reign=reign, clock=reign.world.clock)
    return Benchmarks(cast("Office", office), store_kind="memory", config_hash="x")


def observed(rank: int) -> agent_pb2.ObservedShard:
    return agent_pb2.ObservedShard(
        shard_id=f"tiny/1.1.{rank}", replica_id="tiny/1", state=agent_pb2.SHARD_STATE_SERVING
    )


async def gang(clock: FakeClock) -> tuple[Reign, list[Session]]:
    """Two nodes with a shard each."""
    reign = await reign_on(clock, models=())
    async with reign.ledger.writing():
        pass
    sessions = [
        await reign.fleet.open(hello(f"n{rank}", shards=[observed(rank)]))  # type: ignore[arg-type]
        for rank in range(2)
    ]
    return reign, sessions


def command_of(session: Session) -> str:
    read = [one.read_logs for one in session.outbox._notices if one.HasField("read_logs")]
    return read[-1].command_id if read else ""


async def piece(reign: Reign, session: Session, data: bytes = b"", **more: Any) -> None:
    message = agent_pb2.LogPiece(command_id=command_of(session), data=data, **more)
    await reign.fleet.hear(session, agent_pb2.ConnectRequest(session_epoch=session.epoch, log_piece=message))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_log_of_a_gang_is_merged_while_it_is_followed(fake_clock: FakeClock) -> None:
    reign, sessions = await gang(fake_clock)
    request = pb.ReadReplicaLogsRequest(replica_id="tiny/1", tail_lines=5, follow=True)
    got: list[Response] = []

    async def read() -> None:
        async with aclosing(logs_of(reign).ReadReplicaLogs(request, None)) as answers:  # type: ignore[type-var]
            async for answer in answers:
                got.append(answer)

    reading = asyncio.create_task(read())
    await settle()
    assert [one.shard_id for one in got] == ["tiny/1.1.0", "tiny/1.1.1"], (
        "whose lines there will be comes first"
    )
    await piece(reign, sessions[1], b"b1\n")
    await settle()
    await piece(reign, sessions[0], b"a1\n")
    await settle()
    await piece(reign, sessions[1], end=True)
    await settle()
    await piece(reign, sessions[0], b"a2\n")
    await settle()
    assert [(one.shard_id[-1], one.data) for one in got[2:] if one.data] == [
        ("1", b"b1\n"), ("0", b"a1\n"), ("0", b"a2\n")
    ]  # fmt: skip
    assert not reading.done(), "one of two goes on"
    reign.fleet.closed(sessions[0])
    await asyncio.wait_for(reading, 5)
    assert [(one.shard_id[-1], one.end.split(" went")[0]) for one in got if one.HasField("end")] == [
        ("1", ""), ("0", "node n0")
    ]  # fmt: skip
    assert reign.fleet.asks.open == 0


async def test_who_leaves_a_merged_log_leaves_nothing_behind(fake_clock: FakeClock) -> None:
    reign, sessions = await gang(fake_clock)
    tasks = asyncio.all_tasks()
    request = pb.ReadReplicaLogsRequest(replica_id="tiny/1", follow=True)
    answers: Any = logs_of(reign).ReadReplicaLogs(request, None)
    for _ in range(2):
        await anext(answers)
    reading = asyncio.ensure_future(anext(answers))
    await settle()
    assert reign.fleet.asks.open == 2
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await answers.aclose()
    await settle()
    assert reign.fleet.asks.open == 0
    assert asyncio.all_tasks() == tasks
    for session in sessions:
        assert [one.WhichOneof("body") for one in session.outbox._notices][-1] == "cancel_command"


async def test_the_end_of_the_term_sends_the_reader_to_the_next_leader(fake_clock: FakeClock) -> None:
    reign, _ = await gang(fake_clock)
    request = pb.ReadReplicaLogsRequest(replica_id="tiny/1", follow=True)
    answers: Any = logs_of(reign).ReadReplicaLogs(request, None)
    for _ in range(2):
        await anext(answers)
    reading = asyncio.ensure_future(anext(answers))
    await settle()
    reign.close(None, stopping=False)
    with pytest.raises(NotLeader):
        await reading
    assert reign.fleet.asks.open == 0


async def test_an_agent_that_says_nothing_is_not_waited_for_for_ever(fake_clock: FakeClock) -> None:
    reign, _ = await gang(fake_clock)
    answers: Any = logs_of(reign).ReadReplicaLogs(
        pb.ReadReplicaLogsRequest(replica_id="tiny/1", rank=0), None
    )
    await anext(answers)
    reading = asyncio.ensure_future(anext(answers))
    await settle()
    await fake_clock.advance(15)
    assert "did not answer within 15 s" in (await reading).end
    assert reign.fleet.asks.open == 0


M = model("m")
FIRST, SECOND = (replica(M, n, Phase.READY, shard(f"m/{n}", "n1", n - 1, port=20000 + n)) for n in (1, 2))


def judged(**by: Any) -> Verdicts:
    return Verdicts({ReplicaId(name.replace("__", "/")): verdict for name, verdict in by.items()})


def driven(verdicts: Verdicts, rows: Any = (FIRST, SECOND), **asked: Any) -> str:
    snap = snapshot([M], [node("n1")], list(rows))
    return _target(snap, verdicts, M, pb.RunBenchmarkRequest(model="m", **asked), NOW)[0].replica_id


BUSY, IDLE = Busy(3), Idle(50.0, never_asked=False)


def test_a_benchmark_drives_a_replica_that_no_client_uses() -> None:
    assert driven(judged(m__1=IDLE, m__2=IDLE)) == "m/1"
    assert driven(judged(m__1=BUSY, m__2=IDLE)) == "m/2"
    assert driven(judged(m__1=BUSY, m__2=Unknown("redis_not_configured"))) == "m/2", "unknown is not busy"
    assert driven(judged(m__1=Unknown("redis_not_configured"), m__2=IDLE)) == "m/2", "known to be idle"
    assert driven(judged(m__1=BUSY, m__2=IDLE), force=True) == "m/2"
    assert driven(judged(m__1=BUSY, m__2=Unknown("x")), force=True) == "m/2"
    with pytest.raises(Conflict, match="clients use m/1, m/2 now"):
        driven(judged(m__1=BUSY, m__2=BUSY))
    assert driven(judged(m__1=BUSY, m__2=BUSY), force=True) == "m/1"


async def test_a_dry_run_says_what_would_be_driven_and_for_how_long_at_most(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock, models=(KEPT,))
    session = await reign.fleet.open(hello())
    for _ in range(2):
        await reign._passes.once()
    (row,) = reign.ledger.stored.replicas.values()
    served = agent_pb2.ObservedShard(
        shard_id=row.shards[0].shard_id, replica_id="tiny/1", group_epoch=row.group_epoch,
        spec_hash=row.spec_hash, state=agent_pb2.SHARD_STATE_SERVING, probed=True,
        ports=dict(row.shards[0].ports), device_ids=list(row.shards[0].device_ids),
    )  # fmt: skip
    said = agent_pb2.ConnectRequest(
        session_epoch=session.epoch, shard_status=agent_pb2.ShardStatus(shards=[served])
    )
    await reign.fleet.hear(session, said)
    for _ in range(2):
        await reign._passes.once()

    async def plan(**asked: Any) -> pb.BenchmarkPlan:
        request = pb.RunBenchmarkRequest(model="tiny", dry_run=True, level_timeout_s=60, **asked)
        (answer,) = [one async for one in benchmarks_of(reign).RunBenchmark(request, None)]
        assert answer.HasField("plan")
        return answer.plan

    named = await plan(concurrency=[1, 4], requests_per_level=7)
    assert (named.replica_id, named.node_id, named.use) == ("tiny/1", "n1", "unknown")
    assert (list(named.concurrency), named.requests_per_level, named.at_most_s) == ([1, 4], 7, 180)
    free = await plan()
    assert list(free.concurrency) == [2**n for n in range(10)]
    assert free.at_most_s == 11 * 60
    with pytest.raises(NotFound, match="has no replica tiny/9"):
        await plan(replica_id="tiny/9")
    commands = [one.WhichOneof("body") for one in session.outbox._notices]
    assert "drive_benchmark" not in commands


def test_a_named_replica_is_driven_or_none() -> None:
    with pytest.raises(Conflict, match="clients use m/1 now"):
        driven(judged(m__1=BUSY, m__2=IDLE), replica_id="m/1")
    with pytest.raises(NotFound, match="m has no replica m/9"):
        driven(judged(), replica_id="m/9")
    starting = replica(M, 1, Phase.STARTING, shard("m/1", "n1", 0))
    with pytest.raises(Conflict, match="m/1 is starting, not ready"):
        driven(judged(), [starting], replica_id="m/1")


def test_a_cold_model_is_not_driven_and_the_way_out_is_told() -> None:
    with pytest.raises(Conflict, match="m has no ready replica to measure") as refused:
        driven(judged(), [])
    assert refused.value.next_steps == ("try: llmgwctl model activate m", "see: llmgwctl why m")
