"""Requests for a model whose replicas are all busy: they wait here, in order, bounded, and leave no trace."""

import asyncio
from pathlib import Path

import pytest

from llmgw_router.core.config import Admission, RoutingProfile
from llmgw_router.relay.ipc import Availability

from .gated import Gated, ask, ask_in_order, body, busy, config, error, gone
from .harness import router
from .test_cold_models import cold


async def test_an_endpoint_gets_no_more_than_it_runs_and_the_rest_waits_in_order(tmp_path: Path) -> None:
    engine = Gated()
    async with engine.upstream() as up, router(tmp_path, config=config()) as r:
        await r.push([busy(0, up.port, 2)])
        first = [await ask(r, "a"), await ask(r, "b")]
        await r.until(lambda: engine.running == 2)
        waiting = await ask_in_order(r, 4)
        # The controller hears that requests wait; a model that is up is asked for by nobody.
        assert r.pool.held == {"m": 4}
        assert r.heard.wants == []
        engine.allow(6)
        for c in (*first, *waiting):
            assert (await c.answer()).status == 200
            c.close()
        assert engine.most == 2
        assert engine.order[2:] == ["0", "1", "2", "3"]
        await gone(r)


async def test_the_endpoint_is_chosen_when_one_has_room_not_before(tmp_path: Path) -> None:
    slow, quick = Gated(), Gated()
    async with slow.upstream() as a, quick.upstream() as b, router(tmp_path, config=config()) as r:
        await r.push([busy(0, a.port), busy(1, b.port)])
        first = [await ask(r), await ask(r)]
        await r.until(lambda: slow.running == quick.running == 1)
        waiting = await ask_in_order(r, 3)
        quick.allow(4)
        for c in waiting:
            assert (await c.answer()).status == 200
        assert (slow.served, quick.served) == (0, 4)
        slow.allow()
        for c in (*first, *waiting):
            c.close()


async def test_what_is_not_known_of_an_endpoint_limits_nothing(tmp_path: Path) -> None:
    engine = Gated()
    async with engine.upstream() as up, router(tmp_path, config=config()) as r:
        await r.push([busy(0, up.port, None)])
        asked = [await ask(r) for _ in range(8)]
        await r.until(lambda: engine.running == 8)
        engine.allow(8)
        for c in asked:
            assert (await c.answer()).status == 200
            c.close()


async def test_an_endpoint_with_room_is_found_beside_full_ones(tmp_path: Path) -> None:
    full, free = Gated(), Gated()
    async with full.upstream() as a, free.upstream() as b, router(tmp_path, config=config()) as r:
        await r.push([busy(0, a.port, 1), busy(1, b.port, 6)])
        asked = [await ask(r) for _ in range(7)]
        await r.until(lambda: (full.running, free.running) == (1, 6))
        full.allow(1)
        free.allow(6)
        for c in asked:
            assert (await c.answer()).status == 200
            c.close()


@pytest.mark.parametrize(
    ("admission", "named"),
    [
        (Admission(max_queued_per_model=2), "max_queued_per_model=2"),
        (Admission(max_queued=2), "max_queued=2"),
    ],
)
async def test_a_full_queue_is_told_at_once(tmp_path: Path, admission: Admission, named: str) -> None:
    engine = Gated()
    async with engine.upstream() as up, router(tmp_path, config=config(admission=admission)) as r:
        await r.push([busy(0, up.port)])
        first = await ask(r)
        await r.until(lambda: engine.running == 1)
        waiting = await ask_in_order(r, 2)
        late = await ask(r)
        answer = await late.answer()
        assert answer.status == 503
        assert error(answer)["code"] == "no_replica_available"
        assert answer.one(b"x-llmgw-limit") == named.encode()
        assert named.split("=")[0] in error(answer)["message"]
        assert int(answer.one(b"retry-after")) >= 1
        # It was refused, not cut: the connection goes on, and no place was kept (HO16).
        engine.allow(3)
        for c in (first, *waiting):
            assert (await c.answer()).status == 200
        engine.allow()
        late.post(body())
        assert (await late.answer()).status == 200
        for c in (first, late, *waiting):
            c.close()
        await gone(r)
        assert r.pool.totals()["refused_queue_full"] == 1


