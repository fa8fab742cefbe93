"""What choosing an endpoint costs a request, in microseconds: `python -m tests.bench.choosing_cost`.

The worker's own chooser and endpoints, without sockets. Each figure is the best of a thousand rounds of
twenty: short enough to fall between two turns of the scheduler, which on a shared machine is what one would
measure otherwise.
"""

import json
import random
import timeit
from typing import Any, cast

from llmgw_router.core.choosing import prompts
from llmgw_router.core.choosing.affinity import chain_of
from llmgw_router.core.config import Choosing, RoutingProfile
from llmgw_router.core.table import EndpointRow
from llmgw_router.relay.slots import Slots
from tests.simulation.choosing_world import Request, Worker

PROFILE = RoutingProfile()
HEAD = [b"content-type: application/json", b"user-agent: x", b"accept: */*", b"x-stainless-lang: python"] * 2


class _World:
    """As much of a world as a worker needs."""

    def __init__(self, endpoints: int, rules: Choosing, workers: int = 1) -> None:
        self.rules = rules
        self.rng = random.Random(1)
        self.slots = Slots.create(workers=workers, capacity=endpoints)
        self.hub = Worker(cast(Any, self), 0)
        self.hub.apply(
            [
                EndpointRow(
                    endpoint_id=f"replica-{n:05d}@1",
                    replica_id=f"replica-{n:05d}",
                    group_epoch=1,
                    model="m",
                    host="h",
                    port=1,
                    slot=n,
                )
                for n in range(endpoints)
            ]
        )


def best_us(call: Any, number: int = 20) -> float:
    call()
    return min(timeit.repeat(call, number=number, repeat=1000)) / number * 1e6


def body_of(size: int) -> bytes:
    words = "the quick brown fox jumps over the lazy dog and says so. " * (size // 50)
    half = size // 2
    messages = [{"role": "system", "content": words[:half]}, {"role": "user", "content": words[half:size]}]
    return json.dumps({"model": "m", "messages": messages, "stream": True, "temperature": 0.2}).encode()


def choose_us(endpoints: int, body: bytes, head: list[bytes] = HEAD, **rules: Any) -> float:
    world = _World(endpoints, Choosing(**rules))
    hub = world.hub
    live = hub.routes.targets["m"].endpoints

    def once() -> None:
        request = Request(hub, 0.0, head, body, PROFILE)
        found = hub.choosing.choose(cast(Any, request), live)
        assert found is not None
        if request.match is not None:
            hub.choosing.departs(cast(Any, request), found)

    def nothing() -> None:
        Request(hub, 0.0, head, body, PROFILE)

    return best_us(once) - best_us(nothing)


def outcomes_us() -> float:
    world = _World(2, Choosing())
    one = world.hub.routes.targets["m"].endpoints[0]
    by = object()

    def once() -> None:
        one.began(by, 200, 1000)
        one.ended(by, 200)

    return best_us(once)


def main() -> None:
    small, big, huge = body_of(200), body_of(8 * 1024), body_of(100 * 1024)
    text = cast(prompts.Prompt, prompts.read(big)).text
    rows: list[tuple[str, float]] = [
        ("one endpoint: nothing is read", choose_us(1, big)),
        ("2 endpoints, 200 B prompt", choose_us(2, small)),
        ("8 endpoints, 200 B prompt", choose_us(8, small)),
        (
            "8 endpoints, no affinity, no session",
            choose_us(8, big, prefix_affinity=False, session_fields=(), session_header=None),
        ),
        ("8 endpoints, session header", choose_us(8, big, [*HEAD, b"x-session-id: abc"])),
        ("  reading 8 KiB of messages", best_us(lambda: prompts.read(big))),
        ("  chained hashes of 8 KiB", best_us(lambda: chain_of(text, 7))),
        ("2 endpoints, 8 KiB prompt, known", choose_us(2, big)),
        ("8 endpoints, 8 KiB prompt, known", choose_us(8, big)),
        ("8 endpoints, 100 KiB prompt, known", choose_us(8, huge)),
        ("10,000 endpoints, 8 KiB prompt, known", choose_us(10_000, big)),
        (
            "10,000 endpoints, no affinity",
            choose_us(10_000, big, prefix_affinity=False, session_fields=(), session_header=None),
        ),
        ("outcomes of a stream", outcomes_us()),
    ]
    for name, us in rows:
        print(f"{us:8.2f} us  {name}")


if __name__ == "__main__":
    main()
