"""What is due to be read again, and which version a name means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_kit.errors import Conflict, InvalidRequest, NotFound
from llmgw_mirror.core.resolving import by_name, by_place
from llmgw_mirror.core.scrub import YIELD_MOST_S, Held, next_due, pause_s, wait_s
from llmgw_mirror.core.versions import Repository, VersionView

DAY_S = 86_400.0
NOW = 1_800_000_000.0


def held(sha256: str, age_days: float) -> Held:
    return Held(sha256, 1_000, NOW - age_days * DAY_S)


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        ({}, None),
        ({"a": 1}, None),
        ({"a": 31, "b": 40, "c": 1}, "b"),
        ({"a": 30}, "a"),
        # A clock that was set back must not hide content for as long as it was ahead.
        ({"a": 1, "b": -400}, "b"),
        ({"a": 31, "b": 31}, "a"),
    ],
)
def test_what_is_due_next(ages: dict[str, float], expected: str | None) -> None:
    due = next_due([held(sha256, age) for sha256, age in ages.items()], now=NOW, interval_s=30 * DAY_S)
    assert (due and due.sha256) == expected


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.floats(0, 100), max_size=8))
def test_everything_is_read_once_in_an_interval(ages: dict[str, float]) -> None:
    """Reading what is due, again and again, leaves nothing older than the interval, each read once."""
    left = {sha256: held(sha256, age) for sha256, age in ages.items()}
    read: list[str] = []
    while (due := next_due(left.values(), now=NOW, interval_s=30 * DAY_S)) is not None:
        read.append(due.sha256)
        left[due.sha256] = held(due.sha256, 0)
    assert len(read) == len(set(read))
    assert set(read) == {
        sha256 for sha256, age in ages.items() if NOW - held(sha256, age).verified_at >= 30 * DAY_S
    }
    oldest_first = [held(sha256, ages[sha256]).verified_at for sha256 in read]
    assert oldest_first == sorted(oldest_first)
    assert 0 <= wait_s(left.values(), now=NOW, interval_s=30 * DAY_S, most_s=600) <= 600


def test_the_wait_ends_when_the_oldest_is_due() -> None:
    ages = [held("a", 30 - 100 / DAY_S), held("b", 1)]
    assert wait_s(ages, now=NOW, interval_s=30 * DAY_S, most_s=600) == pytest.approx(100)
    assert wait_s([], now=NOW, interval_s=30 * DAY_S, most_s=600) == 600


@pytest.mark.parametrize(
    ("took_s", "rate", "nodes_read", "yielded_s", "expected"),
    [
        (0.0, 1e6, False, 0.0, 8.0),
        (5.0, 1e6, False, 0.0, 3.0),
        (9.0, 1e6, False, 0.0, 0.0),
        (0.0, None, False, 0.0, 0.0),
        (0.0, 1e6, True, 0.0, 1.0),
        (0.0, None, True, YIELD_MOST_S - 0.5, 0.5),
        # It has given way for long enough, or nobody reads any more: on it goes.
        (0.0, 1e6, True, YIELD_MOST_S, 0.0),
        (0.0, 1e6, False, 3.0, 0.0),
    ],
)
def test_the_pause_after_a_chunk(
    took_s: float, rate: float | None, nodes_read: bool, yielded_s: float, expected: float
) -> None:
    pause = pause_s(8_000_000, took_s, rate_bytes_s=rate, nodes_read=nodes_read, yielded_s=yielded_s)
    assert pause == pytest.approx(expected)


def version(name: str, model: str = "org/m", place: Repository | None = None, at: float = NOW) -> VersionView:
    return VersionView(model, name, at, (), place)


A, B = "a1" * 20, "b2" * 20


def test_a_version_by_its_name_or_the_beginning_of_one() -> None:
    views = [version("abcd1"), version("abcd2"), version("abcde", "org/n"), version("abcd", "org/o")]
    assert by_name(views, "org/m", "abcd1") is views[0]
    assert by_name(views, "org/n", "abcd") is views[2]
    # An exact name is no beginning.
    assert by_name(views, None, "abcd") is views[3]
    with pytest.raises(Conflict, match="may mean 2 versions: org/m abcd1, org/m abcd2") as told:
        by_name(views, "org/m", "abcd")
    assert told.value.code == "ambiguous"
    with pytest.raises(InvalidRequest, match="too short"):
        by_name(views, "org/m", "abc")
    with pytest.raises(NotFound, match="'zzzz' of 'org/m' is not here"):
        by_name(views, "org/m", "zzzz")


def test_a_version_by_where_it_came_from() -> None:
    old = version("one", place=Repository("org/r", A, "main"), at=NOW)
    new = version("two", place=Repository("org/r", B, "main"), at=NOW + 5)
    tagged = version("tag", place=Repository("org/r", A, "v1.0"), at=NOW)
    views = [old, new, tagged, version("x"), version("y", place=Repository("org/other", A, None))]
    # A branch means the commit it was asked at last.
    assert by_place(views, "org/r", "main") is new
    assert by_place(views, "org/r", None) is new
    assert by_place(views, "org/r", B[:7].upper()) is new
    assert by_place(views, "org/other", A) is views[4]
    with pytest.raises(Conflict, match="org/m one, org/m tag"):
        by_place(views, "org/r", A)
    for revision in ("dev", "b2b", "c3c3"):
        with pytest.raises(NotFound, match="of repository 'org/r' is not here"):
            by_place(views, "org/r", revision)


def test_without_a_revision_what_was_asked_for_by_a_commit_is_found_newest_first() -> None:
    old = version("old", place=Repository("org/r", A, None), at=NOW)
    new = version("new", place=Repository("org/r", B, None), at=NOW + 1)
    tagged = version("tagged", place=Repository("org/r", A, "v1"), at=NOW - 1)
    assert by_place([old, new, tagged], "org/r", None) is new
    assert by_place([tagged], "org/r", None) is tagged
    # A branch that somebody named comes first, however old; and who names one means it.
    usual = version("usual", place=Repository("org/r", A, "main"), at=NOW - 9)
    assert by_place([new, usual], "org/r", None) is usual
    for revision in ("main", "dev"):
        with pytest.raises(NotFound):
            by_place([old, new], "org/r", revision)
    with pytest.raises(NotFound):
        by_place([new], "org/else", None)
    with pytest.raises(Conflict):
        by_place([old, tagged], "org/r", None)
