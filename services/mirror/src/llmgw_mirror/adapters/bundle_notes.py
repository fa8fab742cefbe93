"""The versions of a bundle, noted in the store: all of them, or none.

One call without a break: whoever asked may leave in the middle of it, and it is done whole all the same.
Nothing of these versions is fetched meanwhile by this mirror (`changing` is held); another one over the store
may create, remove or fetch them at any moment. Blocks.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from llmgw_kit.errors import Conflict, LlmgwError, Unavailable
from llmgw_mirror.adapters.bundle_marks import NAME, BundleMarks, mark_of
from llmgw_mirror.adapters.listings import NAME as LISTING
from llmgw_mirror.adapters.listings import listing_bytes
from llmgw_mirror.adapters.store import Store, Stored, version_id
from llmgw_mirror.core.bundles import PackedVersion, clash

log = logging.getLogger(__name__)

#: What a small file takes on the disk at least, and a folder.
BLOCK_BYTES = 4096
#: Created, and found removed by another mirror, so often: somebody does not want it.
TRIES = 3


@dataclass
class Notes:
    """Of one import. `undo`: what takes back each change, in the order of the changes."""

    store: Store
    marks: BundleMarks
    bundle: str
    undo: list[Callable[[], object]] = field(default_factory=list)

    def note(self, versions: Sequence[PackedVersion]) -> None:
        """Each version with the bundle as its source, and no word that stopped a file of it.

        Raises Conflict for a version of that name with other content, Unavailable; nothing has changed then,
        as far as the disk lets anything be taken back."""
        self._check_room(versions)
        try:
            for packed in versions:
                self._one(packed)
        except LlmgwError:
            self._take_back()
            raise
        except OSError as e:
            what = "nothing is imported" if self._take_back() else "the import is begun and stays so in part"
            raise Unavailable(
                f"{what}: the disk says {e.strerror or e}",
                code="disk_trouble",
                next_steps=["see whether the mirror's disk is full, read-only or failing"],
            ) from e

    def _check_room(self, versions: Sequence[PackedVersion]) -> None:
        needed = sum(_weight(self.bundle, packed) for packed in versions)
        _, free = self.store.disk()
        if needed > free:
            raise Unavailable(
                f"the mirror's disk has no room for its notes of bundle {self.bundle!r}: "
                f"{needed} bytes are needed, {free} are free",
                code="disk_full",
                next_steps=["remove versions that nobody needs, then import again"],
            )

    def _one(self, packed: PackedVersion) -> None:
        vid = version_id(packed.model, packed.version)
        for _ in range(TRIES):
            # With the note, in one rename: no pass sees the version without knowing where its files are.
            beside = {NAME: mark_of(self.bundle, packed)}
            if packed.listing is not None:
                beside[LISTING] = listing_bytes(packed.listing)
            if self.store.create(packed.wish(), beside=beside):
                self.undo.append(lambda: self.store.remove(vid))
                return
            stored = self.store.load(vid)
            if stored is None:
                continue
            refuse_another(packed, stored)
            try:
                self._join(vid, packed, stored)
            except FileNotFoundError:
                continue
            return
        raise Conflict(
            f"version {packed.version!r} of {packed.model!r} is being removed",
            code="removed",
            next_steps=["ask again once it is gone"],
        )

    def _join(self, vid: str, packed: PackedVersion, stored: Stored) -> None:
        """A version that is here. Raises FileNotFoundError when it was removed meanwhile."""
        before = self.marks.read(vid)
        self.marks.put(vid, self.bundle, packed)
        self.undo.append(lambda: self.marks.put_back(vid, before))
        for path, word in stored.cancelled.items():
            # An import is a new reason to bring what somebody had stopped.
            self.undo.append(lambda p=path, w=word: self.store.stop(vid, p, w))  # type: ignore[misc]
            self.store.resume(vid, path)

    def _take_back(self) -> bool:
        """False: the disk does not let all be taken back."""
        whole = True
        for act in reversed(self.undo):
            try:
                act()
            except FileNotFoundError:
                continue  # removed by another mirror
            except OSError as e:
                log.error("a change of the import of bundle %s stays, the disk says: %s", self.bundle, e)
                whole = False
        self.undo.clear()
        return whole


def refuse_another(packed: PackedVersion, stored: Stored) -> None:
    """Raises Conflict when the version that is here cannot be the bundle's of that name."""
    # What was published once and is lost comes back as it was, or not at all.
    known = {**stored.was, **stored.receipts}
    if (odd := clash(packed, stored.wish.files, known)) is not None:
        raise Conflict(
            f"version {packed.version!r} of {packed.model!r} is here already and is another: {odd}",
            code="version_differs",
            next_steps=[f"llmgwctl mirror remove {packed.model}@{packed.version}", "then import again"],
        )


def _weight(bundle: str, packed: PackedVersion) -> int:
    """On the disk, of what is noted of a version: its folder, the wish, the mark and the listing."""
    listed = b"" if packed.listing is None else listing_bytes(packed.listing)
    wish = json.dumps(asdict(packed.wish()), ensure_ascii=False, indent=1).encode()
    sizes = [1, len(wish), len(mark_of(bundle, packed)), len(listed)]
    return sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes)
