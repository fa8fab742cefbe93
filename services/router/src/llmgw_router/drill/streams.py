"""Event streams: bytes as they were sent, when they were sent, and a break that is told as one."""

import msgspec

from llmgw_router.drill.rules import DONE, LAST, SSE, chunk, event, rule
from llmgw_router.drill.wire import Answer, Broken, Router

_PLAYED = b"".join(event(n) for n in range(5))


async def _stream(
    router: Router, *sends: bytes, end: str = "keep", gap_ms: float = 0, path: bytes = b""
) -> Answer:
    body = router.play(*sends, end=end, gap_ms=gap_ms, stream=True)
    return await router.ask(body, path=path or b"/v1/chat/completions")


@rule("W18", "a stream is announced as one, unbuffered, and each event comes when it is sent")
async def framing(router: Router) -> None:
    gap_ms = 100
    answer = await _stream(
        router, SSE + chunk(event(0)), *[chunk(event(n)) for n in range(1, 6)], LAST, gap_ms=gap_ms
    )
    if not (answer.get(b"content-type") or b"").startswith(b"text/event-stream"):
        raise Broken(f"content-type is {answer.get(b'content-type')!r}")
    for name, value in ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")):
        if value not in (answer.get(name) or b""):
            raise Broken(f"{name.decode()} is {answer.get(name)!r}")
    if answer.get(b"content-length") is not None:
        raise Broken("a stream has a content-length")
    gaps = [later - earlier for earlier, later in zip(answer.times, answer.times[1:], strict=False)]
    if len(gaps) < 5 or max(gaps) > 2.5 * gap_ms / 1000 or min(gaps[:5]) < 0.2 * gap_ms / 1000:
        raise Broken(f"events sent every {gap_ms} ms came after {[round(gap * 1000) for gap in gaps]} ms")


@rule("W19", "events cut anywhere arrive as the same bytes")
async def cut_anywhere(router: Router) -> None:
    sent = (
        b": comment\r\n\r\nevent: x\nid: 1\nretry: 5\ndata: a\ndata: b\n\n"
        + 'data: {"t":"ü€🙂"}\r\r'.encode()
        + event(1)
        + b"data: no end of line"
    )
    answer = await _stream(router, SSE, *[chunk(bytes((byte,))) for byte in sent], LAST)
    if answer.body != sent or not answer.complete:
        raise Broken(f"{len(sent)} bytes were sent one by one, and {len(answer.body)} arrived otherwise")


@rule("W20", "a single event of 700 KB passes")
async def long_event(router: Router) -> None:
    sent = b'data: {"image":"' + b"A" * 700_000 + b'"}\n\n' + DONE
    answer = await _stream(router, SSE + chunk(sent) + LAST)
    if answer.body != sent:
        raise Broken(f"{len(sent)} bytes were sent, {len(answer.body)} arrived")


@rule("W22", "[DONE] is never made up")
async def no_done(router: Router) -> None:
    answer = await _stream(router, SSE + chunk(_PLAYED) + LAST)
    if answer.body != _PLAYED:
        raise Broken(
            f"a stream that ended without [DONE] arrived with {answer.body[len(_PLAYED) :]!r} behind it"
        )


@rule("HO03", "an event of broken JSON among good ones passes as it is")
async def broken_json(router: Router) -> None:
    sent = event(1) + b'data: {"choices":[{"delta":\n\n' + event(2) + DONE
    answer = await _stream(router, SSE + chunk(sent) + LAST)
    if answer.body != sent:
        raise Broken("the stream was changed around it")


@rule("W24", "a stream that breaks is told as broken, after every byte it had")
async def broken_stream(router: Router) -> None:
    breaks = {
        "close": (chunk(_PLAYED), "close"),
        "reset": (chunk(_PLAYED), "reset"),
        "a bad chunk": (chunk(_PLAYED) + b"zz\r\n", "close"),
        "a cut event": (chunk(_PLAYED + b'data: {"cho'), "close"),
    }
    for name, (payload, end) in breaks.items():
        answer = await _stream(router, SSE, payload, end=end, gap_ms=20)
        if not answer.body.startswith(_PLAYED):
            raise Broken(f"{name}: bytes that had come were lost")
        error = _last_error(answer, name)
        if error.get("code") != "stream_interrupted":
            raise Broken(f"{name}: the error's code is {error.get('code')!r}")


@rule("W24", "a break is told in the dialect of /v1/responses and of /v1/messages")
async def dialects(router: Router) -> None:
    began = b'event: response.created\ndata: {"type":"response.created","sequence_number":4}\n\n'
    answer = await _stream(router, SSE + chunk(began), end="reset", gap_ms=20, path=b"/v1/responses")
    tail = answer.body[len(began) :]
    if b"event: error" not in tail and b"event: response.failed" not in tail:
        raise Broken(f"/v1/responses ended in {tail[:120]!r}")
    if b'"sequence_number":5' not in tail.replace(b" ", b""):
        raise Broken(f"the error has not the next sequence_number: {tail[:160]!r}")
    began = b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n'
    answer = await _stream(router, SSE + chunk(began), end="reset", gap_ms=20, path=b"/v1/messages")
    if not answer.body[len(began) :].startswith(b"event: error\ndata: "):
        raise Broken(f"/v1/messages ended in {answer.body[len(began) :][:120]!r}")


def _last_error(answer: Answer, name: str) -> dict[str, object]:
    last = answer.body.rstrip(b"\n").rpartition(b"\n\n")[2]
    try:
        error = msgspec.json.decode(last.removeprefix(b"data: "))["error"]
    except (msgspec.DecodeError, KeyError, TypeError):
        raise Broken(f"{name}: the stream ended in {answer.body[-100:]!r}, with no error event") from None
    if not isinstance(error, dict):
        raise Broken(f"{name}: the error is {error!r}")
    return error


@rule("W25", "a stream that ends by its close, without its last word, is told as broken")
async def close_delimited(router: Router) -> None:
    head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    answer = await _stream(router, head + _PLAYED, end="close", gap_ms=20)
    _last_error(answer, "close-delimited")


@rule("W27", "an error event in mid-stream passes byte for byte")
async def error_event(router: Router) -> None:
    sent = event(1) + b'data: {"error":{"message":"out of memory","code":500}}\n\n' + DONE
    answer = await _stream(router, SSE + chunk(event(1)), chunk(sent[len(event(1)) :]) + LAST, gap_ms=20)
    if answer.body != sent:
        raise Broken(f"it arrived as {answer.body[-120:]!r}")


@rule("HO02", "an error as the very first event is a real status")
async def error_first(router: Router) -> None:
    answer = await _stream(
        router, SSE + chunk(b'data: {"error":{"message":"bad","code":422}}\n\n' + DONE) + LAST
    )
    if answer.status != 422:
        raise Broken(f"answered {answer.status}; the engine's own code was 422")


@rule("W28", "an empty stream is a failure, not an empty answer")
async def empty_stream(router: Router) -> None:
    answer = await _stream(router, SSE, end="close")
    if answer.status == 200:
        raise Broken("answered 200 with nothing in it")
    answer.error()
