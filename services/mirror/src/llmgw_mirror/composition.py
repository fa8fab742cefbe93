"""What a mirror is made of, from its settings: used by `serve` and by tests alike."""

import fcntl
import logging
import os
import random
import re
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from llmgw_kit.clock import Clock
from llmgw_kit.errors import StartupError
from llmgw_kit.postgres import Postgres, connect_patiently, safe_dsn
from llmgw_mirror.adapters.bundle_marks import BundleMarks
from llmgw_mirror.adapters.calls_bundles import Bundling
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.history_memory import MemoryHistory
from llmgw_mirror.adapters.history_postgres import PostgresHistory
from llmgw_mirror.adapters.ledger_memory import MemoryLedger
from llmgw_mirror.adapters.ledger_postgres import PostgresLedger
from llmgw_mirror.adapters.open_reads import OpenReads
from llmgw_mirror.adapters.room import Room
from llmgw_mirror.adapters.shelf import Shelf
from llmgw_mirror.adapters.store import Store, open_store
from llmgw_mirror.adapters.upstream_bundle import SCHEME, BundleUpstream
from llmgw_mirror.adapters.upstream_file import FileUpstream
from llmgw_mirror.adapters.upstream_http import HttpUpstream
from llmgw_mirror.composition_bundles import build_bundling, open_folder
from llmgw_mirror.composition_finding import tokens_of
from llmgw_mirror.composition_keeping import Keepers, build_garbage, build_keepers
from llmgw_mirror.downloads import Downloads
from llmgw_mirror.fetcher import Fetcher
from llmgw_mirror.flights import Flights
from llmgw_mirror.manners import Slots
from llmgw_mirror.ports import History, Ledger, Upstream
from llmgw_mirror.service import Mirror
from llmgw_mirror.settings import MirrorSettings
from llmgw_mirror.steering import Steering
from llmgw_mirror.throttle import Throttle
from llmgw_mirror.transfer import Tally, Transfer
from llmgw_mirror.upkeep import Upkeep
from llmgw_schema.migrate import migrate_at

log = logging.getLogger(__name__)

#: Leases, records and progress are short statements.
POOL_SIZE = 4


@dataclass(frozen=True)
class Built:
    """The parts an outer edge needs."""

    mirror: Mirror
    flights: Flights
    upkeep: Upkeep
    ledger: Ledger
    history: History
    store: Store
    tally: Tally
    #: What is on its way, and the cap on what comes.
    downloads: Downloads
    throttle: Throttle
    #: For reading what nodes ask for; apart from those that write.
    readers: DiskThreads
    #: Who reads what now.
    reads: OpenReads
    keepers: Keepers
    #: None: no folder for bundles is configured.
    bundling: Bundling | None


