"""How an engine's answer must arrive at the client, and what becomes of one that fails before it begins."""

import asyncio
import gzip

from llmgw_router.drill.engine import json_answer
from llmgw_router.drill.rules import SSE, event, rule
from llmgw_router.drill.wire import Broken, Router

#: The least of an answer.
FINE = json_answer({"object": "chat.completion", "choices": []})


@rule("W13", "an engine that resets before its first byte is 502, never 400")
async def reset_first(router: Router) -> None:
    answer = await router.ask(router.play(end="reset"))
    if answer.status != 502:
        raise Broken(f"answered {answer.status} instead of 502")
    if answer.error()["code"] != "upstream_unreachable":
        raise Broken(f"the code is {answer.error()['code']!r}")


@rule("W15", "an engine's own refusal passes unchanged, also of a stream; its 401 does not")
async def refusal(router: Router) -> None:
    content = b'{"error":{"message":"too long","type":"invalid_request_error","param":null,"code":null}}'
    head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    for stream in (False, True):
        answer = await router.ask(router.play(head % len(content) + content, stream=stream))
        if (answer.status, answer.body, answer.get(b"content-type")) != (400, content, b"application/json"):
            raise Broken(
                f"400 arrived as {answer.status} {answer.get(b'content-type')!r} {answer.body[:80]!r}"
            )
    denied = await router.ask(router.play(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"))
    if denied.status != 502:
        raise Broken(f"the engine's 401 was passed as {denied.status}: the caller will doubt its own key")


@rule(
    "W12",
    "an engine's 503 arrives with its Retry-After, and after that time it is asked again",
    disturbs=True,
)
async def busy(router: Router) -> None:
    answer = await router.ask(
        router.play(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n")
    )
    if answer.status not in (429, 503) or answer.get(b"retry-after") is None:
        raise Broken(f"answered {answer.status} with retry-after {answer.get(b'retry-after')!r}")
    # Each worker of the router has heard it for itself: all of them must be back.
    in_a_row = 0
    for _ in range(100):
        again = await router.ask(router.play(FINE))
        in_a_row = in_a_row + 1 if again.status == 200 else 0
        if in_a_row == 20:
            return
        if not in_a_row:
            await asyncio.sleep(0.1)
    raise Broken(f"long after a Retry-After of one second, the answer is still {again.status}")


@rule("W36", "repeated headers are kept, hop-by-hop and spoofed ones are not")
async def headers(router: Router) -> None:
    answer = await router.ask(
        router.play(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n"
            b"x-custom: yes\r\nconnection: x-hop\r\nx-hop: 1\r\nserver: engine\r\n"
            b"x-llmgw-decision: forged\r\ncontent-length: 2\r\n\r\n{}"
        )
    )
    if answer.all(b"set-cookie") != [b"a=1", b"b=2"] or answer.get(b"x-custom") != b"yes":
        raise Broken(f"headers were lost: {answer.headers!r}")
    if (
        answer.get(b"x-hop")
        or answer.get(b"server") == b"engine"
        or b"forged" in answer.all(b"x-llmgw-decision")
    ):
        raise Broken(f"headers of the inside came through: {answer.headers!r}")


@rule("W39", "an answer that the engine compressed passes once, with its header")
async def compressed(router: Router) -> None:
    packed = gzip.compress(b'{"object":"chat.completion"}')
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n"
        b"content-length: %d\r\n\r\n"
    )
    answer = await router.ask(router.play(head % len(packed) + packed))
    if answer.body != packed or answer.all(b"content-encoding") != [b"gzip"]:
        raise Broken("the compressed bytes or their header did not arrive as they were sent")


@rule("W52", "an answer with two readings is 502")
async def two_readings(router: Router) -> None:
    answer = await router.ask(
        router.play(
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            end="close",
        )
    )
    if answer.status != 502:
        raise Broken(f"answered {answer.status} instead of 502")


@rule("W54", "a pooled connection that the engine closed meanwhile costs no request")
async def stale(router: Router) -> None:
    for _ in range(5):
        # The engine keeps nothing that its answer promised to keep.
        if (first := await router.ask(router.play(FINE, end="close"))).status != 200:
            raise Broken(f"answered {first.status}")
        if (second := await router.ask(router.play(FINE))).status != 200:
            raise Broken(f"the next request was answered {second.status}: a stale connection was blamed")


@rule("W58", "a redirect of the engine is not followed, and leads nobody inside")
async def redirect(router: Router) -> None:
    answer = await router.ask(
        router.play(
            b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://10.0.0.1:8000/v1/x\r\n"
            b"content-length: 0\r\n\r\n"
        )
    )
    if answer.status != 307 or answer.get(b"location") is not None:
        raise Broken(f"answered {answer.status} with location {answer.get(b'location')!r}")


@rule("W31", "a client that leaves is followed by the engine within 500 ms, eight at once")
async def client_leaves(router: Router) -> None:
    tag = f"leave-{id(router)}-{asyncio.get_running_loop().time()}"
    body = router.play(SSE, *[event_chunk(n) for n in range(200)], gap_ms=50, tag=tag, stream=True)
    connections = [await router.connect() for _ in range(8)]
    for connection in connections:
        connection.send(router.request(body))
    for connection in connections:
        await connection.head()
    for connection in connections:
        connection.writer.transport.abort()
    await asyncio.sleep(0.5)
    told = await router.ask(router.body({"watch": tag}))
    watched = told.body
    if b'"aborted":8' not in watched:
        raise Broken(f"half a second after eight clients left, the engine says {watched.decode()}")


def event_chunk(number: int) -> bytes:
    """One event as a chunk."""
    payload = event(number)
    return b"%x\r\n%b\r\n" % (len(payload), payload)
