"""Every line of the table of routes, walked: what reaches an engine, by which rules, and what cannot."""

import json
from pathlib import Path

import pytest

from llmgw_router.core.config import Telemetry, WorkerConfig
from llmgw_router.core.keys import KeyRow, digest_of
from llmgw_router.core.routes import ROUTES, Content, Route, find
from llmgw_router.relay.ipc import ModelRow

from .harness import BODY, QUICK, endpoint, router
from .surface import AUDIO, EACH, FORM_TYPE, form, path_of, request
from .upstream import Connection, Upstream, answering, json_answer

KEY = b"sk-llmgw-of-a-test-x"


async def test_every_route_reaches_the_engine_as_it_came(tmp_path: Path) -> None:
    """W35, W42, W48, W60: one path, one framing, the body byte for byte; HEAD wherever GET is."""
    async with Upstream(answering(json_answer())) as up, router(tmp_path, up.port) as r:
        for route, method in EACH:
            sent = request(route, method=method, query=b"?limit=2")
            async with await r.client() as c:
                c.send(sent)
                answer = await c.answer(to_head=method == b"HEAD")
                assert (route.path, answer.status) == (route.path, 200)
                assert answer.one(b"x-request-id")
                c.send(sent.replace(b" /", b" //./", 1))
                assert (await c.answer(to_head=method == b"HEAD")).status == 200
            for seen in up.seen[-2:]:
                assert seen.line == b"%b %b?limit=2 HTTP/1.1" % (method, path_of(route))
                assert seen.body == sent.partition(b"\r\n\r\n")[2]
                assert len(seen.all(b"content-length")) == (method == b"POST")
                assert seen.all(b"transfer-encoding") == []
                assert seen.one(b"accept-encoding") == b"identity"
    assert len(up.seen) == 2 * len(EACH)


async def test_other_methods_are_told_which_ones_are_right(tmp_path: Path) -> None:
    """W06, W48."""
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        for route in ROUTES:
            for method in {b"GET", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"POST"} - {*route.methods}:
                c.send(b"%b %b HTTP/1.1\r\nhost: r\r\n\r\n" % (method, path_of(route)))
                answer = await c.answer()
                assert (answer.status, answer.one(b"allow")) == (405, b", ".join(route.methods))
                assert json.loads(answer.body)["error"]["code"] == "method_not_allowed"
    assert up.seen == []


#: Names under which peers have taken an address, a key or a whole request from a client.
EVIL = (
    b"x-upstream-url: http://%(a)b/\r\nx-target-url: http://%(a)b\r\nx-base-url: http://%(a)b\r\n"
    b"x-portkey-custom-host: http://%(a)b\r\nx-portkey-provider: openai\r\nx-forwarded-host: %(a)b\r\n"
    b"x-forwarded-server: %(a)b\r\nx-original-host: %(a)b\r\nx-host: %(a)b\r\nforwarded: host=%(a)b\r\n"
    b"x-llmgw-endpoint: %(a)b\r\nx-llmgw-upstream: http://%(a)b\r\nx-gateway-destination-endpoint: %(a)b\r\n"
    b"x-envoy-original-dst-host: %(a)b\r\nproxy-connection: keep-alive\r\nproxy-authorization: Basic eA==\r\n"
)


async def test_no_request_can_choose_an_address(tmp_path: Path) -> None:
    """HO28, HO29: neither by header, query, target or body, on any route, nor for whoever comes next."""
    decoy = Upstream(answering(json_answer()))
    async with decoy, Upstream(answering(json_answer())) as up, router(tmp_path, up.port) as r:
        address = b"127.0.0.1:%d" % decoy.port
        for route, method in EACH:
            up.seen.clear()
            for sent in _evil(route, method, address):
                async with await r.client() as c:
                    c.send(sent)
                    await c.answer(to_head=method == b"HEAD")
            # The one with two slashes in front names a path that is in no table.
            assert len(up.seen) == 4
            for seen in up.seen:
                assert seen.one(b"host") == b"127.0.0.1:%d" % up.port
                assert seen.all(b"authorization") == seen.all(b"proxy-authorization") == []
                assert seen.all(b"x-llmgw-endpoint") == []
                assert seen.line.split(b" ")[1].startswith(path_of(route))
            # Data is passed on as data ...
            if route.content is Content.JSON:
                assert b'"extra_headers":{"host":"' + address in up.seen[0].body
            # ... and nothing of it sticks.
            assert up.seen[-1].body == request(route, method=method).partition(b"\r\n\r\n")[2]
            assert not any(address in value for _, value in up.seen[-1].headers)
    assert decoy.connections == 0


