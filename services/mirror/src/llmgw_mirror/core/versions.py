"""A version of a model's weights: what was asked for, what is known of each file, and what follows.

A file's state is computed from separate reports, each with one writer: the receipt of its publication,
the record of its last failure, somebody's word that it be stopped, and the flight that is fetching it now.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from llmgw_kit.errors import InvalidRequest
from llmgw_mirror.core.bounds import check_size, check_sums
from llmgw_mirror.core.names import check_name, check_path, check_together
from llmgw_mirror.core.origins import check_url
from llmgw_mirror.core.registry_names import check_repository, check_revision

#: Most files of one version; the largest repositories known have a few hundred.
FILES_MAX = 10_000

SHA256 = re.compile(r"[0-9a-f]{64}")
#: A git commit, and the id of a git blob.
COMMIT = GIT_ID = re.compile(r"[0-9a-f]{40}")


class WeightsState(Enum):
    """Worst first (M23)."""

    FAILED = "failed"
    ABSENT = "absent"
    FETCHING = "fetching"
    VERIFYING = "verifying"
    PRESENT = "present"


_RANK = {state: rank for rank, state in enumerate(WeightsState)}


def worst_of(states: Iterable[WeightsState]) -> WeightsState:
    """The state of a whole from those of its parts; of no parts at all nothing is here: ABSENT."""
    return min(states, key=_RANK.__getitem__, default=WeightsState.ABSENT)


class Proof(Enum):
    """What showed that published content is what was meant."""

    SHA256 = "sha256"
    #: The registry's git id of the file: a sha1, all that is published of files outside LFS.
    GIT = "git"
    #: Nobody published a checksum: these are the bytes that came.
    NONE = "none"


@dataclass(frozen=True)
class Source:
    """One file as asked for. `sha256`: None when nobody published one; `git_id` (sha1 of the git blob) may
    stand in for it. `companion`: a small file that comes along with the weights."""

    path: str
    url: str
    sha256: str | None = None
    size_bytes: int | None = None
    git_id: str | None = None
    companion: bool = False


@dataclass(frozen=True)
class Repository:
    """Where in the registry a version comes from. `revision`: the branch or tag it was asked by; None when
    it was asked by the commit."""

    id: str
    commit: str
    revision: str | None = None


@dataclass(frozen=True)
class Wish:
    """What one version consists of; never changed once stored."""

    model: str
    version: str
    created_at: float
    files: tuple[Source, ...]
    repository: Repository | None = None


@dataclass(frozen=True)
class Receipt:
    """A file that was verified and published; `proof` says against what."""

    sha256: str
    size_bytes: int
    proof: Proof
    at: float

    @property
    def as_received(self) -> bool:
        """Verified means no more than that these are the bytes that came."""
        return self.proof is Proof.NONE


@dataclass(frozen=True)
class Failure:
    """Why the last fetch of a file ended without it. `count`: so many in a row."""

    error: str
    at: float
    count: int = 1


@dataclass(frozen=True)
class Cancelled:
    """Somebody stopped the fetch of a file. It stays so until somebody says otherwise: a controller that
    asks for the version every few seconds is not meant. `asked_by`: None when they did not say."""

    at: float
    asked_by: str | None = None
    #: Here when it was stopped; they stay unless `discard`.
    received_bytes: int = 0
    discard: bool = False

    @property
    def told(self) -> str:
        """For the people whom it stops."""
        when = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        by = f" by {self.asked_by}" if self.asked_by else ""
        kept = f"; {self.received_bytes} bytes are kept" if self.received_bytes else ""
        return f"cancelled{by} at {when}{kept}; it stays so until it is retried"


#: Between automatic retries of a file that keeps failing, doubled up to the second.
RETRY_GAP_S, RETRY_GAP_MOST_S = 10.0, 300.0


def may_retry(failure: Failure, now: float) -> bool:
    """Whether being asked for the version again tries this file again.

    At once after the first failure: somebody has mended something. Then ever less often: a controller
    asks every few seconds for as long as a replica waits, and upstream has said no each time."""
    if failure.count <= 1:
        return True
    gap_s = min(RETRY_GAP_MOST_S, RETRY_GAP_S * 2.0 ** min(failure.count - 2, 10))
    # A clock set back must not lock a file out.
    return not 0 <= now - failure.at < gap_s


@dataclass(frozen=True)
class Moving:
    """A fetch under way, here or in another mirror over the same store."""

    state: WeightsState
    received_bytes: int
    total_bytes: int | None
    rate_bytes_s: float | None = None
    eta_s: float | None = None


@dataclass(frozen=True)
class FileView:
    source: Source
    state: WeightsState
    size_bytes: int | None
    received_bytes: int
    sha256: str | None = None
    proof: Proof | None = None
    rate_bytes_s: float | None = None
    eta_s: float | None = None
    error: str | None = None
    #: Failed only in that somebody stopped it; `error` says who and when.
    cancelled: bool = False

    @property
    def as_received(self) -> bool:
        """Present without any published checksum."""
        return self.proof is Proof.NONE

    @property
    def published_bytes(self) -> int | None:
        """The size as verified; None until then, whatever was promised."""
        return self.size_bytes if self.state is WeightsState.PRESENT else None


@dataclass(frozen=True)
class VersionView:
    model: str
    version: str
    created_at: float
    files: tuple[FileView, ...]
    repository: Repository | None = None
    #: When every byte of it was last read and found right; None while a file is not here.
    verified_at: float | None = None

    @property
    def state(self) -> WeightsState:
        """The worst of its files."""
        return worst_of(file.state for file in self.files)

    @property
    def received_bytes(self) -> int:
        return sum(file.received_bytes for file in self.files)

    @property
    def total_bytes(self) -> int | None:
        """None while one file's size is unknown."""
        sizes = [file.size_bytes for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def rate_bytes_s(self) -> float | None:
        """Of all files that move together; None while no rate is known."""
        rates = [file.rate_bytes_s for file in self.files if file.rate_bytes_s is not None]
        return sum(rates) if rates else None

    @property
    def eta_s(self) -> float | None:
        """What is missing at the rate of all files together, since they take turns. None when it is whole,
        while a size is unknown or nothing moves, and when a file has failed: it comes never by itself."""
        total, rate = self.total_bytes, self.rate_bytes_s
        if total is None or not rate or self.state is WeightsState.FAILED:
            return None
        return max(0, total - self.received_bytes) / rate


def view_file(
    source: Source, *, receipt: Receipt | None, failure: Failure | None, moving: Moving | None,
    cancelled: Cancelled | None = None,
) -> FileView:  # fmt: skip
    """What the reports amount to. A receipt outweighs everything (it is done), a cancellation the rest (it is
    being stopped), a fetch a failure (it was asked for again)."""
    if receipt is not None:
        return FileView(
            source,
            WeightsState.PRESENT,
            size_bytes=receipt.size_bytes,
            received_bytes=receipt.size_bytes,
            sha256=receipt.sha256,
            proof=receipt.proof,
        )
    if cancelled is not None:
        return FileView(
            source,
            WeightsState.FAILED,
            size_bytes=source.size_bytes,
            received_bytes=cancelled.received_bytes,
            error=cancelled.told,
            cancelled=True,
        )
    if moving is not None:
        size = source.size_bytes if moving.total_bytes is None else moving.total_bytes
        return FileView(
            source,
            moving.state,
            size_bytes=size,
            received_bytes=moving.received_bytes,
            rate_bytes_s=moving.rate_bytes_s,
            eta_s=moving.eta_s,
        )
    if failure is not None:
        return FileView(
            source, WeightsState.FAILED, size_bytes=source.size_bytes, received_bytes=0, error=failure.error
        )
    return FileView(source, WeightsState.ABSENT, size_bytes=source.size_bytes, received_bytes=0)


def wish(
    model: str, version: str, files: Sequence[Source], *, now: float, repository: Repository | None = None
) -> Wish:
    """Check everything that can be checked without looking anywhere. Raises InvalidRequest."""
    check_name("model", model)
    check_name("version", version)
    if not files:
        raise InvalidRequest(
            f"version {version!r} of {model!r} names no files",
            next_steps=["name each file with its URL, companions of the weights included"],
        )
    if len(files) > FILES_MAX:
        raise InvalidRequest(
            f"version {version!r} names {len(files)} files; at most {FILES_MAX} are taken",
            next_steps=["make several versions of it"],
        )
    checked = tuple(sorted((_checked(file) for file in files), key=lambda file: file.path))
    check_together(file.path for file in checked)
    check_sums(
        version,
        (file.size_bytes or 0 for file in checked),
        (text for file in checked for text in (file.path, file.url)),
    )
    if repository is not None:
        _check_place(repository)
    return Wish(model, version, now, checked, repository)


def _check_place(place: Repository) -> None:
    """By the rules for what the registry is asked: nothing else can be one of its repositories."""
    check_repository(place.id)
    if not COMMIT.fullmatch(place.commit):
        raise InvalidRequest(
            f"the commit of {place.id!r} is {place.commit[:80]!r}; expected 40 hexadecimal digits",
            next_steps=["give the commit in full, as the registry shows it"],
        )
    if place.revision is not None:
        check_revision(place.revision)


def _checked(file: Source) -> Source:
    check_path(file.path)
    check_url(file.url, what=f"the URL of {file.path!r}")
    sha256 = None if file.sha256 is None else file.sha256.lower()
    if sha256 is not None and not SHA256.fullmatch(sha256):
        raise InvalidRequest(
            f"the checksum of {file.path!r} is {file.sha256!r}; expected 64 hexadecimal digits (sha256)",
            next_steps=["give the sha256 that the publisher names, or none"],
        )
    check_size(file.path, file.size_bytes)
    git_id = None if file.git_id is None else file.git_id.lower()
    if git_id is not None and not GIT_ID.fullmatch(git_id):
        raise InvalidRequest(
            f"the git id of {file.path!r} is {file.git_id!r}; expected 40 hexadecimal digits (sha1)",
            next_steps=["give the id of the git blob as the registry lists it, or none"],
        )
    return Source(file.path, file.url, sha256, file.size_bytes, git_id, file.companion)


def differences(stored: Sequence[Source], asked: Sequence[Source]) -> list[str]:
    """How a second request for a stored version differs from the first; empty when it does not."""
    ours = {file.path: file for file in stored}
    theirs = {file.path: file for file in asked}
    found = [f"{path} is new" for path in sorted(theirs.keys() - ours.keys())]
    found += [f"{path} is missing" for path in sorted(ours.keys() - theirs.keys())]
    for path in sorted(ours.keys() & theirs.keys()):
        for field in ("url", "sha256", "size_bytes"):
            have, want = getattr(ours[path], field), getattr(theirs[path], field)
            if have != want:
                # The URL itself stays out: a signed one is a credential.
                values = "" if field == "url" else f": {want}, not {have}"
                found.append(f"{path} has another {field}{values}")
        # Not every caller knows of git ids; two that are told must agree.
        have, want = ours[path].git_id, theirs[path].git_id
        if None not in (have, want) and have != want:
            found.append(f"{path} has another git id: {want}, not {have}")
    return found
