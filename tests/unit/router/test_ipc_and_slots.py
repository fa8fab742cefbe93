import struct

import pytest

from llmgw_router.core.config import INTERACTIVE, RoutingProfile, WorkerConfig
from llmgw_router.relay import ipc
from llmgw_router.relay.slots import BROKEN, COUNTER, FAILED, IN_FLIGHT, LAST_TOUCH, PICKS, Slots
from llmgw_router.supervisor.slot_book import SlotBook

ROW = ipc.EndpointRow(
    endpoint_id="r@2", replica_id="r", group_epoch=2, model="m", host="h", port=8000, credential="c", slot=3
)
CONFIG = WorkerConfig(profiles={INTERACTIVE: RoutingProfile(total_s=None)})
KEY = ipc.KeyRow(digest=b"\x00\xff", key_id="k", models=("m",))
DOWN: list[ipc.Down] = [
    ipc.Configure(worker=1, workers=2, slot_capacity=9, cold_socket="/s", config=CONFIG),
    ipc.Reconfigure(config=CONFIG),
    ipc.KeysUpdate(whole=True, keys=(KEY,), gone=(b"d",)),
    ipc.TableUpdate(
        endpoints=(ROW,),
        models=(ipc.ModelRow(name="m", aliases=("a",), availability=ipc.Availability.COLD, eta_s=1.5),),
        term=7,
        version=2**40,
        seq=3,
    ),
    ipc.TableUpdate(),
    ipc.Drain(deadline_s=30.0),
    ipc.Stop(),
    ipc.ActivationRefused(model="m", text="no room", retry_after_s=None),
]
UP: list[ipc.Up] = [
    ipc.Started(pid=1, worker=0),
    ipc.Applied(seq=1, term=None, version=None),
    ipc.Want(model="m", waiting=3),
    ipc.Unwant(model="m"),
    ipc.DrainedEndpoints(seq=1, endpoint_ids=("a", "b")),
    ipc.LogLines(lines=(ipc.LogLine(40, "x"),)),
    ipc.AccessRecords(
        records=(
            ipc.AccessRecord(1.5, "id", "POST", "/v1", 200, None, "m", "r@2", 3, 4, None, 1.25, 0),
            ipc.AccessRecord(1.5, "id", "GET", "/", 499, "x", None, None, 0, 0, 2.0, 1.25, 1),
        )
    ),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 4096])
def test_messages_survive_any_cutting(size: int) -> None:
    for messages, decode in ((DOWN, ipc.decode_down), (UP, ipc.decode_up)):
        stream = b"".join(ipc.pack(message) for message in messages)
        frames = ipc.Frames()
        got = []
        for at in range(0, len(stream), size):
            got += [decode(body) for body in frames.feed(stream[at : at + size])]
        assert got == messages


def test_an_impossible_length_breaks_the_channel() -> None:
    with pytest.raises(ipc.ChannelBroken, match="announces"):
        list(ipc.Frames().feed(struct.pack(">I", ipc.MAX_FRAME_BYTES + 1)))


@pytest.fixture
def slots() -> "Slots":
    return Slots.create(workers=3, capacity=4)


def test_rows_add_up_and_cells_do_not_overlap(slots: Slots) -> None:
    for worker in range(3):
        for field in (IN_FLIGHT, PICKS, FAILED, BROKEN):
            for slot in range(4):
                slots.column_of(worker, field)[slot] = 10 ** (worker + 1) + field
        slots.column_of(worker, LAST_TOUCH)[2] = worker * 5
        slots.counters_of(worker)[COUNTER["streams"]] = worker
    for slot in range(4):
        activity = slots.activity(slot)
        assert activity.in_flight == 1110 + 3 * IN_FLIGHT
        assert activity.picks == 1110 + 3 * PICKS
        assert (activity.failed, activity.broken) == (1110 + 3 * FAILED, 1110 + 3 * BROKEN)
        assert activity.last_touch_ns == (10 if slot == 2 else None)
    assert slots.totals()["streams"] == 3
    assert slots.totals()["answers_2xx"] == 0


def test_both_sides_see_one_memory(slots: Slots) -> None:
    other = Slots(slots.fd, workers=3, capacity=4)
    other.column_of(1, IN_FLIGHT)[0] = 5
    assert slots.activity(0).in_flight == 5


def test_burying_a_worker_settles_only_what_ran_there(slots: Slots) -> None:
    slots.column_of(0, IN_FLIGHT)[0] = 1
    slots.column_of(1, IN_FLIGHT)[0] = 2
    slots.column_of(1, LAST_TOUCH)[0] = 50
    slots.column_of(1, LAST_TOUCH)[1] = 60
    slots.counters_of(1)[COUNTER["requests_running"]] = 2
    slots.counters_of(1)[COUNTER["answers_2xx"]] = 9
    assert slots.bury(1, died_at_ns=100) == 2
    assert (slots.activity(0).in_flight, slots.activity(0).last_touch_ns) == (1, 100)
    # Nothing ran on the second: it keeps the time at which it was really touched.
    assert slots.activity(1).last_touch_ns == 60
    assert slots.totals()["requests_running"] == 0
    assert slots.totals()["answers_2xx"] == 9


def row(name: str, *, draining: bool = False) -> ipc.EndpointRow:
    return ipc.EndpointRow(
        endpoint_id=name, replica_id=name, group_epoch=1, model="m", host="h", port=1, draining=draining
    )


def test_a_slot_changes_hands_only_when_nobody_can_write_to_it(slots: Slots) -> None:
    book = SlotBook(slots)
    placed, homeless = book.assign([row(name) for name in "abcd"])
    assert not homeless
    assert len({made.slot for made in placed}) == 4
    slot_a = placed[0].slot
    assert slot_a is not None
    slots.column_of(2, IN_FLIGHT)[slot_a] = 1
    slots.column_of(2, PICKS)[slot_a] = 8
    book.retire(["a"], seq=2)
    # a leaves, e comes: no room, until all have applied push 2 and a's last request is over.
    assert book.assign([row(name) for name in "bcde"])[1] == [row("e")]
    book.reclaim(applied_seq=1)
    assert book.assign([row(name) for name in "bcde"])[1] == [row("e")]
    book.reclaim(applied_seq=3)
    assert book.assign([row(name) for name in "bcde"])[1] == [row("e")]
    assert book.in_flight("a") == 1
    slots.column_of(2, IN_FLIGHT)[slot_a] = 0
    book.reclaim(applied_seq=4)
    placed, homeless = book.assign([row(name) for name in "bcde"])
    assert not homeless
    assert placed[3].slot == slot_a
    assert slots.activity(slot_a).picks == 0


def test_an_endpoint_that_comes_back_finds_its_past(slots: Slots) -> None:
    book = SlotBook(slots)
    (first,), _ = book.assign([row("a")])
    assert first.slot is not None
    slots.column_of(0, PICKS)[first.slot] = 3
    book.retire(["a"], seq=2)
    (again,), _ = book.assign([row("a", draining=True)])
    book.reclaim(applied_seq=3)
    assert again.slot == first.slot
    assert [(made.draining, activity.picks) for made, activity in book.activity()] == [(True, 3)]
    assert book.in_flight("unheard of") == 0
