"""Bundles: versions in one file, for a cluster without any network. What one holds, and what an import needs.

The manifest is part of the bundle; a later bundle may leave out what an earlier one has (`since`).
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from llmgw_kit.errors import Conflict, InvalidRequest
from llmgw_kit.text import is_storable
from llmgw_mirror.core.bounds import FILE_MAX_BYTES, check_sums, is_time
from llmgw_mirror.core.names import check_name
from llmgw_mirror.core.origins import without_query
from llmgw_mirror.core.versions import FILES_MAX, SHA256, Proof, Receipt, Repository, Source, Wish, wish

FORMAT = 1
#: After a manifest that contradicts itself.
MADE_ANEW = "have it exported again: it was damaged, or changed by hand"
#: Of one bundle: fifty of the largest repositories known.
VERSIONS_MAX = 1_000
#: What a manifest may weigh; one of ten thousand files has about 4 MB.
MANIFEST_MAX_BYTES = 256 << 20

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
#: Files beside a bundle that belong to it.
PARTIAL, CHECKSUM, MANIFEST = ".partial", ".sha256", ".manifest.json"


@dataclass(frozen=True)
class Packed:
    """One file of a version: what was asked for, and what it turned out to be."""

    source: Source
    content: str
    size_bytes: int
    proof: Proof


@dataclass(frozen=True)
class PackedVersion:
    """`listing`: every path its repository had at that commit; None: not known."""

    model: str
    version: str
    created_at: float
    files: tuple[Packed, ...]
    repository: Repository | None = None
    listing: tuple[str, ...] | None = None

    def wish(self) -> Wish:
        """As it is stored. Raises InvalidRequest for names that are not taken here."""
        sources = [file.source for file in self.files]
        return wish(self.model, self.version, sources, now=self.created_at, repository=self.repository)


@dataclass(frozen=True)
class Blob:
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Manifest:
    """`blobs` are in this bundle, in this order; `elsewhere` is content of its versions that the bundle
    `since` has. `created_at` is its newest version's: the same versions make the same bytes, whenever and by
    whomever they are written."""

    name: str
    created_at: float
    versions: tuple[PackedVersion, ...]
    blobs: tuple[Blob, ...]
    since: str | None = None
    elsewhere: tuple[str, ...] = ()

    @property
    def content(self) -> frozenset[str]:
        """All that a store has once this was imported."""
        return frozenset(file.content for version in self.versions for file in version.files)

    def digest(self) -> str:
        """Short; of all it says."""
        return hashlib.sha256(dump(self)).hexdigest()[:12]


def check_bundle_name(name: str) -> str:
    """A file name that is one everywhere and stands beside no bundle. Raises InvalidRequest."""
    beside = next((end for end in (PARTIAL, CHECKSUM, MANIFEST) if name.endswith(end)), None)
    if not _NAME.fullmatch(name) or beside is not None or name.endswith("."):
        raise InvalidRequest(
            f"bundle name {name[:130]!r} is refused"
            + (f": files that end in {beside} stand beside bundles" if beside else ""),
            next_steps=[
                "letters, digits, dot, dash and underscore, up to 120; no folders: models-2026-11.tar"
            ],
        )
    return name


def pack(wish: Wish, receipts: Mapping[str, Receipt], listing: Iterable[str] | None) -> PackedVersion:
    """A version as it is here. Raises Conflict while a file of it is not."""
    lacking = [source.path for source in wish.files if source.path not in receipts]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise Conflict(
            f"version {wish.version!r} of {wish.model!r} is not whole: {lacking[0]}{more} is not here",
            code="not_whole",
            next_steps=["see what it waits for: llmgwctl mirror downloads"],
        )
    files = tuple(
        # A signed URL is a credential, and a bundle travels.
        Packed(_unsigned(source), receipt.sha256, receipt.size_bytes, receipt.proof)
        for source in wish.files
        for receipt in (receipts[source.path],)
    )
    known = None if listing is None else tuple(sorted(listing))
    return PackedVersion(wish.model, wish.version, wish.created_at, files, wish.repository, known)


def _unsigned(source: Source) -> Source:
    url = without_query(source.url)
    return Source(source.path, url, source.sha256, source.size_bytes, source.git_id, source.companion)


def plan_export(name: str, versions: Sequence[PackedVersion], *, since: Manifest | None) -> Manifest:
    """What the bundle will hold: each content once, in the order of its first use."""
    if not versions:
        raise InvalidRequest("no version is named", next_steps=["which there are: llmgwctl mirror versions"])
    if len(versions) > VERSIONS_MAX:
        raise InvalidRequest(
            f"{len(versions)} versions are named; at most {VERSIONS_MAX} go into one bundle",
            next_steps=["make several bundles of them"],
        )
    before = frozenset() if since is None else since.content
    needed = {file.content: file.size_bytes for version in versions for file in version.files}
    blobs = tuple(Blob(sha256, size) for sha256, size in needed.items() if sha256 not in before)
    elsewhere = tuple(sorted(needed.keys() & before))
    named = since.name if since is not None and elsewhere else None
    newest = max(version.created_at for version in versions)
    return Manifest(name, newest, tuple(versions), blobs, named, elsewhere)


def lacking(manifest: Manifest, here: frozenset[str]) -> tuple[str, ...]:
    """Content that neither the bundle nor the store has."""
    return tuple(sha256 for sha256 in manifest.elsewhere if sha256 not in here)


def clash(packed: PackedVersion, stored: Sequence[Source], receipts: Mapping[str, Receipt]) -> str | None:
    """Why a bundle's version cannot be the one of that name that is here; None: it can."""
    ours = {source.path: source for source in stored}
    theirs = {file.source.path: file for file in packed.files}
    if ours.keys() != theirs.keys():
        odd = sorted(ours.keys() ^ theirs.keys())[0]
        return f"{odd} is {'only here' if odd in ours else 'only in the bundle'}"
    for path, file in theirs.items():
        have = receipts[path].sha256 if path in receipts else ours[path].sha256
        if have is not None and have != file.content:
            return f"{path} has the content {have[:12]}… here and {file.content[:12]}… in the bundle"
        git_id = ours[path].git_id
        if have is None and git_id is not None and git_id != file.source.git_id:
            # All that is published of this file; the bundle's must be known to be the same.
            return f"{path} has the git id {git_id[:12]}… here and another or none in the bundle"
    return None


