"""What keeps the store: composed beside composition.py, which has the rest."""

from dataclasses import dataclass

from llmgw_kit.clock import Clock
from llmgw_mirror.adapters.open_reads import OpenReads
from llmgw_mirror.adapters.removals import Removals
from llmgw_mirror.adapters.room import Room
from llmgw_mirror.adapters.shelf import Shelf
from llmgw_mirror.fetcher import Fetcher
from llmgw_mirror.flights import Flights
from llmgw_mirror.garbage import DamagedBounds, Garbage
from llmgw_mirror.keeping import Keeping
from llmgw_mirror.ports import History, Ledger
from llmgw_mirror.proving import Prover
from llmgw_mirror.removing import Removing
from llmgw_mirror.scrub import Scrub, ScrubPace
from llmgw_mirror.service import Mirror
from llmgw_mirror.settings import MirrorSettings
from llmgw_mirror.suspects import Suspects
from llmgw_mirror.upkeep import Upkeep
from llmgw_mirror.verifying import Verifying

DAY_S = 86_400.0


@dataclass(frozen=True)
class Keepers:
    """`scrub` None: switched off."""

    keeping: Keeping
    prover: Prover
    suspects: Suspects
    scrub: Scrub | None


def build_garbage(
    settings: MirrorSettings, *, shelf: Shelf, room: Room, fetcher: Fetcher, history: History, clock: Clock
) -> Garbage:
    """Also what makes room for a fetch."""
    garbage = Garbage(
        shelf=shelf, removals=Removals(shelf.store), fetcher=fetcher, history=history, clock=clock,
        damaged=DamagedBounds(settings.damaged_keep_days * DAY_S, settings.damaged_keep_bytes),
        history_keep_s=settings.history_keep_days * DAY_S,
    )  # fmt: skip
    room.relieve = garbage.relieve
    return garbage


def build_keepers(
    settings: MirrorSettings, *, mirror: Mirror, shelf: Shelf, flights: Flights, upkeep: Upkeep,
    fetcher: Fetcher, garbage: Garbage, ledger: Ledger, reads: OpenReads, history: History, clock: Clock,
) -> Keepers:  # fmt: skip
    """Nothing runs yet."""
    store, threads = shelf.store, shelf.threads
    prover = Prover(
        store=store,
        threads=threads,
        fetcher=fetcher,
        flights=flights,
        reads=reads,
        history=history,
        clock=clock,
    )
    removing = Removing(
        removals=Removals(store), garbage=garbage, threads=threads, flights=flights, upkeep=upkeep,
        fetcher=fetcher, ledger=ledger, reads=reads, history=history, clock=clock,
        undo_s=settings.removal_undo_s,
    )  # fmt: skip
    verifying = Verifying(flights=flights, prover=prover, history=history, clock=clock)
    keeping = Keeping(
        mirror=mirror, store=store, threads=threads, reads=reads, history=history, removing=removing,
        verifying=verifying, unrecorded=upkeep.refused,
    )  # fmt: skip
    scrub = None
    if settings.scrub_interval_days > 0:
        pace = ScrubPace(
            settings.scrub_interval_days * DAY_S, settings.scrub_rate_bytes_s, settings.lease_ttl_s
        )
        scrub = Scrub(store=store, prover=prover, ledger=ledger, reads=reads, clock=clock, pace=pace)
    return Keepers(keeping, prover, Suspects(prover), scrub)
