"""Bugs to plant under the crash seeds, each of which they have to find; see crash_seeds.py."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from llmgw_mirror.adapters.bundle_files import BundleFolder, Writer
from llmgw_mirror.adapters.parts import Part
from llmgw_mirror.adapters.store import Store
from llmgw_mirror.core.bundle_layout import Member
from llmgw_mirror.core.bundles import Manifest
from llmgw_mirror.garbage import Garbage


def _plant(owner: type, name: str, instead: Callable[..., object]) -> None:
    setattr(owner, name, instead)


def publishes_by_copying() -> None:
    """Content appears at its place while it is still being written."""

    async def publish(part: Part, sha256: str) -> None:
        def act() -> None:
            target = part._shelf.store.blob(sha256)
            target.parent.mkdir(parents=True, exist_ok=True)
            content = part._path.read_bytes()
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for at in range(0, len(content), 100_000):
                os.pwrite(fd, content[at : at + 100_000], at)
            os.close(fd)
            part._path.unlink()

        await part._shelf.threads.run(act)

    _plant(Part, "publish", publish)


def forgets_what_can_be_restored() -> None:
    """Garbage is what no version names; removed ones do not count."""

    def named(garbage: Garbage, but: str | None = None) -> set[str]:
        return garbage._store.referenced(but=but)

    _plant(Garbage, "named", named)


def sets_aside_by_copying() -> None:
    """What is rotten is looked at elsewhere and stays in place."""

    def set_aside(store: Store, sha256: str) -> None:
        shutil.copy(store.blob(sha256), store.damaged / f"{sha256}.copy")

    _plant(Store, "set_aside", set_aside)


def trusts_any_receipt() -> None:
    """Whether the content of a receipt is there is not looked at."""

    def blob_seen(store: Store, sha256: str) -> tuple[int, float] | None:
        for path in store.versions.glob("*/*.receipt.json"):
            if sha256 in path.read_text():
                size = path.read_text().split('"size_bytes": ')[1].split(",")[0]
                return int(size), 0.0
        return None

    _plant(Store, "blob_seen", blob_seen)


def bundles_without_looking() -> None:
    """Content goes into a bundle as it lies there."""

    def copy(writer: Writer, member: Member, source: Path) -> Iterator[int]:
        writer._put(member.start, source.read_bytes())
        yield member.size_bytes

    _plant(Writer, "_copy", copy)


def names_a_bundle_before_it_is_whole() -> None:
    """The file appears first, and is filled under its own name."""

    def partial(folder: BundleFolder, manifest: Manifest) -> Path:
        return folder.path(manifest.name)

    _plant(BundleFolder, "partial", partial)


PLANTS: dict[str, Callable[[], None]] = {
    "publishes-by-copying": publishes_by_copying,
    "forgets-what-can-be-restored": forgets_what_can_be_restored,
    "sets-aside-by-copying": sets_aside_by_copying,
    "trusts-any-receipt": trusts_any_receipt,
    "bundles-without-looking": bundles_without_looking,
    "names-a-bundle-before-it-is-whole": names_a_bundle_before_it_is_whole,
}
