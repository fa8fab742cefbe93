"""Any mix of clients that leave, engines that die, tables that flap and a worker that is killed: afterwards
nothing is held, queued, running or counted, and a good request is served (HO15, HO16)."""

import asyncio
import contextlib
import os
import random
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from llmgw_router.core.config import Admission, RoutingProfile
from llmgw_router.relay.ipc import ActivationRefused, Availability, EndpointRow

from .gated import body, busy, config, gone
from .harness import Client, Router, router
from .test_cold_models import cold
from .upstream import LAST, SSE_HEAD, Connection, Upstream, chunk, json_answer

CLIENTS = 60
RULES = Admission(max_in_flight=5, max_in_flight_per_model=4, max_queued_per_model=8, age_bound_s=0.05)
PROFILES = (
    RoutingProfile(name="batch", priority=-5, queue_s=2.0, total_s=3.0, hold_s=1.0),
    RoutingProfile(name="impatient", queue_s=0.05, total_s=0.3, first_byte_s=0.1, hold_s=0.05),
)


class Engine:
    """Does with each request what chance says."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def __call__(self, connection: Connection) -> None:
        rng = self._rng
        while True:
            await connection.request()
            await asyncio.sleep(rng.choice((0.0, 0.005, 0.02, 0.2)))
            match rng.randrange(8):
                case 0:
                    return connection.fin()
                case 1:
                    return connection.reset()
                case 2:
                    await connection.send(json_answer(b"{}", status=b"503 Busy"))
                case 3:
                    await connection.send(SSE_HEAD + chunk(b"data: 1\n\n"))
                    return connection.reset()
                case 4:
                    await connection.send(SSE_HEAD + chunk(b": ping\n\n") + chunk(b"data: [DONE]\n\n") + LAST)
                case _:
                    await connection.send(json_answer())


async def visit(r: Router, rng: random.Random) -> None:
    """One client, with one or two requests, that may leave at any moment."""
    await asyncio.sleep(rng.random() * 0.5)
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        client = await r.client()
        try:
            for _ in range(rng.choice((1, 2))):
                await _request(client, rng)
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.random() * 0.1)
                    return
                answer = await client.answer()
                assert answer.status in (200, 400, 404, 413, 502, 503, 504), answer
                if b"close" in answer.all(b"connection") or not answer.complete or b"error" in answer.body:
                    return
        finally:
            client.close()


async def _request(client: Client, rng: random.Random) -> None:
    more = rng.choice((b"", b"x-llmgw-profile: batch\r\n", b"x-llmgw-profile: impatient\r\n"))
    if rng.random() < 0.3:
        more += b"x-llmgw-heartbeat: sse\r\n"
    match rng.randrange(12):
        case 0:
            client.post(b"{malformed", more=more)
        case 1:
            client.post(body(model="nope"), more=more)
        case 2:
            client.post(body(), more=b"x-llmgw-profile: nope\r\n")
        case 3:
            client.send(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 99999999999\r\n\r\n"
            )
        case _:
            client.post(body(stream=rng.random() < 0.5), more=more)


async def flap(r: Router, rows: list[EndpointRow], rng: random.Random) -> None:
    ready, down = cold(availability=Availability.READY), cold()
    for _ in range(6):
        await asyncio.sleep(rng.random() * 0.15)
        match rng.randrange(5):
            case 0:
                await r.push([], [down])
            case 1:
                await r.push([])
            case 2:
                r.pool.refuse(ActivationRefused(model="m", text="no room", retry_after_s=1.0))
            case _:
                await r.push(rng.sample(rows, rng.randrange(1, len(rows) + 1)), [ready])
    await r.push(rows, [ready])


async def ordeal(seed: int, folder: Path, *, killed: bool) -> None:
    rng = random.Random(seed)
    engine, other = Engine(rng), Engine(rng)
    how = config(
        admission=RULES, profiles=PROFILES, queue_s=0.5, total_s=2.0, heartbeat_after_s=0.03, first_byte_s=0.5
    )
    async with (
        Upstream(engine) as a,
        Upstream(other) as b,
        router(folder, config=how, workers=2) as r,
    ):
        rows = [busy(0, a.port, 2), busy(1, b.port, 2)]
        await r.push(rows, [cold(availability=Availability.READY)])
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(visit(r, rng))
            group.create_task(flap(r, rows, rng))
            if killed:
                await asyncio.sleep(0.1 + rng.random() * 0.3)
                pid = rng.choice([worker.pid for worker in r.pool.workers if worker.pid])
                os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while not all(worker.serving for worker in r.pool.workers):
                await asyncio.sleep(0.02)
        await gone(r)
        for worker in range(2):
            left = [value for value in r.pool._slots.gates_of(worker) if value]
            assert not left, f"worker {worker} left {left} at its gates"
        # Every place is free again: as many as fit are served at once.
        good = Upstream(_good)
        async with good:
            await r.push([busy(2, good.port, 4)], [cold(availability=Availability.READY)])
            clients = [await r.client() for _ in range(4)]
            for c in clients:
                c.post(body())
            for c in clients:
                assert (await c.answer()).status == 200
                c.close()
        await gone(r)


async def _good(connection: Connection) -> None:
    while True:
        await connection.request()
        await connection.send(json_answer())


@pytest.mark.parametrize("killed", [False, True])
@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # A smaller seed is no simpler story.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    report_multiple_bugs=False,
)
@given(seed=st.integers(0, 2**32 - 1))
def test_nothing_is_left_behind(killed: bool, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(ordeal(seed, Path(folder), killed=killed))
