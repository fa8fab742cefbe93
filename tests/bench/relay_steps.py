"""What single steps of a relay worker cost: `python -m tests.bench.relay_steps`.

How long the longest step over a big body stops the loop, and what is done for each request or each sweep.
Tests count what these steps look at; time is only measured here, as the best of many rounds.
"""

import time
import timeit
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any, cast

from llmgw_router.core import multipart
from llmgw_router.core.choosing.affinity import Match
from llmgw_router.core.choosing.picking import PREFIX, Field, pick
from llmgw_router.core.config import Choosing, Limits
from llmgw_router.core.scan import scan
from llmgw_router.relay.sweep import _waiting_for_client
from llmgw_router.relay.tracing import Tracer
from tests.unit.router.spots import Spot
from tests.unit.router.test_multipart import END, B, part
from tests.unit.router.test_scan import BIG

UNSAMPLED = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"


def best_us(call: Callable[[], object], number: int = 100) -> float:
    call()
    return min(timeit.repeat(call, number=number, repeat=200)) / number * 1e6


def longest_ms(steps: Callable[[], Generator[None, None, object]]) -> float:
    """CPU time of the longest step; the best of three scans."""
    return min(_longest_s(steps()) for _ in range(3)) * 1e3


def _longest_s(running: Generator[None, None, object]) -> float:
    longest = 0.0
    while True:
        began = time.thread_time()
        over = next(running, running) is running
        longest = max(longest, time.thread_time() - began)
        if over:
            return longest


def tracing_us(given: bytes | None) -> float:
    tracer = Tracer(0.0, follow_parent=True)
    exchange = cast(Any, SimpleNamespace(traceparent=given, head=[b"x: y"] * 8, trace=None))
    head = exchange.head

    def begin() -> None:
        exchange.head = head
        tracer.begin(exchange)

    return best_us(begin)


def picking_us(many: int) -> float:
    field = Field([Spot(str(n), n % 5) for n in range(many)])
    match, rules = Match([1], place=7, policy=PREFIX), Choosing()
    return best_us(lambda: pick(field, rules, now=0.0, chance=0.37, match=match))


def sweeping_us() -> float:
    """One client whose request head is not whole yet."""
    client = cast(
        Any,
        SimpleNamespace(
            hub=SimpleNamespace(limits=Limits()),
            transport=SimpleNamespace(get_write_buffer_size=lambda: 0),
            closing=None,
            head_begun=True,
            began=0.0,
        ),
    )
    return best_us(lambda: _waiting_for_client(client, 1.0))


def main() -> None:
    audio = part((bytes(range(256)) + b"\r\n--xYz-0") * 95_000, b'"file"') + part(b"whisper-1") + END
    print("longest step over a big body, ms of CPU")
    for name, body in BIG.items():
        print(f"  JSON, {name:<22} {longest_ms(lambda body=body: scan(body)):6.2f}")  # type: ignore[misc]
    print(f"  form of 25 MB{'':<16} {longest_ms(lambda: multipart.scan(audio, B)):6.2f}")
    print("each, us")
    print(f"  not traced, no traceparent   {tracing_us(None):6.2f}")
    print(f"  not traced, with traceparent {tracing_us(UNSAMPLED):6.2f}")
    for many in (16, 10_000):
        print(f"  a pick among {many:<15} {picking_us(many):6.2f}")
    print(f"  a half head in a sweep       {sweeping_us():6.2f}")


if __name__ == "__main__":
    main()
