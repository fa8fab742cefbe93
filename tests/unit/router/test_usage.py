"""Usage: asked for without touching the body, found in the engine's words, ours taken out (4.5, W21)."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.core.routes import Dialect
from llmgw_router.core.usage import (
    LONGEST_TEXT_BYTES,
    Tokens,
    guessed_prompt,
    has_usage,
    tokens_of,
    told_in_json,
)
from llmgw_router.core.usage_ask import LONGEST_BYTES, with_usage_asked
from llmgw_router.core.usage_stream import StreamUsage

CHAT, MESSAGES, RESPONSES = Dialect.CHAT, Dialect.MESSAGES, Dialect.RESPONSES
BLANKS = st.sampled_from(["", " ", "\n", "\t "])

# --- asking

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["model", "stream", "stream_options", "messages", "n", "x"]) | st.text(max_size=4)


@given(
    st.dictionaries(keys, values, max_size=5),
    st.sampled_from([True, True, True, False, None, 1, "true"]),
    st.sampled_from(
        [..., ..., None, {}, {"include_usage": False}, {"include_usage": True}, {"x": 1}, "y", [1]]
    ),
    st.booleans(),
    BLANKS,
)
def test_a_body_changes_in_nothing_but_its_stream_options(
    more: dict[str, Any], stream: Any, options: Any, ascii_only: bool, blank: str
) -> None:
    before = {"model": "m", **more, "stream": stream}
    before.pop("stream_options", None)
    if options is not ...:
        before["stream_options"] = options
    text = blank + json.dumps(before, ensure_ascii=ascii_only, separators=("," + blank, blank + ":" + blank))
    try:
        body = text.encode()
    except UnicodeEncodeError:
        return
    asked = with_usage_asked(body)
    if stream is not True or options not in (..., None, {}, {"include_usage": False}):
        assert asked is None
        return
    if asked is None:
        assert options is not ..., "the usual case is always asked"
        return
    after = json.loads(asked)
    assert after.pop("stream_options") == {"include_usage": True}
    before.pop("stream_options", None)
    assert after == before
    assert len(asked) - len(body) <= 40


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","stream":true,"stream":false}',
        b'{"model":"m","stream":true,"stream_options":{"include_usage":false,"continuous_usage_stats":true}}',
        b'{"model":"m","stream":true,"stream_options":{"continuous_usage_stats":false}}',
        b'{"model":"m","stream":true,"stream_options":null,"stream_options":{"include_usage":false}}',
        b'{"model":"m","stream":true,"stream_option\\u0073":null,"x":{"stream_options":null}}',
        b'{"model":"m","metadata":{"stream":true}}',
        b'{"model":"m","prompt":"\\"stream\\":true"}',
    ],
)
def test_what_is_not_understood_is_left_alone(body: bytes) -> None:
    assert with_usage_asked(body) is None


def test_digits_duplicates_and_blanks_stay_as_they_are_w44() -> None:
    body = b' { "a" : 0.10000000000000000555, "model":"m","a":1e400 , "stream" :true}'
    asked = with_usage_asked(body)
    assert asked is not None
    assert asked.replace(b'"stream_options":{"include_usage":true},', b"") == body
    assert LONGEST_BYTES >= 64 * 1024


# --- an answer that is no stream


def usage_of(body: bytes, dialect: Dialect = CHAT) -> Tokens | None:
    told = told_in_json(body)
    return None if told is None else tokens_of(told, dialect)


ONE = b'"usage":{"prompt_tokens":1,"completion_tokens":1}'
TWO = ONE.replace(b"1", b"2")
NESTED = b'"metadata":{"usage":{"prompt_tokens":9}}'
CACHED = b'"usage": {"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}'
OPENAI = b'"usage":{"input_tokens":3,"input_tokens_details":{"cached_tokens":1},"output_tokens":2}'
ANTHROPIC = (
    b'"usage":{"input_tokens":3,"cache_read_input_tokens":10,'
    b'"cache_creation_input_tokens":2,"output_tokens":4}'
)


@pytest.mark.parametrize(
    ("inside", "dialect", "tokens"),
    [
        (ONE, CHAT, Tokens(1, None, 1)),
        (CACHED + b',"x":[{}]', CHAT, Tokens(5, 4, 7)),
        (b'"data":[],"usage":{"prompt_tokens":8,"total_tokens":8}', CHAT, Tokens(8, None, 0)),
        (b'"results":[],"usage":{"total_tokens":9}', CHAT, Tokens(9, None, 0)),
        (OPENAI + b',"user":null', RESPONSES, Tokens(3, 1, 2)),
        (ANTHROPIC, MESSAGES, Tokens(15, 10, 4)),
        (b'"usage":{"prompt_tokens":0,"completion_tokens":0}', CHAT, Tokens(0, None, 0)),
        (b'"usage":{"prompt_tokens":-5,"completion_tokens":7}', CHAT, Tokens(None, None, 7)),
        (b'"usage":{"prompt_tokens":"many"}', CHAT, None),
        (b'"usage":null', CHAT, None),
        (b'"choices":[]', CHAT, None),
        (b'"choices":[{"content":"\\"usage\\":{\\"prompt_tokens\\":9}"}]', CHAT, None),
        (NESTED + b',"x":1', CHAT, None),
        (ONE + b"," + NESTED + b',"x":"}"', CHAT, Tokens(1, None, 1)),
        (ONE + b"," + TWO, CHAT, Tokens(2, None, 2)),
    ],
)
def test_the_last_top_level_usage_counts(inside: bytes, dialect: Dialect, tokens: Tokens | None) -> None:
    assert usage_of(b"{%b}\n" % inside, dialect) == tokens
    assert usage_of(b"[{%b}]" % inside, dialect) is None


@given(st.dictionaries(keys, values, max_size=4), st.integers(0, 2**40), st.integers(0, 2**40), st.booleans())
def test_any_answer_tells_its_own_usage_and_no_other(
    more: dict[str, Any], prompt: int, output: int, first: bool
) -> None:
    usage = {"usage": {"prompt_tokens": prompt, "completion_tokens": output}}
    whole = {**usage, **more, "z": [usage]} if first else {**more, "z": [usage], **usage}
    whole.update(usage)
    assert usage_of(json.dumps(whole).encode()) == Tokens(prompt, None, output)


# --- streams

EVENTS = [
    b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a \\n\\n \\"usage\\":{ b"}}]}\n\n',
    b": a comment\n\n",
    b'data: {"id":"c","choices":[],"prompt_filter_results":[]}\n\n',
    b'data: {"id":"c","choices":[{"delta":{}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n',
    b'data: {"id":"c","choices":[{"delta":{}}],"usage":null}\n\n',
    b'event: x\nid: 1\ndata: {"choices":[]}\ndata: more\n\n',
    b'data: {"error":{"message":"usage"}}\n\n',
]
EXTRA = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5}}\n\n'
DONE = b"data: [DONE]\n\n"
cuts = st.lists(st.integers(1, 400), max_size=200)


def relayed(stream: StreamUsage, data: bytes, sizes: list[int]) -> bytes:
    out, at = [], 0
    for size in [*sizes, len(data)]:
        if piece := data[at : at + size]:
            out.append(stream.part(piece))
        at += size
    return b"".join(out) + stream.end()


@given(st.lists(st.sampled_from(EVENTS), max_size=8), cuts, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_our_event_is_taken_out_and_nothing_else_however_it_is_cut_w19_w21(
    events: list[bytes], sizes: list[int], line_end: str, comment: bool
) -> None:
    def ended(parts: list[bytes]) -> bytes:
        return b"".join(parts).replace(b"\n", line_end.encode())

    between = [b": alive\n\n"] if comment else []
    wanted = ended([*events, *between, DONE])
    stream = StreamUsage(CHAT, removing=True)
    assert relayed(stream, ended([*events, EXTRA, *between, DONE]), sizes) == wanted
    told = stream.told()
    assert told is not None
    assert tokens_of(told, CHAT) == Tokens(9, None, 5)


@given(st.lists(st.sampled_from([*EVENTS, EXTRA, DONE]), max_size=9), cuts)
def test_a_stream_that_was_not_asked_passes_untouched(events: list[bytes], sizes: list[int]) -> None:
    data = b"".join(events)
    stream = StreamUsage(CHAT, removing=False)
    assert relayed(stream, data, sizes) == data
    has = [event for event in events if b'"usage":{"' in event and has_usage(event)]
    told = stream.told()
    assert (told is not None) == bool(has)


@given(st.lists(st.sampled_from(EVENTS), max_size=6), cuts)
def test_an_event_like_ours_that_is_not_the_last_is_the_clients(
    events: list[bytes], sizes: list[int]
) -> None:
    data = b"".join([EXTRA, *(event for event in events if not event.startswith(b":")), EVENTS[0], DONE])
    assert relayed(StreamUsage(CHAT, removing=True), data, sizes) == data


@given(st.binary(max_size=300), cuts)
def test_no_bytes_are_lost_or_made_up_whatever_comes(data: bytes, sizes: list[int]) -> None:
    assert relayed(StreamUsage(CHAT, removing=False), data, sizes) == data
    assert relayed(StreamUsage(CHAT, removing=True), data, sizes) == data


def test_byte_by_byte_an_event_is_there_when_its_last_byte_is() -> None:
    for line_end in (b"\n", b"\r\n"):
        stream, got, due = StreamUsage(CHAT, removing=True), b"", b""
        for event in (*EVENTS, EXTRA, EXTRA, DONE):
            whole = event.replace(b"\n", line_end)
            for at in range(len(whole)):
                got += stream.part(whole[at : at + 1])
            if event != EXTRA:
                # Of two events like ours the first is the client's: only the one before `[DONE]` is ours.
                due += EXTRA.replace(b"\n", line_end) + whole if event == DONE else whole
                assert got == due
        assert stream.end() == b""


def test_what_cannot_be_ours_is_passed_on_before_its_event_ends_w18() -> None:
    stream = StreamUsage(CHAT, removing=True)
    begun = b'data: {"id":"c","choices":[{"delta":{"content":"'
    assert stream.part(begun) == begun
    assert stream.part(b"x" * 700_000) == b"x" * 700_000, "W20: a line of any length"
    assert stream.part(b'"}}]}\n\n') == b'"}}]}\n\n'
    assert stream.part(b"data: {") == b""
    assert stream.part(b'"choices":[{') == b'data: {"choices":[{'


def test_a_stream_cut_in_the_middle_of_ours_says_all_the_rest() -> None:
    stream = StreamUsage(CHAT, removing=True)
    assert relayed(stream, EVENTS[0] + EXTRA, [20]) == EVENTS[0], (
        "no [DONE]: still the one that was asked for"
    )
    assert stream.told() is not None


def test_anthropic_tells_the_prompt_first_and_the_output_last() -> None:
    data = (
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":25,'
        b'"cache_read_input_tokens":100,"output_tokens":1}}}\n\n'
        b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta"}}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","delta":{},"usage":{"output_tokens":15}}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )
    for size in (1, 7, 1000):
        stream = StreamUsage(MESSAGES, removing=False)
        assert relayed(stream, data, [size] * (len(data) // size)) == data
        told = stream.told()
        assert told is not None
        assert tokens_of(told, MESSAGES) == Tokens(125, 100, 15)


def test_the_responses_api_tells_it_with_its_last_event() -> None:
    data = (
        b'event: response.created\ndata: {"type":"response.created","response":{"usage":null}}\n\n'
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n'
        b'event: response.completed\ndata: {"type":"response.completed","response":{"usage":{"input_tokens":3'
        b',"output_tokens":2,"total_tokens":5},"x":{}}}\n\n'
    )
    stream = StreamUsage(RESPONSES, removing=False)
    assert relayed(stream, data, [5] * 100) == data
    told = stream.told()
    assert told is not None
    assert tokens_of(told, RESPONSES) == Tokens(3, None, 2)
    counted = StreamUsage(RESPONSES, removing=False)
    relayed(counted, data, [])
    assert counted.marks == 1


def test_a_guess_is_a_quarter_of_the_bytes_and_none_where_they_are_hardly_text() -> None:
    assert guessed_prompt(4000) == 1000
    assert guessed_prompt(LONGEST_TEXT_BYTES) == LONGEST_TEXT_BYTES // 4
    assert guessed_prompt(LONGEST_TEXT_BYTES + 1) is None
    assert msgspec.json.decode(msgspec.json.encode(Tokens(1, None, 2)), type=Tokens) == Tokens(1, None, 2)
