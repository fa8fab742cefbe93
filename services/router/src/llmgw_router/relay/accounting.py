"""What is noted of an exchange when it is over: a handful of integers, and a record where one is wanted."""

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

from llmgw_router.core.config import Telemetry
from llmgw_router.relay import ipc
from llmgw_router.relay.slots import (
    COUNTER,
    DURATION_BASE,
    DURATION_BUCKETS_MS,
    TTFT_BASE,
    TTFT_BUCKETS_MS,
)

if TYPE_CHECKING:
    from llmgw_router.relay.ending import Ending
    from llmgw_router.relay.endpoint import Endpoint

_RUNNING = COUNTER["requests_running"]
_CLASS = {
    2: COUNTER["answers_2xx"],
    3: COUNTER["answers_3xx"],
    4: COUNTER["answers_4xx"],
    5: COUNTER["answers_5xx"],
}
_GONE = COUNTER["client_gone"]
_BYTES_IN = COUNTER["bytes_from_clients"]
_BYTES_OUT = COUNTER["bytes_to_clients"]
_TTFT_SUM = COUNTER["ttft_sum_us"]
_DURATION_SUM = COUNTER["duration_sum_us"]

_TTFT_BUCKETS_US = [bound * 1000 for bound in TTFT_BUCKETS_MS]
_DURATION_BUCKETS_US = [bound * 1000 for bound in DURATION_BUCKETS_MS]

#: Records kept for one batch; a full one is handed over before the sweep comes.
_BATCH = 1024


class Accounts:
    """One per worker; `counters` is the hub's own list."""

    def __init__(self, counters: list[int], tell: Callable[[ipc.Up], None]) -> None:
        self._counters = counters
        self._tell = tell
        self._access: list[ipc.AccessRecord] | None = None

    def reconfigure(self, telemetry: Telemetry) -> None:
        """Begin or cease to make records."""
        self.flush()
        self._access = [] if telemetry.access_log else None

    def close(self, exchange: "Ending", endpoint: "Endpoint | None", now_ns: int) -> None:
        """Count a finished exchange."""
        counters = self._counters
        counters[_RUNNING] -= 1
        status = exchange.status
        if status == 499:
            counters[_GONE] += 1
        else:
            counters[_CLASS.get(status // 100, _GONE)] += 1
        counters[_BYTES_IN] += exchange.body_bytes
        counters[_BYTES_OUT] += exchange.bytes_out
        began = exchange.started_ns
        duration_us = (now_ns - began) // 1000
        first_ns = exchange.first_ns
        if exchange.dialect is not None:
            counters[_DURATION_SUM] += duration_us
            counters[DURATION_BASE + bisect_left(_DURATION_BUCKETS_US, duration_us)] += 1
            if first_ns:
                ttft_us = (first_ns - began) // 1000
                counters[_TTFT_SUM] += ttft_us
                counters[TTFT_BASE + bisect_left(_TTFT_BUCKETS_US, ttft_us)] += 1
        if self._access is not None:
            self._record(exchange, endpoint, duration_us, (first_ns - began) // 1000 if first_ns else None)

    def _record(
        self, exchange: "Ending", endpoint: "Endpoint | None", duration_us: int, ttft_us: int | None
    ) -> None:
        if self._access is None:
            return
        if len(self._access) >= _BATCH:
            self.flush()
        self._access.append(
            ipc.AccessRecord(
                at_unix_s=time.time(),
                request_id=(exchange.request_id or b"").decode("latin-1"),
                method=exchange.method.decode("latin-1"),
                path=exchange.path.decode("latin-1"),
                status=exchange.status,
                code=exchange.code,
                model=exchange.model,
                endpoint_id=None if endpoint is None else endpoint.name,
                bytes_in=exchange.body_bytes,
                bytes_out=exchange.bytes_out,
                ttft_ms=None if ttft_us is None else ttft_us / 1000,
                duration_ms=duration_us / 1000,
                retries=len(exchange.tried or ()),
            )
        )

    def flush(self) -> None:
        """Hand over what has been collected."""
        if self._access:
            records, self._access = self._access, []
            self._tell(ipc.AccessRecords(records=tuple(records)))
