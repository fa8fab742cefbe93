"""Wire rules that have no better place: streams of every content, absurd numbers, and many at once."""

import asyncio
import gzip
import json
from pathlib import Path

import pytest

from llmgw_router.core.config import Admission, Limits, RoutingProfile, WorkerConfig

from .harness import BODY, Client, router
from .openai_engine import cold, cold_application
from .upstream import LAST, SSE_HEAD, Connection, Upstream, answering, chunk, json_answer

#: What engines send that a router which knows its fields would lose or reorder.
EVENTS = [
    b'data: {"choices":[{"index":1,"delta":{"content":"b"}},{"index":0,"delta":{}}],"x_new":{"y":[]}}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"t",'
    b'"function":{"name":"f","arguments":"{\\"a"}}]}}]}\n\n',
    b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\\":1}"}}]}}]}\n\n',
    b'data: {"choices":[{"delta":{"reasoning_content":"hm","reasoning":"hm"},'
    b'"logprobs":{"content":[{"token":"\xc3\xa9"}]}}]}\n\n',
    b'event: custom\nid: 7\nretry: 10\ndata: {"seed":0.10000000000000000555,"n":1e999,"s":"\\ud800"}\n\n',
    b": a comment\n\n",
    b"data:no blank\r\ndata: and a second line\r\n\r\n",
    b'data: {"choices":[],"usage":null}\r\r',
]


@pytest.mark.parametrize("done", [True, False], ids=["done", "no done"])
async def test_whatever_a_stream_holds_arrives_as_it_is(tmp_path: Path, done: bool) -> None:
    """W19, W22, W23: nothing lost, nothing in another order, and no [DONE] that was not sent."""
    stream = b"".join(EVENTS) + (b"data: [DONE]\n\n" if done else b"")

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.send(SSE_HEAD)
            for at in range(0, len(stream), 97):
                await connection.send(chunk(stream[at : at + 97]))
            await connection.send(LAST)

    async with Upstream(script) as up, router(tmp_path, up.port) as r, await r.client() as c:
        for path in (b"/v1/chat/completions", b"/v1/responses", b"/v1/messages"):
            c.post(BODY[:-1] + b',"stream":true}', path=path)
            answer = await c.answer()
            assert (answer.body, answer.complete) == (stream, True)


async def test_one_broken_event_among_sixty(tmp_path: Path) -> None:
    """HO03: nothing is parsed to be relayed."""
    events = [b'data: {"n":%d}\n\n' % n for n in range(60)]
    events[30] = b'data: {"n":30, broken \xff\n\n'
    async with (
        Upstream(answering(SSE_HEAD + b"".join(chunk(one) for one in events) + LAST)) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.post(BODY)
        answer = await c.answer()
    assert (answer.status, answer.body, answer.complete) == (200, b"".join(events), True)


@pytest.mark.parametrize(
    "number", [b"1e30", b"-1", b'"7"', b"null", b"1e999", b"99999999999999999999999", b"[]"]
)
async def test_absurd_numbers_are_the_engines_to_judge(tmp_path: Path, number: bytes) -> None:
    """W46."""
    body = b'{"model":"m","max_tokens":' + number + b',"n":' + number + b"}"
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.post(body)
        assert (await c.answer()).status == 200
    assert up.seen[0].body == body


async def test_a_compressed_error_passes_once(tmp_path: Path) -> None:
    """HO20, W39: bytes and header together, whatever the status."""
    squeezed = gzip.compress(b'{"error":{"message":"no"}}')
    engine = json_answer(squeezed, status=b"400 Bad Request", more=b"content-encoding: gzip\r\n")
    async with Upstream(answering(engine)) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.post(BODY, more=b"accept-encoding: gzip\r\n")
        answer = await c.answer()
    assert (answer.status, answer.body) == (400, squeezed)
    assert answer.all(b"content-encoding") == [b"gzip"]


async def test_two_hundred_streams_at_one_engine(tmp_path: Path) -> None:
    """W56: neither a pool of a hundred connections nor five minutes in all is anybody's limit."""
    profile = RoutingProfile()
    assert profile.total_s is not None
    assert profile.total_s >= 3600
    assert Limits().keepalive_s > 60 > Limits().upstream_idle_s
    everybody = asyncio.Event()
    waiting = 0

    async def script(connection: Connection) -> None:
        nonlocal waiting
        await connection.request()
        await connection.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        waiting += 1
        if waiting == 200:
            everybody.set()
        await everybody.wait()
        await connection.send(chunk(b"data: [DONE]\n\n") + LAST)

    async def ask(c: Client) -> bytes:
        c.post(BODY)
        return (await c.answer()).body

    async with Upstream(script) as up, router(tmp_path, up.port, workers=2) as r:
        clients = [await r.client() for _ in range(200)]
        bodies = await asyncio.gather(*(ask(c) for c in clients))
        for c in clients:
            c.close()
    assert set(bodies) == {b"data: 1\n\ndata: [DONE]\n\n"}


async def test_models_are_listed_whatever_engines_say(tmp_path: Path) -> None:
    """HO22, W59: what is configured, cold or not; no engine is asked for it."""
    up = Upstream(answering(json_answer(b"not even JSON", status=b"500 Oops")))
    async with (
        up,
        cold_application(tmp_path / "cold.sock", cold("a/b"), cold("m")),
        router(tmp_path, up.port) as r,
    ):
        async with await r.client() as c:
            c.send(b"GET /v1/models HTTP/1.1\r\nhost: r\r\n\r\n")
            answer = await c.answer()
            assert answer.status == 200
            listed = json.loads(answer.body)
            assert [(one["id"], one["status"]) for one in listed["data"]] == [("a/b", "cold"), ("m", "cold")]
            for spelling in (b"a/b", b"a%2Fb", b"a%2fb"):
                c.send(b"GET /v1/models/%b HTTP/1.1\r\nhost: r\r\n\r\n" % spelling)
                assert json.loads((await c.answer()).body)["id"] == "a/b"
        assert up.connections == 0


async def test_one_place_is_given_back_however_a_request_ends(tmp_path: Path) -> None:
    """HO15, HO16: left in mid-stream, of no model, malformed, too big; then a good one."""

    async def script(connection: Connection) -> None:
        seen = await connection.request()
        await connection.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        if b'"leave"' in seen.body:
            await connection.closed_by_peer()
        await connection.send(chunk(b"data: [DONE]\n\n") + LAST)

    limits = Limits(sweep_s=0.02, max_body_bytes=1000)
    config = WorkerConfig(limits=limits, admission=Admission(max_in_flight=1, max_queued=0))
    async with Upstream(script) as up, router(tmp_path, up.port, config=config) as r:
        for bad in (b'{"model":"m","user":"leave"}', b'{"model":"none"}', b"{", b"x" * 2000):
            async with await r.client() as c:
                c.post(bad)
                await c.head()
            await r.until(r.quiet)
            async with await r.client() as c:
                c.post(BODY)
                answer = await c.answer()
                assert (answer.status, answer.complete) == (200, True)
            await r.until(r.quiet)
