"""Weights brought to and removed from a whole fleet: in turns, within a bounded time, in nobody's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llmgw.v1 import agent_pb2
from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.fleet import Session
from llmgw_controller.node_asks import ALL_MOST, TURNS
from llmgw_controller.office import Office
from llmgw_controller.operator.weights import ALL_PREFETCH_S, WeightsCalls
from llmgw_controller.reign import Reign
from llmgw_kit.errors import InvalidRequest, LlmgwError, NotFound, NotLeader, Unavailable
from llmgw_kit.ids import NodeId
from llmgw_kit.lifecycle import cancel_all
from llmgw_kit.testing.clock import FakeClock

from .reigns import KEPT, hello, reign_on

NODES = [f"n{number:03}" for number in range(200)]
MODEL = {
    **KEPT,
    "aliases": ["little"],
    "replicas": 0,
    "weights": {"version": "v1", "files": [{"path": "a", "url": "https://a/a", "sha256": "0" * 64}]},
}


def read(command_id: str) -> agent_pb2.ConnectResponse:
    return agent_pb2.ConnectResponse(read_logs=agent_pb2.ReadLogs(command_id=command_id, shard_id="x"))


class Fleet:
    """200 agents on one leader; each answers a command about weights a second later, or never."""

    def __init__(self, reign: Reign, clock: FakeClock, *, answers: bool) -> None:
        self.reign, self.clock, self.answers = reign, clock, answers
        #: Most that were asked at one time.
        self.most = 0
        self._asked = 0
        office = SimpleNamespace(
            require=lambda: reign, reign=reign, clock=clock,
            not_leading=lambda: NotLeader("stands by", leader_address=None),
        )  # fmt: skip
        self.calls = WeightsCalls(cast("Office", office), store_kind="memory", config_hash="x")

    async def serve(self, session: Session) -> None:
        async for message in session.outbox.messages():
            kind = message.WhichOneof("body")
            if kind not in ("prefetch_weights", "remove_weights"):
                continue
            self._asked += 1
            self.most = max(self.most, self._asked)
            if not self.answers:
                continue
            await self.clock.sleep(1.0)
            self._asked -= 1
            result = agent_pb2.CommandResult(command_id=getattr(message, kind).command_id, accepted=True)
            said = agent_pb2.ConnectRequest(session_epoch=session.epoch, command_result=result)
            await self.reign.fleet.hear(session, said)

    async def result(self, call: Any, *, within_s: float) -> Any:
        task = asyncio.ensure_future(call)
        for _ in range(int(within_s)):
            await asyncio.sleep(0.001)  # what decides in a thread comes back
            await self.clock.advance(1.0)
            if task.done():
                break
        return await asyncio.wait_for(task, 5)


@asynccontextmanager
async def fleet(
    clock: FakeClock, *versions: str, answers: bool = True, names: Sequence[str] = NODES
) -> AsyncIterator[Fleet]:
    """Each node holds all of `versions`."""
    reign = await reign_on(clock, models=(MODEL,))
    async with reign.ledger.writing():
        pass
    made = Fleet(reign, clock, answers=answers)
    held = [agent_pb2.HeldWeights(model="tiny", version=one, complete=True, bytes=7) for one in versions]
    sessions = [await reign.fleet.open(hello(name, weights=held)) for name in names]
    async with reign.ledger.writing():
        await reign.ledger.commit(reign.fleet.take_news())
    tasks = [asyncio.create_task(made.serve(session)) for session in sessions]
    try:
        yield made
    finally:
        await cancel_all(*tasks)


def outcomes(answer: Any) -> set[str]:
    return {change.outcome for change in answer.changes}


async def test_weights_are_brought_to_more_nodes_than_are_asked_at_once(
    fake_clock: FakeClock,
) -> None:
    async with fleet(fake_clock) as made:
        request = pb.PrefetchWeightsRequest(model="tiny", node_ids=NODES)
        answer = await made.result(made.calls.PrefetchWeights(request, None), within_s=20)
        assert len(answer.changes) == len(NODES)
        assert outcomes(answer) == {"asked"}, answer.changes[-1]
        assert made.most == TURNS
        assert made.reign.fleet.asks.open == 0


async def test_what_is_no_model_yet_is_told_how_a_version_of_the_mirror_becomes_one(
    fake_clock: FakeClock,
) -> None:
    async with fleet(fake_clock) as made:
        request = pb.PrefetchWeightsRequest(model="fetched-only")
        with pytest.raises(NotFound) as refused:
            await made.result(made.calls.PrefetchWeights(request, None), within_s=20)
        assert refused.value.code == "model_not_found"
        line = "llmgwctl mirror suggest MODEL@VERSION | llmgwctl model apply -"
        assert line in refused.value.next_steps[-1]


async def test_weights_are_removed_from_a_whole_fleet(fake_clock: FakeClock) -> None:
    async with fleet(fake_clock, "v1") as made:
        request = pb.RemoveWeightsRequest(model="tiny", version="v1")
        answer = await made.result(made.calls.RemoveWeights(request, None), within_s=20)
        assert len(answer.changes) == len(NODES)
        assert outcomes(answer) == {"removed"}, answer.changes[-1]


async def test_logs_and_a_fleets_weights_do_not_keep_each_other_out(fake_clock: FakeClock) -> None:
    async with fleet(fake_clock) as made, AsyncExitStack() as terminals:
        asks = made.reign.fleet.asks
        for number in range(ALL_MOST - 1):
            await terminals.enter_async_context(asks.asking(NodeId(NODES[number]), read))
        request = pb.PrefetchWeightsRequest(model="tiny", node_ids=NODES)
        calling = asyncio.ensure_future(made.calls.PrefetchWeights(request, None))
        await fake_clock.advance(0.5)
        assert made.most == TURNS
        await terminals.enter_async_context(asks.asking(NodeId(NODES[-1]), read))
        with pytest.raises(Unavailable, match="64 in all"):
            await terminals.enter_async_context(asks.asking(NodeId(NODES[-1]), read))
        assert outcomes(await made.result(calling, within_s=20)) == {"asked"}


async def test_a_fleet_that_says_nothing_is_told_node_by_node_while_the_caller_still_waits(
    fake_clock: FakeClock,
) -> None:
    async with fleet(fake_clock, answers=False) as made:
        request = pb.PrefetchWeightsRequest(model="tiny", node_ids=NODES)
        answer = await made.result(made.calls.PrefetchWeights(request, None), within_s=ALL_PREFETCH_S + 2)
        assert outcomes(answer) == {"failed"}
        texts = [change.text for change in answer.changes]
        assert sum("did not answer within 15 s" in text for text in texts) == 3 * TURNS
        assert sum("was not asked" in text for text in texts) == len(NODES) - 3 * TURNS
        assert made.reign.fleet.asks.open == 0
        # The turns are free again.
        made.answers = True
        again = pb.PrefetchWeightsRequest(model="tiny", node_ids=NODES[100:110])
        assert outcomes(await made.result(made.calls.PrefetchWeights(again, None), within_s=20)) == {"asked"}


TWO = ("b179c9523d0e", "b179aaaaaaaa")


@pytest.mark.parametrize(
    ("versions", "typed", "meant"),
    [
        (TWO, "b179c9523d0e", "b179c9523d0e"),
        (TWO, "b179c", "b179c9523d0e"),
        (("b179", *TWO), "b179", "b179"),
        (("v1",), "v1", "v1"),
    ],
    ids=["whole", "a beginning", "whole, and the beginning of others", "short and whole"],
)
async def test_a_version_is_named_by_its_beginning_too(
    fake_clock: FakeClock, versions: tuple[str, ...], typed: str, meant: str
) -> None:
    async with fleet(fake_clock, *versions, names=NODES[:1]) as made:
        for model in ("tiny", "little"):
            request = pb.RemoveWeightsRequest(model=model, version=typed, dry_run=True)
            answer = await made.result(made.calls.RemoveWeights(request, None), within_s=20)
            assert (answer.model, answer.version, outcomes(answer)) == ("tiny", meant, {"removed"})


@pytest.mark.parametrize(
    ("typed", "error", "said"),
    [
        ("b179", InvalidRequest, "2 versions of tiny begin with b179: b179aaaaaaaa, b179c9523d0e"),
        ("b17", NotFound, "no connected node holds tiny b17"),
        ("c179", NotFound, "no connected node holds tiny c179"),
    ],
)
async def test_a_beginning_that_names_no_version_alone_removes_nothing(
    fake_clock: FakeClock, typed: str, error: type[LlmgwError], said: str
) -> None:
    async with fleet(fake_clock, *TWO, names=NODES[:1]) as made:
        with pytest.raises(error, match=said):
            await made.calls.RemoveWeights(pb.RemoveWeightsRequest(model="tiny", version=typed), None)
