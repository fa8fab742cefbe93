"""`rescan`: read the whole store, prove its content, and write the database's copy anew.

Safe beside a running mirror: content that is wrong is moved aside, which the mirror takes for absent
and fetches again. Nothing is removed here. Where mirrors share a database it is moved under their lease, as
they do it; without one it is looked at again a moment before.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace

from llmgw_kit.clock import Clock
from llmgw_kit.errors import StartupError
from llmgw_mirror.adapters.blob_reading import BlobReading, unreadable
from llmgw_mirror.adapters.ledger_memory import MemoryLedger
from llmgw_mirror.adapters.ledger_postgres import PostgresLedger
from llmgw_mirror.adapters.removals import Removals
from llmgw_mirror.adapters.store import Store, Stored, open_store
from llmgw_mirror.composition import open_postgres, own_name
from llmgw_mirror.core.versions import FileView, VersionView, WeightsState, view_file
from llmgw_mirror.ports import Ledger, Unstorable
from llmgw_mirror.publishing import Publishing
from llmgw_mirror.settings import MirrorSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finding:
    """One version as found. `trouble`: what is wrong, empty when nothing is."""

    view: VersionView
    trouble: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    store_id: str
    findings: tuple[Finding, ...]
    #: Content that no version names: (count, bytes).
    unnamed: tuple[int, int]
    #: Removed versions that can be restored: (count, bytes).
    removed: tuple[int, int]
    recorded: bool

    @property
    def fine(self) -> bool:
        return not any(finding.trouble for finding in self.findings)


async def rescan(
    settings: MirrorSettings, clock: Clock, *, hash_all: bool, progress: Callable[[str], None]
) -> Report:
    """`hash_all` reads every byte; otherwise sizes are compared. Raises StartupError, Unavailable."""
    if not (settings.data_dir / "store.json").exists():
        raise StartupError(
            f"data_dir {settings.data_dir} holds no store",
            next_steps=["name the folder that the mirror uses: --data-dir, or data_dir in its configuration"],
        )
    store = open_store(settings.data_dir)
    async with _ledger(settings, clock, store) as ledger:
        damaged: dict[str, str] = {}
        if hash_all:
            pace = settings.pace()
            publishing = Publishing(
                ledger=ledger, clock=clock, ttl_s=pace.lease_ttl_s, poll_s=pace.lease_poll_s / 10
            )
            damaged = await _prove(store, publishing, progress, clock)
        findings = tuple(_finding(store, stored, damaged) for stored in store.every_version())
        if settings.dsn is not None:
            findings = await _record(ledger, findings)
    removed = Removals(store).every()
    named = store.referenced() | Removals(store).contents()
    unnamed = [sha256 for sha256 in store.every_blob() if sha256 not in named]
    size = sum(store.blob_size(sha256) or 0 for sha256 in unnamed)
    return Report(
        store.store_id, findings, (len(unnamed), size), (len(removed), sum(one.bytes for one in removed)),
        recorded=settings.dsn is not None,
    )  # fmt: skip


@asynccontextmanager
async def _ledger(settings: MirrorSettings, clock: Clock, store: Store) -> AsyncIterator[Ledger]:
    if settings.dsn is None:
        yield MemoryLedger(holder=own_name(), clock=clock)
        return
    postgres = await open_postgres(settings, clock)
    try:
        yield PostgresLedger(postgres, store_id=store.store_id, holder=own_name())
    finally:
        await postgres.close()


async def _prove(
    store: Store, publishing: Publishing, progress: Callable[[str], None], clock: Clock
) -> dict[str, str]:
    """Content that is not what its name says, moved aside: its name, and what is wrong with it."""
    found: dict[str, str] = {}
    for sha256 in store.every_blob():
        progress(f"reading {sha256[:12]}… ({store.blob_size(sha256) or 0} bytes)")
        try:
            reading = BlobReading(store.blob(sha256))
        except FileNotFoundError:
            continue  # its version was removed meanwhile
        except OSError as e:
            raise unreadable(sha256, e) from e
        with closing(reading):
            if (wrong := _read(reading)) is None:
                reading.proved(clock.unix_s())
                continue
            async with publishing.held():
                if reading.is_there():
                    store.set_aside(sha256)
                    found[sha256] = wrong
    return found


def _read(reading: BlobReading) -> str | None:
    try:
        while reading.more():
            pass
    except OSError as e:
        return reading.lost(e)
    return reading.wrong()


def _finding(store: Store, stored: Stored, damaged: dict[str, str]) -> Finding:
    trouble = []
    for path, receipt in stored.hollow.items():
        wrong = damaged.get(receipt.sha256)
        if wrong is not None:
            trouble.append(f"{path}: damaged, {wrong}; moved to {store.damaged}")
        else:
            trouble.append(f"{path}: its content is gone or has another size")
    trouble += [f"{path}: {failure.error}" for path, failure in sorted(stored.failures.items())]
    files: tuple[FileView, ...] = tuple(
        view_file(
            source,
            receipt=stored.receipts.get(source.path),
            failure=stored.failures.get(source.path),
            moving=None,
            cancelled=stored.cancelled.get(source.path),
        )
        for source in stored.wish.files
    )
    wish = stored.wish
    view = VersionView(
        wish.model, wish.version, wish.created_at, files, wish.repository, stored.verified_at
    )  # fmt: skip
    return Finding(view, tuple(trouble))


async def _record(ledger: Ledger, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings, with what was not taken."""
    kept = {(finding.view.model, finding.view.version) for finding in findings}
    for old in await ledger.recorded():
        if (old.model, old.version) not in kept:
            await ledger.forget(old.model, old.version)
    told = []
    for finding in findings:
        try:
            await ledger.record(finding.view)
            told.append(finding)
        except Unstorable as e:
            told.append(replace(finding, trouble=(*finding.trouble, f"it is not recorded: {e.text}")))
    return tuple(told)


def lines(report: Report) -> list[str]:
    """For a terminal."""
    said = [f"store {report.store_id}: {len(report.findings)} versions"]
    for finding in report.findings:
        view = finding.view
        here = sum(file.state is WeightsState.PRESENT for file in view.files)
        size = sum(file.published_bytes or 0 for file in view.files)
        of = f"{here} of {len(view.files)} files, {size} bytes"
        said.append(f"  {view.model} {view.version}: {view.state.value}, {of}")
        said += [f"    {text}" for text in finding.trouble]
    count, size = report.removed
    if count:
        versions = "version" if count == 1 else "versions"
        said.append(f"  {count} removed {versions} can be restored: {size} bytes")
    count, size = report.unnamed
    if count:
        gone = "a running mirror removes them within a minute"
        said.append(f"  {count} contents of {size} bytes belong to no version; {gone}")
    said.append(
        "recorded in Postgres" if report.recorded else "no dsn: nothing to record in, the store says it all"
    )
    return said
