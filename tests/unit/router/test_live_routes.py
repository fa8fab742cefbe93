"""Endpoints that leave the table and come back: what runs there is counted in one place, all the way."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.core.choosing.standing import Reason
from llmgw_router.relay import ipc
from llmgw_router.relay.endpoint import EngineEndpoint
from llmgw_router.relay.hub import Hub
from llmgw_router.relay.slots import Slots
from llmgw_router.supervisor.slot_book import SlotBook

from .test_steps_at_the_rim import Bench

WORKERS = 2
IDS = ("a@1", "b@1", "c@1")


class Fleet:
    """Two workers, the book that gives out columns, and the requests that run. Fewer columns than ids."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.slots = Slots.create(workers=WORKERS, capacity=2)
        self.book = SlotBook(self.slots)
        self.heard: list[ipc.Up] = []
        self.hubs = [
            Hub(
                ipc.Configure(worker=worker, workers=WORKERS, slot_capacity=2, cold_socket=""),
                self.slots,
                loop,
                self.heard.append,
            )
            for worker in range(WORKERS)
        ]
        self.seq = 0
        self.running: list[EngineEndpoint] = []

    def back(self, name: str, *, draining: bool = False) -> None:
        row = ipc.EndpointRow(
            endpoint_id=name, replica_id=name, group_epoch=1, model="m", host="h", port=1, draining=draining
        )
        placed, _ = self.book.assign([row])
        self._push(tuple(placed), ())

    def away(self, name: str) -> None:
        self.book.retire([name], seq=self.seq + 1)
        self._push((), (name,))

    def _push(self, rows: tuple[ipc.EndpointRow, ...], gone: tuple[str, ...]) -> None:
        self.seq += 1
        for hub in self.hubs:
            hub.routes.apply_delta(ipc.TableDelta(endpoints=rows, gone_endpoints=gone, seq=self.seq))
        self.book.reclaim(applied_seq=self.seq)

    def start(self, worker: int, name: str) -> bool:
        endpoint = self.hubs[worker].routes.find(name)
        if endpoint is None or endpoint.leaving:
            return False
        endpoint.take(1)
        self.running.append(endpoint)
        return True

    def end(self, which: int) -> None:
        if self.running:
            self.running.pop(which % len(self.running)).release(2, None)

    def counted(self) -> Counter[str]:
        return Counter({row.endpoint_id: one.in_flight for row, one in self.book.activity() if one.in_flight})


@contextmanager
def fleet() -> Iterator[Fleet]:
    loop = asyncio.new_event_loop()
    try:
        yield Fleet(loop)
    finally:
        loop.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("away"), st.sampled_from(IDS)),
        st.tuples(st.just("back"), st.sampled_from(IDS)),
        st.tuples(st.just("drain"), st.sampled_from(IDS)),
        st.tuples(st.sampled_from(("start", "start elsewhere")), st.sampled_from(IDS)),
        st.tuples(st.just("end"), st.sampled_from(IDS)),
    ),
    min_size=10,
    max_size=60,
)


@given(STEPS)
def test_what_runs_is_what_is_counted_whoever_leaves_and_comes_back(steps: list[tuple[str, str]]) -> None:
    with fleet() as world:
        for number, (what, name) in enumerate(steps):
            match what:
                case "away":
                    world.away(name)
                case "back" | "drain":
                    world.back(name, draining=what == "drain")
                case "end":
                    world.end(number)
                case _:
                    world.start(int(what == "start elsewhere"), name)
            assert world.counted() == Counter(endpoint.name for endpoint in world.running)
            for endpoint in world.running:
                assert endpoint.outstanding() == sum(one.name == endpoint.name for one in world.running)


def test_a_column_with_streams_is_nobody_elses_after_away_back_away() -> None:
    with fleet() as world:
        world.back("a@1")
        for _ in range(3):
            assert world.start(0, "a@1")
        world.away("a@1")
        world.back("a@1")
        assert world.counted() == {"a@1": 3}
        world.start(0, "a@1")
        for _ in range(3):
            world.end(0)
        assert world.counted() == {"a@1": 1}
        world.away("a@1")
        world.back("b@1")
        world.back("c@1")
        # Two columns, and the first is not free: one of the two has no home.
        assert [row.endpoint_id for row, _ in world.book.activity()] == ["a@1", "b@1"]


def test_one_that_comes_back_is_not_told_as_drained_by_the_requests_of_before() -> None:
    with fleet() as world:
        world.back("a@1")
        world.start(0, "a@1")
        world.away("a@1")
        world.back("a@1")
        world.heard.clear()
        world.end(0)
        assert [one for one in world.heard if isinstance(one, ipc.DrainedEndpoints)] == []
        world.start(0, "a@1")
        world.away("a@1")
        world.heard.clear()
        world.end(0)
        (told,) = [one for one in world.heard if isinstance(one, ipc.DrainedEndpoints)]
        assert told.endpoint_ids == ("a@1",)


def test_what_is_known_of_an_endpoint_with_streams_is_known_when_it_is_back() -> None:
    with fleet() as world:
        world.back("a@1")
        before = world.hubs[0].routes.find("a@1")
        world.start(0, "a@1")
        world.away("a@1")
        world.back("a@1")
        assert world.hubs[0].routes.find("a@1") is before
        world.away("a@1")
        world.end(0)
        world.back("a@1")
        # Nothing ran there any more, so there was nothing to keep.
        assert world.hubs[0].routes.find("a@1") is not before


def test_one_that_was_put_aside_is_aside_when_it_is_back() -> None:
    with fleet() as world:
        world.back("a@1")
        world.back("b@1")
        hub = world.hubs[0]
        endpoint = hub.routes.find("a@1")
        assert endpoint is not None
        world.start(0, "a@1")
        hub.warden.failed(endpoint, None, Reason.UNREACHABLE, decisive=True)
        assert hub.warden.out == {endpoint}
        world.away("a@1")
        hub.warden.sweep()
        assert hub.warden.out == set()
        world.back("a@1")
        assert endpoint.ejected
        assert hub.warden.out == {endpoint}


ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.mark.parametrize("away", [False, True], ids=["in one push", "away and back"])
@pytest.mark.parametrize("moved", [False, True], ids=["the same address", "another address"])
async def test_a_connection_to_an_old_address_is_not_kept_for_the_new_one(away: bool, moved: bool) -> None:
    bench = Bench(1)
    upstream = bench.pool()
    client, wire = bench.ask()
    (endpoint,) = bench.hub.routes.endpoints()
    row = msgspec.structs.replace(endpoint.row, port=2 if moved else 1)
    if away:
        bench.hub.routes.apply(ipc.TableUpdate(endpoints=(), seq=2))
    bench.hub.routes.apply(ipc.TableUpdate(endpoints=(row,), seq=3))
    upstream.data_received(ANSWER)
    assert wire.written.endswith(b"ok")
    assert bench.hub.routes.find(endpoint.name) is endpoint
    assert endpoint.idle == ([] if moved else [upstream])
    assert upstream.transport.is_closing() is moved
    client.connection_lost(None)