def _evil(route: Route, method: bytes, address: bytes) -> list[bytes]:
    """One request that tries everything, the same by other forms of its target, and an innocent one."""
    members = b"".join(
        b'"%b":"http://%b",' % (name, address)
        for name in (b"api_base", b"base_url", b"url", b"endpoint", b"custom_host", b"host", b"proxy")
    )
    members += b'"api_key":"sk-theirs","extra_headers":{"host":"%b","authorization":"x"},' % address
    evil = request(
        route,
        method=method,
        more=EVIL % {b"a": address} + b"authorization: Bearer sk-mine\r\nhost-override: x\r\n",
        query=b"?url=http://%b&base_url=%b&host=%b" % (address, address, address),
        extra=members,
    )
    target = b" " + path_of(route)
    return [
        evil,
        evil.replace(b"host: router", b"host: " + address, 1),
        evil.replace(target, b" http://" + address + path_of(route), 1),
        evil.replace(target, b" //" + address + path_of(route), 1),
        request(route, method=method),
    ]


async def test_every_route_passes_the_same_pipeline(tmp_path: Path) -> None:
    """HO30: who asks, what he may use, and the record, wherever an engine is reached."""
    config = WorkerConfig(limits=QUICK, keys_required=True, telemetry=Telemetry(access_log=True))
    bearer = b"authorization: Bearer " + KEY + b"\r\n"
    expected = []
    async with Upstream(answering(json_answer())) as up, router(tmp_path, up.port, config=config) as r:
        for models, more, status in (((), b"", 401), (("other",), bearer, 404), (None, bearer, 200)):
            r.pool.push_keys([KeyRow(digest=digest_of(KEY), key_id="k1", models=models)], whole=True)
            for route, method in EACH:
                async with await r.client() as c:
                    c.send(request(route, method=method, more=more))
                    answer = await c.answer(to_head=method == b"HEAD")
                    assert (route.path, answer.status) == (route.path, status)
                expected.append((method.decode(), path_of(route).decode(), status))
            assert len(up.seen) == (len(EACH) if status == 200 else 0)
        await r.until(lambda: len(r.heard.records) == len(expected))
        records = r.heard.records
        assert sorted((one.method, one.path, one.status) for one in records) == sorted(expected)
        assert {(one.endpoint_id, one.model) for one in records if one.status == 200} == {("e0@1", "m")}


UNKNOWN = (
    b"/v1",
    b"/v1/",
    b"/v1/files",
    b"/v1/batches",
    b"/v1/fine_tuning/jobs",
    b"/v1/chat",
    b"/v1/chat/completions/x",
    b"/v1/embeddings/../admin",
    b"/v1/responses/a/b",
    b"/v1/responses/a/cancel/b",
    b"/v1/load_lora_adapter",
    b"/v1/models",
    b"/metrics",
    b"/sleep",
    b"/reset_prefix_cache",
    b"/generate",
    b"/V1/embeddings",
)


async def test_what_is_not_in_the_table_reaches_no_engine(tmp_path: Path) -> None:
    """W06, HO30: an unknown path is no tunnel, whatever it looks like."""
    cold = Upstream(answering(json_answer(status=b"404 Not Found")))
    cold.path = str(tmp_path / "cold.sock")
    async with cold, Upstream(answering(json_answer())) as up, router(tmp_path, up.port) as r:
        for path in UNKNOWN:
            async with await r.client() as c:
                c.post(BODY, path=path)
                assert (await c.answer()).status == 404
        assert up.connections == 0
        assert len(cold.seen) == len(UNKNOWN)


def test_the_table_is_found_by_path_alone() -> None:
    for route in ROUTES:
        assert find(path_of(route)) is route
    assert find(b"/v1/responses/%2F..") is not None
    assert find(b"/v1/responses/a/other") is None
    assert find(b"/v1/response") is None