@asynccontextmanager
async def build(settings: MirrorSettings, clock: Clock) -> AsyncIterator[Built]:
    """Raises StartupError. Flights are ended, and connections closed, when the context is left."""
    writers, readers = DiskThreads(2 * settings.parallel_fetches + 2), DiskThreads(8)
    try:
        store = await writers.run(open_store, settings.data_dir)
        bundles = await writers.run(open_folder, settings.bundle_dir)
        holder = own_name()
        books, upstream = _books(settings, store, holder, clock), _http(settings, clock)
        async with books as (ledger, history), upstream as http:
            shelf = Shelf(store, writers, holder=holder)
            room = Room(store, writers, reserve_bytes=settings.disk_reserve_bytes)
            upstreams: Mapping[str, Upstream] = {
                "http": http,
                "https": http,
                "file": FileUpstream(settings.file_roots, writers),
                SCHEME: BundleUpstream(bundles, writers),
            }
            pace = settings.pace()
            throttle = Throttle(settings.limits(), clock)
            transfer = Transfer(
                upstreams=upstreams, room=room, clock=clock, pace=pace, throttle=throttle,
                chance=random.random,
            )  # fmt: skip
            fetcher = Fetcher(
                shelf=shelf, room=room, ledger=ledger, transfer=transfer, clock=clock, pace=pace,
                slots=Slots(settings.parallel_fetches, settings.parallel_per_origin),
            )  # fmt: skip
            marks = BundleMarks(store, bundles)
            flights = Flights(
                store=store, threads=writers, fetcher=fetcher, marks=marks, history=history, clock=clock
            )
            reads = OpenReads()
            garbage = build_garbage(
                settings, shelf=shelf, room=room, fetcher=fetcher, history=history, clock=clock
            )
            upkeep = Upkeep(
                shelf=shelf, flights=flights, garbage=garbage, reads=reads, ledger=ledger, clock=clock,
                interval_s=settings.pass_interval_s,
            )  # fmt: skip
            steering = Steering(
                shelf=shelf, threads=writers, flights=flights, upkeep=upkeep, history=history, clock=clock
            )
            mirror = Mirror(
                store=store, threads=writers, flights=flights, history=history, steering=steering, clock=clock
            )
            keepers = build_keepers(
                settings, mirror=mirror, shelf=shelf, flights=flights, upkeep=upkeep, fetcher=fetcher,
                garbage=garbage, ledger=ledger, reads=reads, history=history, clock=clock,
            )  # fmt: skip
            bundling = build_bundling(
                settings, folder=bundles, marks=marks, shelf=shelf, flights=flights, ledger=ledger,
                history=history, clock=clock,
            )  # fmt: skip
            try:
                yield Built(
                    mirror, flights, upkeep, ledger, history, store, transfer.tally,
                    Downloads(flights, clock), throttle, readers, reads, keepers, bundling,
                )  # fmt: skip
            finally:
                if bundling is not None:
                    await bundling.exports.stop()
                await flights.stop()
    finally:
        writers.close()
        readers.close()


def own_name() -> str:
    """Of this process among all mirrors; also part of file names, so only plain characters."""
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


async def open_postgres(settings: MirrorSettings, clock: Clock) -> Postgres:
    """A pool on a database with today's schema. Raises StartupError."""
    assert settings.dsn is not None, "called with a dsn only"
    dsn = settings.dsn.get_secret_value()
    postgres = await connect_patiently(
        dsn, application="llmgw-mirror", max_size=POOL_SIZE, clock=clock, pooler=settings.pooler,
        give_up_after_s=settings.dsn_patience_s,
    )  # fmt: skip
    await migrate_at(dsn, application="llmgw-mirror", clock=clock, give_up_after_s=settings.dsn_patience_s)
    log.info("state is recorded in Postgres at %s", safe_dsn(dsn))
    return postgres


@asynccontextmanager
async def _books(
    settings: MirrorSettings, store: Store, holder: str, clock: Clock
) -> AsyncIterator[tuple[Ledger, History]]:
    if settings.dsn is None:
        with alone(store):
            log.warning(
                "no dsn: this mirror is alone; its state lives in the files under %s and nowhere else",
                store.root,
            )
            yield MemoryLedger(holder=holder, clock=clock), MemoryHistory()
        return
    postgres = await open_postgres(settings, clock)
    try:
        yield (
            PostgresLedger(postgres, store_id=store.store_id, holder=holder),
            PostgresHistory(postgres, store_id=store.store_id),
        )
    finally:
        await postgres.close()


class alone:
    """A guard against a second mirror over the same folder by mistake, where no database would tell.

    Correctness does not rest on this lock: some file systems grant it to everybody."""

    def __init__(self, store: Store) -> None:
        self._path = store.root / "alone.lock"

    def __enter__(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise StartupError(
                f"another mirror without a dsn uses data_dir {self._path.parent}",
                next_steps=["stop it, or give both the same dsn: then they share the work"],
            ) from None
        except OSError as e:
            log.warning(
                "%s cannot be locked (%s): nothing guards against a second mirror here", self._path, e
            )

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


@asynccontextmanager
async def _http(settings: MirrorSettings, clock: Clock) -> AsyncIterator[HttpUpstream]:
    http = HttpUpstream(
        clock=clock,
        tokens=tokens_of(settings),
        proxy=settings.upstream_proxy.get_secret_value() if settings.upstream_proxy is not None else None,
        connect_timeout_s=settings.connect_timeout_s,
    )
    try:
        yield http
    finally:
        await http.close()
