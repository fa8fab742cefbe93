"""Where a request's time went, who left, and what it cost: as records, counters, at the engine (M9, W31)."""

import asyncio
from pathlib import Path

import msgspec

from llmgw_router.core.config import INTERACTIVE, RoutingProfile, Telemetry, WorkerConfig
from llmgw_router.relay.ipc import AccessRecord, ModelRow
from llmgw_router.relay.slots import WAIT_BUCKETS_MS

from .harness import BODY, QUICK, Router, endpoint, router
from .upstream import LAST, SSE_HEAD, Connection, Upstream, answering, chunk, json_answer


def observed(r: Router, wait: str) -> int:
    """Observations of one histogram of waits, over all workers."""
    totals = r.pool.totals()
    return sum(totals[f"{wait}_le_{bound}"] for bound in (*WAIT_BUCKETS_MS, "inf"))


async def test_clients_that_leave_stop_their_engines_and_are_counted_by_how_far_they_were(
    tmp_path: Path,
) -> None:
    """HO04, W31: 8 streams left in the middle and 2 requests before a byte; the engine sees all ten closes at
    once, and no more is said to have been passed on than was."""
    left = asyncio.Event()
    closes: list[float] = []

    async def pouring(connection: Connection) -> None:
        request = await connection.request()
        if b'"silent"' not in request.body:
            await connection.send(SSE_HEAD)
            for number in range(3):
                await connection.send(chunk(b"data: %d\n\n" % number))
                await asyncio.sleep(0.02)
        await left.wait()
        closes.append(await connection.closed_by_peer())

    async with Upstream(pouring) as up, router(tmp_path, up.port, access_log=True) as r:
        streams = [await r.client() for _ in range(8)]
        for c in streams:
            c.post(BODY)
        waiting = [await r.client() for _ in range(2)]
        for c in waiting:
            c.post(b'{"model":"m","user":"silent"}')
        for c in streams:
            await c.head()
            got = b""
            while got.count(b"\n\n") < 3:
                got += await c.chunk()
        await r.until(lambda: len(up.seen) == 10)
        left.set()
        began = asyncio.get_running_loop().time()
        for c in (*streams, *waiting):
            c.close()
        await r.until(lambda: len(closes) == 10)
        # Far below every deadline that would end them otherwise, and far above what a busy machine takes.
        assert max(closes) - began < 5.0
        await r.until(lambda: len(r.heard.records) == 10 and r.pool.totals()["engine_aborts"] == 10)
        totals = r.pool.totals()
        assert (totals["aborted_answers"], totals["aborted_waiting"]) == (8, 2)
        assert 8 <= totals["aborted_chunks"] <= 24
        assert totals["aborted_engine_us"] > 0
        assert totals["client_gone"] == 10
        assert {record.status for record in r.heard.records} == {499}
        counts = r.pool.models.totals()["m"]
        assert (counts.client_gone, counts.answers_2xx, counts.answered) == (10, 0, 8)
        await r.until(r.quiet)


async def test_each_wait_is_told_where_it_was_spent(tmp_path: Path) -> None:
    row = ModelRow(name="cold", activatable=True, hold_timeout_s=30.0, max_held=9, aliases=("alias",))

    async def streaming(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD)
        for number in range(5):
            await connection.send(chunk(b"data: %d\n\n" % number))
            await asyncio.sleep(0.03)
        await connection.send(LAST)

    async with (
        Upstream(streaming) as up,
        router(tmp_path, models=[row], access_log=True) as r,
        await r.client() as c,
    ):
        c.post(b'{"model":"alias","messages":[]}')
        await r.until(lambda: r.heard.wants)
        await asyncio.sleep(0.1)
        await r.push([endpoint(0, up.port, model="cold")], [row])
        assert (await c.answer()).complete
        await r.until(lambda: r.heard.records and observed(r, "gap") == 1)
        assert [observed(r, wait) for wait in ("queue", "hold", "connect", "gap")] == [0, 1, 1, 1]
        assert observed(r, "lag") > 0
    (record,) = r.heard.records
    assert (record.model, record.alias, record.profile) == ("cold", "alias", INTERACTIVE)
    assert record.hold_ms is not None
    assert record.hold_ms >= 100
    assert record.sent_ms == record.hold_ms
    assert record.connect_ms is not None
    assert record.ttft_ms is not None
    assert record.hold_ms + record.connect_ms <= record.ttft_ms <= record.duration_ms
    assert record.queue_ms is None
    # Reads that came together are one.
    assert record.chunks is not None
    assert 2 <= record.chunks <= 6


