"""Which endpoint holds a response: remembered in shared memory, found by every worker (ADR 0026)."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from llmgw_router.relay.pins import Pins, id_in
from llmgw_router.relay.slots import Slots


@pytest.fixture
def slots() -> Iterator[Slots]:
    made = Slots.create(workers=2, capacity=8)
    yield made


def endpoint(name: str, slot: int) -> Any:
    return SimpleNamespace(name=name, slot=slot)


def held(pins: Pins, response_id: bytes, among: list[Any]) -> Any:
    return pins.holder(response_id, among)


def test_what_one_worker_remembers_the_other_finds(slots: Slots) -> None:
    one, other = Pins(slots, 0), Pins(slots, 1)
    here, there = endpoint("a@1", 0), endpoint("b@1", 5)
    one.remember(b"resp_1", here)
    other.remember(b"resp_2", there)
    for pins in (one, other):
        assert held(pins, b"resp_1", [there, here]) is here
        assert held(pins, b"resp_2", [here, there]) is there
        assert held(pins, b"resp_3", [here, there]) is None
        assert held(pins, b"resp_1", [there]) is None


def test_a_slot_given_away_holds_nothing_of_its_predecessor(slots: Slots) -> None:
    pins = Pins(slots, 0)
    pins.remember(b"resp_1", endpoint("a@1", 3))
    assert held(pins, b"resp_1", [endpoint("a@2", 3), endpoint("b@1", 3)]) is None


def test_the_memory_is_bounded_and_keeps_the_newest(slots: Slots) -> None:
    pins = Pins(slots, 0)
    here = endpoint("a@1", 7)
    ids = [b"resp_%d" % n for n in range(100_000)]
    for one in ids:
        pins.remember(one, here)
    found = [one for one in ids if held(pins, one, [here]) is here]
    assert 20_000 < len(found) <= 32_768
    assert sum(one in set(found) for one in ids[-5_000:]) > 4_500
    assert held(Pins(slots, 1), ids[-1], [here]) is here


def test_pins_lie_beside_the_counters_and_not_in_them(slots: Slots) -> None:
    pins = [Pins(slots, worker) for worker in range(2)]
    for n in range(5_000):
        pins[n % 2].remember(b"resp_%d" % n, endpoint("a@1", n % 8))
    assert not any(slots.totals().values())
    assert all(slots.activity(slot).picks == 0 for slot in range(8))


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        (b'{"id":"resp_0af","object":"response"}', b"resp_0af"),
        (b'{"object":"response","id" : "resp_x-1","output":[{"id":"msg_1"}]}', b"resp_x-1"),
        (b'event: response.created\ndata: {"response":{"id":"resp_9"}}\n\n', b"resp_9"),
        (b'{"previous_response_id":"resp_1","id":"resp_2"}', b"resp_2"),
        (b'{"id":"msg_1"}', None),
        (b'{"id":"resp_' + b"a" * 500 + b'"}', None),
        (b"x" * 5000 + b'"id":"resp_1"', None),
        (b"", None),
    ],
)
def test_ids_in_the_first_bytes(payload: bytes, found: bytes | None) -> None:
    assert id_in(payload) == found
