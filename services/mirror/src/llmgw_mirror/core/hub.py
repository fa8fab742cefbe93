"""What the Hub's clients may know of what is here: which commit a revision means, which files it has,
and what is said of a file that is not here.

Two rules decide most of it. A listing names the files of versions that are whole, and no others: a
client that gets half a listing makes half a folder of it, calls that a success and keeps it (H23). And
"there is no such file" is said only where the repository at that commit has none: a client remembers
it for ever.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from llmgw_mirror.core.hub_requests import REPOSITORY_ID
from llmgw_mirror.core.versions import COMMIT, Receipt, Source, VersionView, WeightsState, Wish

MAIN = "main"
#: The least of a commit that is taken for one.
SHORT_COMMIT = 7
_REF_PREFIXES = ("refs/heads/", "refs/tags/")


@dataclass(frozen=True)
class HeldFile:
    """Verified and published. `git_id`: what the registry calls a file outside LFS by."""

    path: str
    sha256: str
    size_bytes: int
    git_id: str | None

    @property
    def etag(self) -> str:
        """Unquoted. It names the file in clients' caches, so it is what the registry itself would say."""
        return self.sha256 if self.git_id is None else self.git_id

    @property
    def lfs(self) -> bool:
        """Known by its sha256 rather than by a git id."""
        return self.git_id is None


@dataclass(frozen=True)
class Offer:
    """One version as the Hub's clients see it.

    `commit`: None while there is none, because a version that comes from no repository gets its own once
    it is whole. `stuck`: files that failed or were stopped, and why. `listing`: every path of the
    repository at the commit; None: not known."""

    model: str
    version: str
    repository: str
    commit: str | None
    names: frozenset[str]
    created_at: float
    wished: frozenset[str]
    held: Mapping[str, HeldFile]
    stuck: Mapping[str, str]
    listing: frozenset[str] | None

    @property
    def whole(self) -> bool:
        return len(self.held) == len(self.wished)


def offer(
    wish: Wish, receipts: Mapping[str, Receipt], stuck: Mapping[str, str], listing: frozenset[str] | None
) -> Offer | None:  # fmt: skip
    """None: a name that no client could ask for. A version without a repository is offered under its
    model's name, at a commit made of its content: the same files have the same commit everywhere."""
    held = {
        file.path: _held(file, receipts[file.path]) for file in wish.files if file.path in receipts
    }  # fmt: skip
    wished = frozenset(file.path for file in wish.files)
    stuck = {path: why for path, why in stuck.items() if path not in held}
    place = wish.repository
    if place is not None:
        names = frozenset() if place.revision is None else frozenset({_short(place.revision)})
        commit: str | None = place.commit
        repository = place.id
    else:
        repository, names = wish.model, frozenset({wish.version})
        commit = own_commit(held.values()) if len(held) == len(wished) else None
        listing = wished
    if not REPOSITORY_ID.fullmatch(repository):
        return None
    return Offer(
        wish.model, wish.version, repository, commit, names, wish.created_at, wished, held, stuck, listing
    )  # fmt: skip


def _held(source: Source, receipt: Receipt) -> HeldFile:
    # The registry publishes a sha256 for what is in LFS, whose git id is that of the pointer.
    git_id = source.git_id if source.sha256 is None else None
    return HeldFile(source.path, receipt.sha256, receipt.size_bytes, git_id)