def dump(manifest: Manifest) -> bytes:
    """The same manifest gives the same bytes."""

    def version(one: PackedVersion) -> dict[str, Any]:
        files = [
            {
                **asdict(file.source),
                "content": file.content,
                "bytes": file.size_bytes,
                "proof": file.proof.value,
            }
            for file in one.files
        ]
        return {**asdict(one), "files": files}

    said = {
        "format": FORMAT,
        **asdict(manifest),
        "versions": [version(one) for one in manifest.versions],
    }
    return json.dumps(said, ensure_ascii=False, indent=1, sort_keys=True).encode() + b"\n"


def parse(data: bytes) -> Manifest:
    """Raises InvalidRequest for everything that `dump` of this release does not write, hostile names
    included."""
    try:
        said = json.loads(data)
        if said["format"] != FORMAT:
            raise InvalidRequest(
                f"the bundle has format {said['format']!r}; this release reads {FORMAT}",
                next_steps=["export it again at a mirror of this release"],
            )
        manifest = Manifest(
            check_bundle_name(_text(said["name"])),
            _time(said["created_at"]),
            tuple(_version(one) for one in said["versions"]),
            tuple(Blob(_sha256(one["sha256"]), _size(one["size_bytes"])) for one in said["blobs"]),
            None if said["since"] is None else check_bundle_name(_text(said["since"])),
            tuple(_sha256(one) for one in said["elsewhere"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise InvalidRequest(
            f"the bundle's manifest cannot be read: {type(e).__name__} {str(e)[:120]}", next_steps=[MADE_ANEW]
        ) from None
    return _consistent(manifest)


def _consistent(manifest: Manifest) -> Manifest:
    sizes: dict[str, int] = {blob.sha256: blob.size_bytes for blob in manifest.blobs}
    if len(sizes) != len(manifest.blobs):
        raise InvalidRequest("the bundle's manifest lists one content twice", next_steps=[MADE_ANEW])
    if not 0 < len(manifest.versions) <= VERSIONS_MAX:
        raise InvalidRequest(
            f"the bundle holds {len(manifest.versions)} versions; 1 to {VERSIONS_MAX} are taken",
            next_steps=["make several bundles of them"],
        )
    for version in manifest.versions:
        version.wish()
        check_sums(version.version, (file.size_bytes for file in version.files), ())
        for file in version.files:
            if sizes.get(file.content, file.size_bytes) != file.size_bytes:
                raise InvalidRequest(
                    f"the bundle's manifest gives {file.source.path!r} two sizes", next_steps=[MADE_ANEW]
                )
    strange = manifest.content ^ (sizes.keys() | set(manifest.elsewhere))
    if strange:
        raise InvalidRequest(
            "the bundle's manifest lists other content than its versions have", next_steps=[MADE_ANEW]
        )
    return manifest


def _version(said: Mapping[str, Any]) -> PackedVersion:
    if len(said["files"]) > FILES_MAX:
        raise InvalidRequest(
            f"a version of the bundle has {len(said['files'])} files; at most {FILES_MAX}",
            next_steps=[MADE_ANEW],
        )
    place = said["repository"]
    repository = None
    if place is not None:
        revision = None if place["revision"] is None else _text(place["revision"])
        repository = Repository(
            check_name("repository", _text(place["id"])), _text(place["commit"]), revision
        )
    listing = said["listing"]
    return PackedVersion(
        _text(said["model"]),
        _text(said["version"]),
        _time(said["created_at"]),
        tuple(_packed(one) for one in said["files"]),
        repository,
        None if listing is None else tuple(_text(path) for path in listing),
    )


def _packed(said: Mapping[str, Any]) -> Packed:
    size = said["size_bytes"]
    git_id = said["git_id"]
    source = Source(
        _text(said["path"]),
        _text(said["url"]),
        None if said["sha256"] is None else _sha256(said["sha256"]),
        None if size is None else _size(size),
        None if git_id is None else _text(git_id),
        companion=_truth(said["companion"]),
    )
    return Packed(source, _sha256(said["content"]), _size(said["bytes"]), Proof(said["proof"]))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]!r} is no text")
    if not is_storable(value):
        raise ValueError(f"{value[:40]!r} holds what no store takes")
    return value


def _time(value: Any) -> float:
    if not is_time(value):
        raise TypeError(f"{str(value)[:40]!r} is no time")
    return float(value)


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{str(value)[:40]!r} is neither true nor false")
    return value


def _sha256(value: object) -> str:
    if not isinstance(value, str) or not SHA256.fullmatch(value):
        raise TypeError(f"{str(value)[:80]!r} is no sha256")
    return value


def _size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= FILE_MAX_BYTES:
        raise TypeError(f"{str(value)[:40]!r} is no size")
    return value
