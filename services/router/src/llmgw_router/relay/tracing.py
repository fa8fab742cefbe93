"""Whether an exchange is traced, decided before anything is made for it, and the ids it then carries.

W3C Trace Context (level 1). An exchange that is not sampled costs one call and one random number: its
client's `traceparent` passes as it came, and nothing is added where there was none. Spans are built by
the supervisor from the exchange's record; a worker only makes the ids that an engine must see.
"""

import re
from random import Random
from typing import TYPE_CHECKING

from llmgw_router.core.heads import without
from llmgw_router.relay.ipc import TraceIds

if TYPE_CHECKING:
    from llmgw_router.core.config import Telemetry
    from llmgw_router.relay.exchange import Exchange

#: version-trace-parent-flags; a later version may have more behind it (Trace Context, section 3.2.2).
_PARENT = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_UNSAMPLED = frozenset(b"02468ace")
_TRACESTATE = frozenset((b"tracestate",))


def parent_of(value: bytes) -> tuple[str, str, bool] | None:
    """Trace id, span id and whether the caller samples. None: not valid, counts for nothing."""
    match = _PARENT.fullmatch(value)
    if match is None or (match[1] == b"00" and match[5]):
        return None
    return match[2].decode(), match[3].decode(), bool(int(match[4], 16) & 1)


class Tracer:
    """One per worker while tracing is on."""

    __slots__ = ("_bits", "_chance", "_follow", "_ratio")

    def __init__(self, ratio: float, *, follow_parent: bool, random: Random | None = None) -> None:
        # Seeded by the system in each process: two workers must not make the same ids.
        source = Random() if random is None else random
        self._chance = source.random
        self._bits = source.getrandbits
        self._ratio = ratio
        self._follow = follow_parent

    def begin(self, exchange: "Exchange") -> None:
        """Decide, and put the header that travels on into the exchange's head."""
        given = exchange.traceparent
        if given is None:
            if self._chance() < self._ratio:
                self._sample(exchange, None)
            return
        if self._follow:
            # The common form is told by its last digit, without being read.
            if len(given) == 55 and given[54] in _UNSAMPLED and given[:3] == b"00-":
                exchange.head = [*exchange.head, b"traceparent: " + given]
                return
            parent = parent_of(given)
            sampled = parent[2] if parent is not None else self._chance() < self._ratio
        else:
            sampled = self._chance() < self._ratio
            parent = parent_of(given) if sampled else None
        if sampled:
            self._sample(exchange, parent)
        else:
            exchange.head = [*exchange.head, b"traceparent: " + given]

    def _sample(self, exchange: "Exchange", parent: tuple[str, str, bool] | None) -> None:
        bits = self._bits
        if parent is None:
            # State of a trace that is not continued would be another trace's.
            exchange.head = without(exchange.head, _TRACESTATE)
            trace_id, parent_id = f"{bits(128) or 1:032x}", None
        else:
            trace_id, parent_id = parent[0], parent[1]
        trace = TraceIds(trace_id, f"{bits(64) or 1:016x}", f"{bits(64) or 1:016x}", parent_id)
        exchange.trace = trace
        exchange.head = [*exchange.head, f"traceparent: 00-{trace_id}-{trace.engine_span_id}-01".encode()]


def tracer_of(telemetry: "Telemetry") -> Tracer | None:
    """None: tracing is off."""
    if telemetry.trace_ratio is None:
        return None
    return Tracer(telemetry.trace_ratio, follow_parent=telemetry.trace_follow_parent)
