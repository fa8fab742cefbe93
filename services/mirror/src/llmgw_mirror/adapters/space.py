"""What of a listing is in the store already, and what room there is for the rest."""

from collections.abc import Sequence
from dataclasses import dataclass

from llmgw_mirror.adapters.removals import Removals
from llmgw_mirror.adapters.store import Store
from llmgw_mirror.core.listed_files import ListedFile


@dataclass(frozen=True)
class Space:
    """`here`: paths whose content is in the store, under whatever name. `spare_bytes`: what a fetch that
    finds the disk full would free by itself (garbage.py): removals not yet final, and damaged content."""

    here: frozenset[str]
    free_bytes: int
    spare_bytes: int

    @property
    def usable_bytes(self) -> int:
        return self.free_bytes + self.spare_bytes


def space_for(store: Store, files: Sequence[ListedFile]) -> Space:
    """Blocks. Content of these files that only a removal holds is here, and is not to spare."""
    known = {file.sha256 for file in files if file.sha256 is not None}
    present = {sha256 for sha256 in known if store.blob_size(sha256) is not None}
    held = {sha256: size for one in Removals(store).every() for sha256, size in one.contents.items()}
    unneeded = held.keys() - present - (store.referenced() if held else set())
    damaged = sum(seen.st_size for _, seen in store.every_damaged())
    return Space(
        here=frozenset(file.path for file in files if file.sha256 in present),
        free_bytes=store.disk()[1],
        spare_bytes=damaged + sum(held[sha256] for sha256 in unneeded),
    )
