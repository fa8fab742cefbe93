"""Numbers that outlive a worker: shared memory the supervisor owns, one writer per row.

Row w belongs to worker w, column s to the endpoint that holds slot s; each cell is a signed
64-bit integer, aligned, so that a reader sees the old value or the new one. The supervisor
reads all rows and writes only where no worker can: a column no worker's table names any more,
and the row of a worker whose process is gone.

`last_touch` is CLOCK_MONOTONIC in nanoseconds, which is one clock for all processes of a
machine; 0 is "never", and leaves this module as None.
"""

import mmap
import os
from dataclasses import dataclass

from llmgw_router.core.errors import CODES

_CELL_BYTES = 8

#: Upper bounds of the histograms' buckets in milliseconds; one more bucket takes what is above.
TTFT_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000)
DURATION_BUCKETS_MS = (
    5,
    10,
    20,
    50,
    100,
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    30_000,
    60_000,
    300_000,
    1_800_000,
)

#: The same for waiting: in a queue, for a cold model, for a connection, between two reads of a stream,
#: and of the event loop for its turn.
WAIT_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000, 600_000)
WAITS = ("queue", "hold", "connect", "gap", "lag")
#: Why another endpoint was asked: no connection; none in time; closed without an answer; no HTTP; our
#: credential refused; 429 or 503; an error as the first event; anything else.
RETRY_REASONS = ("connect", "connect_timeout", "lost", "invalid", "denied", "busy", "error_event", "rest")

_PLAIN = (
    # Finished exchanges by class of status; client_gone is 499: the client left first.
    "answers_2xx",
    "answers_3xx",
    "answers_4xx",
    "answers_5xx",
    "client_gone",
    # Of these, answers of an engine that were event streams.
    "streams",
    # Comments sent to streams that wait.
    "heartbeats",
    # Streams ended by an error event of ours.
    "streams_broken",
    # A pooled connection had been closed by the engine; asked again, nobody blamed.
    "retries_stale",
    # Asked again at another endpoint; and why, each counted again below.
    "retries_other",
    *(f"retries_{reason}" for reason in RETRY_REASONS),
    # Choices: who knew the prompt or the session, who was left when nobody was usable.
    "picks_by_prefix",
    "picks_by_session",
    "picks_in_panic",
    # Not asked again since the budget was spent.
    "retries_over_budget",
    # Endpoints put aside; those their models could not spare; tried; back; refusing our credential; slow.
    "ejections",
    "ejections_spared",
    "trials",
    "endpoints_back",
    "endpoints_denied",
    "endpoints_slow",
    "cold_requests",
    "bytes_from_clients",
    "bytes_to_clients",
    "connections_accepted",
    "connections_refused",
    "upstream_connects",
    "tables_applied",
    "log_lines_dropped",
    # Tokens that requests have used as far as anybody told, and requests by who did (core/usage.py).
    "tokens_prompt",
    "tokens_cached",
    "tokens_output",
    "usage_engine",
    "usage_counted",
    "usage_estimated",
    "usage_unknown",
    # Lines that found no room on the disk.
    "usage_lines_lost",
    "ttft_sum_us",
    "duration_sum_us",
    *(f"{wait}_sum_us" for wait in WAITS),
    # Reads of event streams that were passed on.
    "stream_chunks",
    # Left by their client: before the first byte of the answer, and in the middle of it; what such streams
    # had been sent, how long an engine had worked on them all, and connections closed to stop it.
    "aborted_waiting",
    "aborted_answers",
    "aborted_chunks",
    "aborted_engine_us",
    "engine_aborts",
    "traces_sampled",
    # Streams in which the engine itself said that it failed.
    "error_events",
    # These two go down again. Cleared by the supervisor when the worker is gone.
    "connections_open",
    "requests_held",
    "requests_queued",
    "requests_running",
    # CLOCK_MONOTONIC of the last sweep: a loop that turns. And how late that sweep was.
    "swept_at_ns",
    "lag_last_us",
)
GAUGES = (
    "connections_open",
    "requests_held",
    "requests_queued",
    "requests_running",
    "swept_at_ns",
    "lag_last_us",
)

#: Every counter of a worker's row, in order. Own refusals are counted by their code besides.
COUNTERS: tuple[str, ...] = (
    *_PLAIN,
    *(f"refused_{code}" for code in CODES),
    *(f"ttft_le_{bound}" for bound in TTFT_BUCKETS_MS),
    "ttft_le_inf",
    *(f"duration_le_{bound}" for bound in DURATION_BUCKETS_MS),
    "duration_le_inf",
    *(f"{wait}_le_{bound}" for wait in WAITS for bound in (*WAIT_BUCKETS_MS, "inf")),
)
COUNTER = {name: index for index, name in enumerate(COUNTERS)}
TTFT_BASE = COUNTER[f"ttft_le_{TTFT_BUCKETS_MS[0]}"]
DURATION_BASE = COUNTER[f"duration_le_{DURATION_BUCKETS_MS[0]}"]

#: Columns kept per endpoint: running now, picked ever, newest pick or release,
#: failed before a byte of the answer, broken in mid-answer.
IN_FLIGHT, PICKS, LAST_TOUCH, FAILED, BROKEN = range(5)
_FIELDS = 5

#: Counters take a fixed room so that adding one does not move the columns.
_COUNTER_ROOM = 1024

#: Responses that one worker remembers the holders of; see pins.py.
_PINS = 32768
if len(COUNTERS) > _COUNTER_ROOM:
    raise AssertionError(
        f"{len(COUNTERS)} counters do not fit into {_COUNTER_ROOM} cells: raise _COUNTER_ROOM"
    )


