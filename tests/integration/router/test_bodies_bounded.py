"""Memory is bounded by bytes, not only by numbers of requests; and so are connections."""

import asyncio
from pathlib import Path

import pytest

from llmgw_router.core.config import Admission, Limits, WorkerConfig

from .gated import Gated, ask, busy, error
from .harness import BODY, CHAT, Client, router
from .upstream import Upstream, answering, json_answer

LIMITS = Limits(sweep_s=0.02, max_body_bytes=200_000)
RULES = Admission(max_waiting_bytes=350_000)
CONFIG = WorkerConfig(limits=LIMITS, admission=RULES)
LONG = b'{"model":"m","x":"' + b"a" * 150_000 + b'"}'


async def told(waiting: list[Client]) -> None:
    """One of them is refused by bytes; the others go on waiting."""
    answers = {asyncio.create_task(c.answer()): c for c in waiting}
    done, others = await asyncio.wait(answers, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    (one,) = done
    answer = one.result()
    assert answer.status == 503
    assert error(answer)["code"] == "no_replica_available"
    assert "max_waiting_bytes" in error(answer)["message"]
    assert answer.one(b"x-llmgw-limit") == b"max_waiting_bytes=350000"
    assert int(answer.one(b"retry-after")) >= 1
    waiting.remove(answers[one])
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def test_bodies_that_wait_in_line(tmp_path: Path) -> None:
    engine = Gated()
    async with engine.upstream() as up, router(tmp_path, config=CONFIG) as r:
        await r.push([busy(0, up.port)])
        first = await ask(r)
        await r.until(lambda: engine.running == 1)
        waiting = [await r.client() for _ in range(3)]
        for c in waiting:
            c.post(LONG)
        await told(waiting)
        # What has been sent and answered is out of the count again.
        engine.allow(3)
        for c in (first, *waiting):
            assert (await c.answer()).status == 200
        engine.allow(1)
        first.post(LONG)
        assert (await first.answer()).status == 200
        for c in (first, *waiting):
            c.close()


async def test_bodies_that_arrive(tmp_path: Path) -> None:
    async with Upstream(answering(json_answer())) as up, router(tmp_path, up.port, config=CONFIG) as r:
        waiting = [await r.client() for _ in range(3)]
        for c in waiting:
            c.send(b"POST %b HTTP/1.1\r\nhost: r\r\ncontent-length: %d\r\n\r\n" % (CHAT, len(LONG)))
        for at in range(0, 140_000, 20_000):
            for c in waiting:
                c.send(LONG[at : at + 20_000])
            await asyncio.sleep(0.01)
        await told(waiting)
        for c in waiting:
            c.send(LONG[140_000:])
            assert (await c.answer()).status == 200
            c.close()


@pytest.mark.parametrize("many", [3])
async def test_connections(tmp_path: Path, many: int) -> None:
    config = WorkerConfig(limits=Limits(sweep_s=0.02, max_connections=many))
    async with Upstream(answering(json_answer())) as up, router(tmp_path, up.port, config=config) as r:
        clients = [await r.client() for _ in range(many)]
        await r.until(lambda: r.pool.totals()["connections_open"] == many)
        late = await r.client()
        assert await late.ended()
        await r.until(lambda: r.pool.totals()["connections_refused"] == 1)
        for c in clients:
            c.post(BODY)
            assert (await c.answer()).status == 200
            c.close()
        await r.until(lambda: r.pool.totals()["connections_open"] == 0)
        again = await r.client()
        again.post(BODY)
        assert (await again.answer()).status == 200
        again.close()
