"""Cold models that are asked for, through the real calls and loops: one start however many ask, again and
again, and what becomes of requests that come at the wrong moment."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from llmgw.v1 import operator_pb2, routing_pb2
from llmgw_controller.core.rows import Phase
from llmgw_kit.errors import Conflict
from llmgw_kit.ids import ModelId
from llmgw_kit.testing.clock import FakeClock

from .seat import Agent, Router, Seat

COLD = {
    "name": "tiny",
    "idle_after_s": 20,
    "min_residency_s": 5,
    "profiles": [{"engine": "command", "gpu_class": "L4", "command": ["engine", "{port}"]}],
}


@pytest.fixture
async def seat(fake_clock: FakeClock) -> AsyncIterator[Seat]:
    seat = await Seat(fake_clock, COLD).begin()
    yield seat
    await seat.end()


def kind(answers: list[routing_pb2.ActivateResponse]) -> str | None:
    return answers[-1].WhichOneof("body")


async def test_four_routers_with_fifty_requests_each_start_one_replica_once(seat: Seat) -> None:
    """Single flight: one row, one replica, one engine."""
    agent = await Agent(seat).begin()
    routers = [await Router(seat, f"r{number}").begin() for number in range(4)]
    asking = [
        seat.task(router.ask("tiny", waiting=50), f"ask {router.router_id} {number}")
        for router in routers
        for number in range(50)
    ]
    rows, held = set(), set()
    while not all(task.done() for task in asking):
        await seat.passes(0.5)
        rows.add(len(seat.reign.ledger.stored.activations))
        held.add(seat.reign.snapshot(seat.reign.ledger.stored).held.get(ModelId("tiny"), 0))
    assert rows <= {0, 1}
    assert max(held) == 200, "each router's fifty count once, however many calls carry them"
    assert {kind(task.result()) for task in asking} == {"ready"}
    assert list(seat.rows) == ["tiny/1"]
    assert agent.starts == ["tiny/1.1.0"]
    assert (await seat.told("tiny")).count("activated") == 1
    assert seat.reign.ledger.stored.activations == {}


async def test_up_and_down_twenty_times_at_changing_addresses(seat: Seat) -> None:
    """0 to 1 to 0 to 1: each request is answered by a new engine at another address (cases 18, 26)."""
    agent = await Agent(seat).begin()
    router = await Router(seat).begin()
    seen: list[tuple[str, str]] = []
    for round_ in range(20):
        assert router.models["tiny"].availability == routing_pb2.MODEL_AVAILABILITY_COLD, "cold, and listed"
        asking = seat.task(router.ask("tiny"), f"ask {round_}")
        took_s = await seat.until("an answer", asking.done, 60)
        assert kind(asking.result()) == "ready"
        assert took_s < 15
        (endpoint,) = router.routable()
        seen.append((endpoint.endpoint_id, endpoint.url))
        router.in_flight[endpoint.replica_id] = 1
        await seat.passes(6)
        router.in_flight.clear()
        await seat.until("nothing runs", lambda: not seat.rows and not agent.shards, 90)
        await seat.until("the route is gone", lambda: not router.endpoints, 10)
        await seat.passes(2)
    assert len({endpoint for endpoint, _ in seen}) == 20
    assert all(one[1] != other[1] for one, other in itertools.pairwise(seen))
    assert len(agent.starts) == 20


async def test_a_request_during_the_drain_gets_the_engine_that_is_still_there(seat: Seat) -> None:
    """Cases 18, 20: nobody waits for a victim that nobody frees, and nothing is loaded twice."""
    agent = await Agent(seat).begin()
    router = await Router(seat).begin()
    late = await Router(seat, "r2").begin()
    asking = seat.task(router.ask("tiny"), "ask")
    await seat.until("it is up", asking.done)
    late.deaf = True
    await seat.until("it drains", lambda: seat.rows["tiny/1"].phase is Phase.DRAINING, 60)
    await seat.passes(1)
    assert router.models["tiny"].availability == routing_pb2.MODEL_AVAILABILITY_COLD
    asking = seat.task(router.ask("tiny"), "ask again")
    took_s = await seat.until("an answer", asking.done, 10)
    assert kind(asking.result()) == "ready"
    assert took_s <= 2
    assert [row.endpoint_id for row in router.routable()] == ["tiny/1@1"]
    assert agent.starts == ["tiny/1.1.0"]
    # The mark of a second drain is not taken as seen because the first one was.
    late.deaf = True
    router.in_flight["tiny/1"] = 1
    await seat.passes(10)
    router.in_flight.clear()
    await seat.until("it drains again", lambda: seat.rows["tiny/1"].phase is Phase.DRAINING, 60)
    await seat.passes(8)
    assert seat.rows["tiny/1"].phase is Phase.DRAINING, "one router has not said that it stopped"
    late.deaf = False
    late.say()
    await seat.until("it is gone", lambda: not seat.rows, 30)


async def test_a_request_during_the_unload_is_new_demand(seat: Seat) -> None:
    agent = await Agent(seat).begin()
    router = await Router(seat).begin()
    asking = seat.task(router.ask("tiny"), "ask")
    await seat.until("it is up", asking.done)
    agent.ends = False
    await seat.until("it stops", lambda: seat.rows["tiny/1"].phase is Phase.STOPPING, 90)
    asking = seat.task(router.ask("tiny"), "ask again")
    await seat.until("an answer", asking.done, 60)
    (endpoint,) = router.routable()
    assert endpoint.replica_id == "tiny/2"
    assert seat.rows["tiny/1"].phase is Phase.STOPPING, "the old engine has not ended, and is not waited for"


async def test_a_router_that_does_not_acknowledge_keeps_an_idle_replica_up(seat: Seat) -> None:
    """The drain is taken back, and not begun again at once."""
    await Agent(seat).begin()
    router = await Router(seat).begin()
    deaf = await Router(seat, "r2").begin()
    asking = seat.task(router.ask("tiny"), "ask")
    await seat.until("it is up", asking.done)
    deaf.deaf = True
    await seat.until("it drains", lambda: seat.rows["tiny/1"].phase is Phase.DRAINING, 60)
    await seat.until("it serves again", lambda: seat.rows["tiny/1"].phase is Phase.READY, 40)
    assert "drain_cancelled" in await seat.told("tiny/1")
    await seat.passes(120)
    assert seat.rows["tiny/1"].phase is Phase.READY
    assert (await seat.told("tiny/1")).count("leaving") == 1
    assert [row.endpoint_id for row in router.routable()] == ["tiny/1@1"]


async def test_held_demand_and_a_slow_start_block_idleness(seat: Seat) -> None:
    """Case 25: the idle clock starts at READY, however long the load took."""
    agent = await Agent(seat, load_s=100.0).begin()
    router = await Router(seat).begin()
    asking = seat.task(router.ask("tiny"), "ask")
    await seat.until("it is up", asking.done, 130)
    await seat.passes(15)
    assert seat.rows["tiny/1"].phase is Phase.READY
    router.held["tiny"] = 1
    await seat.passes(60)
    assert seat.rows["tiny/1"].phase is Phase.READY
    assert "leaving" not in await seat.told("tiny/1"), "not even begun and taken back"
    router.held.clear()
    await seat.until("it leaves", lambda: not seat.rows, 60)
    assert len(agent.starts) == 1


async def test_absent_is_not_idle(seat: Seat) -> None:
    """Cases 16, 17: without a word of the routers nothing is scaled to zero; with it, it is."""
    await Agent(seat).begin()
    router = await Router(seat).begin()
    asking = seat.task(router.ask("tiny"), "ask")
    await seat.until("it is up", asking.done)
    seat.map.away = True
    await seat.passes(120)
    assert seat.rows["tiny/1"].phase is Phase.READY
    seat.map.away, router.silent = False, True
    await seat.passes(120)
    assert seat.rows["tiny/1"].phase is Phase.READY
    router.silent = False
    await seat.until("it leaves", lambda: not seat.rows, 60)


async def activate(seat: Seat, *, dry_run: bool = False) -> operator_pb2.ActivateModelResponse:
    request = operator_pb2.ActivateModelRequest(model="tiny", dry_run=dry_run)
    return await seat.operator.ActivateModel(request, None)


async def test_an_operators_activation_stays_open_although_nobody_repeats_it(seat: Seat) -> None:
    """Also while there is no node to start it on: the stale limit is for routers, which repeat themselves."""
    assert (await activate(seat, dry_run=True)).outcome == "starting"
    await seat.passes(5)
    assert seat.rows == {}
    assert seat.reign.ledger.stored.activations == {}
    assert (await activate(seat)).outcome == "starting"
    await seat.passes(60)
    assert seat.rows["tiny/1"].phase is Phase.UNPLACEABLE
    assert (await activate(seat)).outcome == "waiting"
    await seat.passes(600)
    assert ModelId("tiny") in seat.reign.ledger.stored.activations
    await Agent(seat).begin()
    await seat.until("it is up", lambda: seat.rows["tiny/1"].phase is Phase.READY, 60)
    await seat.passes(2)
    assert (await activate(seat)).outcome == "ready"
    assert seat.reign.ledger.stored.activations == {}


async def test_an_operators_activation_ends_at_its_bound(seat: Seat) -> None:
    await activate(seat)
    activations = seat.reign.ledger.stored.activations
    assert activations[ModelId("tiny")].kept_until is not None
    # A router asks too, and goes: its word does not shorten the operator's.
    router = await Router(seat).begin()
    answer = seat.task(router.ask("tiny"), "ask")
    await seat.until("refused", answer.done, 30)
    assert kind(answer.result()) == "refused"
    assert ModelId("tiny") in seat.reign.ledger.stored.activations
    row = seat.reign.ledger.stored.activations[ModelId("tiny")]
    assert row.kept_until is not None
    left_s = row.kept_until - seat.reign.tenure.now()
    await seat.clock.advance(left_s)
    await asyncio.sleep(0.05)
    await seat.passes(10)
    assert ModelId("tiny") not in seat.reign.ledger.stored.activations


async def test_what_may_not_be_activated_says_what_to_do(fake_clock: FakeClock) -> None:
    seat = await Seat(fake_clock, {**COLD, "activate_on_demand": False, "replicas": 1}).begin()
    try:
        await seat.passes(5)
        request = operator_pb2.StopModelRequest(model="tiny")
        await seat.operator.StopModel(request, None)
        with pytest.raises(Conflict) as refused:
            await activate(seat)
        assert refused.value.next_steps == ("llmgwctl model start tiny",)
    finally:
        await seat.end()
