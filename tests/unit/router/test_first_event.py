"""Streams that begin with an error, and streams that end in one (HO02, W27)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.core.events import EventTail
from llmgw_router.core.first_event import PASS, WAIT, Failure, judge
from llmgw_router.core.routes import Dialect

FAILED = {
    b'data: {"error":{"message":"no","code":429}}\n\n': 429,
    b'data: {"error": {"message": "no", "type": "x", "code": 400}}\r\n\r\n': 400,
    b'data:{"error":{"message":"no","code":"503"}}\n\ndata: [DONE]\n\n': 503,
    b'data: {"error":{"message":"no","code":"context_length_exceeded"}}\n\n': 502,
    b'data: {"error":{"message":"no","code":null}}\r\r': 502,
    b'data: {"error":{"message":"no","code":200}}\n\n': 502,
    b'data: {"error":{"message":"no","code":true}}\n\n': 502,
    b'data: {"error":"out of memory"}\n\n': 502,
    b'data: {"object":"error","message":"no","code":422}\n\n': 422,
    b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"x"}}\n\n': 502,
    b'event: error\nid: 1\ndata: {"type":"error","code":"x","message":"y"}\n\n': 502,
    b'event: response.failed\ndata: {"type":"response.failed","response":{"error":{"code":500}}}\n\n': 500,
}

PASSED = [
    b'data: {"id":"chatcmpl-1","choices":[]}\n\n',
    b'data: {"choices":[],"error":null}\n\n',
    b'data: {"error":null,"choices":[]}\n\n',
    b'data: {"error":""}\n\n',
    b'data: {"error":{"message":"broken\n\n',
    b'data: {"errors":{"message":"no"}}\n\n',
    b"data: [DONE]\n\n",
    b": keep-alive\n\n",
    b'event: response.created\ndata: {"type":"response.created","response":{"error":null}}\n\n',
    b"data: hello\n\n",
    b"data: " + b"[" * 2000 + b"\n\n",
    b"garbage",
    b'{"error":{"code":500}}',
]


@pytest.mark.parametrize("stream", FAILED)
def test_an_error_first_is_a_failure_with_its_status(stream: bytes) -> None:
    """HO02: the event's numeric code if it is 400 to 599, else 502."""
    judged = judge(stream)
    assert isinstance(judged, Failure)
    assert judged.status == FAILED[stream]
    assert judged.content.startswith(b'{"')
    assert b'"error":' in judged.content


@pytest.mark.parametrize("stream", PASSED)
def test_what_is_no_error_is_passed_on_at_once(stream: bytes) -> None:
    assert judge(stream) == PASS


@pytest.mark.parametrize("stream", FAILED)
def test_an_error_that_comes_in_pieces_is_waited_for(stream: bytes) -> None:
    """HO02: from the first byte to the end of that event, and not beyond."""
    end = min(at for at in (stream.find(b"\n\n"), stream.find(b"\r\n\r\n"), stream.find(b"\r\r")) if at >= 0)
    for at in range(1, end + 1):
        assert judge(stream[:at]) == WAIT, stream[:at]
        assert judge(stream[:at], whole=True) == PASS


@pytest.mark.parametrize(
    "stream", [one for one in PASSED if one.startswith(b"data: {") and b"broken" not in one]
)
def test_a_stream_is_passed_on_once_its_first_key_differs(stream: bytes) -> None:
    assert judge(stream[: stream.index(b":", 8)] + b":nul") == PASS


def test_an_error_without_end_is_not_waited_for() -> None:
    assert judge(b'data: {"error":{"message":"' + b"x" * 20_000) == PASS


@given(st.binary(max_size=200))
def test_any_bytes_get_a_judgement(data: bytes) -> None:
    judged = judge(data)
    assert judged in (PASS, WAIT) or isinstance(judged, Failure)
    assert judge(data, whole=True) != WAIT


def tail(*pieces: bytes, dialect: Dialect = Dialect.CHAT) -> EventTail:
    made = EventTail(dialect)
    for piece in pieces:
        made.note(piece)
    return made


GOOD = b'data: {"choices":[{"delta":{"content":"an error: {\\"error\\":1}"}}]}\n\n'


def test_an_error_among_the_last_events_makes_a_stream_a_failure() -> None:
    """HO02, W27: it was relayed as it came; that it failed is known at its end."""
    error = b'data: {"error":{"message":"no","code":500}}\n\n'
    for pieces in (
        (GOOD, error, b"data: [DONE]\n\n"),
        (GOOD, error + b"data: [DONE]\n\n"),
        (GOOD, error[:9], error[9:]),
        (GOOD + error.replace(b"\n", b"\r\n"),),
    ):
        failure = tail(*pieces).failure()
        assert failure is not None
        assert failure.status == 500
    failed = b'event: response.failed\ndata: {"type":"response.failed","response":{"error":{"code":"x"}}}\n\n'
    failure = tail(GOOD, failed, dialect=Dialect.RESPONSES).failure()
    assert failure is not None
    assert failure.status == 502


def test_words_about_errors_are_none() -> None:
    assert tail(GOOD, GOOD, b"data: [DONE]\n\n").failure() is None
    assert tail(b'data: {"error":{bro\n\n', b"data: [DONE]\n\n").failure() is None
    completed = b'data: {"type":"response.completed","response":{"error":null}}\n\n'
    assert tail(completed, dialect=Dialect.RESPONSES).failure() is None
