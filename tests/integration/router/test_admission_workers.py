"""Two relay workers, one limit: it holds for both together, nobody starves, and the dead hold nothing."""

import asyncio
import os
import signal
from pathlib import Path

import msgspec

from llmgw_router.core.config import Admission
from llmgw_router.relay.slots import PICKS
from llmgw_router.supervisor.gate_book import GateBook

from .gated import Gated, ask, body, busy, config, gone
from .harness import Router, router
from .test_cold_models import cold
from .upstream import Connection, Upstream, answering, json_answer


class Brief:
    """Serves quickly, and counts what runs at once."""

    running = 0
    most = 0

    async def __call__(self, connection: Connection) -> None:
        while True:
            await connection.request()
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0.004)
            self.running -= 1
            await connection.send(json_answer())


def picks(r: Router, worker: int) -> int:
    return sum(r.pool._slots.column_of(worker, PICKS))


async def test_one_place_is_shared_by_two_workers_without_starving_either(tmp_path: Path) -> None:
    engine = Brief()
    served = [0] * 16
    until = asyncio.get_running_loop().time() + 3.0
    async with Upstream(engine) as up, router(tmp_path, config=config(), workers=2) as r:
        await r.push([busy(0, up.port, 1)])

        async def client(index: int) -> None:
            async with await r.client() as c:
                while asyncio.get_running_loop().time() < until:
                    c.post(body())
                    assert (await c.answer()).status == 200
                    served[index] += 1

        async with asyncio.TaskGroup() as group:
            for index in range(len(served)):
                group.create_task(client(index))
        await gone(r)
        by_worker = picks(r, 0), picks(r, 1)
        # Sixteen connections miss a worker once in 32,768 runs.
        assert min(by_worker) > 0
        # First come, first served over both workers: everybody had about as many turns.
        assert min(served) * 2 >= max(served), (served, by_worker)
        # Both may see the last place free in the same moment.
        assert engine.most <= 2


async def test_a_limit_of_ours_is_one_for_both(tmp_path: Path) -> None:
    engine = Gated()
    rules = Admission(max_in_flight=6)
    async with (
        engine.upstream() as up,
        router(tmp_path, config=config(admission=rules), workers=2) as r,
    ):
        await r.push([busy(0, up.port, None)])
        asked = [await ask(r) for _ in range(20)]
        await r.until(lambda: r.pool.held.get("m", 0) >= 13 and engine.running >= 6)
        # Exact to one worker's place; never an even share that one side leaves unused.
        assert 6 <= engine.running <= 7
        engine.allow(20)
        for c in asked:
            assert (await c.answer()).status == 200
            c.close()
        await gone(r)


async def test_the_number_of_a_model_that_is_gone_counts_for_the_next(tmp_path: Path) -> None:
    """Also where requests for the next had come while there was none left."""
    engine = Gated()
    rules = Admission(max_in_flight_per_model=6)
    async with (
        engine.upstream() as up,
        router(tmp_path, config=config(admission=rules), workers=2) as r,
    ):
        book = r.pool._gates = GateBook(most=1)
        await r.push([busy(0, up.port, None)])
        first = await ask(r)
        await r.until(lambda: engine.running == 1 and book.numbers == {"m": 1})
        other = msgspec.structs.replace(busy(1, up.port, None), model="n")
        await r.push([busy(0, up.port, None), other])
        asked = []
        for _ in range(20):
            asked.append(await r.client())
            asked[-1].post(body(model="n"))
        await r.until(lambda: "n" in book.short and engine.running >= 4)
        # What runs at the model keeps its number, whatever the table says.
        await r.push([other])
        assert book.numbers == {"m": 1}
        engine.allow(1)
        first.close()
        engine.allow(20)
        for c in asked:
            assert (await c.answer()).status == 200
            c.close()
        await r.until(lambda: r.pool._slots.gate_idle(1))
        await r.push([other])
        assert book.numbers == {"n": 1}
        asked = []
        for _ in range(20):
            asked.append(await r.client())
            asked[-1].post(body(model="n"))
        await r.until(lambda: r.pool.held.get("n", 0) >= 13 and engine.running >= 6)
        assert 6 <= engine.running <= 7
        engine.allow(20)
        for c in asked:
            assert (await c.answer()).status == 200
            c.close()
        await gone(r)


async def test_a_worker_that_dies_gives_back_its_places_and_its_turn(tmp_path: Path) -> None:
    engine = Gated()
    async with engine.upstream() as up, router(tmp_path, config=config(), workers=2) as r:
        await r.push([busy(0, up.port, 2)])
        asked = [await ask(r) for _ in range(16)]
        await r.until(lambda: engine.running >= 2 and r.pool.held.get("m", 0) >= 13)
        victim = r.pool.workers[0 if picks(r, 0) else 1].pid
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        engine.allow(100)
        # Whoever waits in the other one is served; the rest has lost its connection.
        answers = await asyncio.gather(*(c.answer() for c in asked), return_exceptions=True)
        assert [a.status for a in answers if not isinstance(a, BaseException)].count(200) >= 1
        for c in asked:
            c.close()
        await r.until(lambda: all(worker.serving for worker in r.pool.workers))
        await gone(r)
        again = [await ask(r) for _ in range(8)]
        for c in again:
            assert (await c.answer()).status == 200
            c.close()
        await gone(r)


async def test_fifty_for_a_cold_model_are_one_wish_wherever_they_connect(tmp_path: Path) -> None:
    """HO05: with two workers the room is one as well: an even share of it would refuse some."""
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, models=[cold(max_held=50)], workers=2, config=config()) as r,
    ):
        # The workers learn the model's number with the first.
        first = await ask(r)
        await r.until(lambda: r.pool.held == {"m": 1})
        await r.until(lambda: "m" in r.pool._gates.numbers)
        await asyncio.sleep(0.05)
        asked = [first, *[await ask(r) for _ in range(49)]]
        await r.until(lambda: r.pool.held == {"m": 50})
        late = await ask(r)
        answer = await late.answer()
        assert (answer.status, answer.one(b"x-llmgw-limit")) == (503, b"max_held=50")
        assert r.heard.unwants == []
        await r.push([busy(0, up.port, None)], [cold()])
        for c in asked:
            assert (await c.answer()).status == 200
            c.close()
        late.close()
        assert r.heard.wants[0] == ("m", 1)
        await r.until(lambda: r.heard.unwants == ["m"])
        await gone(r)
