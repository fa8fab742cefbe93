"""What is noted of an exchange when it is over: a handful of integers, and a record where one is wanted.

Counts by model travel to the supervisor as differences, once a sweep and only of models that were asked
for: names are those of the table, so their number is bounded, and a row of shared memory is not.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from llmgw_router.core import errors
from llmgw_router.core.config import Telemetry
from llmgw_router.relay import ipc
from llmgw_router.relay.phase import HELD
from llmgw_router.relay.slots import (
    COUNTER,
    DURATION_BASE,
    DURATION_BUCKETS_MS,
    RETRY_REASONS,
    TTFT_BASE,
    TTFT_BUCKETS_MS,
    WAIT_BUCKETS_MS,
)

if TYPE_CHECKING:
    from llmgw_router.relay.ending import Ending
    from llmgw_router.relay.endpoint import Endpoint

_RUNNING = COUNTER["requests_running"]
_BYTES_IN = COUNTER["bytes_from_clients"]
_BYTES_OUT = COUNTER["bytes_to_clients"]
_TTFT_SUM = COUNTER["ttft_sum_us"]
_DURATION_SUM = COUNTER["duration_sum_us"]
_CHUNKS = COUNTER["stream_chunks"]
_ABORTED_WAITING = COUNTER["aborted_waiting"]
_ABORTED_ANSWERS = COUNTER["aborted_answers"]
_ABORTED_CHUNKS = COUNTER["aborted_chunks"]
_ABORTED_ENGINE = COUNTER["aborted_engine_us"]
_SAMPLED = COUNTER["traces_sampled"]
_RETRIES = COUNTER["retries_other"]
_RETRIED = {reason: COUNTER[f"retries_{reason}"] for reason in RETRY_REASONS} | {
    errors.UNREACHABLE.label: COUNTER["retries_lost"],
    errors.UPSTREAM_INVALID.label: COUNTER["retries_invalid"],
    errors.UPSTREAM_DENIED.label: COUNTER["retries_denied"],
    errors.TIMEOUT_CONNECT.label: COUNTER["retries_connect_timeout"],
}
_SWEPT = COUNTER["swept_at_ns"]
_LAG_LAST = COUNTER["lag_last_us"]

_TTFT_BUCKETS_US = [bound * 1000 for bound in TTFT_BUCKETS_MS]
_DURATION_BUCKETS_US = [bound * 1000 for bound in DURATION_BUCKETS_MS]
_WAIT_BUCKETS_US = [bound * 1000 for bound in WAIT_BUCKETS_MS]

#: Records kept for one batch; a full one is handed over before the sweep comes.
_BATCH = 1024

#: Places in a model's row of differences; those of ipc.ModelCount, after the name.
_M_GONE: Final = 4
_M_DURATION: Final = 5
_M_TTFT: Final = 6
_M_ANSWERED: Final = 7
_M_CHUNKS: Final = 8
_M_PROMPT: Final = 9
_M_OUTPUT: Final = 10
_MODEL_CELLS: Final = 11

#: The counter of an answer's class, and its place in the model's row; by the hundreds of its status.
_LEFT: Final = (COUNTER["client_gone"], _M_GONE)
_CLASS: Final = (
    _LEFT,
    _LEFT,
    (COUNTER["answers_2xx"], 0),
    (COUNTER["answers_3xx"], 1),
    (COUNTER["answers_4xx"], 2),
    (COUNTER["answers_5xx"], 3),
    # An engine may say anything up to 999.
    *((_LEFT,) * 4),
)


class Waits:
    """One histogram of a worker's counters; `add` takes microseconds."""

    __slots__ = ("_base", "_sum")

    def __init__(self, name: str) -> None:
        self._sum = COUNTER[f"{name}_sum_us"]
        self._base = COUNTER[f"{name}_le_{WAIT_BUCKETS_MS[0]}"]

    def add(self, counters: list[int], waited_us: int) -> None:
        counters[self._sum] += waited_us
        counters[self._base + bisect_left(_WAIT_BUCKETS_US, waited_us)] += 1


_QUEUE = Waits("queue")
_HOLD = Waits("hold")
CONNECT = Waits("connect")
_GAP_SUM = COUNTER["gap_sum_us"]
_GAP_BASE = COUNTER[f"gap_le_{WAIT_BUCKETS_MS[0]}"]
_LAG = Waits("lag")


