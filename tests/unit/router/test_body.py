import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.core.body import BodyRefused, model_of, sole_model, with_model
from llmgw_router.core.choosing import prompts
from llmgw_router.core.errors import BAD_MODEL, MALFORMED_JSON, Kind

GOOD = {
    "plain": (b'{"model":"m"}', "m"),
    "last, spaced": (b' {\n"x" : [1, {"y":2}],\t"model" :\r\n "a/b:c" } ', "a/b:c"),
    "escaped value": (b'{"model":"\\u0061\\/b"}', "a/b"),
    "escaped key": (b'{"mod\\u0065l":"m"}', "m"),
    "a nested one does not count": (b'{"tools":[{"model":"x"}],"model":"m","z":{"model":1}}', "m"),
    "a value that looks like the key": (b'{"x":"model","model":"m"}', "m"),
    "a string that looks like the pair": (b'{"x":"\\"model\\":\\"y\\"","model":"m"}', "m"),
    "other keys may repeat": (b'{"x":1,"x":2,"model":"m"}', "m"),
    "other values may be absurd": (b'{"max_tokens":1e999,"n":-0.0,"model":"m"}', "m"),
    "other languages": ('{"x":"\u4f60\u597d","model":"m\u00e9"}'.encode(), "m\u00e9"),
    "escapes of other letters": (b'{"x":"\\u0069\\u006f","model":"m"}', "m"),
    "lone surrogate elsewhere": (b'{"x":"\\ud800","model":"m"}', "m"),
    "empty name": (b'{"model":""}', ""),
}


@pytest.mark.parametrize("name", GOOD)
def test_model_is_found(name: str) -> None:
    body, model = GOOD[name]
    assert model_of(body) == model


BAD: dict[str, tuple[bytes, Kind]] = {
    "nothing": (b"", MALFORMED_JSON),
    "blank": (b"  ", MALFORMED_JSON),
    "array": (b"[]", MALFORMED_JSON),
    "string": (b'"model"', MALFORMED_JSON),
    "number": (b"7", MALFORMED_JSON),
    "cut": (b'{"model":"m"', MALFORMED_JSON),
    "two documents": (b'{"model":"m"}{"model":"n"}', MALFORMED_JSON),
    "trailing comma": (b'{"model":"m",}', MALFORMED_JSON),
    "NaN": (b'{"model":"m","x":NaN}', MALFORMED_JSON),
    "NaN beside a surrogate": (b'{"model":"m","x":NaN,"y":"\\ud800"}', MALFORMED_JSON),
    "BOM": (b'\xef\xbb\xbf{"model":"m"}', MALFORMED_JSON),
    "UTF-16": ('{"model":"m"}'.encode("utf-16"), MALFORMED_JSON),
    "bad UTF-8 in the name": (b'{"model":"\xff"}', MALFORMED_JSON),
    "bad UTF-8 elsewhere": (b'{"model":"m","x":"\xff"}', MALFORMED_JSON),
    "overlong UTF-8": (b'{"model":"m","x":"\xc0\xaf"}', MALFORMED_JSON),
    "bomb of arrays": (b'{"model":"m","x":' + b"[" * 200_000, MALFORMED_JSON),
    "bomb of objects": (b'{"model":"m","x":' + b'{"a":' * 100_000, MALFORMED_JSON),
    "bomb beside a surrogate": (b'{"y":"\\ud800","x":' + b"[" * 8000, MALFORMED_JSON),
    "no model": (b'{"messages":[]}', BAD_MODEL),
    "only a nested one": (b'{"x":{"model":"m"}}', BAD_MODEL),
    "null": (b'{"model":null}', BAD_MODEL),
    "a number": (b'{"model":1e999}', BAD_MODEL),
    "a list": (b'{"model":["m"]}', BAD_MODEL),
    "twice": (b'{"model":"a","model":"b"}', BAD_MODEL),
    "twice the same": (b'{"model":"a","x":1,"model":"a"}', BAD_MODEL),
    "twice, one in disguise": (b'{"model":"a","\\u006dodel":"b"}', BAD_MODEL),
    "twice, both in disguise": (b'{"mode\\u006C":"a","\\u006Dodel":"b"}', BAD_MODEL),
    "twice beside a surrogate": (b'{"model":"a","x":"\\ud800","model":"b"}', BAD_MODEL),
    "none beside a surrogate": (b'{"x":"\\ud800"}', BAD_MODEL),
    "array beside a surrogate": (b'["\\ud800"]', MALFORMED_JSON),
    "a surrogate as the name": (b'{"model":"\\ud800"}', BAD_MODEL),
}


def in_words(read: Callable[[], str]) -> str:
    try:
        return read()
    except BodyRefused as refused:
        return f"{refused.kind.label}: {refused}"


@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_a_body_that_is_decoded_for_its_prompt_too_names_the_same_model(name: str) -> None:
    """W01, W02, W44, W45: one decoding for both questions changes no answer."""
    body = GOOD[name][0] if name in GOOD else BAD[name][0]
    said = prompts.opened(body)
    if said is not None and said.model is not None:
        found = said.model
        assert in_words(lambda: sole_model(body, found)) == in_words(lambda: model_of(body))


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_routed(name: str) -> None:
    body, kind = BAD[name]
    with pytest.raises(BodyRefused) as refused:
        model_of(body)
    assert refused.value.kind is kind
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("name", [name for name in GOOD if "surrogate" not in name])
def test_splicing_changes_the_name_and_nothing_else(name: str) -> None:
    body, _ = GOOD[name]
    spliced = with_model(body, 'new "name"\u00e9')
    assert model_of(spliced) == 'new "name"\u00e9'
    before = json.loads(body, object_pairs_hook=lambda pairs: [p for p in pairs if p[0] != "model"])
    after = json.loads(spliced, object_pairs_hook=lambda pairs: [p for p in pairs if p[0] != "model"])
    assert before == after


def test_splicing_keeps_every_other_byte() -> None:
    assert with_model(b'{"a":1.50,"model" : "old" ,"b":"\\u0041"}', "n") == (
        b'{"a":1.50,"model" : "n" ,"b":"\\u0041"}'
    )


keys = st.text(alphabet='model"\\u06\n{}[]:,\u00e9', max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='model"\\:{}[], \u00e9', max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(keys | st.just("model"), values), max_size=6), st.booleans())
def test_the_scan_agrees_with_a_full_parse(pairs: list[tuple[str, object]], escape: bool) -> None:
    body = (
        "{"
        + ",".join(
            f"{json.dumps(k, ensure_ascii=escape)}: {json.dumps(v, ensure_ascii=escape)}" for k, v in pairs
        )
        + "}"
    ).encode()
    models = [value for key, value in pairs if key == "model"]
    if len(models) == 1 and isinstance(models[0], str):
        assert model_of(body) == models[0]
        assert json.loads(with_model(body, "other")) == {**json.loads(body), "model": "other"}
    else:
        with pytest.raises(BodyRefused):
            model_of(body)
