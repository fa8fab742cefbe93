"""Room made by itself and by hand, through a whole leader: its passes, its routes, its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.adapters.store_memory import MemoryStore
from llmgw_controller.core.plan import Change, PutEviction, Release, Reserve
from llmgw_controller.core.rows import EvictionState, Phase, Wish
from llmgw_controller.core.state import EvictionPolicy, Intervals
from llmgw_kit.errors import InvalidRequest, NotFound, NotLeader, Unavailable
from llmgw_kit.ids import LeaseTerm
from llmgw_kit.testing.clock import FakeClock

from .seat import Agent, Router, Seat

#: Both GPUs of a node.
WIDE = {
    "engine": "command", "gpu_class": "L4", "command": ["engine", "{port}"], "gpus_per_node": 2,
    "tensor_parallel": 2,
}  # fmt: skip
OLD = {"name": "old", "profiles": [WIDE], "replicas": 1, "idle_after_s": 60, "min_residency_s": 30}
NEW = {"name": "new", "profiles": [WIDE], "priority": 1, "min_residency_s": 30}
ON = Intervals(eviction=EvictionPolicy.ON)


class Commits(MemoryStore):
    """Remembers what was committed together."""

    def __init__(self, lease: MemoryLease) -> None:
        super().__init__(lease)
        self.plans: list[list[Change]] = []

    async def commit(self, term: LeaseTerm, changes: Sequence[Change]) -> None:
        await super().commit(term, changes)
        self.plans.append(list(changes))


@pytest.fixture
async def seat(fake_clock: FakeClock) -> AsyncIterator[Seat]:
    """One node, held by `old`; `new` has none."""
    lease = MemoryLease(fake_clock)
    made = await Seat(fake_clock, OLD, NEW, store=Commits(lease), lease=lease, intervals=ON).begin()
    yield made
    await made.end()


async def ready(seat: Seat) -> tuple[Agent, Router]:
    agent, router = await Agent(seat).begin(), await Router(seat).begin()
    await seat.until("old serves", lambda: [row.replica_id for row in router.routable()] == ["old/1"])
    return agent, router


async def receipts(seat: Seat) -> list[pb.EvictionRow]:
    return list((await seat.operator.ListEvictions(pb.ListEvictionsRequest(), None)).evictions)


async def test_the_room_goes_to_who_waits_in_one_transaction_while_the_request_is_held(seat: Seat) -> None:
    _, router = await ready(seat)
    await seat.passes(60)
    asking = seat.task(router.ask("new"), "asks")
    took_s = await seat.until("new serves", lambda: [r.replica_id for r in router.routable()] == ["new/1"])
    assert took_s < 30
    await seat.until("its request is released", asking.done)
    assert asking.result()[-1].HasField("ready")
    assert isinstance(seat.store, Commits)
    (plan,) = [plan for plan in seat.store.plans if any(isinstance(one, Release) for one in plan)]
    assert [one.replica_id for one in plan if isinstance(one, Release)] == ["old/1"]
    assert [one.replica.replica_id for one in plan if isinstance(one, Reserve)] == ["new/1"]
    states = [one.eviction.state for one in plan if isinstance(one, PutEviction)]
    assert states == [EvictionState.DONE]
    (receipt,) = await receipts(seat)
    assert (receipt.state, receipt.beneficiary_replica_id) == ("done", "new/1")
    assert receipt.real_free_s > 0
    assert receipt.HasField("acknowledged_unix_s")
    assert receipt.reload_s == pytest.approx(4.0, abs=3.0)


async def test_a_router_that_does_not_acknowledge_keeps_the_victim_up_and_it_serves_on(seat: Seat) -> None:
    agent, router = await ready(seat)
    await seat.passes(60)
    router.deaf = True
    seat.task(router.ask("new"), "asks")
    await seat.until("it is marked", lambda: "old/1@1" in router.drains)
    await seat.until("it serves again", lambda: [r.replica_id for r in router.routable()] == ["old/1"])
    assert agent.starts == ["old/1.1.0"], "the same engine: it was told nothing"
    (receipt,) = await receipts(seat)
    assert receipt.state == "cancelled"
    assert "eviction_cancelled" in await seat.told("old/1")


async def test_a_stream_that_began_before_the_mark_ends_by_itself_and_the_victim_stays(seat: Seat) -> None:
    """Cases 12 and 20: it was picked in the moment in which it was chosen."""
    agent, router = await ready(seat)
    await seat.passes(60)
    seat.task(router.ask("new"), "asks")
    await seat.until("it is marked", lambda: "old/1@1" in router.drains)
    router.in_flight["old/1"] = 1
    agent.running = 1
    await seat.until("it serves again", lambda: [r.replica_id for r in router.routable()] == ["old/1"])
    (receipt,) = await receipts(seat)
    assert receipt.state == "cancelled"
    assert agent.starts == ["old/1.1.0"]


async def test_a_refused_demand_that_comes_again_gets_its_turn(seat: Seat) -> None:
    """Refused while nobody may leave; clients come again, and a pass sees each of them."""
    _, router = await ready(seat)
    first = await router_asks(seat, router)
    assert first == "refused", "old is not idle for long enough yet"
    for _ in range(12):
        if await router_asks(seat, router) == "ready":
            break
        await seat.passes(10)
    assert [row.replica_id for row in router.routable()] == ["new/1"]


async def router_asks(seat: Seat, router: Router) -> str:
    asking = seat.task(router.ask("new"), "asks")
    await seat.until("an answer", asking.done)
    return "ready" if asking.result()[-1].HasField("ready") else "refused"


async def reclaim(seat: Seat, **request: object) -> pb.ReclaimResponse:
    return await seat.operator.Reclaim(pb.ReclaimRequest(**request), None)  # type: ignore[arg-type]


async def test_a_plan_says_what_stays_and_why_and_changes_nothing(seat: Seat) -> None:
    await ready(seat)
    await seat.passes(20)
    before = seat.rows
    plan = await reclaim(seat)
    (held,) = plan.holdings
    assert (held.replica_id, held.kept_because, held.gpus) == ("old/1", "configured", 2)
    assert "configuration keeps 1" in held.kept_text
    assert held.gpu_hours == pytest.approx(2 * held.idle_s / 3600)
    assert (plan.gpus, plan.gpu_hours, len(plan.changes)) == (0, 0, 0)
    assert seat.rows == before


async def test_apply_lets_go_what_is_idle_beyond_doubt_and_only_that(fake_clock: FakeClock) -> None:
    narrow = {**WIDE, "gpus_per_node": 1, "tensor_parallel": 1}
    seat = await Seat(
        fake_clock, {"name": "a", "profiles": [narrow], "min_residency_s": 0},
        {"name": "b", "profiles": [narrow], "min_residency_s": 0},
    ).begin()  # fmt: skip
    _, router = await Agent(seat).begin(), await Router(seat).begin()
    for name in ("a", "b"):
        asking = seat.task(router.ask(name), f"asks for {name}")
        await seat.until(f"{name} serves", asking.done)
    await seat.passes(30)
    router.in_flight["b/1"] = 1
    await seat.passes(10)
    plan = await reclaim(seat, idle_s=20.0)
    assert [one.replica_id for one in plan.holdings if not one.HasField("kept_because")] == ["a/1"]
    done = await reclaim(seat, idle_s=20.0, apply=True)
    assert [(one.replica_id, one.outcome) for one in done.changes] == [("a/1", "draining")]
    assert seat.rows["a/1"].wish is Wish.DRAIN
    assert (seat.rows["a/1"].reason or "").startswith("reclaimed by operator: idle 4")
    await seat.until("its room is free", lambda: "a/1" not in seat.rows)
    assert seat.rows["b/1"].phase is Phase.READY
    await seat.end()


async def test_unknown_is_apart_and_never_let_go(seat: Seat) -> None:
    _, router = await ready(seat)
    await seat.passes(30)
    router.silent = True
    await seat.passes(30)
    found = await reclaim(seat, idle_s=1.0, apply=True)
    assert not found.holdings
    assert not found.changes
    assert [(one.replica_id, one.reason, one.gpus) for one in found.unknown] == [
        ("old/1", "router_silent", 2)
    ]


async def test_bad_requests_are_refused_before_anything_is_looked_at(seat: Seat) -> None:
    await ready(seat)
    for idle_s in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidRequest):
            await reclaim(seat, idle_s=idle_s, apply=True)
    with pytest.raises(NotFound) as refused:
        await reclaim(seat, model="olt", apply=True)
    assert "did you mean 'old'" in refused.value.text
    with pytest.raises(NotFound):
        await seat.operator.ListEvictions(pb.ListEvictionsRequest(model="olt"), None)


async def test_a_new_leader_lets_nothing_go_before_it_has_heard_all_nodes(fake_clock: FakeClock) -> None:
    lease = MemoryLease(fake_clock)
    store = MemoryStore(lease)
    first = await Seat(fake_clock, OLD, store=store, lease=lease).begin()
    await ready(first)
    tenure = first.reign.tenure
    await first.end()
    await lease.release(tenure.lease)
    second = await Seat(fake_clock, OLD, store=store, lease=lease).begin()
    with pytest.raises(Unavailable) as refused:
        await reclaim(second, apply=True)
    assert "has not heard all nodes" in refused.value.text
    assert second.rows["old/1"].wish is Wish.SERVE
    await second.end()


async def test_the_status_prices_what_nobody_asks_for_and_suggests(fake_clock: FakeClock) -> None:
    suggest = Intervals(eviction=EvictionPolicy.SUGGEST)
    seat = await Seat(fake_clock, OLD, NEW, intervals=suggest).begin()
    _, router = await ready(seat)
    await seat.passes(60)
    assert await router_asks(seat, router) == "refused"
    status = await seat.operator.GetStatus(pb.GetStatusRequest(), None)
    assert [one.replica_id for one in status.nobody_asked] == ["old/1"]
    assert status.nobody_asked[0].gpu_hours > 0
    (one,) = status.suggestions
    assert (one.beneficiary_model, list(one.victim_replica_ids)) == ("new", ["old/1"])
    assert seat.rows["old/1"].wish is Wish.SERVE
    await seat.end()


async def test_an_ask_that_waits_for_a_pass_ends_with_the_term(seat: Seat) -> None:
    """Found by the looped simulation, seed 41: whoever asked for room in the moment in which a leader lost
    its lease waited for a pass of that term for ever, and no router asked anybody else."""
    router = await Router(seat).begin()
    first = seat.task(router.ask("new"), "first ask")
    await seat.until("refused", first.done, 60)
    await seat.passes(20)
    second = asyncio.create_task(router.ask("new"))
    await turns()
    assert not second.done(), "it waits for a pass that has seen the ask"
    await seat.end()
    await turns()
    assert second.done()
    with pytest.raises(NotLeader):
        await second


async def turns() -> None:
    """Of the loop, while no time goes by."""
    for _ in range(50):
        await asyncio.sleep(0)
