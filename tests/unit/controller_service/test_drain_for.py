"""`replica drain --for`: idle ones make room for one model and nobody else, or come back after a while."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.core.plan import Release, Reserve
from llmgw_controller.core.rows import Phase, Wish
from llmgw_controller.core.state import EvictionPolicy, Intervals
from llmgw_kit.errors import Conflict, InvalidRequest, LlmgwError, NotFound
from llmgw_kit.ids import ReplicaId
from llmgw_kit.testing.clock import FakeClock

from .seat import Agent, Router, Seat
from .test_room import NEW, OLD, Commits


@pytest.fixture
async def seat(fake_clock: FakeClock) -> AsyncIterator[Seat]:
    """One node, held by `old`, which configuration keeps; `new` has none. Eviction is off."""
    lease = MemoryLease(fake_clock)
    off = Intervals(eviction=EvictionPolicy.OFF)
    made = await Seat(fake_clock, OLD, NEW, store=Commits(lease), lease=lease, intervals=off).begin()
    yield made
    await made.end()


async def ready(seat: Seat) -> tuple[Agent, Router]:
    agent, router = await Agent(seat).begin(), await Router(seat).begin()
    await seat.until("old serves", lambda: [row.replica_id for row in router.routable()] == ["old/1"])
    # Past the window in which a new leader judges nobody.
    await seat.passes(40)
    return agent, router


async def drain(seat: Seat, *names: str, **how: object) -> list[pb.ReplicaChange]:
    request = pb.DrainReplicaRequest(replica_id=names[0], more_replica_ids=names[1:], **how)  # type: ignore[arg-type]
    answer = await seat.operator.DrainReplica(request, None)
    return [answer.change, *answer.more]


async def asked_in_vain(seat: Seat, router: Router) -> None:
    """`new` was asked for and refused: one of it waits for room."""
    asking = seat.task(router.ask("new"), "asks")
    await seat.until("an answer", asking.done)
    assert asking.result()[-1].HasField("refused")
    assert seat.rows["new/1"].phase is Phase.UNPLACEABLE


async def test_the_room_goes_to_the_model_it_was_made_for_although_eviction_is_off(seat: Seat) -> None:
    """Drained without --for, `old` would be started again first, or any other that waits."""
    _, router = await ready(seat)
    await asked_in_vain(seat, router)
    before = seat.reign.ledger.stored
    dry = await drain(seat, "old/1", for_model="new", dry_run=True)
    assert seat.reign.ledger.stored == before
    (told,) = await drain(seat, "old/1", for_model="new")
    assert told == dry[0]
    assert "go to new/1, to nobody else; configuration keeps its model" in told.text
    row = seat.rows["old/1"]
    assert (row.wish, row.revocable) == (Wish.DRAIN, True)
    await seat.until("new serves", lambda: [one.replica_id for one in router.routable()] == ["new/1"])
    (plan,) = [plan for plan in seat.store.plans if any(isinstance(one, Reserve) for one in plan)][-1:]
    assert [one.replica_id for one in plan if isinstance(one, Release)] == ["old/1"], "handed over at once"
    (receipt,) = (await seat.operator.ListEvictions(pb.ListEvictionsRequest(), None)).evictions
    assert (receipt.state, receipt.evidence[0]) == ("done", "ordered by an operator")


async def test_a_victim_that_is_used_meanwhile_stays(seat: Seat) -> None:
    _, router = await ready(seat)
    await asked_in_vain(seat, router)
    router.deaf = True
    await drain(seat, "old/1", for_model="new")
    await seat.passes(2)
    router.in_flight["old/1"] = 1
    await seat.until("it serves again", lambda: seat.rows["old/1"].wish is Wish.SERVE)
    assert not [one for plan in seat.store.plans for one in plan if isinstance(one, Release)]


async def refused(seat: Seat, *names: str, **how: object) -> LlmgwError:
    before = seat.reign.ledger.stored
    with pytest.raises(LlmgwError) as found:
        await drain(seat, *names, **how)
    assert seat.reign.ledger.stored == before, "all or nothing"
    assert found.value.next_steps
    return found.value


async def test_what_is_not_idle_or_helps_nobody_is_refused_whole(seat: Seat) -> None:
    _, router = await ready(seat)
    assert (await refused(seat, "old/1", for_model="new")).code == "nobody_waits"
    await asked_in_vain(seat, router)
    assert isinstance(await refused(seat, "old/9", for_model="new"), NotFound)
    assert isinstance(await refused(seat, "old/1", for_model="newer"), NotFound)
    assert (await refused(seat, "old/1", "new/1", for_model="new")).code == "same_model"
    assert (await refused(seat, "old/1", for_model="old")).code == "nobody_waits"
    router.in_flight["old/1"] = 1
    await seat.passes(6)
    busy = await refused(seat, "old/1", for_model="new")
    assert (busy.code, isinstance(busy, Conflict)) == ("in_use", True)
    router.in_flight.clear()
    router.silent = True
    await seat.passes(30)
    assert (await refused(seat, "old/1", for_model="new")).code == "unknown"
    router.silent = False
    await seat.passes(6)
    await seat.operator.PinModel(pb.PinModelRequest(model="old", pinned=True), None)
    assert (await refused(seat, "old/1", for_model="new")).code == "pinned"


async def test_away_for_a_while_and_back_by_itself(seat: Seat) -> None:
    agent, router = await ready(seat)
    (dry,) = await drain(seat, "old/1", for_s=120.0, dry_run=True)
    assert "old/2" not in seat.rows
    (told,) = await drain(seat, "old/1", for_s=120.0)
    assert told == dry
    assert told.text.endswith(
        "; then its 2 GPUs are free; old/2 takes its place in 2 m 00 s, not before. "
        "Sooner: llmgwctl replica stop old/2"
    )
    await seat.until("old/1 is gone", lambda: "old/1" not in seat.rows)
    held = seat.rows["old/2"]
    assert (held.phase, held.reason) == (Phase.BACKOFF, "held back by an operator in the place of old/1")
    await seat.passes(60)
    assert [(row.replica_id, row.phase) for row in seat.reign.ledger.stored.sorted_replicas] == [
        ("old/2", Phase.BACKOFF)
    ]
    assert "held_back" in await seat.told("old/2")
    status = await seat.operator.GetStatus(pb.GetStatusRequest(), None)
    (note,) = [one for one in status.trouble if one.kind == "replica_held_back"]
    assert (note.subject, note.severity) == ("old/2", pb.TROUBLE_SEVERITY_NOTE)
    assert not note.HasField("fix"), "it is no trouble that a next step should end"
    assert "; started in " in note.text
    await seat.until("it is back", lambda: [one.replica_id for one in router.routable()] == ["old/2"])
    assert agent.starts == ["old/1.1.0", "old/2.2.0"]


async def test_sooner_is_a_stop_of_the_one_that_waits(seat: Seat) -> None:
    _, router = await ready(seat)
    await drain(seat, "old/1", for_s=86_400.0)
    await seat.until("old/1 is gone", lambda: "old/1" not in seat.rows)
    await seat.operator.StopReplica(pb.StopReplicaRequest(replica_id="old/2"), None)
    await seat.until("one is back", lambda: len(router.routable()) == 1)


async def test_who_would_not_come_back_is_not_sent_away_for_a_while(seat: Seat) -> None:
    _, router = await ready(seat)
    await asked_in_vain(seat, router)
    assert (await refused(seat, "old/1", "new/1", for_s=60.0)).code == "not_kept"
    assert "old/2" not in seat.rows


@pytest.mark.parametrize(
    "how", [{"for_s": 0.0}, {"for_s": float("nan")}, {"for_s": 1e9}, {"for_s": 5.0, "for_model": "new"}]
)
async def test_times_that_are_none(seat: Seat, how: dict[str, object]) -> None:
    await ready(seat)
    with pytest.raises(InvalidRequest):
        await drain(seat, "old/1", **how)
    assert seat.reign.ledger.stored.replicas[ReplicaId("old/1")].wish is Wish.SERVE
