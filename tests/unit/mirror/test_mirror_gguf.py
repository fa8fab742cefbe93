"""The metadata that leads a GGUF file: read as far as it goes, and never trusted with our memory."""

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_mirror.core.described import from_gguf
from llmgw_mirror.core.gguf import NotGguf, read_metadata

TEXT = 8


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key: str, kind: int, data: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + data


def gguf(*pairs: bytes, version: int = 3, count: int | None = None) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs) if count is None else count) + b"".join(pairs)


def number(key: str, value: int) -> bytes:
    return pair(key, 4, struct.pack("<I", value))


LLAMA = [
    pair("general.architecture", TEXT, text("llama")),
    number("general.file_type", 15),
    number("llama.context_length", 8192),
    number("llama.block_count", 30),
    number("llama.embedding_length", 576),
    number("llama.attention.head_count", 9),
    number("llama.attention.head_count_kv", 3),
]
VOCABULARY = pair("tokenizer.ggml.tokens", 9, struct.pack("<IQ", TEXT, 2) + text("<s>") + text("a"))
TEMPLATE = pair("tokenizer.chat_template", TEXT, text("{{ messages }}"))


def test_what_a_file_says_is_read():
    found = read_metadata(gguf(*LLAMA, VOCABULARY, TEMPLATE))
    model = from_gguf(found.pairs, path="m.gguf", whole=found.whole)
    assert found.whole
    assert (model.architecture, model.context_length, model.quantisation) == ("llama", 8192, "Q4_K_M")
    assert model.chat_template is True
    # 30 layers, 3 heads of 64, keys and values, 2 bytes each.
    assert model.cache is not None
    assert model.cache.bytes_per_token == 30 * 3 * 64 * 2 * 2


def test_what_lies_beyond_the_bytes_read_is_unknown_and_not_absent():
    data = gguf(*LLAMA, VOCABULARY, TEMPLATE)
    found = read_metadata(data[: -len(TEMPLATE)])
    model = from_gguf(found.pairs, path="m.gguf", whole=found.whole)
    assert not found.whole
    assert model.context_length == 8192
    assert model.chat_template is None
    assert from_gguf({}, path="m.gguf", whole=True).chat_template is False


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"PK\x03\x04" + b"\0" * 40, "does not begin"),
        (gguf(version=1), "version 1"),
        (gguf(count=2**40), "pairs of metadata"),
        (gguf(text("k") + struct.pack("<I", 99)), "unknown kind 99"),
        (gguf(pair("k", 9, struct.pack("<IQ", 9, 1))), "an array of the kind 9"),
        (gguf(struct.pack("<Q", 2**50)), "a text of"),
        (gguf(pair("k", 9, struct.pack("<IQ", TEXT, 2**60) + struct.pack("<Q", 2**50))), "a text of"),
    ],
)
def test_what_is_no_gguf_says_why(data: bytes, why: str) -> None:
    with pytest.raises(NotGguf, match=why):
        read_metadata(data)


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(data: bytes) -> None:
    for begin in (b"", b"GGUF", gguf(count=3)):
        with contextlib.suppress(NotGguf):
            read_metadata(begin + data)


@given(st.integers(0, 400))
def test_cut_anywhere_it_is_read_up_to_there(cut: int) -> None:
    whole = gguf(*LLAMA, VOCABULARY, TEMPLATE)
    if cut < 4:
        return
    found: Any = read_metadata(whole[:cut])
    assert found.whole is (cut >= len(whole))
