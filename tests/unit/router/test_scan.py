"""Big JSON bodies: the same model is found as by decoding them whole, and no step takes long."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.core import body as small
from llmgw_router.core import scan as scanning
from llmgw_router.core.body import BodyRefused
from llmgw_router.core.scan import Found, scan, with_model

from .stepping import Looked, most_of_a_step


def run(body: bytes | bytearray) -> Found:
    steps = scan(body)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: Found = done.value
            return found


def outcome(read: Any, body: bytes) -> str:
    try:
        found = read(body)
    except BodyRefused as refused:
        return f"refused {refused.kind.label}"
    return str(found.name if isinstance(found, Found) else found)


@pytest.fixture(autouse=True)
def tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a few bytes, so that every small body crosses many of them."""
    monkeypatch.setattr(scanning, "_SEARCH_BYTES", 7)
    monkeypatch.setattr(scanning, "_FOLLOW_BYTES", 5)


SAME = [
    b'{"model":"m"}',
    b' {"a":{"model":"x"},"model" :\t"m\\u00e9" } ',
    b'{"a":"\\"model\\":\\"x\\"","b":["{","\\\\"],"model":"m"}',
    b'{"model":"m","tools":[{"properties":{"model":{"type":"string"}}}]}',
    b'{"tools":[{"properties":{"model":{"type":"string"}}}],"model":"m","n":1}',
    b'{"a":"model","model":"m"}',
    b'{"mod\\u0065l":"m"}',
    b'{"model":"m","mod\\u0065l":"n"}',
    b'{"model":"m","model":"m"}',
    b'{"x":{"model":"m"}}',
    b'{"x":1}',
    b"{}",
    b'{"model":7}',
    b'{"model":null}',
    b'{"model":["m"]}',
    b'{"a\\\\":"b","model":"m"}',
    b'{"a":"' + b"\\\\" * 20 + b'","model":"m"}',
    b'{"a":"\\u006dodel","model":"m"}',
    b'{"a":"\\\\","b":"{","model":"m","c":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}',
]


@pytest.mark.parametrize("body", SAME)
def test_the_same_is_found_as_by_decoding(body: bytes) -> None:
    """W43, W44, W45."""
    assert outcome(run, body) == outcome(small.model_of, body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[1]",
        b'"model"',
        b"\xef\xbb\xbf{}",
        '{"model":"m"}'.encode("utf-16"),
        '{"model":"m"}'.encode("utf-16-le"),
    ],
)
def test_what_is_no_object_in_utf_8_is_refused(body: bytes) -> None:
    """W01: also what parsers that guess would read as UTF-16, where other keys stand."""
    assert outcome(run, body) == "refused malformed_json"


def test_an_absurdly_long_name_is_none() -> None:
    assert outcome(run, b'{"model":"' + b"m" * 5000 + b'"}') == "refused bad_model"


def test_another_name_is_spliced_in() -> None:
    """W43, W44: in place where the body is a bytearray, and no other byte changes."""
    body = b'{"a":{"model":"x"}, "model" : "alias" ,"n":1.0}'
    spliced, there = with_model(body, run(body), "m")
    assert (spliced[there.start : there.end], there.name) == (b'"m"', "m")
    assert spliced == b'{"a":{"model":"x"}, "model" : "m" ,"n":1.0}'
    own = bytearray(body)
    assert with_model(own, run(own), 'a"b')[0] is own
    assert own == b'{"a":{"model":"x"}, "model" : "a\\"b" ,"n":1.0}'


keys = st.sampled_from(["model", "stream", "mod", "a", 'mo"del', "model\\", "messages"])
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), keys),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(keys, values, max_size=5), st.booleans(), st.sampled_from([None, 1]))
def test_any_valid_object_is_read_as_the_standard_library_reads_it(
    value: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    """W45: differential against json.loads."""
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    model = value.get("model")
    expected = model if isinstance(model, str) else "refused bad_model"
    assert outcome(run, body) == expected
    if isinstance(model, str):
        assert run(body).stream is (value.get("stream") is True)


escapes = st.sampled_from(
    ['"model"', '"mod\\u0065l"', '"\\u006dodel"', '"\\\\u006dodel"', '"x\\"model"', '"a"']
)
objects = st.lists(
    st.tuples(escapes, st.sampled_from(['"m"', "1", '{"model":"n"}', '"\\"model\\":"'])), max_size=4
)


@given(objects)
def test_keys_however_they_are_spelled(pairs: list[tuple[str, str]]) -> None:
    """W45: a key given twice is refused, in whichever disguise."""
    text = "{" + ",".join(f"{key}:{value}" for key, value in pairs) + "}"
    named: list[Any] = [value for key, value in json.loads(text, object_pairs_hook=list) if key == "model"]
    if len(named) == 1 and isinstance(named[0], str) and named[0].isprintable():
        assert outcome(run, text.encode()) == named[0]
    elif not named or len(named) > 1 or isinstance(named[0], int | list):
        assert outcome(run, text.encode()) == "refused bad_model"


BIG = {
    "one image": b'{"messages":[{"image":"' + b"A" * 20_000_000 + b'"}],"model":"m"}',
    "escapes": b'{"messages":[{"text":"' + b"A\\n\\\\" * 4_000_000 + b'"}],"model":"m"}',
    "small values": b'{"a":['
    + b'{"a":1,"b":"cc"},' * 600_000
    + b'1],"model":"m","x":['
    + b'{"a":1,"b":"cc"},' * 600_000
    + b"1]}",
    "numbers": b'{"model":"m","x":[' + b"0.123456," * 2_200_000 + b"1]}",
    "other scripts": ('{"x":"' + "é" * 10_000_000 + '","model":"m"}').encode(),
}


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","x":"\\ud800","y":["' + b"a" * 10_000 + b'"]}',
        b'{"model":"m","x":[' + b'{"model":1},' * 1000 + b"1]}",
        b'{"\\u006dodel":"m","x":[' + b"[]," * 4000 + b"1]}",
    ],
)
def test_what_must_be_followed_key_by_key_is_left_to_steps(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of brackets with the key twice stopped the loop for 0.1 s."""
    monkeypatch.undo()
    assert len(body) < scanning.BIG_BYTES
    with pytest.raises(small.NeedsSteps):
        small.model_of(body)
    assert run(body).name == "m"


def test_many_keys_are_found_a_few_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    many = 20_000
    body = b'{"model":"m","x":{' + b'"stream":1,' * many + b'"y":1},"stream":true}'
    steps = scan(body)
    taken = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            assert done.value == Found("m", 9, 12, True)
            break
        taken += 1
    assert taken >= many


@pytest.mark.parametrize("name", BIG)
def test_no_step_over_20_mb_looks_at_much(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """W43: bytes of the longest step; for how long that stops the loop says tests/bench/relay_steps.py."""
    monkeypatch.undo()
    body = Looked(BIG[name])
    found, most, many = most_of_a_step(scan(body), body)
    assert found.name == "m"
    # Two searches of one stretch, and the ends of what was found there.
    assert most < 2.1 * 1024 * 1024
    assert many >= 19
