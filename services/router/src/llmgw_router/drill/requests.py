"""What the router must refuse, and how a request must arrive at the engine."""

import asyncio
import hashlib

import msgspec

from llmgw_router.drill.rules import rule
from llmgw_router.drill.wire import Answer, Broken, Router

_INVALID = "invalid_request_error"


def expect(answer: Answer, status: int, **fields: object) -> None:
    """The error that must have come. Raises Broken."""
    if answer.status != status:
        raise Broken(f"answered {answer.status} instead of {status}: {answer.body[:120]!r}")
    error = answer.error()
    for name, value in fields.items():
        if error[name] != value:
            raise Broken(f"error.{name} is {error[name]!r} instead of {value!r}")
    if answer.get(b"x-request-id") is None:
        raise Broken("the answer has no x-request-id")


@rule("W01", "malformed bodies are 400")
async def malformed(router: Router) -> None:
    for body in (b"{", b"[]", b'{"model": "\xff"}', b'{"model":' + b"[" * 200_000):
        expect(await router.ask(body), 400, type=_INVALID, code=None)


@rule("W02", "a missing model, or one that is no string, is 400 and names `model`")
async def no_model(router: Router) -> None:
    for body in (b'{"messages":[]}', b'{"model":7}', b'{"model":null}'):
        expect(await router.ask(body), 400, type=_INVALID, param="model")


@rule("W05", "an unknown model is 404 model_not_found")
async def unknown_model(router: Router) -> None:
    expect(
        await router.ask(b'{"model":"no-such-model-of-the-drill"}'),
        404,
        type=_INVALID,
        code="model_not_found",
        param="model",
    )


@rule("W06", "an unknown path is a JSON 404, a wrong method 405 with Allow")
async def unknown_path(router: Router) -> None:
    expect(await router.ask(b"{}", path=b"/v1/no/such/path"), 404, code="unknown_url")
    answer = await router.ask(b"", method=b"PUT")
    expect(answer, 405)
    if b"POST" not in (answer.get(b"allow") or b""):
        raise Broken("405 without an Allow that names POST")


@rule("W10", "a body that is announced too large is 413 before it is sent")
async def too_large(router: Router) -> None:
    async with await router.connect() as connection:
        connection.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: drill\r\ncontent-length: 1000000000000\r\n\r\n"
        )
        expect(await connection.answer(), 413, code="request_too_large")
        if not await connection.closed():
            raise Broken("the connection stayed open, with a body that nobody reads")


@rule("W35", "hop-by-hop headers stay behind; one framing header arrives")
async def hop_by_hop(router: Router) -> None:
    seen = await router.echo(
        router.body({"echo": True}),
        more=[b"connection: x-hop", b"x-hop: 1", b"te: trailers", b"proxy-authorization: x", b"x-kept: 1"],
    )
    for name in ("x-hop", "te", "proxy-authorization", "transfer-encoding", "upgrade"):
        if seen.all(name):
            raise Broken(f"the engine saw {name}: {seen.all(name)[0]!r}")
    if len(seen.all("content-length")) != 1 or seen.all("x-kept") != ["1"]:
        raise Broken(f"the engine saw {seen.headers!r}")


@rule("W37", "credentials of the client never reach an engine")
async def credentials(router: Router) -> None:
    secret = "sk-drill-0123456789"
    more = [b"cookie: session=" + secret.encode()]
    if router.key is None:
        more += [f"{name}: {secret}".encode() for name in ("authorization", "api-key", "x-api-key")]
    seen = await router.echo(router.body({"echo": True}), more=more)
    for name, value in seen.headers:
        if secret in value or (router.key is not None and router.key in value):
            raise Broken(f"the engine was sent the client's {name}")


@rule("W38", "engines are asked for identity encoding")
async def identity(router: Router) -> None:
    seen = await router.echo(router.body({"echo": True}), more=[b"accept-encoding: gzip, br"])
    if seen.all("accept-encoding") not in (["identity"], []):
        raise Broken(f"the engine saw accept-encoding {seen.all('accept-encoding')!r}")


@rule("W40", "a compressed request body is refused, not misread")
async def compressed(router: Router) -> None:
    answer = await router.ask(b"\x1f\x8b not gzip", more=[b"content-encoding: gzip"])
    if answer.status not in (400, 415):
        raise Broken(f"answered {answer.status}; 400 or 415 was due")
    answer.error()


@rule("W41", "100-continue is answered; another expectation is 417")
async def expectation(router: Router) -> None:
    body = router.body({"echo": True})
    request = router.request(body, more=[b"expect: 100-continue"])
    async with await router.connect() as connection:
        connection.send(request[: -len(body)])
        status, _ = await connection.head()
        if status != 100:
            raise Broken(f"answered {status} instead of 100")
        connection.send(body)
        if (answer := await connection.answer()).status != 200:
            raise Broken(f"after 100 came {answer.status}")
    expect(await router.ask(body, more=[b"expect: a miracle"]), 417)


@rule("W42", "a chunked request arrives with its length")
async def chunked(router: Router) -> None:
    body = router.body({"echo": True})
    head, _, _ = router.request(body).partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"content-length")]
    async with await router.connect() as connection:
        connection.send(b"\r\n".join([*lines, b"transfer-encoding: chunked"]) + b"\r\n\r\n")
        for at in range(0, len(body), 7):
            part = body[at : at + 7]
            connection.send(b"%x\r\n%b\r\n" % (len(part), part))
        connection.send(b"0\r\n\r\n")
        answer = await connection.answer()
    if answer.json()["sha256"] != hashlib.sha256(body).hexdigest():
        raise Broken("the body did not arrive as it was sent")