#: Models that the workers of a router can count together (relay/gates.py), the router's own gate included,
#: and the cells of each: requests let in, requests waiting, rank of the next.
GATES = 4096
GATE_RUNNING, GATE_WAITING, GATE_HEAD = 0, GATES, 2 * GATES
_GATE_CELLS = 3 * GATES
_EMPTY_GATES = memoryview(bytes(_GATE_CELLS * _CELL_BYTES)).cast("q")


@dataclass(frozen=True, slots=True)
class EndpointActivity:
    """Sums over all workers for one endpoint."""

    in_flight: int
    picks: int
    #: CLOCK_MONOTONIC of the newest pick or release; None: never asked.
    last_touch_ns: int | None
    failed: int
    broken: int


class Slots:
    """The whole memory, seen by either side. Create once in the supervisor, attach by fd in a worker."""

    def __init__(self, fd: int, *, workers: int, capacity: int) -> None:
        self.fd = fd
        self.workers = workers
        self.capacity = capacity
        self._row_cells = _COUNTER_ROOM + _FIELDS * capacity
        self._map = mmap.mmap(fd, self.size_bytes(workers, capacity))
        self._cells = memoryview(self._map).cast("q")
        #: Handed out again and again: ten thousand endpoints see the same few columns.
        self._columns: dict[tuple[int, int], memoryview] = {}

    def gate_idle(self, number: int) -> bool:
        """Whether no worker counts anything there."""
        return not any(
            self.gates_of(worker)[number + field]
            for worker in range(self.workers)
            for field in (GATE_RUNNING, GATE_WAITING, GATE_HEAD)
        )

    @staticmethod
    def size_bytes(workers: int, capacity: int) -> int:
        return workers * (_COUNTER_ROOM + _FIELDS * capacity + _PINS + _GATE_CELLS) * _CELL_BYTES

    @classmethod
    def create(cls, *, workers: int, capacity: int) -> "Slots":
        """Fresh zeroed memory behind an anonymous file; pages never touched cost nothing."""
        fd = os.memfd_create("llmgw-router-slots", os.MFD_CLOEXEC)
        os.ftruncate(fd, cls.size_bytes(workers, capacity))
        return cls(fd, workers=workers, capacity=capacity)

    def close(self) -> None:
        for column in self._columns.values():
            column.release()
        self._cells.release()
        self._map.close()
        os.close(self.fd)

    def counters_of(self, worker: int) -> memoryview:
        """Writable view of one worker's counters, indexed by COUNTER."""
        start = worker * self._row_cells
        return self._cells[start : start + _COUNTER_ROOM]

    def column_of(self, worker: int, field: int) -> memoryview:
        """Writable view of one field of one worker, indexed by slot."""
        known = self._columns.get((worker, field))
        if known is None:
            start = worker * self._row_cells + _COUNTER_ROOM + field * self.capacity
            known = self._columns[worker, field] = self._cells[start : start + self.capacity]
        return known

    def pins_of(self, worker: int) -> memoryview:
        """Where one worker remembers which endpoint holds a response; behind all the rows."""
        start = self.workers * self._row_cells + worker * _PINS
        return self._cells[start : start + _PINS]

    def gates_of(self, worker: int) -> memoryview:
        """One worker's numbers at each gate; behind everything else."""
        start = self.workers * (self._row_cells + _PINS) + worker * _GATE_CELLS
        return self._cells[start : start + _GATE_CELLS]

    def activity(self, slot: int) -> EndpointActivity:
        """Sums and newest touch of one slot over all workers."""
        cells, step, capacity = self._cells, self._row_cells, self.capacity
        at = _COUNTER_ROOM + slot
        sums = [0] * _FIELDS
        newest = 0
        for _ in range(self.workers):
            for field in (IN_FLIGHT, PICKS, FAILED, BROKEN):
                sums[field] += cells[at + field * capacity]
            newest = max(newest, cells[at + LAST_TOUCH * capacity])
            at += step
        return EndpointActivity(sums[IN_FLIGHT], sums[PICKS], newest or None, sums[FAILED], sums[BROKEN])

    def totals(self) -> dict[str, int]:
        """Every counter summed over the workers."""
        cells, step = self._cells, self._row_cells
        return {
            name: sum(cells[worker * step + index] for worker in range(self.workers))
            for name, index in COUNTER.items()
        }

    def clear_slot(self, slot: int) -> None:
        """Make a column ready for another endpoint. Only while no worker's table names it."""
        for worker in range(self.workers):
            for field in range(_FIELDS):
                self._cells[worker * self._row_cells + _COUNTER_ROOM + field * self.capacity + slot] = 0

    def bury(self, worker: int, *, died_at_ns: int) -> int:
        """Settle the row of a worker whose process is gone; returns how many requests died with it.

        What ran there was in use until that moment, so the moment becomes its last touch.
        """
        in_flight = self.column_of(worker, IN_FLIGHT)
        touched = self.column_of(worker, LAST_TOUCH)
        lost = 0
        for slot in range(self.capacity):
            if in_flight[slot]:
                lost += in_flight[slot]
                in_flight[slot] = 0
                touched[slot] = max(touched[slot], died_at_ns)
        counters = self.counters_of(worker)
        for name in GAUGES:
            counters[COUNTER[name]] = 0
        # Nobody of its waits any more: the others need not let it go first, nor count its places as taken.
        self.gates_of(worker)[:] = _EMPTY_GATES
        return lost