async def test_who_is_refused_while_held_has_waited_all_the_same(tmp_path: Path) -> None:
    row = ModelRow(name="cold", activatable=True, hold_timeout_s=0.2, max_held=9)
    async with router(tmp_path, models=[row], access_log=True) as r, await r.client() as c:
        c.post(b'{"model":"cold","messages":[]}')
        assert (await c.answer()).status == 503
        await r.until(lambda: r.heard.records and "cold" in r.pool.models.totals())
        assert observed(r, "hold") == 1
        # Counted for its model although no endpoint ever had it.
        assert r.pool.models.totals()["cold"].answers_5xx == 1
    (record,) = r.heard.records
    assert record.hold_ms is not None
    assert record.hold_ms >= 200
    assert (record.sent_ms, record.connect_ms, record.endpoint_id) == (None, None, None)


async def test_retries_are_counted_by_what_made_them(tmp_path: Path) -> None:
    async def mute(connection: Connection) -> None:
        await connection.request()
        connection.fin()

    busy = json_answer(status=b"503 Service Unavailable", more=b"retry-after: 1\r\n")
    for script, reason in ((mute, "lost"), (answering(busy), "busy")):
        async with (
            Upstream(script) as bad,
            Upstream(answering(json_answer())) as good,
            router(tmp_path, bad.port, access_log=True) as r,
        ):
            # Only the bad one, then both: whoever is chosen first is known.
            async with await r.client() as c:
                await r.push([endpoint(0, bad.port), endpoint(1, good.port)])
                while not bad.seen:
                    c.post(BODY)
                    assert (await c.answer()).status == 200
            await r.until(lambda k=reason, n=r: n.pool.totals()[f"retries_{k}"] == 1)
            assert r.pool.totals()["retries_other"] == 1


async def test_a_reconfiguration_leaves_what_runs_its_profile_and_its_record(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def gated(connection: Connection) -> None:
        while True:
            await connection.request()
            await gate.wait()
            await connection.send(json_answer())

    slow = RoutingProfile(name="slow", first_byte_s=60.0)
    before = WorkerConfig(
        limits=QUICK,
        profiles={INTERACTIVE: RoutingProfile(), "slow": slow},
        default_profile="slow",
        telemetry=Telemetry(access_log=True),
    )
    # In it the same request would be out of time at once.
    hasty = RoutingProfile(first_byte_s=0.01)
    after = msgspec.structs.replace(before, profiles={INTERACTIVE: hasty}, default_profile=INTERACTIVE)
    async with Upstream(gated) as up, router(tmp_path, up.port, config=before) as r:
        async with await r.client() as old, await r.client() as new:
            old.post(BODY)
            await r.until(lambda: len(up.seen) == 1)
            r.pool.reconfigure(after)
            new.post(BODY)
            assert (await new.answer()).status == 504
            gate.set()
            assert (await old.answer()).status == 200
        await r.until(lambda: len(r.heard.records) == 2)
    by_status: dict[int, AccessRecord] = {record.status: record for record in r.heard.records}
    assert (by_status[200].profile, by_status[504].profile) == ("slow", INTERACTIVE)


async def test_tokens_stand_in_the_record_and_by_model(tmp_path: Path) -> None:
    usage = b'{"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18}}'

    async def streaming(connection: Connection) -> None:
        await connection.request()
        await connection.send(json_answer(usage))
        await connection.request()
        await connection.send(SSE_HEAD + chunk(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'))
        await connection.send(chunk(b"data: " + usage + b"\n\n") + chunk(b"data: [DONE]\n\n") + LAST)

    config = WorkerConfig(limits=QUICK, telemetry=Telemetry(access_log=True, usage="asked"))
    async with (
        Upstream(streaming) as up,
        router(tmp_path, up.port, config=config) as r,
        await r.client() as c,
    ):
        for body in (BODY, b'{"model":"m","stream":true,"messages":[]}'):
            c.post(body)
            assert (await c.answer()).complete
        c.post(b'{"model":"nope","messages":[]}')
        assert (await c.answer()).status == 404
        await r.until(lambda: len(r.heard.records) == 3 and r.pool.models.totals()["m"].answers_2xx == 2)
        counts = r.pool.models.totals()["m"]
        assert (counts.tokens_prompt, counts.tokens_output) == (22, 14)
    told = [(record.tokens_in, record.tokens_out) for record in r.heard.records]
    assert told == [(11, 7), (11, 7), (None, None)]


async def test_the_name_of_a_model_that_is_not_there_stands_in_the_record(tmp_path: Path) -> None:
    async with router(tmp_path, models=[ModelRow(name="m")], access_log=True) as r, await r.client() as c:
        for name in ("nope", "n" * 1000):
            c.post(b'{"model":"%b","messages":[]}' % name.encode())
            assert (await c.answer()).status == 404
        await r.until(lambda: len(r.heard.records) == 2)
    assert [(record.model, record.alias) for record in r.heard.records] == [(None, "nope"), (None, "n" * 128)]