async def test_a_backlog_of_patient_work_is_no_wall_before_the_important(tmp_path: Path) -> None:
    engine = Gated()
    how = config(
        admission=Admission(max_queued_per_model=2), profiles=(RoutingProfile(name="batch", priority=-10),)
    )
    async with engine.upstream() as up, router(tmp_path, config=how) as r:
        await r.push([busy(0, up.port)])
        first = await ask(r, "first")
        await r.until(lambda: engine.running == 1)
        old, new = await ask_in_order(r, 2, more=b"x-llmgw-profile: batch\r\n")
        urgent = await ask(r, "urgent")
        answer = await new.answer()
        assert (answer.status, error(answer)["code"]) == (503, "no_replica_available")
        assert "more important" in error(answer)["message"]
        # Its equals do not displace each other.
        urgent_too, refused = await ask(r, "urgent too"), await ask(r)
        assert (await old.answer()).status == 503
        assert (await refused.answer()).status == 503
        engine.allow(3)
        for c in (first, urgent, urgent_too):
            assert (await c.answer()).status == 200
        assert engine.order == ["first", "urgent", "urgent too"]
        for c in (first, old, new, urgent, urgent_too, refused):
            c.close()
        await gone(r)


async def test_who_waits_longer_than_its_profile_allows_is_told_which_limit_it_was(tmp_path: Path) -> None:
    engine = Gated()
    async with engine.upstream() as up, router(tmp_path, config=config(queue_s=0.1)) as r:
        await r.push([busy(0, up.port)])
        first = await ask(r)
        await r.until(lambda: engine.running == 1)
        (c,) = await ask_in_order(r, 1)
        answer = await c.answer()
        assert (answer.status, error(answer)["code"]) == (503, "no_replica_available")
        assert answer.one(b"x-llmgw-limit") == b"queue_s=0.1; profile=interactive"
        assert "queue_s of the profile `interactive`" in error(answer)["message"]
        assert int(answer.one(b"retry-after")) >= 1
        engine.allow()
        assert (await first.answer()).status == 200
        for one in (first, c):
            one.close()
        await gone(r)
        assert engine.served == 1
        (record,) = [one for one in r.heard.records if one.code == "queue_timeout"]
        assert (record.queue_ms or 0) >= 80


async def test_waiting_is_part_of_the_total(tmp_path: Path) -> None:
    engine = Gated()
    short = RoutingProfile(name="short", total_s=0.15)
    async with engine.upstream() as up, router(tmp_path, config=config(profiles=(short,))) as r:
        await r.push([busy(0, up.port)])
        first = await ask(r)
        await r.until(lambda: engine.running == 1)
        (c,) = await ask_in_order(r, 1, more=b"x-llmgw-profile: short\r\n")
        answer = await c.answer()
        assert (answer.status, error(answer)["code"]) == (504, "deadline_exceeded")
        assert answer.one(b"x-llmgw-limit") == b"total_s=0.15; profile=short"
        engine.allow()
        assert (await first.answer()).status == 200
        for one in (first, c):
            one.close()
        await gone(r)
        # No engine is to blame, and none has seen it.
        assert engine.served == 1


async def test_who_leaves_the_queue_leaves_at_once_and_is_never_sent(tmp_path: Path) -> None:
    engine = Gated()
    async with engine.upstream() as up, router(tmp_path, config=config()) as r:
        await r.push([busy(0, up.port)])
        first = await ask(r, "first")
        await r.until(lambda: engine.running == 1)
        waiting = await ask_in_order(r, 3)
        waiting[0].close()
        waiting[1].close()
        await r.until(lambda: r.pool.held == {"m": 1})
        engine.allow(2)
        assert (await first.answer()).status == 200
        assert (await waiting[2].answer()).status == 200
        assert engine.order == ["first", "2"]
        for c in (first, waiting[2]):
            c.close()
        await gone(r)


async def test_the_important_go_first_and_a_header_says_who_is(tmp_path: Path) -> None:
    engine = Gated()
    profiles = (RoutingProfile(name="batch", priority=-10), RoutingProfile(name="urgent", priority=5))
    async with engine.upstream() as up, router(tmp_path, config=config(profiles=profiles)) as r:
        await r.push([busy(0, up.port)])
        first = await ask(r, "first")
        await r.until(lambda: engine.running == 1)
        waiting = []
        for number, name in enumerate((b"batch", b"interactive", b"urgent", b"batch", b"urgent")):
            waiting.append(await ask(r, name.decode(), more=b"x-llmgw-profile: %b\r\n" % name))
            await r.until(lambda number=number: r.pool.held == {"m": number + 1})
        engine.allow(6)
        for c in (first, *waiting):
            assert (await c.answer()).status == 200
            c.close()
        assert engine.order == ["first", "urgent", "urgent", "interactive", "batch", "batch"]
        # Ours is not for engines.
        assert not any(seen.all(b"x-llmgw-profile") for seen in up.seen)
        wrong = await ask(r, more=b"x-llmgw-profile: nope\r\n")
        answer = await wrong.answer()
        assert (answer.status, error(answer)["code"]) == (400, "profile_not_available")
        assert "batch, interactive, urgent" in error(answer)["message"]
        wrong.close()


