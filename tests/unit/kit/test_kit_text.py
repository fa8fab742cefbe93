"""Text of others, made fit to be stored and shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_kit.text import is_name, joined, printable, storable


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("loading 3/4\n\tof the layers", "loading 3/4\n\tof the layers"),
        ("a\0b", "a\ufffdb"),
        ("bell\x07 delete\x7f next line\x85", "bell\ufffd delete\ufffd next line\ufffd"),
        ("\x1b[1;36mINFO\x1b[0m started", "INFO started"),
        ("10%\r20%\r\nready", "10%\n20%\nready"),
        ("half \ud800 of a letter", "half \ufffd of a letter"),
        ("Größe 中文 🙂", "Größe 中文 🙂"),
    ],
)
def test_what_no_page_can_show_is_replaced(given: str, told: str) -> None:
    assert printable(given) == told


def test_of_a_long_text_the_end_is_kept() -> None:
    assert printable("x" * 50 + "out of memory", most=14) == "…out of memory"
    assert printable("out of memory", most=13) == "out of memory"


@given(st.text(st.characters(exclude_categories=[])))
def test_whatever_was_said_can_be_stored(text: str) -> None:
    for made in (printable(text, most=20), storable(text)):
        assert "\0" not in made
        made.encode()
    assert len(printable(text, most=20)) <= 20


def test_names() -> None:
    assert is_name("gpu-node-7.rack 2", most=20)
    assert is_name("GPU-3f2a", most=8)
    for bad in ("", "a\0", "a\nb", " a", "a ", "\ud800", "x" * 21, "a\u2028b"):
        assert not is_name(bad, most=20), repr(bad)


def test_of_many_names_the_first_are_told_and_how_many_more() -> None:
    assert joined([]) == ""
    assert joined(["a", "b"], most=2) == "a, b"
    assert joined(["a", "b", "c", "d"], most=2) == "a, b and 2 more"
