"""Receipts after the end: evictions that are regretted, and what is foretold from those before."""

from dataclasses import replace

from llmgw_controller.core.apply import apply
from llmgw_controller.core.plan import PutEviction
from llmgw_controller.core.rows import EvictionRow, EvictionState, Stored
from llmgw_kit.ids import ModelId, ReplicaId
from tests.unit.controller.build import NOW
from tests.unit.controller.room import LOAD, Room


def regretted(stored: Stored, at: float) -> Stored:
    receipt = EvictionRow(
        "old/9@1", ReplicaId("old/9"), ModelId("old"), ModelId("x"), ReplicaId("x/1"), at - 60,
        EvictionState.DONE, "", (), 1, 4000.0, None, 30.0, freed_at=at - 30, regretted_at=at,
    )  # fmt: skip
    return apply(stored, [PutEviction(receipt)])


def test_regret_doubles_the_residency():
    load = replace(LOAD, seconds=2000.0)  # Thrice that is less than the 7200 s that it is ready.
    free = Room(loads=(load,))
    free.step()
    assert free.receipts
    held_back = Room(loads=(load,))
    held_back.snap = replace(held_back.snap, stored=regretted(held_back.snap.stored, NOW - 1000))
    held_back.step()
    assert [one.state for one in held_back.receipts] == [EvictionState.DONE], "only the old one"


def test_asked_for_again_late_is_no_regret():
    room = Room()
    room.step()
    room.through()
    room.obey()
    room.go_on()
    assert room.receipt.state is EvictionState.DONE
    room.later(200)  # Past its window: never measured, so its least residency of 60 s.
    room.wanting.add("old")
    room.go_on()
    assert room.receipt.regretted_at is None


def test_a_receipt_predicts_from_those_before_it():
    room = Room()
    room.snap = replace(room.snap, stored=regretted(room.snap.stored, NOW - 90_000))
    room.step()
    receipt = next(one for one in room.receipts if one.state is EvictionState.DRAINING)
    assert receipt.predicted_free_s == 30.0