def own_commit(files: Iterable[HeldFile]) -> str:
    """A commit for content that comes from no repository: 40 hexadecimal digits that stand for it."""
    lines = sorted(f"{file.path}\0{file.sha256}\0{file.size_bytes}\n" for file in files)
    return hashlib.sha1("".join(lines).encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class At:
    """All that is offered at one commit; `commit` is None while the only version there is not whole and
    has no commit of its own."""

    commit: str | None
    offers: tuple[Offer, ...]

    @property
    def whole(self) -> bool:
        """Something is complete here."""
        return any(offer.whole for offer in self.offers)

    @property
    def created_at(self) -> float:
        return max(offer.created_at for offer in self.offers)

    def listed(self) -> dict[str, HeldFile]:
        """Of the versions that are whole, in order of their paths. Different selections of one commit are
        united: the commit says that what they share is the same."""
        files = {path: file for offer in self.offers if offer.whole for path, file in offer.held.items()}
        return dict(sorted(files.items()))


def find(offers: Sequence[Offer], revision: str) -> At | None:
    """What a revision of one repository means here; None: nothing that is known.

    A name means what it meant when it was asked for, and the newest time counts; but a version that is
    whole comes before a newer one that is not yet, or asking for an update would take the model away.
    `main`, where nobody asked for it by that name, is the newest of all: what operators pinned."""
    name = MAIN if revision == "HEAD" else _short(revision)
    named = [offer for offer in offers if name in offer.names]
    if not named and COMMIT.fullmatch(name):
        named = [offer for offer in offers if offer.commit == name]
    if not named and len(name) >= SHORT_COMMIT:
        named = [offer for offer in offers if offer.commit is not None and offer.commit.startswith(name)]
        if len({offer.commit for offer in named}) > 1:
            return None
    if not named and name == MAIN:
        named = list(offers)
    if not named:
        return None
    best = max(named, key=lambda offer: (offer.whole, offer.created_at, offer.version))
    if best.commit is None:
        return At(None, (best,))
    return at_commit(offers, best.commit)


def at_commit(offers: Sequence[Offer], commit: str) -> At:
    """Oldest version first."""
    there = [offer for offer in offers if offer.commit == commit]
    return At(commit, tuple(sorted(there, key=lambda offer: (offer.created_at, offer.version))))


def commits(offers: Sequence[Offer]) -> list[At]:
    """Everything at hand, newest first."""
    known = {offer.commit for offer in offers if offer.commit is not None}
    found = [at_commit(offers, commit) for commit in sorted(known)]
    return sorted(found, key=lambda at: at.created_at, reverse=True)


def references(offers: Sequence[Offer]) -> dict[str, str]:
    """Commits by the names that mean them, where something is whole."""
    names = {MAIN}.union(*(offer.names for offer in offers))
    found = {name: find(offers, name) for name in sorted(names)}
    return {
        name: at.commit
        for name, at in found.items()
        if at is not None and at.whole and at.commit is not None
    }  # fmt: skip


class Missing(Enum):
    """Why a file is not served."""

    COMING = "coming"
    #: Failed or stopped; somebody has to act.
    STUCK = "stuck"
    #: The repository has none of that name at this commit: a client may remember it.
    NO_SUCH_FILE = "no such file"
    #: It may exist, and nobody chose it for this mirror.
    NOT_CHOSEN = "not chosen"


def look_up(at: At, path: str) -> HeldFile | tuple[Missing, tuple[Offer, ...]]:
    """The file, or why it is not here and which versions are to have it."""
    for offer in at.offers:
        if path in offer.held:
            return offer.held[path]
    wishing = tuple(offer for offer in at.offers if path in offer.wished)
    if coming := tuple(offer for offer in wishing if path not in offer.stuck):
        return Missing.COMING, coming
    if wishing:
        return Missing.STUCK, wishing
    listings = [offer.listing for offer in at.offers if offer.listing is not None]
    if at.commit is not None and listings and not any(path in listing for listing in listings):
        return Missing.NO_SUCH_FILE, ()
    return Missing.NOT_CHOSEN, ()


def wait_s(view: VersionView, path: str | None = None) -> float | None:
    """How long until this file, or the whole version, is here; None: nobody can say.

    Files that wait for their turn have no estimate of their own; what moves now tells how fast all moves."""
    files = [f for f in view.files if path in (None, f.source.path) and f.state is not WeightsState.PRESENT]
    if not files:
        return 0.0
    if all(file.eta_s is not None for file in files):
        return max(file.eta_s for file in files if file.eta_s is not None)
    if path is not None or any(file.size_bytes is None for file in files):
        return None
    left = sum(file.size_bytes - file.received_bytes for file in files if file.size_bytes is not None)
    rate = sum(file.rate_bytes_s for file in files if file.rate_bytes_s is not None)
    return left / rate if rate > 0 else None


def _short(revision: str) -> str:
    for prefix in _REF_PREFIXES:
        revision = revision.removeprefix(prefix)
    return revision
