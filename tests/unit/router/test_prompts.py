"""Prompts of long bodies: what is looked at is bounded, and what it says is what decoding says."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.core.choosing import prompts
from llmgw_router.core.choosing.affinity import MOST_BYTES, chain_of

from .stepping import Looked

LONG = "lorem ipsum dolor " * 12_000


def never(body: bytes) -> Any:
    raise AssertionError(f"{len(body)} bytes were decoded in one go")


@pytest.mark.parametrize(
    "unit", [b'{"role":"user","content":"a"},', b"{},", b"[],", b'"",', b'"content":"",', b'"user":"",']
)
def test_a_long_body_is_not_decoded(unit: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 MiB of `{}` stopped the loop for 0.3 s."""
    monkeypatch.setattr(prompts, "_said", never)
    monkeypatch.setattr(prompts, "_names", never)
    body = Looked(b'{"model":"m","messages":[' + unit * (2**21 // len(unit)) + b"1]}")
    assert prompts.read(body) is not None
    assert prompts.names(body) is not None
    assert body.seen <= 2 * MOST_BYTES


@pytest.mark.parametrize("unit", [b"{}", b"[]"])
def test_nor_is_a_shorter_one_of_many_values(unit: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "_said", never)
    body = b'{"model":"m","input":[' + b",".join([unit] * 5000) + b"]}"
    assert len(body) < prompts.DECODED_BYTES
    assert prompts.read(body) is not None


@pytest.mark.parametrize(
    "said",
    [
        {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": LONG}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]},
        {"model": "m", "prompt": LONG},
        {"model": "m", "input": 'say \\"role\\": no' + LONG},
    ],
)
def test_a_conversation_that_grows_long_keeps_its_place(said: dict[str, Any]) -> None:
    """The same engine has the beginning, on whichever side of the bound the body is."""
    shorter = json.loads(json.dumps(said).replace(LONG, LONG[:40_000]))
    before, after = prompts.read(json.dumps(shorter).encode()), prompts.read(json.dumps(said).encode())
    assert before is not None
    assert after is not None
    known = chain_of(before.text, 1)
    assert len(known) > 10
    assert chain_of(after.text, 1)[: len(known)] == known


def test_names_stand_at_either_end() -> None:
    for body in ({"user": "u", "prompt_cache_key": "k", "prompt": LONG}, {"prompt": LONG, "user": "u"}):
        prompt = prompts.read(json.dumps(body).encode())
        assert prompt is not None
        assert prompt.user == "u"
        assert prompt.prompt_cache_key == body.get("prompt_cache_key")


@given(st.text(max_size=60), st.integers(0, 400), st.booleans())
def test_a_string_cut_anywhere_is_its_beginning(text: str, at: int, ascii_only: bool) -> None:
    literal = json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode()[:at]
    if literal[-1:] == b"\\" and (len(literal) - len(literal.rstrip(b"\\"))) % 2:
        # An escape is taken whole or not at all.
        literal = literal[:-1]
    found = prompts._text(literal, cut=True)
    assert found is not None
    assert text.startswith(found)
    assert len(text.encode()) - len(found.encode()) <= max(0, len(text.encode()) - at // 6) + 12
