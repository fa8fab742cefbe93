"""Header fields, read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_mirror.core.headers import (
    ContentRange,
    Slice,
    Unsatisfiable,
    content_range,
    length,
    lists_etag,
    requested_slice,
    retry_after_s,
    validator,
)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("bytes 5-9/10", ContentRange(5, 9, 10)),
        ("bytes 5-9/*", ContentRange(5, 9, None)),
        ("bytes */10", ContentRange(None, None, 10)),
        ("Bytes  0-0/1", ContentRange(0, 0, 1)),
        (None, None),
        ("", None),
        ("bytes 9-5/10", None),
        ("bytes 5-10/10", None),
        ("lines 5-9/10", None),
        ("bytes 5-9", None),
        (f"bytes 5-9/{'9' * 30}", ContentRange(5, 9, None)),
    ],
)
def test_content_range(text: str | None, parsed: ContentRange | None) -> None:
    assert content_range(text) == parsed


@pytest.mark.parametrize(
    ("text", "value"), [("10", 10), (" 0 ", 0), ("-1", None), ("1e3", None), (None, None), ("9" * 19, None)]
)
def test_length(text: str | None, value: int | None) -> None:
    assert length(text) == value


@pytest.mark.parametrize(
    ("etag", "date", "kept"),
    [
        ('"abc"', None, '"abc"'),
        ('W/"abc"', None, None),
        ('W/"abc"', "Mon, 30 Nov 2026 06:00:00 GMT", "Mon, 30 Nov 2026 06:00:00 GMT"),
        ("abc", None, None),
        ('""', None, None),
        (None, " ", None),
    ],
)
def test_only_a_strong_validator_is_kept(etag: str | None, date: str | None, kept: str | None) -> None:
    assert validator(etag, date) == kept


@pytest.mark.parametrize(
    ("after", "limit", "seconds"),
    [
        ("120", None, 120.0),
        ("Thu, 01 Jan 1970 00:01:00 GMT", None, 50.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", None, 0.0),
        ("soon", None, None),
        (None, '"resolvers";r=0;t=42', 42.0),
        (None, '"resolvers";r=5;t=42', None),
        ("7", '"resolvers";r=0;t=42', 7.0),
        (None, None, None),
    ],
)
def test_how_long_to_wait(after: str | None, limit: str | None, seconds: float | None) -> None:
    assert retry_after_s(after, limit, now=10.0) == seconds


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, None),
        ("bytes=0-", Slice(0, 10)),
        ("bytes=3-5", Slice(3, 3)),
        ("bytes=3-99", Slice(3, 7)),
        ("bytes=-4", Slice(6, 4)),
        ("bytes=-99", Slice(0, 10)),
        ("bytes = 9 - ", Slice(9, 1)),
        ("bytes=5-3", None),
        ("bytes=0-1,4-5", None),
        ("lines=0-1", None),
        ("bytes=a-b", None),
        ("bytes=", None),
    ],
)
def test_a_range_is_clipped_or_ignored(header: str | None, found: Slice | None) -> None:
    assert requested_slice(header, size=10) == found


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-12", "bytes=-0", f"bytes={'9' * 40}-"])
def test_a_range_that_cannot_be_had(header: str) -> None:
    with pytest.raises(Unsatisfiable):
        requested_slice(header, size=10)


def test_an_empty_file_has_no_ranges() -> None:
    for header in ("bytes=0-", "bytes=-1"):
        with pytest.raises(Unsatisfiable):
            requested_slice(header, size=0)


@given(st.integers(0, 50), st.integers(0, 60), st.integers(0, 60))
def test_a_slice_lies_within_the_file(size: int, first: int, last: int) -> None:
    try:
        found = requested_slice(f"bytes={first}-{last}", size=size)
    except Unsatisfiable:
        assert first >= size
        return
    if found is None:
        assert last < first
    else:
        assert found.start >= 0
        assert found.count >= 1
        assert found.start + found.count <= size
        assert bytes(range(size))[first : last + 1] == bytes(range(size))[found.start :][: found.count]


@pytest.mark.parametrize(
    ("header", "listed"),
    [
        ('"a"', True),
        ('W/"a"', True),
        ('"b", "a"', True),
        ("*", True),
        ('"b"', False),
        (None, False),
        ("a", False),
    ],
)
def test_if_none_match(header: str | None, listed: bool) -> None:
    assert lists_etag(header, '"a"') is listed
