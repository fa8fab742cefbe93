"""Caps, schedules of caps over the week, and the bucket that all fetches share."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_kit.errors import InvalidRequest
from llmgw_mirror.core.pacing import BURST_S, DAYS, Bucket, Limits, parse_rate, parse_schedule

MB = 10**6
ROME = ZoneInfo("Europe/Rome")


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50MB", 50 * MB),
        (" 50 MB/s ", 50 * MB),
        ("1.5gib/s", 3 * 2**29),
        ("200KB", 200_000),
        ("7B", 7),
        ("unlimited", None),
        ("Pause", 0),
    ],
)
def test_a_cap_is_read(text: str, rate: int | None) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "0", "0MB", "50", "-5MB", "fast", "50Mbit/s", "1e9B", "0.0001B"])
def test_what_could_be_meant_in_two_ways_is_refused(text: str) -> None:
    """Zero above all: it is nothing to some and everything to others."""
    with pytest.raises(InvalidRequest, match="is no cap; expected a size a second such as 50MB"):
        parse_rate(text)


def at(schedule: str, local: str, usual: int | None = None) -> int | None:
    """What holds at that time of a week in Rome that begins on Monday, 2 November 2026."""
    day, time = local.split()
    hour, minute = map(int, time.split(":"))
    moment = datetime(2026, 11, 2 + DAYS.index(day), hour, minute, tzinfo=ROME)
    return Limits(usual, parse_schedule(schedule), ROME).at(moment.timestamp())


@pytest.mark.parametrize(
    ("schedule", "local", "rate"),
    [
        ("22:00-06:00=unlimited, *=50MB", "tue 21:59", 50 * MB),
        ("22:00-06:00=unlimited, *=50MB", "tue 22:00", None),
        ("22:00-06:00=unlimited, *=50MB", "wed 05:59", None),
        ("22:00-06:00=unlimited, *=50MB", "wed 06:00", 50 * MB),
        # Over midnight the day is that of the beginning.
        ("fri 22:00-06:00=9MB", "sat 05:59", 9 * MB),
        ("fri 22:00-06:00=9MB", "fri 05:59", 7),
        ("mon-fri 08:00-18:00=20MB, sat=pause", "fri 17:59", 20 * MB),
        ("mon-fri 08:00-18:00=20MB, sat=pause", "sat 12:00", 0),
        ("mon-fri 08:00-18:00=20MB, sat=pause", "sun 12:00", 7),
        ("sun-mon=3MB", "mon 00:00", 3 * MB),
        ("sun-mon=3MB", "tue 00:00", 7),
        # The first that covers it.
        ("12:00-13:00=1MB, 11:00-14:00=2MB", "mon 12:30", MB),
        ("18:00-24:00=1MB", "mon 23:59", MB),
    ],
)
def test_what_holds_when(schedule: str, local: str, rate: int | None) -> None:
    assert at(schedule, local, usual=7) == rate


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("50MB", "'50MB' in the schedule is no entry"),
        ("22:00=1MB", "'22:00' in the schedule is no time"),
        ("=1MB", "'' in the schedule is no time"),
        ("25:00-26:00=1MB", "no time of a day"),
        ("10:60-11:00=1MB", "no time of a day"),
        ("10:00-10:00=1MB", "no time at all"),
        ("mon-fry=1MB", "'fry' in the schedule is no day"),
        ("night=1MB", "'night' in the schedule is no time"),
        ("*=0", "'0' is no cap"),
        ("*=1MB,", "'' in the schedule is no entry"),
    ],
)
def test_a_schedule_is_refused_by_the_entry_that_is_wrong(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says.replace("(", r"\(")):
        parse_schedule(text)


def test_when_it_changes_next() -> None:
    limits = Limits(None, parse_schedule("22:00-06:00=unlimited, *=50MB"), ROME)
    evening = datetime(2026, 11, 2, 20, 0, tzinfo=ROME).timestamp()
    assert limits.changes_at(evening) == evening + 2 * 3600
    assert limits.changes_at(evening + 2 * 3600) == evening + 10 * 3600
    assert Limits(5).changes_at(evening) is None
    assert Limits(None, parse_schedule("*=5MB"), ROME).changes_at(evening) is None
    weekend = Limits(7, parse_schedule("sat-sun=pause"), UTC)
    monday = datetime(2026, 11, 2, tzinfo=UTC).timestamp()
    assert weekend.changes_at(monday) == datetime(2026, 11, 7, tzinfo=UTC).timestamp()


def test_the_clock_on_the_wall_counts_where_it_is_changed() -> None:
    """Rome set its clocks back on 25 October 2026: that night has an hour more, 22:00 stays 22:00."""
    limits = Limits(7, parse_schedule("22:00-06:00=unlimited"), ROME)
    before = datetime(2026, 10, 24, 22, 0, tzinfo=ROME).timestamp()
    assert limits.changes_at(before) == before + 9 * 3600


@given(
    st.lists(st.tuples(st.floats(0, 2), st.integers(1, 3 * MB)), min_size=1, max_size=60),
    st.integers(1_000, 100 * MB),
)
def test_no_more_than_the_cap_ever_comes(takes: list[tuple[float, int]], rate: int) -> None:
    """Each one waits as told before the next; at each moment what was let through fits the cap, the burst and
    the last piece, whose size is known only once it is here."""
    bucket, now, begun, through = Bucket(10.0), 10.0, 10.0, 0
    for pause, count in takes:
        now += pause
        bucket.flow(now, rate)
        assert through <= (now - begun + BURST_S) * rate + len(takes)
        place = bucket.take(count)
        through += count
        now += bucket.wait_s(place, rate)
        bucket.flow(now, rate)
        assert bucket.wait_s(place, rate) == 0.0


def test_all_of_it_is_used_by_those_who_always_want_more() -> None:
    bucket, now = Bucket(0.0), 0.0
    for _ in range(100):
        bucket.flow(now, MB)
        now += bucket.wait_s(bucket.take(MB), MB)
    assert now == pytest.approx(100.0, rel=0.01)


def test_those_who_wait_together_are_let_on_in_turn() -> None:
    bucket = Bucket(0.0)
    places = [bucket.take(MB) for _ in range(3)]
    assert [bucket.wait_s(place, MB) for place in places] == [1.0, 2.0, 3.0]
    # Twice the cap from here on: half the wait.
    bucket.flow(1.0, MB)
    assert [bucket.wait_s(place, 2 * MB) for place in places] == [0.0, 0.5, 1.0]


def test_a_silence_is_not_saved_up() -> None:
    bucket = Bucket(0.0)
    bucket.flow(3600.0, MB)
    assert bucket.wait_s(bucket.take(MB), MB) == 1.0 - BURST_S
