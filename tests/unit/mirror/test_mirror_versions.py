"""A version's state from its files', a file's from its three reports, and what a wish must be."""

import itertools

import pytest

from llmgw_kit.errors import InvalidRequest
from llmgw_mirror.core.versions import (
    Cancelled,
    Failure,
    Moving,
    Proof,
    Receipt,
    Source,
    VersionView,
    WeightsState,
    differences,
    may_retry,
    view_file,
    wish,
    worst_of,
)

F, A, G, V, P = WeightsState
SHA = "ab" * 32


def test_the_order_is_the_one_fixed_by_m23() -> None:
    assert [state.value for state in WeightsState] == ["failed", "absent", "fetching", "verifying", "present"]


def test_present_only_when_every_file_is() -> None:
    for states in itertools.product(WeightsState, repeat=3):
        assert (worst_of(states) is P) == (set(states) == {P})


def test_one_failed_outweighs_however_many_others() -> None:
    for states in itertools.product(WeightsState, repeat=3):
        assert (worst_of(states) is F) == (F in states)


def test_each_state_is_worse_than_the_next() -> None:
    for worse, better in itertools.pairwise(WeightsState):
        assert worst_of([better, worse, better]) is worse


def test_of_nothing_nothing_is_present() -> None:
    assert worst_of([]) is A


RECEIPT = Receipt(SHA, 10, Proof.SHA256, at=1.0)
FAILURE = Failure("broken", at=1.0)
MOVING = Moving(G, 3, 10, 1.5, 4.0)


@pytest.mark.parametrize(
    ("receipt", "failure", "moving", "state"),
    [
        (None, None, None, A),
        (None, FAILURE, None, F),
        (None, None, MOVING, G),
        (None, FAILURE, MOVING, G),
        (RECEIPT, None, None, P),
        (RECEIPT, FAILURE, None, P),
        (RECEIPT, None, MOVING, P),
        (RECEIPT, FAILURE, MOVING, P),
    ],
)
def test_a_file_from_its_three_reports(
    receipt: Receipt | None, failure: Failure | None, moving: Moving | None, state: WeightsState
) -> None:
    view = view_file(Source("a", "http://x/a"), receipt=receipt, failure=failure, moving=moving)
    assert view.state is state
    assert (view.sha256 == SHA) == (state is P)
    assert (view.error is not None) == (state is F)
    assert (view.eta_s is not None) == (state is G)


def view(*files: tuple[WeightsState, int | None, int, float | None]) -> VersionView:
    """Of (state, size, received, rate)."""
    made = []
    for number, (state, size, received, rate) in enumerate(files):
        source = Source(f"f{number}", "http://x/f", size_bytes=size)
        if state is P:
            receipt = Receipt(SHA, size or 0, Proof.NONE, at=0)
            made.append(view_file(source, receipt=receipt, failure=None, moving=None))
        else:
            made.append(
                view_file(
                    source,
                    receipt=None,
                    failure=FAILURE if state is F else None,
                    moving=None if state is F else Moving(state, received, size, rate, None),
                )
            )
    return VersionView("m", "v", 0.0, tuple(made))


def test_unknown_sizes_and_times_stay_unknown() -> None:
    assert view((G, None, 5, None), (P, 10, 10, None)).total_bytes is None
    assert view((G, None, 5, 3.0), (P, 10, 10, None)).eta_s is None
    assert view((G, 20, 5, None), (G, 10, 0, None)).eta_s is None
    assert view((G, 20, 5, 0.0)).eta_s is None
    assert view((G, 20, 5, 3.0), (F, 10, 0, None)).eta_s is None
    assert view((G, 20, 5, 3.0), (P, 10, 10, None)).received_bytes == 15
    assert view((P, 10, 10, None)).eta_s is None
    assert view((P, 10, 10, None)).rate_bytes_s is None


def test_files_that_wait_their_turn_are_in_the_time_that_is_left() -> None:
    """Two move at 2 and 3 bytes a second, one waits: 15 + 10 + 50 bytes at 5 a second."""
    whole = view((G, 20, 5, 2.0), (G, 10, 0, 3.0), (G, 50, 0, None), (P, 1, 1, None))
    assert whole.rate_bytes_s == 5.0
    assert whole.eta_s == 15.0


@pytest.mark.parametrize("failure", [None, FAILURE])
@pytest.mark.parametrize("moving", [None, MOVING])
def test_somebodys_word_to_stop_outweighs_all_but_a_receipt(
    failure: Failure | None, moving: Moving | None
) -> None:
    word = Cancelled(1_700_000_000.0, "ann", 3)
    source = Source("a", "http://x/a", size_bytes=10)
    stopped = view_file(source, receipt=None, failure=failure, moving=moving, cancelled=word)
    assert (stopped.state, stopped.cancelled, stopped.received_bytes) == (F, True, 3)
    assert stopped.error == (
        "cancelled by ann at 2023-11-14 22:13:20 UTC; 3 bytes are kept; it stays so until it is retried"
    )
    here = view_file(source, receipt=RECEIPT, failure=failure, moving=moving, cancelled=word)
    assert (here.state, here.cancelled) == (P, False)


def test_a_wish_is_sorted_and_its_checksums_lower_case() -> None:
    made = wish("m", "v", [Source("b", "http://x/b"), Source("a", "http://x/a", SHA.upper(), 3)], now=5.0)
    assert [file.path for file in made.files] == ["a", "b"]
    assert made.files[0].sha256 == SHA


@pytest.mark.parametrize(
    ("model", "version", "files", "says"),
    [
        ("", "v", [Source("a", "http://x/a")], "model is empty"),
        ("m", "..", [Source("a", "http://x/a")], "version '..' is refused"),
        ("m", "v", [], "names no files"),
        ("m", "v", [Source("../a", "http://x/a")], "path '../a' is refused"),
        ("m", "v", [Source("a", "ftp://x/a")], "scheme 'ftp'"),
        ("m", "v", [Source("a", "http://x/a", "ab")], "64 hexadecimal"),
        ("m", "v", [Source("a", "http://x/a", None, -1)], "size of 'a' is -1"),
        ("m", "v", [Source("a", "http://x/a"), Source("A", "http://x/b")], "case or accents"),
    ],
)
def test_a_wish_is_refused(model: str, version: str, files: list[Source], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        wish(model, version, files, now=0.0)


def test_differences_name_what_differs_and_never_a_url() -> None:
    have = [Source("a", "http://x/a?sig=1", SHA, 1), Source("b", "http://x/b")]
    want = [Source("a", "http://x/a?sig=2", "cd" * 32, 1), Source("c", "http://x/c")]
    told = differences(have, want)
    assert told == [
        "c is new",
        "b is missing",
        "a has another url",
        f"a has another sha256: {'cd' * 32}, not {SHA}",
    ]
    assert not any("sig=" in line for line in told)
    assert differences(have, have[::-1]) == []


@pytest.mark.parametrize(
    ("count", "gap_s"), [(1, 0.0), (2, 10.0), (3, 20.0), (4, 40.0), (7, 300.0), (1000, 300.0)]
)
def test_a_file_that_keeps_failing_is_retried_ever_less_often(count: int, gap_s: float) -> None:
    failure = Failure("gone", at=1000.0, count=count)
    assert may_retry(failure, 1000.0 + gap_s)
    if gap_s:
        assert not may_retry(failure, 1000.0)
        assert not may_retry(failure, 1000.0 + gap_s - 0.1)
    # The clock was set back.
    assert may_retry(failure, 900.0)
