"""Keys on the wire: who is let in, what strangers learn, what reaches an engine (W03, W04, W37, HO30)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from llmgw_router.core.config import WorkerConfig
from llmgw_router.core.keys import KeyRow, digest_of
from llmgw_router.core.routes import ROUTES, Content
from tests.integration.router.harness import BODY, CHAT, QUICK, Answer, Router, endpoint, router
from tests.integration.router.upstream import SSE_HEAD, Connection, Upstream, answering, chunk, json_answer

GUARDED = WorkerConfig(limits=QUICK, keys_required=True)
KEY = b"sk-llmgw-of-a-test"
BEARER = b"authorization: Bearer " + KEY + b"\r\n"


def row(**more: Any) -> KeyRow:
    return KeyRow(digest=digest_of(KEY), key_id="k1", **more)


async def ask(one: Router, more: bytes = b"", body: bytes = BODY, path: bytes = CHAT) -> Answer:
    async with await one.client() as client:
        client.post(body, path=path, more=more)
        return await client.answer()


async def test_every_engine_path_asks_for_a_key_and_no_credential_travels_on_w37(tmp_path: Path) -> None:
    posts = [one.path for one in ROUTES if one.content is Content.JSON]
    async with (
        Upstream(answering(json_answer())) as engine,
        router(tmp_path, engine.port, config=GUARDED) as one,
    ):
        one.pool.push_keys([row()], whole=True)
        for path in (one.path.replace(b"{id}", b"resp_1") for one in ROUTES):
            refused = await ask(one, path=path)
            assert (refused.status, refused.one(b"www-authenticate")) == (401, b"Bearer")
            assert b'"invalid_api_key"' in refused.body
        assert engine.seen == []
        for header in (b"Authorization: Bearer ", b"x-api-key: ", b"api-key: "):
            for path in posts:
                answer = await ask(one, path=path, more=header + KEY + b"\r\ncookie: c=1\r\n")
                assert answer.status == 200
        assert len(engine.seen) == 3 * len(posts)
        for seen in engine.seen:
            for name in (b"authorization", b"x-api-key", b"api-key", b"cookie"):
                assert seen.all(name) == []


async def test_a_strange_key_is_never_repeated_and_all_read_alike_w03(tmp_path: Path) -> None:
    expired = KeyRow(digest=digest_of(b"sk-llmgw-expired-one"), key_id="k2", expires_unix_s=1.0)
    async with (
        Upstream(answering(json_answer())) as engine,
        router(tmp_path, engine.port, config=GUARDED) as one,
    ):
        one.pool.push_keys([row(), expired], whole=True)
        answers = [
            await ask(one, more=more)
            for more in (
                b"",
                b"authorization: Bearer sk-llmgw-guessed\r\n",
                b"authorization: Basic c2stbGxtZ3c=\r\n",
                b"authorization: Bearer sk-llmgw-expired-one\r\n",
            )
        ]
        assert {answer.status for answer in answers} == {401}
        assert len({answer.body for answer in answers}) == 1
        assert all(b"sk-" not in answer.body for answer in answers)


async def test_a_model_outside_the_scope_reads_as_an_unknown_one_w04(tmp_path: Path) -> None:
    async with (
        Upstream(answering(json_answer())) as engine,
        router(tmp_path, engine.port, config=GUARDED) as one,
    ):
        one.pool.push_keys([row(models=("other",))], whole=True)
        hidden = await ask(one, more=BEARER)
        one.pool.push_keys([row()], whole=True)
        unknown = await ask(one, more=BEARER, body=b'{"model":"x","messages":[]}')
        assert hidden.status == unknown.status == 404
        assert hidden.body == unknown.body.replace(b"`x`", b"`m`")
        assert engine.seen == []


async def test_keys_not_loaded_and_keys_out_of_date_are_503(tmp_path: Path) -> None:
    async with (
        Upstream(answering(json_answer())) as engine,
        router(tmp_path, engine.port, config=GUARDED) as one,
    ):
        starting = await ask(one, more=BEARER)
        assert (starting.status, b'"router_starting"' in starting.body) == (503, True)
        one.pool.push_keys([row()], whole=True)
        assert (await ask(one, more=BEARER)).status == 200
        one.pool.keys_are_stale("The keys' database has been away too long.")
        away = await ask(one, more=BEARER)
        assert (away.status, away.one(b"retry-after")) == (503, b"2")
        assert b'"keys_unavailable"' in away.body
        one.pool.push_keys([], whole=False)
        assert (await ask(one, more=BEARER)).status == 200


async def test_a_replaced_worker_knows_the_keys_before_it_serves(tmp_path: Path) -> None:
    async with (
        Upstream(answering(json_answer())) as engine,
        router(tmp_path, engine.port, config=GUARDED) as one,
    ):
        one.pool.push_keys([row()], whole=True)
        (worker,) = one.pool._seats
        assert worker.process is not None
        worker.process.kill()
        await one.until(lambda: worker.deaths == 1 and worker.serving.is_set())
        assert (await ask(one, more=BEARER)).status == 200
        assert (await ask(one)).status == 401


async def test_what_runs_when_its_key_is_revoked_finishes_and_the_next_is_refused(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD + chunk(b'data: {"a":1}\n\n'))
        await go_on.wait()
        await connection.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with Upstream(script) as engine, router(tmp_path, engine.port, config=GUARDED) as one:
        one.pool.push_keys([row()], whole=True)
        async with await one.client() as client:
            client.post(BODY, more=BEARER)
            status, _, _ = await client.head()
            assert (status, await client.chunk()) == (200, b'data: {"a":1}\n\n')
            one.pool.push_keys([], [row().digest], whole=False)
            assert (await ask(one, more=BEARER)).status == 401
            go_on.set()
            assert await client.chunk() == b"data: [DONE]\n\n"
            assert await client.chunk() == b""
            client.post(BODY, more=BEARER)
            assert (await client.answer()).status == 401, "on the same connection too"


async def test_of_a_stranger_no_long_body_is_read(tmp_path: Path) -> None:
    async with (
        Upstream(answering(json_answer())) as engine,
        router(tmp_path, engine.port, config=GUARDED) as one,
    ):
        one.pool.push_keys([row()], whole=True)
        async with await one.client() as client:
            client.send(b"POST %b HTTP/1.1\r\nhost: r\r\ncontent-length: 20000000\r\n\r\n{" % CHAT)
            answer = await client.answer()
            assert (answer.status, answer.one(b"connection")) == (401, b"close")
        async with await one.client() as client:
            head = b"POST %b HTTP/1.1\r\nhost: r\r\nexpect: 100-continue\r\n%bcontent-length: %d\r\n\r\n"
            client.send(head % (CHAT, b"", len(BODY)))
            assert (await client.answer()).status == 401, "and is not asked to go on (W41)"
        async with await one.client() as client:
            client.send(head % (CHAT, BEARER, len(BODY)))
            assert (await client.head())[0] == 100
            client.send(BODY)
            assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    "path", [b"/v1/models", b"/v1/models/m", b"/v1/nothing", b"//v1/./models", b"/%761/models"]
)
async def test_cold_paths_of_the_api_ask_too_and_are_told_who_asks_ho30(tmp_path: Path, path: bytes) -> None:
    socket = str(tmp_path / "cold.sock")
    async with (
        Upstream(answering(json_answer()), path=socket) as cold,
        router(tmp_path, config=GUARDED, cold_socket=socket) as one,
    ):
        one.pool.push_keys([row()], whole=True)
        async with await one.client() as client:
            client.send(b"GET %b HTTP/1.1\r\nhost: r\r\nx-llmgw-key: k1\r\n\r\n" % path)
            assert (await client.answer()).status == 401
            client.send(b"GET %b HTTP/1.1\r\nhost: r\r\nx-llmgw-key: admin\r\n%b\r\n" % (path, BEARER))
            assert (await client.answer()).status == 200
            client.send(b"GET /healthz HTTP/1.1\r\nhost: r\r\n\r\n")
            assert (await client.answer()).status == 200
        assert [seen.all(b"x-llmgw-key") for seen in cold.seen] == [[b"k1"], []]


async def test_what_was_learnt_of_endpoints_does_not_open_a_door(tmp_path: Path) -> None:
    """A table without keys: strangers are told nothing of it, not even that it is empty."""
    async with router(tmp_path, config=GUARDED) as one:
        one.pool.push_keys([], whole=True)
        await one.push([endpoint(0, 1)])
        assert (await ask(one)).status == 401
        assert (await ask(one, body=b"not json")).status == 401
