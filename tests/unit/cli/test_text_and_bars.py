"""Durations, sizes and bar cells: tables, and the properties bars must keep."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_controller.cli.bars import cells
from llmgw_controller.cli.text import ago, duration, moment, size, size_of


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0, "0 s"),
        (48.9, "48 s"),
        (128, "2 m 08 s"),
        (3600, "1 h 00 m"),
        (94_440, "26 h 14 m"),
        (273_600, "3 d 04 h"),
        (-3, "0 s"),
    ],
)
def test_duration(seconds, shown):
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (112e6, "112 MB"), (4.98e9, "4.98 GB"), (2.3e12, "2.3 TB")],
)
def test_size(value, shown):
    assert size(value) == shown


def test_sizes_share_the_unit_of_the_total():
    assert size_of(2.3e12, 13.5e12) == "2.3 of 13.5 TB"
    assert size_of(0, 80e9) == "0 of 80 GB"
    assert size_of(167, 1.4e6) == "<0.01 of 1.4 MB"
    assert size_of(None, 80e9) == "- of 80 GB"
    assert size_of(3, None) == "-"


def test_moments_are_utc_and_name_the_day_when_it_is_not_today():
    now = 1_796_049_120.0
    assert moment(now - 3 * 3600 - 600, now=now) == "11:22"
    assert moment(now - 26 * 3600, now=now) == "29 Nov 12:32"
    assert ago(now - 3, now=now) == "now"
    assert ago(None, now=now) == "-"


@given(st.lists(st.integers(0, 500), min_size=1, max_size=8), st.integers(8, 80))
def test_cells_add_up_and_leave_nothing_out(numbers, width):
    shares = cells(numbers, width)
    if not sum(numbers):
        assert shares == [0] * len(numbers)
        return
    assert sum(shares) == width
    assert all((share > 0) == (number > 0) for share, number in zip(shares, numbers, strict=True))


def test_more_kinds_than_cells_widen_the_bar_rather_than_hide_one():
    assert cells([1, 1, 1, 1], 2) == [1, 1, 1, 1]
