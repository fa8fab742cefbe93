"""Comments of event streams: ours, and an engine's, told from what it says."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.core.heartbeat import comment, engine_error, only_comments, streams
from llmgw_router.core.scan import Found, scan
from llmgw_router.relay.reading import asks_for_stream


def found_in(body: bytes) -> Found:
    steps = scan(body)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: Found = done.value
            return found


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b'{"model":"m","stream":true}', True),
        (b'{"model":"m","stream":false}', False),
        (b'{"model":"m","stream":"true"}', False),
        (b'{"model":"m","stream":1}', False),
        (b'{"model":"m"}', False),
        (b'{"messages":[{"stream":true}]}', False),
        (b'{"stream":true', False),
        (b"\xff", False),
        (b"[" * 200_000, False),
    ],
)
def test_a_stream_is_what_asks_for_one(body: bytes, wanted: bool) -> None:
    assert streams(body) is wanted
    assert streams(bytearray(body)) is wanted


def test_a_comment_is_one_line_whatever_is_said() -> None:
    assert comment("waiting for a\r\nmodel:\n loading") == b": waiting for a model: loading\n\n"


LINES = st.sampled_from(["", ":", ": ping", ":é", "data: x", "event: y", "id", " :", "da"])
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def test_the_end_of_a_comment_may_come_by_itself() -> None:
    assert only_comments(b": ping") == (True, True)
    assert only_comments(b"\n", within=True) == (True, False)
    assert only_comments(b"data", within=True) == (True, True)


@given(st.lists(st.tuples(LINES, ENDS), max_size=6), st.data())
def test_a_stream_cut_anywhere_has_said_the_same(lines: list[tuple[str, str]], data: st.DataObject) -> None:
    """Judged piece by piece as it comes, and as a whole by what its lines are."""
    stream = "".join(line + end for line, end in lines).encode()
    # A CRLF that is cut apart reads as two ends of lines: the same lines, and an empty one.
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=5)))
    said = False
    within = False
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        only, within = only_comments(stream[start:end], within=within)
        if not only:
            said = True
            break
    assert said == any(line and not line.startswith(":") for line, _ in lines)


def test_an_engines_own_words_are_kept() -> None:
    kind, message = engine_error(
        400, b'{"error":{"message":"too long","type":"invalid_request_error","param":null,"code":"x"}}'
    )
    assert (kind.status, kind.type, kind.code, message) == (400, "invalid_request_error", "x", "too long")
    for answer in (b"<html>", b'{"error":"text"}', b"[]", json.dumps({"object": "error"}).encode()):
        kind, message = engine_error(502, answer)
        assert (kind.type, kind.code) == ("upstream_error", "engine_error")
        assert "502" in message
    assert "no event stream" in engine_error(200, b"{}")[1]


def test_a_big_body_is_not_read_again_to_see_whether_it_streams() -> None:
    """60 MiB stopped the loop for 0.12 s."""
    long = b'{"model":"m","x":"' + b"a" * 200_000 + b'","stream":%b}'
    for word, wanted in ((b"true", True), (b"false", False)):
        exchange = cast(Any, SimpleNamespace(spot=found_in(long % word), body=None))
        assert asks_for_stream(exchange) is wanted
    exchange = cast(Any, SimpleNamespace(spot=None, body=b'{"model":"m","stream":true}'))
    assert asks_for_stream(exchange) is True