class Accounts:
    """One per worker; `counters` is the hub's own list."""

    def __init__(self, counters: list[int], tell: Callable[[ipc.Up], None]) -> None:
        self._counters = counters
        self._tell = tell
        self._every = False
        self._records: list[ipc.AccessRecord] = []
        self._models: dict[str, list[int]] = {}

    def reconfigure(self, telemetry: Telemetry) -> None:
        """Begin or cease to make a record of every exchange; sampled ones have theirs in any case."""
        self.flush()
        self._every = telemetry.access_log

    def turned(self, now_ns: int, due_ns: int) -> None:
        """A sweep begins that was due at `due_ns`: the loop turns, and so late does it come to anything."""
        counters = self._counters
        counters[_SWEPT] = now_ns
        counters[_LAG_LAST] = late_us = max(0, now_ns - due_ns) // 1000
        _LAG.add(counters, late_us)

    def retried(self, reason: str) -> None:
        """Another endpoint is asked; `reason` is a label of an error, or a word of RETRY_REASONS."""
        counters = self._counters
        counters[_RETRIES] += 1
        counters[_RETRIED.get(reason, _RETRIED["rest"])] += 1

    def close(self, exchange: "Ending", endpoint: "Endpoint | None", now_ns: int) -> None:
        """Count a finished exchange."""
        counters = self._counters
        counters[_RUNNING] -= 1
        status = exchange.status
        if status == 499:
            counted, in_row = _LEFT
            self._abandoned(exchange, now_ns)
        else:
            counted, in_row = _CLASS[status // 100]
        counters[counted] += 1
        counters[_BYTES_IN] += exchange.body_bytes
        counters[_BYTES_OUT] += exchange.bytes_out
        began = exchange.started_ns
        duration_us = (now_ns - began) // 1000
        if exchange.dialect is not None:
            counters[_DURATION_SUM] += duration_us
            counters[DURATION_BASE + bisect_left(_DURATION_BUCKETS_US, duration_us)] += 1
            if exchange.sent_ns != began:
                # It did not depart at once: it waited, was asked again, or never left.
                self._waits(exchange, now_ns)
            model = exchange.model
            row = None
            if model is not None:
                row = self._models.get(model)
                if row is None:
                    row = self._models[model] = [0] * _MODEL_CELLS
                row[in_row] += 1
                row[_M_DURATION] += duration_us
            first_ns = exchange.first_ns
            if first_ns:
                ttft_us = (first_ns - began) // 1000
                counters[_TTFT_SUM] += ttft_us
                counters[TTFT_BASE + bisect_left(_TTFT_BUCKETS_US, ttft_us)] += 1
                if row is not None:
                    row[_M_TTFT] += ttft_us
                    row[_M_ANSWERED] += 1
            if exchange.tail is not None:
                chunks = exchange.chunks
                counters[_CHUNKS] += chunks
                if row is not None:
                    row[_M_CHUNKS] += chunks
                if chunks > 1:
                    # The mean of a stream: one number in its life instead of one a chunk.
                    gap_us = (now_ns - first_ns) // (1000 * (chunks - 1))
                    counters[_GAP_SUM] += gap_us
                    counters[_GAP_BASE + bisect_left(_WAIT_BUCKETS_US, gap_us)] += 1
            meter = exchange.meter
            if meter is not None and row is not None:
                row[_M_PROMPT] += meter.tokens.prompt or 0
                row[_M_OUTPUT] += meter.tokens.output or 0
        if self._every or exchange.trace is not None:
            self._record(exchange, endpoint, duration_us)

    def _waits(self, exchange: "Ending", now_ns: int) -> None:
        counters = self._counters
        if exchange.queued_ns:
            _QUEUE.add(counters, exchange.queued_ns // 1000)
        if exchange.phase == HELD:
            # It leaves as it waited: refused, out of time, or left by its client.
            exchange.held_ns = now_ns - exchange.started_ns - exchange.queued_ns
        if exchange.held_ns:
            _HOLD.add(counters, exchange.held_ns // 1000)

    def _abandoned(self, exchange: "Ending", now_ns: int) -> None:
        counters = self._counters
        if exchange.first_ns:
            counters[_ABORTED_ANSWERS] += 1
            counters[_ABORTED_CHUNKS] += exchange.chunks
        else:
            counters[_ABORTED_WAITING] += 1
        if exchange.sent_ns and exchange.dialect is not None:
            counters[_ABORTED_ENGINE] += (now_ns - exchange.sent_ns) // 1000

    def _record(self, exchange: "Ending", endpoint: "Endpoint | None", duration_us: int) -> None:
        if exchange.trace is not None:
            self._counters[_SAMPLED] += 1
        if len(self._records) >= _BATCH:
            self._hand_over()
        key = exchange.key
        given = exchange.traceparent
        self._records.append(
            ipc.AccessRecord(
                time.time(),
                (exchange.request_id or b"").decode("latin-1"),
                exchange.method.decode("latin-1"),
                exchange.path.decode("latin-1"),
                exchange.status,
                exchange.code,
                exchange.model,
                None if endpoint is None else endpoint.name,
                exchange.body_bytes,
                exchange.bytes_out,
                _ms(exchange.first_ns - exchange.started_ns) if exchange.first_ns else None,
                duration_us / 1000,
                len(exchange.tried or ()),
                None if key is None else key.key_id,
                None if key is None else key.tenant,
                exchange.alias,
                exchange.profile.name,
                _ms(exchange.queued_ns),
                _ms(exchange.held_ns),
                _ms(exchange.connect_ns),
                (exchange.sent_ns - exchange.started_ns) // 1000 / 1000 if exchange.sent_ns else None,
                None if exchange.tail is None else exchange.chunks,
                None if exchange.meter is None else exchange.meter.tokens.prompt,
                None if exchange.meter is None else exchange.meter.tokens.output,
                exchange.trace,
                None if given is None or exchange.trace is not None else given.decode("latin-1"),
            )
        )

    def flush(self) -> None:
        """Hand over what has been collected."""
        if self._models:
            models, self._models = self._models, {}
            self._tell(ipc.ModelCounts(models=tuple(_counts(models.items()))))
        if self._records:
            self._hand_over()

    def _hand_over(self) -> None:
        records, self._records = self._records, []
        self._tell(ipc.AccessRecords(records=tuple(records)))


def _counts(rows: Iterable[tuple[str, list[int]]]) -> Iterable[ipc.ModelCount]:
    for name, row in rows:
        yield ipc.ModelCount(name, *row)


def _ms(span_ns: int) -> float | None:
    # Whole microseconds, as the duration is: a part is never longer than the whole.
    return span_ns // 1000 / 1000 if span_ns else None
