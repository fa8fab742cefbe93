"""Pieces: one numbering on both sides, and sets that survive the wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_kit.errors import InvalidRequest
from llmgw_kit.pieces import Layout, bit_from, bits_from_hex, bits_to_hex, each_bit


@given(piece_bytes=st.integers(1, 50), sizes=st.lists(st.integers(0, 300), max_size=8))
def test_pieces_cover_every_byte_once_in_order(piece_bytes: int, sizes: list[int]) -> None:
    layout, found = Layout(piece_bytes, sizes), [0] * len(sizes)
    for piece in range(layout.count):
        place = layout.place(piece)
        assert piece in layout.of_file(place.file)
        assert layout.bits_of_file(place.file) >> piece & 1
        assert place.offset == found[place.file]
        assert 0 < place.length <= piece_bytes
        found[place.file] += place.length
    assert found == sizes
    for number in (-1, layout.count):
        with pytest.raises(IndexError):
            layout.place(number)


@given(count=st.integers(0, 100), data=st.data())
def test_a_set_survives_the_wire(count: int, data: st.DataObject) -> None:
    bits = data.draw(st.integers(0, (1 << count) - 1))
    assert bits_from_hex(bits_to_hex(bits, count), count, what="have") == bits
    assert sum(1 << n for n in each_bit(bits)) == bits


@pytest.mark.parametrize("text", [None, 5, "0", "000", "zz", "08", "0é", " 1"])
def test_what_is_no_set_is_refused(text: object) -> None:
    with pytest.raises(InvalidRequest):
        bits_from_hex(text, 3, what="have")


@given(bits=st.integers(1, 2**40), start=st.integers(0, 60))
def test_the_first_at_or_after_wraps(bits: int, start: int) -> None:
    numbers = list(each_bit(bits))
    assert bit_from(bits, start) == next((n for n in numbers if n >= start), numbers[0])
