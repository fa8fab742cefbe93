"""Questions to a node over its stream: each ends, whatever ends first; none grows without bound."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from llmgw.v1 import agent_pb2 as pb
from llmgw_controller.fleet import Session
from llmgw_controller.node_asks import ALL_MOST, BUFFER_BYTES, NODE_MOST, Ask
from llmgw_controller.ports import Fenced
from llmgw_controller.reign import Reign
from llmgw_kit.errors import Unavailable
from llmgw_kit.ids import NodeId
from llmgw_kit.testing.clock import FakeClock

from .reigns import hello, reign_on

N1, N2 = NodeId("n1"), NodeId("n2")


def read(command_id: str) -> pb.ConnectResponse:
    return pb.ConnectResponse(read_logs=pb.ReadLogs(command_id=command_id, shard_id="tiny/1.1.0"))


def told(session: Session) -> list[pb.ConnectResponse]:
    """Commands that wait to go down."""
    return list(session.outbox._notices)


async def say(reign: Reign, session: Session, **body: Any) -> None:
    await reign.fleet.hear(session, pb.ConnectRequest(session_epoch=session.epoch, **body))


async def piece(reign: Reign, session: Session, ask: Ask, data: bytes, **more: Any) -> None:
    await say(reign, session, log_piece=pb.LogPiece(command_id=ask.command_id, data=data, **more))


async def test_an_answer_reaches_who_asked_and_the_end_leaves_nothing_behind(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock)
    session = await reign.fleet.open(hello())
    async with reign.fleet.asks.asking(N1, read) as ask:
        assert told(session)[-1].read_logs.command_id == ask.command_id
        assert told(session)[-1].term == reign.tenure.term
        await piece(reign, session, ask, b"one\n")
        await piece(reign, session, ask, b"", end=True)
        first, last = await ask.next(1), await ask.next(1)
        assert isinstance(first, pb.LogPiece)
        assert isinstance(last, pb.LogPiece)
        assert (first.data, first.gap, last.end) == (b"one\n", False, True)
    assert reign.fleet.asks.open == 0
    assert len(told(session)) == 1, "what has ended is not cancelled"


async def test_who_leaves_early_cancels_on_the_node_and_again_when_more_comes(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock)
    session = await reign.fleet.open(hello())
    async with reign.fleet.asks.asking(N1, read) as ask:
        await piece(reign, session, ask, b"x")
    assert told(session)[-1].cancel_command.command_id == ask.command_id
    # The first word may have been dropped: each piece that nobody wants asks for the end again.
    await piece(reign, session, ask, b"y")
    assert [one.WhichOneof("body") for one in told(session)[1:]] == ["cancel_command"] * 2
    await piece(reign, session, ask, b"", end=True)
    assert len(told(session)) == 3


async def test_an_answer_of_another_node_is_not_taken(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock)
    await reign.fleet.open(hello())
    other = await reign.fleet.open(hello("n2"))
    async with reign.fleet.asks.asking(N1, read) as ask:
        await piece(reign, other, ask, b"forged")
        waiting = asyncio.ensure_future(ask.next(5))
        await fake_clock.advance(5)
        with pytest.raises(Unavailable, match="n1 did not answer within 5 s"):
            await waiting


@pytest.mark.parametrize("how", ["stream ends", "agent restarts"])
async def test_a_session_that_ends_ends_what_was_asked_in_it(fake_clock: FakeClock, how: str) -> None:
    reign = await reign_on(fake_clock)
    session = await reign.fleet.open(hello())
    async with reign.fleet.asks.asking(N1, read) as ask:
        await piece(reign, session, ask, b"last words\n")
        if how == "stream ends":
            reign.fleet.closed(session)
        else:
            await reign.fleet.open(hello(instance="i2"))
        kept = await ask.next(1)
        assert isinstance(kept, pb.LogPiece)
        assert kept.data == b"last words\n", "what had come is still read"
        with pytest.raises(Unavailable, match="node n1 went away") as ended:
            await ask.next(1)
        assert ended.value.code == "node_went_away"
    assert reign.fleet.asks.open == 0


async def test_the_end_of_the_term_ends_what_was_asked_in_it(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock)
    await reign.fleet.open(hello())
    async with reign.fleet.asks.asking(N1, read) as ask:
        waiting = asyncio.ensure_future(ask.next())
        await asyncio.sleep(0)
        reign.close(None, stopping=False)
        with pytest.raises(Fenced, match="ended meanwhile"):
            await waiting


async def test_a_node_that_is_not_connected_is_not_waited_for(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock)
    with pytest.raises(Unavailable, match="node n1 is not connected"):
        async with reign.fleet.asks.asking(N1, read):
            raise AssertionError("nobody was there")
    assert reign.fleet.asks.open == 0


async def test_a_log_that_nobody_reads_stays_within_its_buffer_and_says_what_is_missing(
    fake_clock: FakeClock,
) -> None:
    reign = await reign_on(fake_clock)
    session = await reign.fleet.open(hello())
    size = 32 * 1024
    count = 3 * BUFFER_BYTES // size
    async with reign.fleet.asks.asking(N1, read) as ask:
        for number in range(count):
            await piece(reign, session, ask, bytes([number % 256]) * size)
        assert ask._bytes <= BUFFER_BYTES
        got = []
        while ask._replies:
            reply = await ask.next(1)
            assert isinstance(reply, pb.LogPiece)
            got.append(reply)
        assert [one.gap for one in got] == [True] + [False] * (len(got) - 1)
        assert got[-1].data[0] == (count - 1) % 256, "the newest is kept"
        assert len(got) == BUFFER_BYTES // size


async def test_questions_are_bounded_for_each_node_and_for_all(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock)
    asks = reign.fleet.asks
    async with AsyncExitStack() as stack:
        for number in range(ALL_MOST // NODE_MOST):
            await reign.fleet.open(hello(f"n{number}"))
            for _ in range(NODE_MOST):
                await stack.enter_async_context(asks.asking(NodeId(f"n{number}"), read))
            with pytest.raises(Unavailable, match=f"{NODE_MOST} questions to node"):
                await stack.enter_async_context(asks.asking(NodeId(f"n{number}"), read))
        await reign.fleet.open(hello("free"))
        with pytest.raises(Unavailable, match=f"{ALL_MOST} in all"):
            await stack.enter_async_context(asks.asking(NodeId("free"), read))
    assert asks.open == 0
