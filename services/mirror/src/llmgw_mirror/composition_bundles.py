"""What carries versions in and out in files: composed beside composition.py, which has the rest."""

from pathlib import Path

from llmgw_kit.clock import Clock
from llmgw_kit.errors import StartupError
from llmgw_mirror.adapters.bundle_files import BundleFolder
from llmgw_mirror.adapters.bundle_marks import BundleMarks
from llmgw_mirror.adapters.calls_bundles import Bundling
from llmgw_mirror.adapters.disk import make_folders
from llmgw_mirror.adapters.shelf import Shelf
from llmgw_mirror.exporting import Exports
from llmgw_mirror.flights import Flights
from llmgw_mirror.importing import Imports
from llmgw_mirror.ports import History, Ledger
from llmgw_mirror.settings import MirrorSettings


def open_folder(root: Path | None) -> BundleFolder | None:
    """None where none is configured. Blocks. Raises StartupError."""
    if root is None:
        return None
    try:
        make_folders(root)
    except OSError as e:
        raise StartupError(
            f"bundle_dir {root} cannot be used: {e.strerror or e}",
            next_steps=["make it a folder this user may write, or leave the setting out"],
        ) from None
    return BundleFolder(root)


def build_bundling(
    settings: MirrorSettings, *, folder: BundleFolder | None, marks: BundleMarks, shelf: Shelf,
    flights: Flights, ledger: Ledger, history: History, clock: Clock,
) -> Bundling | None:  # fmt: skip
    """Nothing runs yet."""
    if folder is None:
        return None
    store, threads = shelf.store, shelf.threads
    exports = Exports(
        folder=folder, store=store, flights=flights, ledger=ledger, history=history, threads=threads,
        clock=clock, lease_ttl_s=settings.lease_ttl_s, reserve_bytes=settings.disk_reserve_bytes,
    )  # fmt: skip
    imports = Imports(
        folder=folder, marks=marks, store=store, flights=flights, history=history, threads=threads,
        clock=clock,
    )  # fmt: skip
    return Bundling(folder, exports, imports, threads, clock)
