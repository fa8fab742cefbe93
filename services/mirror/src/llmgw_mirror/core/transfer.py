"""Fetching one file: what to ask for, and what the answer means for the bytes already here.

Case numbers (H…) are those of the public failures each rule answers; shared by all upstreams.
"""

from dataclasses import dataclass

from llmgw_mirror.core.headers import ContentRange
from llmgw_mirror.core.versions import Proof

#: Answers that say "not now": too early, too many, and the server's own troubles.
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504, 507, 509, 520, 521, 522, 523, 524})


@dataclass(frozen=True)
class Want:
    """What was published about the file; None where nobody did."""

    sha256: str | None
    size_bytes: int | None
    #: The registry's id of the file as a git blob: a sha1, the proof where no sha256 is published. Beside one
    #: it is the id of a pointer file, and proves nothing of the content.
    git_id: str | None = None

    @property
    def proof(self) -> Proof:
        """What the content will have been proved by, once it is here."""
        if self.sha256 is not None:
            return Proof.SHA256
        return Proof.NONE if self.git_id is None else Proof.GIT


@dataclass(frozen=True)
class PartSeen:
    """The bytes already here and what they are the beginning of."""

    length: int
    #: For If-Range; None when upstream gave nothing that proves bytes to be of one content.
    validator: str | None = None
    total_bytes: int | None = None


@dataclass(frozen=True)
class Head:
    """An answer's head, of whichever upstream."""

    status: int
    content_length: int | None = None
    content_range: ContentRange | None = None
    validator: str | None = None
    encoding: str | None = None
    retry_after_s: float | None = None
    #: The origin, or one that led here, gives nothing more for so long; this answer stands.
    exhausted_s: float | None = None
    #: Whether the end of the body can be told from a broken connection.
    delimited: bool = True
    #: What a person should read about a refusal, if upstream said so.
    said: str | None = None


# What to ask for.


@dataclass(frozen=True)
class AskFrom:
    """Ask for bytes from `offset`; `validator` goes into If-Range."""

    offset: int
    validator: str | None


@dataclass(frozen=True)
class Complete:
    """All bytes are here: verify."""


@dataclass(frozen=True)
class StartOver:
    """The bytes here are worth nothing: drop them and ask again from 0."""

    why: str


# What an answer means.


@dataclass(frozen=True)
class Append:
    """Write the body at `offset`, which is 0 when the bytes here are to be dropped first."""

    offset: int
    total_bytes: int | None
    validator: str | None
    dropped: str | None = None


@dataclass(frozen=True)
class Refuse:
    """Asking again would not help. `spoiled`: the bytes here are wrong and go."""

    error: str
    spoiled: bool = False
    #: Where whoever refused it has said what to do.
    next_steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class AskAgain:
    """Wait and ask again; `after_s` None: nobody said how long."""

    why: str
    after_s: float | None


def next_request(part: PartSeen, want: Want) -> AskFrom | Complete | StartOver:
    """Before asking upstream."""
    expected = want.size_bytes if want.size_bytes is not None else part.total_bytes
    if part.length and expected is not None:
        # Length first: asking past the end is answered 416 for ever (H2).
        if part.length == expected:
            return Complete()
        if part.length > expected:
            return StartOver(f"{part.length} bytes are here of a file of {expected}")
    if part.length == 0:
        return AskFrom(0, None)
    if part.validator is None and want.proof is Proof.NONE:
        # Nothing would show that the rest belongs to another content.
        return StartOver("upstream gave no strong ETag or date, and no checksum is published")
    return AskFrom(part.length, part.validator)


def on_answer(
    part: PartSeen, want: Want, asked: AskFrom, head: Head
) -> Append | Complete | StartOver | Refuse | AskAgain:
    """After the head of an answer to `asked` came."""
    if head.status in PASSING:
        return AskAgain(f"upstream answered {head.status}{_said(head)}", head.retry_after_s)
    if head.status == 416:
        return _on_416(part, head)
    if head.status not in (200, 206):
        return Refuse(_refusal(head))
    if head.encoding not in (None, "", "identity"):
        return Refuse(f"upstream sends the file as {head.encoding} although identity was asked for")
    if head.status == 200:
        total = head.content_length
        if (wrong := _wrong_total(total, want)) is not None:
            return Refuse(wrong)
        if not head.delimited and want.size_bytes is None and want.proof is Proof.NONE:
            return Refuse(
                "upstream says no length, and neither size nor checksum is published: "
                "a transfer cut short could not be told; give the size or the checksum"
            )
        dropped = None
        if asked.offset:
            # The whole body again: appending it is how files grew to a multiple of their size (H1).
            changed = _contradict(part.validator, head.validator)
            dropped = "the file changed upstream" if changed else "upstream ignored the range"
        return Append(0, total, head.validator, dropped)
    return _on_206(part, want, asked, head)


