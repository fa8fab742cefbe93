"""Usage on the wire: what the engine is asked, what the client sees of it, what is kept (W21, W39, HO17)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from llmgw_router.adapters.usage_spool import SpoolFolder
from llmgw_router.core.config import INTERACTIVE, RoutingProfile, Telemetry, WorkerConfig
from llmgw_router.core.keys import KeyRow, digest_of
from llmgw_router.core.usage_lines import UsageRecord
from tests.integration.router.harness import BODY, CHAT, QUICK, Answer, Router, endpoint, router
from tests.integration.router.surface import FORM_TYPE, form
from tests.integration.router.test_cold_models import cold
from tests.integration.router.upstream import (
    LAST,
    SSE_HEAD,
    Connection,
    Upstream,
    answering,
    chunk,
    json_answer,
)

STREAM = b'{"model":"m","messages":[],"stream":true}'
EVENTS = [b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % number for number in range(5)]
EXTRA = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5}}\n\n'
DONE = b"data: [DONE]\n\n"


def noting(usage: str = "asked", **more: Any) -> WorkerConfig:
    return WorkerConfig(limits=QUICK, telemetry=Telemetry(usage=usage), **more)


@asynccontextmanager
async def metered(
    tmp_path: Path, *ports: int, usage: str = "asked"
) -> AsyncIterator[tuple[Router, SpoolFolder]]:
    folder = tmp_path / "usage"
    folder.mkdir()
    async with router(tmp_path, *ports, config=noting(usage), usage_folder=folder) as one:
        spools = SpoolFolder(folder, "r1")
        yield one, spools
        spools.close()


def rows(spools: SpoolFolder) -> list[UsageRecord]:
    batch = spools.read()
    spools.taken(batch)
    return batch.records


async def ask(one: Router, body: bytes = BODY, *, path: bytes = CHAT, more: bytes = b"") -> Answer:
    async with await one.client() as client:
        client.post(body, path=path, more=more)
        return await client.answer()


def streaming(*parts: bytes) -> bytes:
    return SSE_HEAD + b"".join(chunk(part) for part in parts) + LAST


async def test_the_engine_is_asked_and_the_client_sees_nothing_of_it_w21(tmp_path: Path) -> None:
    answer = streaming(*EVENTS, EXTRA, DONE)
    async with Upstream(answering(answer)) as engine, metered(tmp_path, engine.port) as (one, spools):
        got = await ask(one, STREAM, more=b"x-request-id: mine\r\n")
        assert got.body == b"".join([*EVENTS, DONE])
        sent = json.loads(engine.seen[0].body)
        assert sent.pop("stream_options") == {"include_usage": True}
        assert sent == json.loads(STREAM)
        (row,) = rows(spools)
        assert (row.source, row.complete, row.status) == ("engine", True, 200)
        assert (row.prompt_tokens, row.output_tokens, row.cached_tokens) == (9, 5, None)
        assert (row.request_id, row.model, row.replica_id, row.path) == ("mine", "m", "e0", CHAT.decode())
        assert row.ended_unix_ms is not None
        assert row.ended_unix_ms >= row.began_unix_ms > 1_700_000_000_000
        assert row.ttft_ms is not None
        assert row.duration_ms is not None
        assert 0 < row.ttft_ms <= row.duration_ms


@pytest.mark.parametrize("include", [b"true", b"false", None])
@pytest.mark.parametrize("cut", [1, 33])
async def test_the_stream_is_what_was_asked_for_in_all_three_cases_w21_w19(
    tmp_path: Path, include: bytes | None, cut: int
) -> None:
    whole = b"".join([*EVENTS, EXTRA, DONE])

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD)
        pieces = (chunk(whole[at : at + cut]) for at in range(0, len(whole), cut))
        await connection.dribble(b"".join(pieces), size=997)
        await connection.send(LAST)

    body = STREAM if include is None else STREAM[:-1] + b',"stream_options":{"include_usage":%b}}' % include
    async with Upstream(script) as engine, metered(tmp_path, engine.port) as (one, spools):
        got = await ask(one, body)
        assert got.body == (whole if include == b"true" else whole.replace(EXTRA, b""))
        (row,) = rows(spools)
        assert (row.source, row.prompt_tokens, row.output_tokens) == ("engine", 9, 5)


@pytest.mark.parametrize(("usage", "source", "tokens"), [("told", "counted", (10, 5)), ("off", None, None)])
async def test_bodies_are_left_alone_where_asking_is_off(
    tmp_path: Path, usage: str, source: str | None, tokens: tuple[int, int] | None
) -> None:
    async with (
        Upstream(answering(streaming(*EVENTS, DONE))) as engine,
        metered(tmp_path, engine.port, usage=usage) as (one, spools),
    ):
        assert (await ask(one, STREAM)).body == b"".join([*EVENTS, DONE])
        assert engine.seen[0].body == STREAM
        found = rows(spools)
        wanted = [] if source is None else [(source, tokens)]
        assert [(row.source, (row.prompt_tokens, row.output_tokens)) for row in found] == wanted


async def test_an_answer_that_is_no_stream_is_read_from_its_end(tmp_path: Path) -> None:
    content = b'{"x":"%b","usage":{"prompt_tokens":3,"completion_tokens":4},"id":"z"}' % (b"y" * 90_000)
    script = answering(json_answer(content))
    async with Upstream(script) as engine, metered(tmp_path, engine.port) as (one, spools):
        assert (await ask(one)).body == content
        assert engine.seen[0].body == BODY
        (row,) = rows(spools)
        assert (row.source, row.prompt_tokens, row.output_tokens) == ("engine", 3, 4)


async def test_what_cannot_be_read_is_unknown_and_not_nothing_w39(tmp_path: Path) -> None:
    answers = [
        json_answer(b'{"usage":{"prompt_tokens":3}}', more=b"content-encoding: gzip\r\n"),
        json_answer(b'{"usage":{"prompt_tokens":3}}', status=b"400 Bad Request"),
        json_answer(b'{"ok":true}'),
    ]

    async def script(connection: Connection) -> None:
        for answer in answers:
            await connection.request()
            await connection.send(answer)

    async with Upstream(script) as engine, metered(tmp_path, engine.port) as (one, spools):
        for _ in answers:
            await ask(one)
        found = rows(spools)
        assert [row.source for row in found] == ["unknown"] * 3
        assert {(row.prompt_tokens, row.output_tokens) for row in found} == {(None, None)}
        assert [row.status for row in found] == [200, 400, 200]
        assert [row.complete for row in found] == [True] * 3


async def test_a_client_that_leaves_after_ten_of_a_hundred_has_used_them_ho17(tmp_path: Path) -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD)
        for event in EVENTS * 2:
            await connection.send(chunk(event))
        await connection.closed_by_peer()

    body = STREAM.replace(b"[]", b"[%b]" % (b" " * 400))
    async with Upstream(script) as engine, metered(tmp_path, engine.port) as (one, spools):
        async with await one.client() as client:
            client.post(body)
            await client.head()
            got = b""
            while got.count(b"data:") < 10:
                got += await client.chunk()
        await one.until(one.quiet)
        (row,) = rows(spools)
        assert (row.source, row.complete, row.status) == ("estimated", False, 499)
        assert row.output_tokens == 10
        assert row.prompt_tokens == len(body) // 4
        await one.until(lambda: one.pool.totals()["tokens_output"] == 10)
        assert one.pool.totals()["tokens_prompt"] == 0, "a guess is summed nowhere"


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        (CHAT, b"application/json", STREAM.replace(b"[]", b"[%b]" % (b" " * 300_000))),
        (b"/v1/audio/transcriptions", FORM_TYPE, form()),
    ],
    ids=["a long body", "a form"],
)
async def test_the_prompt_of_what_is_hardly_text_is_unknown_where_nobody_tells(
    tmp_path: Path, path: bytes, kind: bytes, body: bytes
) -> None:
    async with (
        Upstream(answering(streaming(*EVENTS, DONE))) as engine,
        metered(tmp_path, engine.port) as (one, spools),
        await one.client() as client,
    ):
        client.send(b"POST %b HTTP/1.1\r\nhost: router\r\ncontent-type: %b\r\n" % (path, kind))
        client.send(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        assert (await client.answer()).status == 200
        (row,) = rows(spools)
        assert (row.source, row.prompt_tokens, row.output_tokens) == ("counted", None, 5)


async def test_a_stream_that_was_told_to_wait_has_used_what_its_engine_says(tmp_path: Path) -> None:
    """Its head is ours, and left before there was an engine."""
    profile = RoutingProfile(heartbeat=True, heartbeat_after_s=0.05, heartbeat_every_s=0.05)
    config = WorkerConfig(limits=QUICK, profiles={INTERACTIVE: profile}, telemetry=Telemetry(usage="asked"))
    folder = tmp_path / "usage"
    folder.mkdir()
    row = cold(hold_timeout_s=20.0)
    async with (
        Upstream(answering(streaming(*EVENTS, EXTRA, DONE))) as engine,
        router(tmp_path, models=[row], config=config, usage_folder=folder) as one,
        await one.client() as client,
    ):
        client.post(STREAM)
        assert (await client.head())[0] == 200
        assert (await client.chunk()).startswith(b": waiting")
        await one.push([endpoint(0, engine.port)], [row])
        said = b""
        while piece := await client.chunk():
            said += piece if not piece.startswith(b":") else b""
        assert said == b"".join([*EVENTS, DONE])
        spools = SpoolFolder(folder, "r1")
        (record,) = rows(spools)
        assert (record.source, record.prompt_tokens, record.output_tokens) == ("engine", 9, 5)
        assert record.complete
        spools.close()


async def test_a_stream_that_breaks_is_estimated_and_says_all_it_had_w24(tmp_path: Path) -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD + chunk(EVENTS[0]) + chunk(b"data: {"))
        connection.reset()

    async with Upstream(script) as engine, metered(tmp_path, engine.port) as (one, spools):
        got = await ask(one, STREAM)
        assert got.body.startswith(EVENTS[0] + b"data: {\n\ndata: ")
        assert b"stream_interrupted" in got.body
        (row,) = rows(spools)
        assert (row.source, row.complete, row.code) == ("estimated", False, "stream_interrupted")


async def test_every_try_is_one_row_and_a_refusal_that_reached_no_engine_is_none(tmp_path: Path) -> None:
    async def dying(connection: Connection) -> None:
        await connection.request()
        connection.fin()

    async with Upstream(dying) as engine, metered(tmp_path, engine.port) as (one, spools):
        assert (await ask(one)).status == 502
        assert (await ask(one, b'{"model":"x"}')).status == 404
        assert (await ask(one, b"{")).status == 400
        (row,) = rows(spools)
        assert (row.status, row.code) == (502, "upstream_unreachable")
        assert (row.source, row.complete) == ("unknown", False)


async def test_nothing_stays_open_of_what_failed_or_was_left_ho15_ho16(tmp_path: Path) -> None:
    """After aborts and refusals a worker is killed: it has nothing to own up to, and the next one serves."""

    async def script(connection: Connection) -> None:
        while True:
            seen = await connection.request()
            if b"stream" not in seen.body:
                await connection.send(json_answer())
                continue
            await connection.send(SSE_HEAD + chunk(EVENTS[0]))
            await connection.closed_by_peer()
            return

    async with Upstream(script) as engine, metered(tmp_path, engine.port) as (one, spools):
        async with await one.client() as client:
            client.post(STREAM)
            await client.head()
            await client.chunk()
        for body in (b'{"model":"x"}', b"{", b'{"model":1}', b""):
            assert (await ask(one, body)).status in (400, 404)
        async with await one.client() as client:
            client.send(b"POST %b HTTP/1.1\r\nhost: r\r\ncontent-length: 999999999\r\n\r\n" % CHAT)
            assert (await client.answer()).status == 413
        assert (await ask(one)).status == 200
        await one.until(one.quiet)
        (worker,) = one.pool._seats
        assert worker.process is not None
        worker.process.kill()
        await one.until(lambda: worker.deaths == 1 and worker.serving.is_set())
        assert sorted(row.status or 0 for row in rows(spools)) == [200, 499]


async def test_who_used_it_stands_in_the_row(tmp_path: Path) -> None:
    folder = tmp_path / "usage"
    folder.mkdir()
    key = KeyRow(digest=digest_of(b"sk-llmgw-k"), key_id="k1", tenant="acme/x")
    config = noting(keys_required=True)
    async with (
        Upstream(answering(json_answer())) as engine,
        router(tmp_path, engine.port, config=config, usage_folder=folder) as one,
    ):
        one.pool.push_keys([key], whole=True)
        assert (await ask(one)).status == 401
        assert (await ask(one, more=b"x-api-key: sk-llmgw-k\r\n")).status == 200
        spools = SpoolFolder(folder, "r1")
        (row,) = rows(spools)
        assert (row.key_id, row.tenant, row.router_id) == ("k1", "acme/x", "r1")
        spools.close()


async def test_a_killed_worker_loses_nothing_that_was_answered_and_owns_up_to_the_rest(
    tmp_path: Path,
) -> None:
    begun = asyncio.Event()

    async def script(connection: Connection) -> None:
        while True:
            seen = await connection.request()
            if b"hang" in seen.body:
                begun.set()
                await connection.closed_by_peer()
                return
            await connection.send(json_answer(b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}'))

    async with Upstream(script) as engine, metered(tmp_path, engine.port) as (one, spools):
        for _ in range(20):
            assert (await ask(one)).status == 200
        async with await one.client() as client:
            client.post(b'{"model":"m","messages":["hang"]}')
            await begun.wait()
            (worker,) = one.pool._seats
            assert worker.process is not None
            worker.process.kill()
            await one.until(lambda: worker.deaths == 1 and worker.serving.is_set())
        found = rows(spools)
        assert [row.source for row in found] == ["engine"] * 20 + ["unknown"]
        assert len({row.usage_id for row in found}) == 21
        lost = found[-1]
        assert not lost.complete
        assert (lost.status, lost.ended_unix_ms, lost.prompt_tokens) == (None, None, None)
        assert (await ask(one)).status == 200
        assert [row.source for row in rows(spools)] == ["engine"]
        assert len(list((tmp_path / "usage").iterdir())) == 2, "of the dead one nothing is left"


async def test_usage_of_nulls_is_unknown_and_a_failure_names_who_was_asked(tmp_path: Path) -> None:
    nothing = json_answer(b'{"usage":{"prompt_tokens":null,"completion_tokens":null}}')

    answers = [nothing]

    async def told_nothing_then_gone(connection: Connection) -> None:
        await connection.request()
        if answers:
            await connection.send(answers.pop())
        connection.fin()

    async with Upstream(told_nothing_then_gone) as up, metered(tmp_path, up.port) as (r, spools):
        async with await r.client() as c:
            c.post(BODY)
            assert (await c.answer()).status == 200
            c.post(BODY)
            assert (await c.answer()).status >= 500
        found: list[UsageRecord] = []
        await r.until(lambda: found.extend(rows(spools)) or len(found) == 2)
    assert [one.source for one in found] == ["unknown", "unknown"]
    assert [one.replica_id for one in found] == ["e0", "e0"]
