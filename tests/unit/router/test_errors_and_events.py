import json

import pytest

from llmgw_router.core import errors
from llmgw_router.core.errors import KINDS, Kind
from llmgw_router.core.events import EventTail
from llmgw_router.core.routes import Dialect
from llmgw_router.relay.slots import COUNTERS

#: Statuses after which OpenAI clients ask again.
RETRIED = {408, 409, 429}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.label)
def test_every_refusal_has_the_openai_shape(kind: Kind) -> None:
    raw = errors.answer(kind, 'quote " and \u00e9', request_id=b"id-1", retry_after_s=3)
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0].startswith(b"HTTP/1.1 %d " % kind.status)
    fields = dict(line.split(b": ", 1) for line in lines[1:])
    assert fields[b"content-type"] == b"application/json"
    assert int(fields[b"content-length"]) == len(body)
    assert fields[b"x-request-id"] == b"id-1"
    assert fields[b"retry-after"] == b"3"
    assert (fields.get(b"connection") == b"close") is kind.close
    told = json.loads(body)
    assert set(told) == {"error"}
    assert told["error"] == {
        "message": 'quote " and \u00e9',
        "type": kind.type,
        "param": kind.param,
        "code": kind.code,
    }
    assert isinstance(told["error"]["type"], str)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.label)
def test_only_what_may_pass_is_retried(kind: Kind) -> None:
    lifecycle = kind.type in ("server_error", "upstream_error")
    again = kind.status in RETRIED or (kind.status >= 500 and kind is not errors.NO_UPGRADE)
    slow = kind is errors.REQUEST_TIMEOUT
    assert again == (lifecycle or slow)


def test_labels_are_unique_and_counted() -> None:
    labels = [kind.label for kind in KINDS]
    assert len(set(labels)) == len(labels)
    assert {f"refused_{label}" for label in labels} <= set(COUNTERS)


def test_a_head_only_answer_announces_the_body_it_leaves_out() -> None:
    whole = errors.answer(errors.METHOD_NOT_ALLOWED, "no", request_id=b"x", allow=b"POST")
    head = errors.answer(errors.METHOD_NOT_ALLOWED, "no", request_id=b"x", allow=b"POST", head_only=True)
    assert whole.startswith(head)
    assert head.endswith(b"\r\n\r\n")
    assert b"\r\nallow: POST\r\n" in head


@pytest.mark.parametrize(("given", "told"), [(None, 5), (0.0, 1), (-3.0, 1), (0.2, 1), (1.01, 2), (60.0, 60)])
def test_retry_after_is_a_whole_second_at_least(given: float | None, told: int) -> None:
    assert errors.retry_after(given) == told


def test_unknown_statuses_have_no_reason() -> None:
    assert errors.reason(299) == b""
    assert errors.reason(404) == b"Not Found"


CLOSING = {
    "nothing relayed": ([], b""),
    "between events": ([b"data: 1\n\n"], b""),
    "between events, CRLF": ([b"data: 1\r\n\r\n"], b""),
    "between events, CR": ([b"data: 1\r\r"], b""),
    "mixed line ends": ([b"data: 1\n\r\n"], b""),
    "after a line": ([b"data: 1\n"], b"\n"),
    "after a line, CRLF": ([b"data: 1\r\n"], b"\n"),
    "after a line, CR": ([b"data: 1\r"], b"\n\n"),
    "within a line": ([b"data: 1"], b"\n\n"),
    "within a character": ([b"data: \xc3"], b"\n\n"),
    "the blank line came in pieces": ([b"data: 1", b"\n", b"\n"], b""),
    "CRLF in pieces": ([b"data: 1\r", b"\n\r", b"\n"], b""),
    "after much": ([b"x" * 1000, b"data: 1\n"], b"\n"),
}


@pytest.mark.parametrize("name", CLOSING)
def test_an_interruption_stands_on_its_own(name: str) -> None:
    pieces, closing = CLOSING[name]
    tail = EventTail(Dialect.CHAT)
    for piece in pieces:
        tail.note(piece)
    told = tail.interruption(errors.INTERRUPTED, "cut")
    assert told.startswith(closing + b"data: {")
    assert told.endswith(b"}\n\n")
    error = json.loads(told[len(closing) + 6 :])["error"]
    assert (error["type"], error["code"]) == ("upstream_error", "stream_interrupted")


