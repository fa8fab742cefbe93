"""The edge of AgentService, in one process: what is said on a stream before and instead of a Hello."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from llmgw.v1 import agent_pb2 as pb
from llmgw.v1 import agent_pb2_grpc
from llmgw_controller.adapters.activity_redis import NoActivity
from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.adapters.mirror_grpc import NoMirror
from llmgw_controller.adapters.store_memory import MemoryStore
from llmgw_controller.core.lease import LeaseTiming
from llmgw_controller.core.state import Intervals
from llmgw_controller.metrics import ControllerMetrics
from llmgw_controller.office import Office
from llmgw_controller.reign import Reign, Rules, World
from llmgw_controller.servicer_agent import AgentServicer
from llmgw_kit import rpc
from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import SystemClock
from llmgw_kit.lifecycle import cancel_all

from .controller_bench import meant, until


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    """To a leading controller in this process that waits 0.3 s for a Hello."""
    clock = SystemClock()
    lease = MemoryLease(clock)
    world = World(MemoryStore(lease), NoActivity(), NoMirror(), clock, ControllerMetrics(), lambda: ())
    rules = Rules("test", (), Intervals(), 2.0, 5.0, 5.0, 3600.0, ())
    office = Office(
        lease, clock, name="c", address="c:1", timing=LeaseTiming(),
        make=lambda tenure: Reign(tenure, world, rules, name="c"),
    )  # fmt: skip
    server = rpc.server()
    agent_pb2_grpc.add_AgentServiceServicer_to_server(AgentServicer(office, hello_timeout_s=0.3), server)
    address = rpc.listen(server, HostPort("127.0.0.1", 0), flag="--listen")
    await server.start()
    leading = asyncio.create_task(office.leadership.run())
    await until("it leads", lambda: office.reign is not None)
    opened = rpc.channel(address)
    yield opened
    await opened.close()
    await cancel_all(leading)
    await server.stop(0)


def hello(**more: Any) -> pb.ConnectRequest:
    inventory = pb.Inventory(management_address="10.0.0.1")
    return pb.ConnectRequest(
        hello=pb.Hello(node_id="n1", boot_id="b", agent_instance="i", inventory=inventory, **more)
    )


async def talk(
    channel: grpc.aio.Channel, *words: pb.ConnectRequest, hang: bool = True
) -> list[pb.ConnectResponse]:
    """Say these words, then hold the stream open or end it; all answers until the other side ends it."""

    async def requests() -> AsyncIterator[pb.ConnectRequest]:
        for word in words:
            yield word
        if hang:
            await asyncio.sleep(10)

    call = agent_pb2_grpc.AgentServiceStub(channel).Connect(requests())
    return [answer async for answer in call]


HOMELESS = pb.Hello(node_id="n", boot_id="b", agent_instance="i")


@pytest.mark.parametrize(
    ("words", "hang", "told"),
    [
        ((), True, "no Hello within 0.3 s"),
        ((), False, "ended before its Hello"),
        ((pb.ConnectRequest(beat=pb.Beat(sequence=1)),), True, "the first message is beat, not hello"),
        ((pb.ConnectRequest(hello=pb.Hello(node_id="n1")),), True, "Hello without boot_id"),
        ((pb.ConnectRequest(hello=HOMELESS),), True, "management_address"),
    ],
    ids=["silence", "nothing", "beat", "half a hello", "no address"],
)  # fmt: skip
async def test_who_does_not_say_who_it_is_is_refused(
    channel: grpc.aio.Channel, words: tuple[pb.ConnectRequest, ...], hang: bool, told: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await talk(channel, *words, hang=hang)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert told in meant(caught.value).text


async def test_a_session_that_ends_its_side_is_ended(channel: grpc.aio.Channel) -> None:
    answers = await talk(channel, hello(), hang=False)
    assert answers[0].HasField("welcome")
    assert answers[0].welcome.leader_name == "c"
    assert answers[0].term == 1


async def test_a_word_that_makes_no_sense_ends_the_session_and_says_why(channel: grpc.aio.Channel) -> None:
    nonsense = pb.ShardStatus(shards=[pb.ObservedShard(shard_id="s", replica_id="r")])
    answers = await talk(channel, hello(), pb.ConnectRequest(session_epoch=1, shard_status=nonsense))
    assert answers[-1].reject.code == "invalid_shard_status"


async def test_who_has_seen_a_higher_term_is_served_under_one_above(channel: grpc.aio.Channel) -> None:
    (refusal,) = await talk(channel, hello(highest_term_seen=77))
    assert (refusal.term, refusal.reject.code) == (1, "stale_term")

    async def served() -> bool:
        try:
            answers = await talk(channel, hello(highest_term_seen=77), hang=False)
        except grpc.aio.AioRpcError:
            return False  # between two terms
        return answers[0].HasField("welcome") and answers[0].term == 78

    await until("a term above", served)