def _on_206(part: PartSeen, want: Want, asked: AskFrom, head: Head) -> Append | StartOver | Refuse | AskAgain:
    span = head.content_range
    if asked.offset == 0:
        # Nobody asked for a range. A cache in between may still answer so, from the start.
        if span is None or span.start != 0:
            return AskAgain("upstream answered 206 to a request without a range", head.retry_after_s)
    elif span is None or span.start != asked.offset:
        where = "nowhere" if span is None else f"at byte {span.start}"
        return StartOver(f"upstream answered a range that begins {where}, asked was {asked.offset}")
    total = span.total
    if (wrong := _wrong_total(total, want)) is not None:
        return Refuse(wrong)
    if asked.offset and part.total_bytes is not None and total is not None and total != part.total_bytes:
        return StartOver(f"the file changed upstream: {total} bytes, {part.total_bytes} before")
    if asked.offset and _contradict(part.validator, head.validator):
        return StartOver("the file changed upstream")
    return Append(
        asked.offset,
        total if total is not None else part.total_bytes,
        # The one the part began with: a 206 may carry fewer headers.
        part.validator if asked.offset else head.validator,
    )


def _contradict(ours: str | None, theirs: str | None) -> bool:
    """Whether two validators show two contents; an ETag and a date cannot be compared."""
    if ours is None or theirs is None or ours.startswith('"') != theirs.startswith('"'):
        return False
    return ours != theirs


def _on_416(part: PartSeen, head: Head) -> Complete | StartOver:
    total = head.content_range.total if head.content_range else None
    if total is not None and total == part.length:
        return Complete()
    return StartOver("upstream has no such range")


def _wrong_total(total: int | None, want: Want) -> str | None:
    if total is None or want.size_bytes is None or total == want.size_bytes:
        return None
    return f"upstream offers {total} bytes, expected {want.size_bytes}; nothing was fetched"


def _said(head: Head) -> str:
    return f" ({head.said})" if head.said else ""


def _refusal(head: Head) -> str:
    hint = {
        401: "it wants a login: set a token for its origin in upstream_tokens",
        403: "the token may not read it, or the link has expired",
        404: "check the URL",
        410: "it was removed there",
    }.get(head.status)
    return f"upstream answered {head.status}{_said(head)}" + (f"; {hint}" if hint else "")


def body_end(
    total_bytes: int | None, received: int, want: Want, *, broke_off: str | None
) -> Complete | Refuse | AskAgain:
    """After a body ended with `received` bytes here: cleanly, or as `broke_off` says."""
    expected = want.size_bytes if want.size_bytes is not None else total_bytes
    if received == expected or (expected is None and broke_off is None):
        return Complete()
    if expected is None or received < expected:
        of = "" if expected is None else f" of {expected}"
        return AskAgain(f"{broke_off or 'the transfer ended early'}, at {received}{of} bytes", None)
    return Refuse(f"upstream sent {received} bytes, expected {expected}; removed", spoiled=True)


def verdict(want: Want, *, sha256: str, size_bytes: int, git_id: str | None = None) -> str | None:
    """What is wrong with a complete file; None: nothing. `git_id`: of what is here, where it is the proof."""
    if want.size_bytes is not None and size_bytes != want.size_bytes:
        return f"got {size_bytes} bytes, expected {want.size_bytes}; removed"
    if want.sha256 is not None and sha256 != want.sha256:
        return f"got sha256 {sha256}, expected {want.sha256}; removed"
    if want.proof is Proof.GIT and git_id != want.git_id:
        return f"got git id {git_id} (sha256 {sha256}), expected git id {want.git_id}; removed"
    return None


def backoff_s(attempt: int, *, base_s: float, most_s: float) -> float:
    """Before attempt 1, 2, …; doubles up to `most_s`. The caller adds chance."""
    return min(most_s, base_s * 2.0 ** min(attempt - 1, 30))
