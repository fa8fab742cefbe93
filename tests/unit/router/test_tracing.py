"""Sampling, decided before anything is made, and the header that travels on (W49; W3C Trace Context)."""

from dataclasses import dataclass, field
from random import Random
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.core.config import Telemetry
from llmgw_router.relay import tracing
from llmgw_router.relay.exchange import Exchange
from llmgw_router.relay.ipc import TraceIds
from llmgw_router.relay.tracing import Tracer, parent_of, tracer_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@dataclass
class Asked:
    """As much of an exchange as a tracer touches."""

    traceparent: bytes | None = None
    head: list[bytes] = field(default_factory=list)
    trace: TraceIds | None = None


def begun(tracer: Tracer, given: str | None, *more: bytes) -> Asked:
    asked = Asked(None if given is None else given.encode(), list(more))
    tracer.begin(cast(Exchange, asked))
    return asked


def parent(flags: str = "01", *, version: str = "00", trace: str = TRACE, span: str = SPAN) -> str:
    return f"{version}-{trace}-{span}-{flags}"


ALWAYS, NEVER = Tracer(1.0, follow_parent=True), Tracer(0.0, follow_parent=True)


def test_a_sampled_callers_trace_goes_on_under_a_span_of_ours_whatever_the_ratio() -> None:
    asked = begun(NEVER, parent("01"), b"tracestate: v=1")
    assert asked.trace is not None
    assert (asked.trace.trace_id, asked.trace.parent_id) == (TRACE, SPAN)
    assert asked.head == [
        b"tracestate: v=1",
        f"traceparent: 00-{TRACE}-{asked.trace.engine_span_id}-01".encode(),
    ]
    assert len({asked.trace.span_id, asked.trace.engine_span_id, SPAN}) == 3


def test_an_unsampled_callers_header_passes_unchanged_whatever_the_ratio() -> None:
    for flags in ("00", "02"):
        asked = begun(ALWAYS, parent(flags))
        assert (asked.trace, asked.head) == (None, [f"traceparent: {parent(flags)}".encode()])


def test_without_a_caller_the_ratio_decides_and_nothing_is_added_below_it() -> None:
    assert begun(NEVER, None) == Asked()
    asked = begun(ALWAYS, None, b"tracestate: of=nothing")
    assert asked.trace is not None
    assert asked.trace.parent_id is None
    # State of a trace that is not continued would be another trace's.
    assert asked.head == [f"traceparent: 00-{asked.trace.trace_id}-{asked.trace.engine_span_id}-01".encode()]


def test_a_caller_that_may_not_decide_keeps_its_trace_and_nothing_else() -> None:
    never, always = Tracer(0.0, follow_parent=False), Tracer(1.0, follow_parent=False)
    assert begun(never, parent("01")).trace is None
    sampled = begun(always, parent("00")).trace
    assert sampled is not None
    assert (sampled.trace_id, sampled.parent_id) == (TRACE, SPAN)


INVALID = {
    "version ff": parent(version="ff"),
    "zero trace": parent(trace="0" * 32),
    "zero span": parent(span="0" * 16),
    "capitals": parent(trace=TRACE.upper()),
    "short": parent()[:-1],
    "more behind version 00": parent() + "-x",
    "empty": "",
    "nonsense": "hello",
}


@pytest.mark.parametrize("given", INVALID.values(), ids=INVALID.keys())
def test_an_invalid_header_counts_for_nothing(given: str) -> None:
    assert parent_of(given.encode()) is None
    asked = begun(ALWAYS, given)
    assert asked.trace is not None
    assert asked.trace.parent_id is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert parent_of(parent(version="01").encode() + b"-what-comes") == (TRACE, SPAN, True)


@given(st.binary(max_size=80))
def test_no_header_breaks_it_and_what_goes_on_is_valid(given: bytes) -> None:
    for tracer in (ALWAYS, NEVER):
        asked = Asked(given)
        tracer.begin(cast(Exchange, asked))
        (line,) = asked.head
        value = line.removeprefix(b"traceparent: ")
        assert value == given if asked.trace is None else parent_of(value) is not None


def test_ids_are_not_repeated_and_the_ratio_is_kept() -> None:
    tracer = Tracer(0.25, follow_parent=True, random=Random(1))
    traces = [trace for _ in range(4000) if (trace := begun(tracer, None).trace) is not None]
    assert 900 < len(traces) < 1100
    assert len({trace.trace_id for trace in traces}) == len(traces)


def test_off_is_no_tracer_at_all() -> None:
    assert tracer_of(Telemetry()) is None
    assert tracer_of(Telemetry(trace_ratio=0.0)) is not None


class Watched(Random):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__(1)
        self.drawn = 0
        self.ids = 0

    def random(self) -> float:
        self.drawn += 1
        return super().random()

    def getrandbits(self, k: int) -> int:
        self.ids += 1
        return super().getrandbits(k)


def test_an_unsampled_exchange_makes_no_ids_and_reads_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it costs is in tests/bench/relay_steps.py: 0.1 to 0.2 µs."""

    def read(value: bytes) -> None:
        raise AssertionError(f"{value!r} was read, which one digit decides")

    monkeypatch.setattr(tracing, "parent_of", read)
    chance = Watched()
    tracer = Tracer(0.0, follow_parent=True, random=chance)
    plain = Asked()
    head = plain.head
    tracer.begin(cast(Exchange, plain))
    assert (chance.drawn, chance.ids, plain.trace) == (1, 0, None)
    # Not even a copy of the head.
    assert plain.head is head
    told = begun(tracer, parent("00"))
    assert (chance.drawn, chance.ids, told.trace) == (1, 0, None)


def test_a_sampled_one_makes_its_three_ids_and_no_more() -> None:
    chance = Watched()
    assert begun(Tracer(1.0, follow_parent=True, random=chance), None).trace is not None
    assert (chance.drawn, chance.ids) == (1, 3)
