"""Requests for a model that is not up: held, asked for once, released by the table alone."""

import asyncio
import json
from pathlib import Path

from llmgw_router.relay.ipc import ActivationRefused, Availability, ModelRow

from .harness import BODY, Client, Router, endpoint, router
from .upstream import Upstream, answering, json_answer


def cold(**changes: object) -> ModelRow:
    fields: dict[str, object] = {
        "name": "m",
        "aliases": ("alias",),
        "availability": Availability.COLD,
        "activatable": True,
        "hold_timeout_s": 5.0,
        "max_held": 100,
        "eta_s": 12.3,
    }
    return ModelRow(**{**fields, **changes})  # type: ignore[arg-type]


def error_of(body: bytes) -> dict[str, object]:
    return dict(json.loads(body)["error"])


async def clients(r: Router, count: int, body: bytes = BODY) -> list[Client]:
    made = [await r.client() for _ in range(count)]
    for c in made:
        c.post(body)
    return made


async def test_fifty_are_held_asked_for_once_and_served(tmp_path: Path) -> None:
    async with Upstream(answering(json_answer())) as up, router(tmp_path, models=[cold()]) as r:
        waiting = await clients(r, 50)
        await r.until(lambda: r.heard.wants and r.heard.wants[-1] == ("m", 50))
        assert r.heard.wants[0] == ("m", 1)
        assert len(r.heard.wants) < 10
        assert r.pool.held == {"m": 50}
        # Starting, ready in the catalog's words: not yet an endpoint, so not yet a reason to go.
        await r.push([], [cold(availability=Availability.STARTING)])
        await r.push([], [cold(availability=Availability.READY)])
        assert up.seen == []
        await r.push([endpoint(0, up.port)], [cold(availability=Availability.READY)])
        for c in waiting:
            assert (await c.answer()).status == 200
            c.close()
        await r.until(lambda: r.heard.unwants == ["m"])
        assert len(up.seen) == 50


async def test_a_draining_endpoint_lets_nobody_out(tmp_path: Path) -> None:
    async with Upstream(answering(json_answer())) as up, router(tmp_path, models=[cold()]) as r:
        (c,) = await clients(r, 1)
        await r.until(lambda: r.heard.wants)
        await r.push([endpoint(0, up.port, draining=True)], [cold()])
        await r.push([], [cold()])
        assert up.seen == []
        await r.push([endpoint(1, up.port)], [cold()])
        assert (await c.answer()).status == 200
        c.close()


async def test_not_in_time_is_told_honestly(tmp_path: Path) -> None:
    async with router(tmp_path, models=[cold(hold_timeout_s=0.1)]) as r:
        (c,) = await clients(r, 1, b'{"model":"alias"}')
        answer = await c.answer()
        assert answer.status == 503
        assert answer.one(b"retry-after") == b"13"
        error = error_of(answer.body)
        assert (error["type"], error["code"], error["param"]) == ("server_error", "model_loading", "model")
        await r.until(lambda: r.heard.unwants == ["m"])
        # The connection is as good as before.
        c.post(b'{"model":"nope"}')
        assert (await c.answer()).status == 404
        c.close()


async def test_the_waiting_room_is_bounded(tmp_path: Path) -> None:
    async with router(tmp_path, models=[cold(max_held=2, eta_s=None)]) as r:
        waiting = await clients(r, 2)
        await r.until(lambda: r.pool.held == {"m": 2})
        (late,) = await clients(r, 1)
        answer = await late.answer()
        assert (answer.status, error_of(answer.body)["code"]) == (503, "model_loading")
        assert answer.one(b"retry-after") == b"10"
        for c in (*waiting, late):
            c.close()


async def test_a_refused_activation_is_passed_on_with_its_words(tmp_path: Path) -> None:
    async with router(tmp_path, models=[cold()]) as r:
        waiting = await clients(r, 3)
        await r.until(lambda: r.pool.held == {"m": 3})
        r.pool.refuse(ActivationRefused(model="m", text="no node has 8 GPUs", code=None, retry_after_s=61.2))
        for c in waiting:
            answer = await c.answer()
            assert answer.status == 503
            assert answer.one(b"retry-after") == b"62"
            assert error_of(answer.body)["code"] == "model_loading"
            assert b"no node has 8 GPUs" in answer.body
            c.close()
        await r.until(lambda: r.heard.unwants == ["m"])


async def test_nobody_left_means_nobody_wants_it(tmp_path: Path) -> None:
    async with Upstream(answering(json_answer())) as up, router(tmp_path, models=[cold()]) as r:
        waiting = await clients(r, 3)
        await r.until(lambda: r.pool.held == {"m": 3})
        for c in waiting[:2]:
            c.close()
        await r.until(lambda: r.pool.held == {"m": 1})
        assert r.heard.unwants == []
        waiting[2].close()
        await r.until(lambda: r.heard.unwants == ["m"])
        await r.push([endpoint(0, up.port)], [cold()])
        await asyncio.sleep(0.05)
        assert up.seen == []
        # The next cold period asks anew.
        await r.push([], [cold()])
        (c,) = await clients(r, 1)
        await r.until(lambda: r.heard.wants[-1] == ("m", 1))
        c.close()


async def test_what_cannot_come_up_is_refused_at_once(tmp_path: Path) -> None:
    for row, code in [
        (
            cold(availability=Availability.UNAVAILABLE, reason="needs 2 nodes", retry_after_s=30.0),
            "no_replica_available",
        ),
        (cold(activatable=False, retry_after_s=30.0), "no_replica_available"),
        (cold(max_held=0, retry_after_s=30.0), "no_replica_available"),
    ]:
        async with router(tmp_path, models=[row]) as r, await r.client() as c:
            c.post(BODY)
            answer = await c.answer()
            assert (answer.status, error_of(answer.body)["code"]) == (503, code)
            assert answer.one(b"retry-after") == b"30"
            assert row.reason is None or row.reason.encode() in answer.body
            assert r.heard.wants == []


async def test_a_model_that_becomes_impossible_while_waited_for(tmp_path: Path) -> None:
    async with router(tmp_path, models=[cold()]) as r:
        first, second = await clients(r, 2)
        await r.until(lambda: r.pool.held == {"m": 2})
        await r.push([], [cold(availability=Availability.UNAVAILABLE, reason="node lost")])
        assert error_of((await first.answer()).body)["code"] == "no_replica_available"
        assert b"node lost" in (await second.answer()).body
        (third,) = await clients(r, 1)
        assert (await third.answer()).status == 503
        await r.push([], [cold()])
        (fourth,) = await clients(r, 1)
        await r.until(lambda: r.pool.held == {"m": 1})
        await r.push([], [])
        assert (await fourth.answer()).status == 404
        for c in (first, second, third, fourth):
            c.close()
