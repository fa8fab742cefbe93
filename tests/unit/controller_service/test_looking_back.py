"""The status as it was, and events as they come: on a whole leader with a clock that the test moves."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.plan import PutEvent, Severity
from llmgw_controller.operator import events as followed
from llmgw_kit.errors import InvalidRequest, NotFound, NotLeader, Unavailable
from llmgw_kit.testing.clock import FakeClock

from .reigns import KEPT
from .seat import Agent, Router, Seat


@pytest.fixture
async def seat() -> AsyncIterator[Seat]:
    made = await Seat(FakeClock(), KEPT).begin()
    yield made
    await made.end()


async def status(seat: Seat, at: float | None = None) -> pb.GetStatusResponse:
    return await seat.operator.GetStatus(pb.GetStatusRequest(at_unix_s=at), None)


async def span(seat: Seat) -> tuple[float, float]:
    found = await seat.store.history.span()
    assert found is not None
    return found


async def test_a_change_is_on_record_within_seconds_and_rest_is_not(seat: Seat) -> None:
    await seat.passes(11)
    first, _ = await span(seat)
    await Agent(seat).begin()
    await seat.passes(40)
    before = await span(seat)
    assert before[0] == first
    now = seat.reign.tenure.now()
    assert now - before[1] <= 40
    # Nothing moves any more: no record but that somebody watched.
    await seat.passes(300)
    assert await span(seat) == before
    await seat.passes(400)
    kept = await span(seat)
    assert kept[1] > before[1]


async def test_numbers_that_move_are_worth_a_record_a_minute(seat: Seat) -> None:
    router = await Router(seat).begin()
    await Agent(seat).begin()
    await seat.until("ready", lambda: router.routable())
    await seat.passes(100)
    times = set()
    for load in range(1, 30):
        router.in_flight = {"tiny/1": load}
        await seat.passes(10)
        times.add((await span(seat))[1])
    gaps = [later - earlier for earlier, later in zip(sorted(times)[:-1], sorted(times)[1:], strict=True)]
    gaps = gaps[1:]  # The first is from before anything moved.
    assert gaps
    assert min(gaps) >= 55, gaps
    assert max(gaps) <= 75, gaps


async def test_the_status_of_a_time_is_what_was_recorded_last_before_it(seat: Seat) -> None:
    await seat.passes(12)
    empty_at = seat.reign.tenure.now()
    router = await Router(seat).begin()
    await Agent(seat).begin()
    await seat.until("ready", lambda: router.routable())
    await seat.passes(30)
    ready_at = seat.reign.tenure.now()
    assert (await status(seat)).replicas[0].phase == pb.REPLICA_PHASE_READY
    then = await status(seat, empty_at)
    assert then.asked_unix_s == empty_at
    assert then.recorded_unix_s <= empty_at
    assert then.info.at_unix_s == pytest.approx(then.recorded_unix_s)
    assert [row.gpu_class for row in then.capacity] == []
    assert then.replicas[0].phase == pb.REPLICA_PHASE_UNPLACEABLE or not then.replicas[0].shards
    now = await status(seat, ready_at)
    assert now.replicas[0].phase == pb.REPLICA_PHASE_READY
    # What came between a record and the time asked for is told, and nothing that came later.
    between = await status(seat, now.recorded_unix_s - 0.001)
    while between.replicas[0].phase == pb.REPLICA_PHASE_READY:
        between = await status(seat, between.recorded_unix_s - 0.001)
    kinds = [event.kind for event in between.events_since]
    times = [event.at_unix_s for event in between.events_since]
    assert times == sorted(times)
    assert all(between.recorded_unix_s < at <= now.recorded_unix_s for at in times)
    assert "ready" in kinds or "placed" in kinds or "node_registered" in kinds


async def test_a_time_that_has_not_come_or_is_too_long_ago_is_refused_with_what_there_is(seat: Seat) -> None:
    await seat.passes(12)
    first, last = await span(seat)
    now = seat.reign.tenure.now()
    with pytest.raises(InvalidRequest, match="has not come yet"):
        await status(seat, now + 5)
    with pytest.raises(NotFound, match="records go from") as refused:
        await status(seat, first - 1)
    assert refused.value.code == "not_recorded"
    assert first <= last <= now


async def test_what_is_recorded_is_all_that_the_present_status_tells() -> None:
    """Also the risks, the policy of evictions and what the witnesses disagree on."""
    seat = await Seat(FakeClock(), KEPT).begin()
    try:
        router = await Router(seat).begin()
        await Agent(seat).begin()
        await seat.until("ready", lambda: router.routable())
        # It acknowledges routes no more: the doctor tells it, the view does not.
        router.deaf = True
        await Agent(seat, "n2").begin()
        await seat.passes(200)
        now = await status(seat)
        then = await status(seat, seat.reign.tenure.now())
        assert then.eviction == now.eviction != ""
        assert then.risks_known
        assert [one.node_id for one in then.risks] == [one.node_id for one in now.risks]
        assert [(one.kind, one.subject) for one in then.trouble] == [
            (one.kind, one.subject) for one in now.trouble
        ]
    finally:
        await seat.end()


async def test_nothing_recorded_yet_is_said_as_that() -> None:
    seat = await Seat(FakeClock(), KEPT).begin()
    try:
        with pytest.raises(NotFound, match="none was made yet"):
            await status(seat, seat.reign.tenure.now() - 1)
    finally:
        await seat.end()


async def test_a_next_leader_answers_for_the_time_of_the_last() -> None:
    clock = FakeClock()
    first = await Seat(clock, KEPT).begin()
    await first.passes(12)
    at = first.reign.tenure.now()
    await first.end()
    second = await Seat(clock, KEPT, store=first.store, lease=first.lease).begin()
    try:
        then = await status(second, at)
        assert then.info.term < second.reign.tenure.term
    finally:
        await second.end()


class Follower:
    """One stream, read as it comes."""

    def __init__(self, seat: Seat, **request: object) -> None:
        self.seen: list[pb.Event] = []
        self.ended: BaseException | None = None
        self._stream = seat.operator.WatchEvents(pb.WatchEventsRequest(**request), None)  # type: ignore[arg-type]
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for message in self._stream:
                self.seen += message.events
        except (NotLeader, Unavailable) as e:
            self.ended = e

    @property
    def texts(self) -> list[str]:
        return [event.text for event in self.seen if event.kind == "test"]

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._stream.aclose()


async def tell(seat: Seat, text: str, subject: str = "n1") -> None:
    async with seat.reign.ledger.writing():
        now = seat.reign.tenure.now()
        await seat.reign.ledger.commit([PutEvent(now, "test", subject, text, Severity.INFO)])


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_follower_sees_each_event_once_in_order_without_polling(seat: Seat) -> None:
    follower = Follower(seat)
    await settle()
    asked = 0
    original = seat.store.events_after

    async def counted(*args: object, **more: object):
        nonlocal asked
        asked += 1
        return await original(*args, **more)  # type: ignore[arg-type]

    seat.store.events_after = counted  # type: ignore[method-assign]
    await seat.passes(60)
    assert asked == 0, "nothing happened, so nobody looked"
    for number in range(5):
        await tell(seat, f"text {number}")
        await settle()
    assert follower.texts == [f"text {number}" for number in range(5)]
    await follower.close()


async def test_a_follower_begins_where_it_is_told_to(seat: Seat) -> None:
    for number in range(4):
        await seat.passes(1)
        await tell(seat, f"text {number}", subject="n2" if number == 2 else "n1")
    rows = [row for row in await seat.store.events_after(0, subject=None, limit=99) if row.kind == "test"]
    for request, texts in [
        ({}, []),
        ({"after_event_id": rows[1].event_id}, ["text 2", "text 3"]),
        ({"since_unix_s": rows[2].at}, ["text 2", "text 3"]),
        ({"since_unix_s": 0.0, "subject": "n2"}, ["text 2"]),
        # Of a log that began anew: everything is news.
        ({"after_event_id": 999_999}, ["text 0", "text 1", "text 2", "text 3"]),
    ]:
        follower = Follower(seat, **request)
        await settle()
        assert follower.texts == texts, request
        await follower.close()


async def test_more_than_a_batch_is_told_to_the_last(seat: Seat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "BATCH", 3)
    for number in range(10):
        await tell(seat, f"text {number}")
    follower = Follower(seat, since_unix_s=0.0)
    await settle()
    assert len(follower.texts) == 10
    await follower.close()


async def test_the_end_of_the_term_ends_the_stream_as_a_standby_would(seat: Seat) -> None:
    follower = Follower(seat)
    await settle()
    await seat.end()
    await settle()
    assert isinstance(follower.ended, NotLeader)
    await follower.close()


async def test_too_many_followers_are_told_so_and_leave_room_when_they_go(
    seat: Seat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "FOLLOWERS_MAX", 2)
    first, second, third = Follower(seat), Follower(seat), Follower(seat)
    await settle()
    assert isinstance(third.ended, Unavailable)
    assert third.ended.code == "too_many_followers"
    await first.close()
    fourth = Follower(seat)
    await settle()
    assert fourth.ended is None
    for one in (second, third, fourth):
        await one.close()


async def test_status_tells_that_witnesses_disagree_and_doctor_who(seat: Seat) -> None:
    router = await Router(seat).begin()
    await Agent(seat).begin()
    await seat.until("ready", lambda: router.routable())
    await seat.passes(40)
    assert not [one for one in (await status(seat)).trouble if one.kind == "disagreement"]
    await router.vanish()
    found = [one for one in (await status(seat)).trouble if one.kind == "disagreement"]
    assert [(one.subject, one.fix) for one in found] == [("r1", "llmgwctl doctor")]
    # What it means and what to do, to somebody who has not read how the parts talk to each other.
    assert found[0].text == (
        "this router has no connection to the leader; it serves on its last routes, and nobody can be "
        "called idle: start it again, or where it is gone for good: llmgwctl router forget r1"
    )
    told = await seat.operator.Doctor(pb.DoctorRequest(), None)
    # Redis's clock is far off in this world, and nothing follows from that.
    assert [(one.kind, one.subject, one.severity) for one in told.disagreements] == [
        ("router_not_watching", "r1", pb.TROUBLE_SEVERITY_TROUBLE),
        ("clock_differs", "redis", pb.TROUBLE_SEVERITY_NOTE),
    ]


async def test_what_came_before_an_older_time_is_told_also_when_thousands_came_after(seat: Seat) -> None:
    await seat.passes(12)
    _, recorded = await span(seat)
    term = seat.reign.tenure.term
    await seat.store.commit(term, [PutEvent(recorded + 1, "mine", "x", "between", Severity.INFO)])
    later = [PutEvent(recorded + 3, "other", "x", "after", Severity.INFO) for _ in range(1500)]
    await seat.store.commit(term, later)
    await seat.passes(4)
    then = await status(seat, recorded + 2)
    assert then.recorded_unix_s == recorded
    assert "mine" in [event.kind for event in then.events_since]
    assert "other" not in [event.kind for event in then.events_since]


async def test_who_follows_from_a_time_gets_all_since_then_not_the_last_thousand(seat: Seat) -> None:
    at = seat.reign.tenure.now() + 1
    term = seat.reign.tenure.term
    await seat.store.commit(
        term, [PutEvent(at, "burst", "x", str(number), Severity.INFO) for number in range(1500)]
    )
    stream = seat.operator.WatchEvents(pb.WatchEventsRequest(since_unix_s=at), None)
    first = await anext(aiter(stream))
    assert first.events[0].text == "0"
    await stream.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("at", [-8.64e18, 8.64e18])
async def test_a_time_that_no_store_has_is_the_callers_mistake(seat: Seat, at: float) -> None:
    with pytest.raises(InvalidRequest, match="since_unix_s"):
        await seat.operator.ListEvents(pb.ListEventsRequest(since_unix_s=at), None)
    with pytest.raises(InvalidRequest, match="since_unix_s"):
        await seat.operator.ListEvictions(pb.ListEvictionsRequest(since_unix_s=at), None)
    with pytest.raises(InvalidRequest, match="since_unix_s"):
        async for _ in seat.operator.WatchEvents(pb.WatchEventsRequest(since_unix_s=at), None):
            pass
    with pytest.raises(InvalidRequest, match="at_unix_s"):
        await status(seat, at)