@rule("W43", "a body of 8 MB passes")
async def big_body(router: Router) -> None:
    await _arrives(router, router.body({"echo": True}, image="A" * 8_000_000))


@rule("W44", "a body arrives byte for byte: duplicate keys, odd numbers, lone surrogates")
async def fidelity(router: Router) -> None:
    odd = b'"a":1,"a":2,"t":0.10000000000000000555,"n":1e400,"s":"\\ud800","e":"\\u00e9" ,  "z" : -0'
    await _arrives(
        router, b'{"model":%b,"drill":{"echo":true},%b}' % (msgspec.json.encode(router.model), odd)
    )


async def _arrives(router: Router, body: bytes) -> None:
    seen = await router.echo(body)
    if seen.sha256 != hashlib.sha256(body).hexdigest():
        raise Broken(f"{len(body)} bytes were sent and {seen.bytes} others arrived")


@rule("W45", "two keys `model` are refused")
async def two_models(router: Router) -> None:
    name = msgspec.json.encode(router.model)
    expect(await router.ask(b'{"model":%b,"model":"other"}' % name), 400, param="model")
    expect(await router.ask(b'{"model":%b,"m\\u006fdel":"other"}' % name), 400, param="model")


@rule("W49", "a sane request id is kept, any other replaced, and every answer has one")
async def request_id(router: Router) -> None:
    for path, given in ((b"/v1/chat/completions", b"drill-1"), (b"/v1/nowhere", b"drill-2")):
        answer = await router.ask(router.body({"echo": True}), path=path, more=[b"x-request-id: " + given])
        if answer.get(b"x-request-id") != given:
            raise Broken(f"{path.decode()} answered with id {answer.get(b'x-request-id')!r}, given {given!r}")
    answer = await router.ask(router.body({"echo": True}), more=[b"x-request-id: a b;\x7f"])
    if answer.get(b"x-request-id") in (None, b"a b;\x7f"):
        raise Broken("an id with blanks and control characters was kept")


@rule("W50", "pipelined requests are answered in order")
async def pipelining(router: Router) -> None:
    async with await router.connect() as connection:
        ids = [b"pipe-%d" % n for n in range(3)]
        requests = [
            router.request(router.body({"echo": True}), more=[b"x-request-id: " + name]) for name in ids
        ]
        connection.send(b"".join(requests))
        seen = [(await connection.answer()).get(b"x-request-id") for _ in ids]
    if seen != ids:
        raise Broken(f"the answers came as {seen!r}")


_SMUGGLED = (
    b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
    b"content-length: 5\r\ncontent-length: 6\r\n",
    b"content-length: +5\r\n",
    b"transfer-encoding : chunked\r\n",
    b"transfer-encoding: chunked, identity\r\n",
    b"content-length: 5\nx: y\r\n",
)


@rule("W51", "requests with two readings are refused and the connection ends")
async def smuggling(router: Router) -> None:
    for fields in _SMUGGLED:
        async with await router.connect() as connection:
            connection.send(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: drill\r\n" + fields + b"\r\n0\r\n\r\nGET / X"
            )
            answer = await connection.answer()
            if not 400 <= answer.status < 500:
                raise Broken(f"{fields!r} was answered {answer.status}")
            if not await connection.closed():
                raise Broken(f"after {fields!r} the connection stayed open")


@rule("W53", "a head beyond the limit is 431")
async def long_head(router: Router) -> None:
    answer = await router.ask(b"{}", more=[b"x-long: " + b"a" * 70_000])
    if answer.status != 431:
        raise Broken(f"70 KB of header were answered {answer.status}")
    answer.error()


@rule("W57", "an upgrade that nobody speaks is refused, not tunnelled and not hung")
async def upgrade(router: Router) -> None:
    more = [b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA=="]
    answer = await router.ask(b"", path=b"/v1/realtime", method=b"GET", more=more)
    if answer.status not in (404, 426, 501):
        raise Broken(f"answered {answer.status}")
    answer.error()


@rule("W59", "/v1/models lists the drill's model, and knows it by name")
async def models(router: Router) -> None:
    answer = await router.ask(b"", path=b"/v1/models", method=b"GET")
    names = [entry["id"] for entry in answer.json()["data"]]
    if router.model not in names:
        raise Broken(f"{router.model} is not in the list of {len(names)} models")
    one = await router.ask(b"", path=b"/v1/models/" + router.model.encode(), method=b"GET")
    if one.status != 200:
        raise Broken(f"/v1/models/{router.model} answered {one.status}")


@rule("W60", "every spelling of a path has one meaning, for the router and for the engine")
async def paths(router: Router) -> None:
    for path in (b"//v1//chat/completions/", b"/v1/x/%2e%2e/chat/completions", b"/v1/%63hat/completions?a=b"):
        seen = await router.echo(router.body({"echo": True}), path=path)
        if not seen.line.startswith("POST ") or "/v1/chat/completions" not in seen.line or "%" in seen.line:
            raise Broken(f"{path!r} reached the engine as {seen.line!r}")


@rule("W19", "a request that comes one byte at a time is a request")
async def byte_by_byte(router: Router) -> None:
    async with await router.connect() as connection:
        for byte in router.request(router.body({"echo": True})):
            connection.send(bytes((byte,)))
            await asyncio.sleep(0)
        if (answer := await connection.answer()).status != 200:
            raise Broken(f"answered {answer.status}")