@pytest.mark.parametrize(
    "admission",
    [
        Admission(max_in_flight=2),
        Admission(max_in_flight_per_model=2),
        Admission(max_in_flight_per_model=9, model_in_flight={"m": 2}),
    ],
)
async def test_limits_of_our_own_count_over_all_endpoints(tmp_path: Path, admission: Admission) -> None:
    one, other = Gated(), Gated()
    async with (
        one.upstream() as a,
        other.upstream() as b,
        router(tmp_path, config=config(admission=admission)) as r,
    ):
        await r.push([busy(0, a.port, None), busy(1, b.port, None)])
        asked = [await ask(r), await ask(r)]
        await r.until(lambda: one.running + other.running == 2)
        asked += await ask_in_order(r, 3)
        one.allow(9)
        other.allow(9)
        for c in asked:
            assert (await c.answer()).status == 200
            c.close()
        assert one.most + other.most == 2
        await gone(r)


async def test_a_model_that_goes_down_while_requests_queue_for_it_holds_them(tmp_path: Path) -> None:
    engine = Gated()
    async with engine.upstream() as up, router(tmp_path, config=config()) as r:
        await r.push([busy(0, up.port)], [cold(availability=Availability.READY)])
        first = await ask(r)
        await r.until(lambda: engine.running == 1)
        waiting = await ask_in_order(r, 3)
        assert r.heard.wants == []
        await r.push([], [cold()])
        # Now somebody has to start it.
        await r.until(lambda: r.heard.wants and r.heard.wants[-1] == ("m", 3))
        assert r.pool.held == {"m": 3}
        engine.allow(4)
        await r.push([busy(1, up.port)], [cold(availability=Availability.READY)])
        for c in (first, *waiting):
            assert (await c.answer()).status == 200
            c.close()
        assert engine.most == 1 or engine.most == 2
        await gone(r)
        assert r.heard.unwants == ["m"]


async def test_a_model_that_is_removed_while_requests_queue_for_it(tmp_path: Path) -> None:
    engine = Gated()
    async with engine.upstream() as up, router(tmp_path, config=config()) as r:
        await r.push([busy(0, up.port)])
        first = await ask(r)
        await r.until(lambda: engine.running == 1)
        (c,) = await ask_in_order(r, 1)
        await r.push([])
        assert error(await c.answer())["code"] == "model_not_found"
        engine.allow()
        assert (await first.answer()).status == 200
        for one in (first, c):
            one.close()
        await gone(r)


async def test_held_and_queued_are_told_apart_in_the_record(tmp_path: Path) -> None:
    engine = Gated()
    async with engine.upstream() as up, router(tmp_path, models=[cold()], config=config()) as r:
        asked = [await ask(r) for _ in range(2)]
        await r.until(lambda: r.pool.held == {"m": 2})
        await asyncio.sleep(0.1)
        await r.push([busy(0, up.port)], [cold(availability=Availability.READY)])
        await r.until(lambda: engine.running == 1)
        await asyncio.sleep(0.1)
        engine.allow(2)
        for c in asked:
            assert (await c.answer()).status == 200
            c.close()
        await gone(r)
        await r.until(lambda: len(r.heard.records) == 2)
        at_once, queued = sorted(r.heard.records, key=lambda one: one.queue_ms or 0)
        assert at_once.queue_ms is None
        assert (queued.queue_ms or 0) >= 90
        assert min(at_once.hold_ms or 0, queued.hold_ms or 0) >= 90


