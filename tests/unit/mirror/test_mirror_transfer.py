"""What an upstream's answer means for the bytes already here, case by case."""

import pytest

from llmgw_mirror.core.headers import ContentRange
from llmgw_mirror.core.transfer import (
    PASSING,
    Append,
    AskAgain,
    AskFrom,
    Complete,
    Head,
    PartSeen,
    Refuse,
    StartOver,
    Want,
    backoff_s,
    body_end,
    next_request,
    on_answer,
    verdict,
)
from llmgw_mirror.core.versions import Proof

NOTHING = Want(None, None)
SHA = "ab" * 32
TAG = '"one"'
HALF = PartSeen(5, TAG, 10)


@pytest.mark.parametrize(
    ("part", "want", "step"),
    [
        (PartSeen(0), NOTHING, AskFrom(0, None)),
        (PartSeen(0), Want(SHA, 0), AskFrom(0, None)),
        (HALF, NOTHING, AskFrom(5, TAG)),
        (PartSeen(5, None, 10), Want(SHA, None), AskFrom(5, None)),
        (PartSeen(10, TAG, 10), NOTHING, Complete()),
        (PartSeen(10, None, None), Want(None, 10), Complete()),
    ],
    ids=["fresh", "fresh, empty", "by etag", "by checksum alone", "whole (H2)", "whole by published size"],
)
def test_before_asking(part: PartSeen, want: Want, step: object) -> None:
    assert next_request(part, want) == step


def test_too_much_is_dropped() -> None:
    assert isinstance(next_request(PartSeen(11, TAG, 10), NOTHING), StartOver)
    assert isinstance(next_request(PartSeen(11, TAG, 20), Want(None, 10)), StartOver)


def test_without_any_proof_nothing_is_joined() -> None:
    assert isinstance(next_request(PartSeen(5, None, 10), NOTHING), StartOver)


RESUME = AskFrom(5, TAG)


def on(head: Head, part: PartSeen = HALF, want: Want = NOTHING, asked: AskFrom = RESUME) -> object:
    return on_answer(part, want, asked, head)


def test_200_to_a_range_is_the_whole_file_again() -> None:
    step = on(Head(200, content_length=10, validator=TAG))
    assert step == Append(0, 10, TAG, "upstream ignored the range")  # H1
    step = on(Head(200, content_length=12, validator='"two"'))
    assert step == Append(0, 12, '"two"', "the file changed upstream")  # H7


def test_206_goes_on_where_it_was() -> None:
    step = on(Head(206, content_length=5, content_range=ContentRange(5, 9, 10), validator=TAG))
    assert step == Append(5, 10, TAG)
    # Fewer headers than the first answer had: what the part began with stands.
    assert on(Head(206, content_range=ContentRange(5, 9, None))) == Append(5, 10, TAG)
    # A date cannot contradict a tag.
    assert isinstance(on(Head(206, content_range=ContentRange(5, 9, 10), validator="Mon, …")), Append)


@pytest.mark.parametrize(
    "head",
    [
        Head(206, content_range=ContentRange(0, 9, 10), validator=TAG),
        Head(206, content_range=ContentRange(6, 9, 10), validator=TAG),
        Head(206, content_range=None, validator=TAG),
        Head(206, content_range=ContentRange(5, 9, 11), validator=TAG),
        Head(206, content_range=ContentRange(5, 9, 10), validator='"two"'),
    ],
    ids=["from 0", "past the gap", "no Content-Range", "another total", "another etag"],
)
def test_206_for_something_else_is_never_written(head: Head) -> None:
    assert isinstance(on(head), StartOver)  # H3, H8


def test_416() -> None:
    assert on(Head(416, content_range=ContentRange(None, None, 5))) == Complete()
    assert isinstance(on(Head(416, content_range=ContentRange(None, None, 4))), StartOver)
    assert isinstance(on(Head(416)), StartOver)


@pytest.mark.parametrize("status", sorted(PASSING))
def test_not_now(status: int) -> None:
    assert on(Head(status, retry_after_s=7.0)) == AskAgain(f"upstream answered {status}", 7.0)


@pytest.mark.parametrize(
    ("status", "hint"),
    [(401, "upstream_tokens"), (403, "expired"), (404, "URL"), (410, "removed"), (204, "204"), (300, "300")],
)
def test_never(status: int, hint: str) -> None:
    step = on(Head(status))
    assert isinstance(step, Refuse)
    assert hint in step.error