@pytest.mark.parametrize("first", [True, False], ids=["model first", "model last"])
@pytest.mark.parametrize("chunked", [True, False], ids=["chunks", "length"])
async def test_a_form_travels_whole_and_its_alias_is_spliced(
    tmp_path: Path, first: bool, chunked: bool
) -> None:
    """W42, W47, HO21: boundary and order of parts stay, also of a form that comes byte by byte."""
    async with Upstream(answering(json_answer())) as up, router(tmp_path) as r:
        await r.push([endpoint(0, up.port)], [ModelRow(name="m", aliases=("whisper-1",))])
        body = form(b"whisper-1", first=first)
        head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: r\r\ncontent-type: %b\r\n" % FORM_TYPE
        async with await r.client() as c:
            if chunked:
                c.send(head + b"transfer-encoding: chunked\r\n\r\n")
                for at in range(0, len(body), 701):
                    piece = body[at : at + 701]
                    c.send(b"%x\r\n%b\r\n" % (len(piece), piece))
                c.send(b"0\r\n\r\n")
            else:
                c.send(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
            assert (await c.answer()).status == 200
    (seen,) = up.seen
    assert seen.body == form(b"m", first=first)
    assert seen.one(b"content-type") == FORM_TYPE
    assert seen.one(b"content-length") == b"%d" % len(seen.body)


async def test_a_big_file_passes_and_its_alias_too(tmp_path: Path) -> None:
    """W47, HO19: 25 MB of audio."""
    audio = AUDIO * 2400
    async with Upstream(answering(json_answer())) as up, router(tmp_path) as r:
        await r.push([endpoint(0, up.port)], [ModelRow(name="m", aliases=("whisper-1",))])
        async with await r.client() as c:
            body = form(b"whisper-1", audio=audio)
            head = b"POST /v1/audio/translations HTTP/1.1\r\nhost: r\r\ncontent-type: %b\r\n" % FORM_TYPE
            c.send(head + b"content-length: %d\r\n\r\n" % len(body))
            c.send(body)
            assert (await c.answer()).status == 200
    assert up.seen[0].body == form(b"m", audio=audio)


@pytest.mark.parametrize(
    ("content_type", "body", "said"),
    [
        (b"application/json", b'{"model":"m"}', "not multipart/form-data"),
        (b"multipart/form-data", form(), "no boundary"),
        (FORM_TYPE, form()[:-8], "closing boundary"),
        (FORM_TYPE, b"", "never occurs"),
        (FORM_TYPE + b"\r\ncontent-type: " + FORM_TYPE, form(), "more than once"),
    ],
)
async def test_bad_forms_are_told_what_is_wrong(
    tmp_path: Path, content_type: bytes, body: bytes, said: str
) -> None:
    """W47: a clear 400 in OpenAI's shape, and no engine is asked."""
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.send(
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: r\r\n"
            b"content-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (content_type, len(body), body)
        )
        answer = await c.answer()
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["type"], error["code"]) == (400, "invalid_request_error", None)
        assert said in error["message"]
    assert up.seen == []


async def test_images_are_edited_by_form_or_by_json(tmp_path: Path) -> None:
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.post(BODY, path=b"/v1/images/edits")
        assert (await c.answer()).status == 200
        route = find(b"/v1/images/edits")
        assert route is not None
        c.send(request(route))
        assert (await c.answer()).status == 200
    assert [seen.body for seen in up.seen] == [BODY, form()]


async def test_speech_comes_back_as_the_bytes_that_it_is(tmp_path: Path) -> None:
    """W19 for what is no text: nothing is decoded on the way."""
    sound = bytes(range(256)) * 300

    async def speaking(connection: Connection) -> None:
        await connection.request()
        await connection.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for at in range(0, len(sound), 7001):
            piece = sound[at : at + 7001]
            await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await connection.send(b"0\r\n\r\n")

    async with Upstream(speaking) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.post(b'{"model":"m","input":"hi","voice":"v"}', path=b"/v1/audio/speech")
        answer = await c.answer()
    assert answer.complete
    assert answer.body == sound
    assert answer.one(b"content-type") == b"audio/mpeg"


async def test_a_big_body_is_read_in_steps_and_its_alias_spliced(tmp_path: Path) -> None:
    """W43, W44: 20 MB of JSON; the client that leaves meanwhile costs nothing."""
    async with Upstream(answering(json_answer())) as up, router(tmp_path) as r:
        await r.push([endpoint(0, up.port)], [ModelRow(name="m", aliases=("alias",))])
        body = b'{"messages":[{"image":"' + b"A" * 20_000_000 + b'","model":"x"}], "model" : "alias" }'
        async with await r.client() as leaving:
            leaving.post(body)
            await leaving.writer.drain()
        async with await r.client() as c:
            c.post(body)
            assert (await c.answer()).status == 200
            c.post(body.replace(b'"alias"', b'"other"'))
            assert (await c.answer()).status == 404
            c.post(body[:-1].rstrip() + b',"model":"m"}')
            answer = await c.answer()
            assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, "model")
        await r.until(r.quiet)
    assert up.seen[-1].body == body.replace(b'"alias"', b'"m"')