async def test_other_limits_hold_from_the_next_moment_on(tmp_path: Path) -> None:
    engine = Gated()
    tight = config(admission=Admission(max_in_flight=1))
    async with engine.upstream() as up, router(tmp_path, config=tight) as r:
        await r.push([busy(0, up.port, 4)])
        asked = [await ask(r)]
        await r.until(lambda: engine.running == 1)
        asked += await ask_in_order(r, 4)
        # Those who wait are let in by the new rules, as far as the engine has room.
        r.pool.reconfigure(config(admission=Admission(max_in_flight_per_model=3)))
        await r.until(lambda: engine.running == 3)
        r.pool.reconfigure(config(admission=Admission()))
        await r.until(lambda: engine.running == 4)
        r.pool.reconfigure(config(admission=Admission(heed_concurrency=False)))
        await r.until(lambda: engine.running == 5)
        # What was let in without a limit is counted when there is one again.
        r.pool.reconfigure(tight)
        engine.allow(4)
        await r.until(lambda: engine.running == 1)
        (c,) = await ask_in_order(r, 1)
        engine.allow(2)
        for one in (*asked, c):
            assert (await one.answer()).status == 200
            one.close()
        await gone(r)


async def test_no_byte_is_sent_while_a_request_waits(tmp_path: Path) -> None:
    engine = Gated()
    async with engine.upstream() as up, router(tmp_path, config=config()) as r:
        await r.push([busy(0, up.port)])
        first = await ask(r)
        await r.until(lambda: engine.running == 1)
        (c,) = await ask_in_order(r, 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(c.reader.read(1), 0.1)
        engine.allow(2)
        for one in (first, c):
            assert (await one.answer()).status == 200
            one.close()


async def test_retry_after_is_what_the_queue_takes_at_the_pace_of_late(tmp_path: Path) -> None:
    engine = Gated()
    rules = Admission(max_queued_per_model=10)
    async with engine.upstream() as up, router(tmp_path, config=config(admission=rules)) as r:
        await r.push([busy(0, up.port)])
        # About 20 a second.
        async with asyncio.TaskGroup() as group:

            async def clock() -> None:
                for _ in range(30):
                    engine.allow()
                    await asyncio.sleep(0.05)

            group.create_task(clock())
            for _ in range(30):
                c = await ask(r)
                assert (await c.answer()).status == 200
                c.close()
        first = await ask(r)
        await r.until(lambda: engine.running == 1)
        waiting = await ask_in_order(r, 10)
        late = await ask(r)
        # Ten by twenty a second; unknown, it would be five.
        assert (await late.answer()).one(b"retry-after") == b"1"
        engine.allow(11)
        for one in (first, late, *waiting):
            one.close()
        await gone(r)


async def test_who_would_wait_in_vain_is_told_before(tmp_path: Path) -> None:
    engine = Gated()
    async with engine.upstream() as up, router(tmp_path, config=config(queue_s=1.0)) as r:
        await r.push([busy(0, up.port)])
        # About ten a second.
        for _ in range(10):
            c = await ask(r)
            await asyncio.sleep(0.1)
            engine.allow()
            assert (await c.answer()).status == 200
            c.close()
        first = await ask(r)
        await r.until(lambda: engine.running == 1)
        asked = [await ask(r) for _ in range(30)]
        refused = asked[-5:]
        for c in refused:
            answer = await c.answer()
            assert answer.status == 503
            assert "its turn would come in about" in error(answer)["message"]
        # Patience comes by profile: as many as a second serves did get a place.
        await r.until(lambda: 3 <= r.pool.totals()["requests_queued"] <= 20)
        for c in (first, *asked):
            c.close()
        engine.allow(40)
        await gone(r)


async def test_the_queue_at_a_stop(tmp_path: Path) -> None:
    """Who waits may still be served in the grace; who then still waits is told to go elsewhere (W16)."""
    engine = Gated()
    async with engine.upstream() as up, router(tmp_path, config=config()) as r:
        await r.push([busy(0, up.port)])
        first = await ask(r, "first")
        await r.until(lambda: engine.running == 1)
        served, left = await ask_in_order(r, 2)
        drain = asyncio.create_task(r.pool.drain(5.0, grace_s=0.5))
        engine.allow()
        assert (await first.answer()).status == 200
        await r.until(lambda: engine.running == 1 and engine.order[-1] == "0")
        answer = await left.answer()
        assert (answer.status, error(answer)["code"]) == (503, "router_stopping")
        assert answer.one(b"connection") == b"close"
        assert int(answer.one(b"retry-after")) >= 1
        engine.allow()
        assert (await served.answer()).status == 200
        await drain
        for c in (first, served, left):
            c.close()