def test_a_length_that_is_not_the_published_one_is_told_before_a_byte() -> None:
    fresh = AskFrom(0, None)
    step = on(Head(200, content_length=9), PartSeen(0), Want(None, 10), fresh)
    assert step == Refuse("upstream offers 9 bytes, expected 10; nothing was fetched")
    step = on(Head(206, content_range=ContentRange(5, 8, 9)), HALF, Want(None, 10))
    assert isinstance(step, Refuse)


def test_a_compressed_body_is_no_file() -> None:
    assert isinstance(on(Head(200, content_length=3, encoding="gzip")), Refuse)
    assert isinstance(on(Head(200, content_length=3, encoding="identity")), Append)


def test_a_body_without_any_end_is_refused_unless_something_proves_it() -> None:
    head, fresh = Head(200, delimited=False), AskFrom(0, None)
    assert isinstance(on(head, PartSeen(0), NOTHING, fresh), Refuse)
    assert isinstance(on(head, PartSeen(0), Want(SHA, None), fresh), Append)
    assert isinstance(on(head, PartSeen(0), Want(None, 3), fresh), Append)


def test_a_cache_may_answer_206_from_the_start() -> None:
    fresh = AskFrom(0, None)
    assert isinstance(
        on(Head(206, content_range=ContentRange(0, 9, 10)), PartSeen(0), NOTHING, fresh), Append
    )
    assert isinstance(
        on(Head(206, content_range=ContentRange(2, 9, 10)), PartSeen(0), NOTHING, fresh), AskAgain
    )


@pytest.mark.parametrize(
    ("total", "received", "want", "broke_off", "kind"),
    [
        (10, 10, NOTHING, None, Complete),
        (10, 10, NOTHING, "cut", Complete),
        (10, 7, NOTHING, "cut", AskAgain),
        (10, 7, NOTHING, None, AskAgain),
        (None, 7, NOTHING, None, Complete),
        (None, 7, NOTHING, "cut", AskAgain),
        (None, 7, Want(None, 7), "cut", Complete),
        (10, 11, NOTHING, None, Refuse),
        (None, 8, Want(None, 7), None, Refuse),
    ],
)
def test_how_a_body_ended(
    total: int | None, received: int, want: Want, broke_off: str | None, kind: type
) -> None:
    assert isinstance(body_end(total, received, want, broke_off=broke_off), kind)


def test_the_verdict_says_what_was_got_and_what_was_expected() -> None:
    other = "cd" * 32
    assert verdict(Want(SHA, 3), sha256=SHA, size_bytes=3) is None
    assert verdict(NOTHING, sha256=SHA, size_bytes=3) is None
    assert verdict(Want(SHA, 3), sha256=SHA, size_bytes=4) == "got 4 bytes, expected 3; removed"
    assert verdict(Want(SHA, 3), sha256=other, size_bytes=3) == f"got sha256 {other}, expected {SHA}; removed"


GIT = "0f" * 20


def test_a_git_id_is_proof_where_no_sha256_is_published() -> None:
    want = Want(None, 3, GIT)
    assert verdict(want, sha256=SHA, size_bytes=3, git_id=GIT) is None
    assert verdict(want, sha256=SHA, size_bytes=3, git_id="1e" * 20) == (
        f"got git id {'1e' * 20} (sha256 {SHA}), expected git id {GIT}; removed"
    )
    # Beside a sha256 it names a pointer file, and is not looked at.
    assert verdict(Want(SHA, 3, GIT), sha256=SHA, size_bytes=3) is None
    assert [Want(*have).proof for have in ((SHA, 3, GIT), (None, 3, GIT), (None, 3, None))] == [
        Proof.SHA256,
        Proof.GIT,
        Proof.NONE,
    ]


def test_a_git_id_is_proof_enough_to_join_and_to_end_without_a_length() -> None:
    want = Want(None, None, GIT)
    assert next_request(PartSeen(5, None, 10), want) == AskFrom(5, None)
    assert isinstance(on(Head(200, delimited=False), PartSeen(0), want, AskFrom(0, None)), Append)


def test_backoff_doubles_and_ends() -> None:
    assert [backoff_s(n, base_s=0.5, most_s=3.0) for n in (1, 2, 3, 4, 1000)] == [0.5, 1.0, 2.0, 3.0, 3.0]