FINISHED = {
    "done": (Dialect.CHAT, [b"data: [DONE]\n\n"], True),
    "done without a blank": (Dialect.CHAT, [b"data:[DONE]"], True),
    "done in pieces": (Dialect.CHAT, [b"data: [D", b"ONE]\n", b"\n"], True),
    "text that says done": (Dialect.CHAT, [b'data: {"content":"[DONE]"}\n\n'], False),
    "not yet": (Dialect.CHAT, [b"data: 1\n\n"], False),
    "responses": (Dialect.RESPONSES, [b"event: response.completed\ndata: {", b"x" * 500, b"}\n\n"], True),
    "responses, not yet": (Dialect.RESPONSES, [b"event: response.created\ndata: {}\n\n"], False),
    "messages": (Dialect.MESSAGES, [b'event: message_stop\ndata: {"type":"message_stop"}\n\n'], True),
    "messages, not yet": (Dialect.MESSAGES, [b"event: message_start\ndata: {}\n\n"], False),
    # What a stream says about ends is no end (W25).
    "text with the line that ends": (Dialect.CHAT, [b'data: {"content":"say data: [DONE]"}\n\n'], False),
    "text with that line at its tail": (
        Dialect.CHAT,
        [b'data: {"content":"' + b"x" * 50 + b"data: [DONE]"],
        False,
    ),
    "done after a long event": (
        Dialect.CHAT,
        [b"data: " + b"x" * 500 + b"\r\n\r\ndata: [DONE]\r\n\r\n"],
        True,
    ),
    "done after a lone CR": (Dialect.CHAT, [b"data: 1\r\rdata: [DONE]\r\r"], True),
    "messages that speak of it": (
        Dialect.MESSAGES,
        [b'event: content_block_delta\ndata: {"delta":{"text":"after event: message_stop"}}\n\n'],
        False,
    ),
    "messages with its type in a text": (
        Dialect.MESSAGES,
        [b'event: content_block_delta\ndata: {"x":{"type":"message_stop"}}\n\n'],
        False,
    ),
    "messages that speak of it where a read begins": (
        Dialect.MESSAGES,
        [b'data: {"text":"' + b"x" * 100, b'event: message_stop"}\n\n'],
        False,
    ),
    "messages without event lines": (Dialect.MESSAGES, [b'data: {"type": "message_stop"}\n\n'], True),
    "messages without a blank": (Dialect.MESSAGES, [b"event:message_stop\ndata:{}\n\n"], True),
    "messages, cut in its word": (
        Dialect.MESSAGES,
        [b"data: " + b"x" * 200 + b"\n\nevent: mess", b"age_stop\ndata: {", b" " * 200 + b"}\n\n"],
        True,
    ),
    "messages, one byte a read": (
        Dialect.MESSAGES,
        [bytes([one]) for one in b"event: message_stop\ndata: {" + b" " * 200 + b"}\n\n"],
        True,
    ),
    "responses that speak of it": (
        Dialect.RESPONSES,
        [b'event: response.output_text.delta\ndata: {"delta":"wait for response.completed"}\n\n'],
        False,
    ),
    "responses, its type behind the number": (
        Dialect.RESPONSES,
        [b'data: {"sequence_number": 12345, "type": "response.incomplete", "response": {}}\n\n'],
        True,
    ),
    "responses, cut in its type": (
        Dialect.RESPONSES,
        [
            b'data: 1\n\ndata: {"sequence_number":1234,"type":"response.fai',
            b'led","x":"',
            b"x" * 500 + b'"}\n\n',
        ],
        True,
    ),
}


@pytest.mark.parametrize("name", FINISHED)
def test_an_end_is_told_from_a_cut(name: str) -> None:
    dialect, pieces, finished = FINISHED[name]
    tail = EventTail(dialect)
    for piece in pieces:
        tail.note(piece)
    assert tail.finished is finished


def test_the_responses_api_counts_on() -> None:
    tail = EventTail(Dialect.RESPONSES)
    tail.note(b'event: a\ndata: {"sequence_number" : 7}\n\nevent: b\ndata: {"sequence_number": 8,"x":1}\n\n')
    told = tail.interruption(errors.STREAM_IDLE, "silent")
    assert told.startswith(b"event: error\ndata: ")
    event = json.loads(told.partition(b"data: ")[2])
    assert (event["sequence_number"], event["code"], event["param"]) == (9, "stream_idle_timeout", None)
