"""Routers come, crash, leave and are forgotten: what idleness makes of each, by the real calls."""

from collections.abc import AsyncIterator

import pytest

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.activity import Idle, Unknown, Verdict
from llmgw_controller.core.idleness import verdict
from llmgw_kit.errors import Conflict, NotFound
from llmgw_kit.ids import ReplicaId
from llmgw_kit.testing.clock import FakeClock

from .reigns import KEPT
from .seat import Agent, Router, Seat

TINY = ReplicaId("tiny/1")


@pytest.fixture
async def seat(fake_clock: FakeClock) -> AsyncIterator[Seat]:
    """A replica that is ready, and two routers of which none has asked for it."""
    seat = await Seat(fake_clock, KEPT).begin()
    await Agent(seat).begin()
    for name in ("r1", "r2"):
        await Router(seat, name).begin()
    await seat.until("a route", lambda: seat.map.routers["r1"].routable())
    await seat.passes(100)
    yield seat
    await seat.end()


def judged(seat: Seat) -> Verdict:
    snapshot = seat.reign.snapshot(seat.reign.ledger.stored)
    return verdict(snapshot, snapshot.stored.replicas[TINY], seat.reign.tenure.now())


def idle_s(seat: Seat) -> float:
    found = judged(seat)
    assert isinstance(found, Idle), found
    return found.for_s


async def listed(seat: Seat) -> dict[str, pb.RouterRow]:
    answer = await seat.operator.ListRouters(pb.ListRoutersRequest(), None)
    return {row.router_id: row for row in answer.routers}


async def forget(seat: Seat, name: str, *, dry_run: bool = False) -> str:
    request = pb.ForgetRouterRequest(router_id=name, dry_run=dry_run)
    answer = await seat.operator.ForgetRouter(request, None)
    return str(answer.text)


async def test_a_crash_a_rejoin_and_a_goodbye_still_count_as_an_ask(seat: Seat) -> None:
    assert idle_s(seat) > 90
    await seat.map.routers["r2"].vanish()
    await seat.passes(30)
    assert judged(seat) == Unknown("router_silent")
    again = await Router(seat, "r2", incarnation="life-2").begin()
    await seat.passes(10)
    assert idle_s(seat) < 15
    await again.goodbye()
    await seat.passes(10)
    # Its row is gone; that its first life's last seconds are not known is not.
    assert "r2" not in await listed(seat)
    assert idle_s(seat) < 25
    await seat.passes(30)
    assert 40 < idle_s(seat) < 60


async def test_a_router_that_vanished_makes_it_unknown_until_it_is_forgotten(seat: Seat) -> None:
    await seat.map.routers["r2"].vanish()
    await seat.passes(300)
    assert judged(seat) == Unknown("router_silent")
    said = await forget(seat, "r2", dry_run=True)
    assert "every replica counts as asked for now" in said
    assert judged(seat) == Unknown("router_silent"), "a dry run changes nothing"
    assert await forget(seat, "r2") == said
    await seat.passes(20)
    assert 15 < idle_s(seat) < 25, "its death counts as an ask"
    assert "router_forgotten" in await seat.told("r2")


async def test_a_router_that_lives_is_not_forgotten(seat: Seat) -> None:
    with pytest.raises(Conflict, match="router r1 lives: it watches the routes now"):
        await forget(seat, "r1")
    # Its stream is cut, its reports still come: it goes on using what it knows.
    router = seat.map.routers["r1"]
    await router.vanish()
    router.silent = False
    await seat.passes(10)
    with pytest.raises(Conflict, match=r"router r1 lives: it reported \d+ s ago"):
        await forget(seat, "r1")
    # Started again, and it does not reach the leader: the old life is over, the new one is alive.
    router.incarnation = "life-2"
    await seat.passes(10)
    with pytest.raises(Conflict, match="was started again and reports"):
        await forget(seat, "r1")
    with pytest.raises(NotFound, match="no router r9 is a member"):
        await forget(seat, "r9")
    assert set(await listed(seat)) == {"r1", "r2"}


async def test_what_is_listed_of_a_member(seat: Seat) -> None:
    one = seat.map.routers["r1"]
    one.in_flight["tiny/1"], one.held["cold"] = 3, 2
    seat.map.routers["r2"].deaf = True
    await seat.passes(10)
    rows = await listed(seat)
    r1, r2 = rows["r1"], rows["r2"]
    assert (r1.in_flight, r1.held, r1.watching, r1.incarnation) == (3, 2, True, "life-1")
    assert r1.applied_version == one.version
    assert r1.report_age_s < 6
    assert not r1.HasField("crashed_unix_s")
    assert r2.applied_version < r1.applied_version
    await seat.map.routers["r2"].vanish()
    await seat.passes(60)
    gone = (await listed(seat))["r2"]
    assert not gone.watching
    assert not gone.HasField("report_age_s")
    assert not gone.HasField("in_flight")


async def test_a_flush_is_unknown_until_all_have_sent_their_maps(seat: Seat) -> None:
    seat.map.epoch, seat.map.watching_since = "e2", seat.map.now
    seat.map.touched.clear()
    slow = seat.map.routers["r2"]
    slow.silent = True  # its next tick is not yet
    await seat.passes(10)
    assert judged(seat) == Unknown("router_resending")
    slow.silent = False
    await seat.passes(10)
    assert idle_s(seat) < 25
    seat.map.away = True
    await seat.passes(10)
    assert judged(seat) == Unknown("redis_unreachable")


@pytest.mark.parametrize("lost", [False, True])
async def test_a_goodbye_says_whether_its_last_activity_arrived(seat: Seat, lost: bool) -> None:
    """Redis was away when it stopped: what it picked in its last seconds stands nowhere."""
    assert idle_s(seat) > 90
    await seat.map.routers["r2"].goodbye(activity_lost=lost)
    await seat.passes(10)
    assert (idle_s(seat) < 15) is lost
