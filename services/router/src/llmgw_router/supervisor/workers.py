"""The pool of relay workers: fed with tables, listened to, and asked. Their lives are in lives.py.

Of a worker that dies its row in the slots is settled here, and its counters go on.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager

from llmgw_router.core.config import WorkerConfig
from llmgw_router.core.keys import KeyRow
from llmgw_router.relay import ipc
from llmgw_router.relay.slots import EndpointActivity, Slots
from llmgw_router.supervisor.asking import Asking, RunningNow
from llmgw_router.supervisor.choices import Choices
from llmgw_router.supervisor.gate_book import GateBook
from llmgw_router.supervisor.key_book import KeyBook
from llmgw_router.supervisor.key_profiles import ProfilesOfKeys
from llmgw_router.supervisor.lives import Lives
from llmgw_router.supervisor.model_counts import ModelCounts
from llmgw_router.supervisor.outside import PoolConfig as PoolConfig
from llmgw_router.supervisor.outside import WorkerEvents as WorkerEvents
from llmgw_router.supervisor.ports import Address
from llmgw_router.supervisor.pushes import Pushes
from llmgw_router.supervisor.seat import Seat
from llmgw_router.supervisor.seat import WorkerView as WorkerView
from llmgw_router.supervisor.slot_book import SlotBook
from llmgw_router.supervisor.tally import Tally
from llmgw_router.supervisor.watching import watch

logger = logging.getLogger(__name__)


class WorkerPool:
    """Owns the client port and the workers behind it. Use: start, push_table…, drain or stop."""

    def __init__(
        self, config: PoolConfig, events: WorkerEvents, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        if config.workers < 1:
            raise ValueError(f"a router needs at least one relay worker, not {config.workers}")
        self._config = config
        self._events = events
        self._slots = Slots.create(workers=config.workers, capacity=config.slot_capacity)
        self._book = SlotBook(self._slots)
        self._seats = [Seat(worker) for worker in range(config.workers)]
        self._lives = Lives(
            self._seats,
            slots_fd=self._slots.fd,
            backlog=config.backlog,
            monotonic=monotonic,
            welcome=self._welcome,
            heard=self._heard,
            gone=self._gone,
        )
        #: What every worker is told, and every successor of one.
        self._worker_config = config.config
        self._pushes = Pushes(self._book)
        self._tally = Tally()
        self._gates = GateBook()
        #: Newest word on each start that somebody waits for.
        self._phases: dict[str, ipc.StartPhase] = {}
        self._keys = KeyBook()
        self._profiles_of_keys = ProfilesOfKeys()
        self._usage_folder: str | None = None
        #: Whom workers suspect, and what they have chosen of late.
        self.choices = Choices(config.config.choosing.keep_decisions)
        #: Finished requests by model, of all workers and their predecessors.
        self.models = ModelCounts()
        self._asking = Asking()

    @property
    def addresses(self) -> list[Address]:
        """Where clients connect; the real ports when 0 was asked for. Empty before start."""
        return self._lives.addresses

    @property
    def workers(self) -> list[WorkerView]:
        return [seat.view(self._slots, self._tally.applied_by(seat.worker)) for seat in self._seats]

    async def start(self) -> None:
        """Take the port, start every worker, and return when all of them accept connections.

        Raises PortTaken, or TimeoutError when a worker does not come up; nothing is left running then.
        """
        self._lives.reserve(self._config.host, self._config.port)
        try:
            if self._config.usage_folder is not None:
                self._usage_folder = str(self._config.usage_folder(self.addresses[0].port))
            await self._lives.begin()
            async with asyncio.timeout(self._config.start_timeout_s):
                for seat in self._seats:
                    await seat.serving.wait()
        except TimeoutError as error:
            await self.stop()
            raise TimeoutError(
                f"relay workers not up within {self._config.start_timeout_s} s; their stderr says why"
            ) from error
        except BaseException:
            await self.stop()
            raise

    def reconfigure(self, config: WorkerConfig) -> None:
        """Put another configuration in force, from each worker's next request on."""
        self._worker_config = config
        self.choices.keep(config.choosing.keep_decisions)
        self._to_all([ipc.Reconfigure(config=config)])

    def push_table(self, update: ipc.TableUpdate) -> None:
        """Put a whole table in force; every worker is sent what differs. `seq` is counted here."""
        delta = self._pushes.push(update)
        homeless = self._pushes.homeless
        if homeless:
            logger.error(
                "%d endpoints left out of the table: only %d fit; first: %s. Raise slot_capacity.",
                len(homeless),
                self._config.slot_capacity,
                homeless[0].endpoint_id,
            )
        self._tally.marked(self._pushes.draining)
        self._to_all([delta])
        if self._gates.short:
            self._give_gates(())

    def _give_gates(self, models: Iterable[str]) -> None:
        given = self._gates.give(models)
        if self._gates.short:
            gone = self._gates.release(self._pushes.models, self._slots.gate_idle)
            if gone:
                self._to_all([ipc.Gates(numbers={}, gone=gone)])
                given |= self._gates.give(self._gates.short)
        if given:
            self._to_all([ipc.Gates(numbers=given)])

    @property
    def keys_held(self) -> int:
        """API keys that the workers know."""
        return len(self._keys)

    def key(self, key_id: str) -> KeyRow | None:
        """A key that is good as far as anybody has said."""
        return self._keys.by_id(key_id)

    def push_keys(self, rows: Iterable[KeyRow], gone: Iterable[bytes] = (), *, whole: bool) -> None:
        """Give every worker the keys, all of them or what has changed."""
        rows = tuple(rows)
        for said in self._profiles_of_keys.strange(rows, self._worker_config.profiles.keys()):
            logger.warning("%s", said)
        self._to_all(self._keys.replace(rows) if whole else self._keys.change(rows, gone))

    def keys_are_stale(self, why: str) -> None:
        """Let every request be refused with this until keys are pushed again."""
        self._to_all(self._keys.stale(why))

    def _to_all(self, messages: Iterable[ipc.Down]) -> None:
        for message in messages:
            for seat in self._seats:
                if seat.process is not None:
                    seat.process.send(message)

    def tell_phase(self, phase: ipc.StartPhase) -> None:
        """How far a start is that somebody waits for."""
        if phase.model in self._tally.wanted() and self._phases.get(phase.model) != phase:
            self._phases[phase.model] = phase
            self._to_all([phase])

    def refuse(self, refusal: ipc.ActivationRefused) -> None:
        """Answer every request held for the model, in every worker, with this."""
        self._to_all([refusal])

    @property
    def suspects(self) -> frozenset[str]:
        """Endpoints that some worker would have looked at."""
        return self.choices.suspects

    @property
    def probe_s(self) -> float | None:
        """Period of the health checks that are wanted now. None: none are."""
        return self._worker_config.choosing.probe_s

    def probed(self, alive: Iterable[str], dead: Iterable[str]) -> None:
        """Tell every worker what health checks have shown."""
        self._to_all([ipc.Probed(alive=tuple(alive), dead=tuple(dead))])

    def activity(self) -> list[tuple[ipc.EndpointRow, EndpointActivity]]:
        """In-flight, picks and newest touch of every endpoint, summed over the workers."""
        return self._book.activity()

    def totals(self) -> dict[str, int]:
        """Every worker counter of relay/slots.py, summed; never goes down but for the gauges."""
        return self._slots.totals()

    async def drain(self, deadline_s: float, *, grace_s: float = 1.0) -> None:
        """Accept nothing new, let what runs finish for `deadline_s`, and return when all workers are gone."""
        await self._lives.end(ipc.Drain(deadline_s=deadline_s, grace_s=grace_s), within_s=deadline_s + 2.0)

    def hasten(self, deadline_s: float) -> None:
        """Bring the end of a drain nearer: what still runs is cut after `deadline_s`. Begins none."""
        self._lives.hasten(ipc.Drain(deadline_s=deadline_s, grace_s=0.0), within_s=deadline_s + 2.0)

    async def running(self, *, timeout_s: float = 2.0) -> RunningNow:
        """What runs in every worker now, as far as they answer in time."""
        return await self._asking.running(
            [(seat.worker, seat.process.send) for seat in self._seats if seat.process is not None],
            timeout_s=timeout_s,
        )

    async def watch(self, *, hang_s: float, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Replace workers whose loop stands still for `hang_s`. For ever."""
        await watch(self._seats, self._slots, hang_s=hang_s, sleep=sleep)

    async def stop(self) -> None:
        """End all workers at once, running requests included."""
        await self._lives.end(ipc.Stop(), within_s=2.0)

    def kill(self) -> None:
        """SIGKILL all workers, waiting for nothing: for a supervisor that is told twice to go."""
        self._lives.kill()

    def close(self) -> None:
        """Give the shared memory back, after drain or stop; activity and totals end here."""
        self._slots.close()

    # --- one worker's life

    def _welcome(self, seat: Seat) -> Iterator[ipc.Down]:
        self._tally.spawned(seat.worker)
        yield ipc.Configure(
            worker=seat.worker,
            workers=self._config.workers,
            slot_capacity=self._config.slot_capacity,
            cold_socket=self._config.cold_socket,
            config=self._worker_config,
            usage_folder=self._usage_folder,
        )
        yield from self._keys.whole()
        if self._gates.numbers:
            yield ipc.Gates(numbers=dict(self._gates.numbers))
        yield from self._phases.values()
        # Before it listens, so that its first request already meets a table.
        yield self._pushes.whole()

    def _gone(self, seat: Seat) -> int:
        lost = self._slots.bury(seat.worker, died_at_ns=time.monotonic_ns())
        with self._wants_change():
            self._tally.gone(seat.worker)
        self.choices.gone(seat.worker)
        self._settle()
        return lost

    # --- what workers say

    def _heard(self, seat: Seat, message: ipc.Up) -> None:
        match message:
            case ipc.Started():
                seat.serving.set()
            case ipc.Applied(seq=seq):
                self._tally.applied(seat.worker, seq)
                self._settle()
            case ipc.Want(model=model, waiting=waiting):
                with self._wants_change():
                    self._tally.wants(seat.worker, model, waiting)
            case ipc.Unwant(model=model):
                with self._wants_change():
                    self._tally.wants(seat.worker, model, 0)
            case ipc.Queued(model=model, waiting=waiting):
                self._tally.queued(seat.worker, model, waiting)
            case ipc.GateWanted(model=model):
                self._give_gates([model])
            case ipc.Suspects(endpoint_ids=endpoint_ids):
                self.choices.suspected(seat.worker, endpoint_ids)
            case ipc.Decisions(decisions=decisions):
                self.choices.told(decisions)
            case ipc.DrainedEndpoints():
                self._settle()
            case ipc.LogLines(lines=lines):
                for line in lines:
                    logger.log(line.level, "worker %d: %s", seat.worker, line.text)
            case ipc.AccessRecords(records=records):
                self._events.access(records)
            case ipc.ModelCounts(models=models):
                self.models.add(models)
            case ipc.Running():
                self._asking.heard(message)

    @contextmanager
    def _wants_change(self) -> Iterator[None]:
        before = self._tally.wanted()
        yield
        now = self._tally.wanted()
        for model in sorted(before.keys() | now.keys()):
            if model not in now:
                if self._phases.pop(model, None) is not None:
                    # The next start has a story of its own.
                    self._to_all([ipc.StartPhase(model=model, phase=None)])
                self._events.unwant(model)
            elif now[model] != before.get(model):
                self._events.want(model, now[model])

    @property
    def held(self) -> dict[str, int]:
        """Requests that wait per model, over all workers: for it to come up, or for room at it."""
        return self._tally.held()

    def _settle(self) -> None:
        """Tell what has become true of all workers at once: a push applied, a drain seen through."""
        by_all = self._tally.applied_by_all
        if by_all is not None:
            self._book.reclaim(applied_seq=by_all)
        newest = self._pushes.seq
        if self._tally.newly_applied(newest):
            self._events.applied(newest)
        done = self._tally.newly_drained(newest, self._book.in_flight)
        if done:
            self._events.drained(done)
