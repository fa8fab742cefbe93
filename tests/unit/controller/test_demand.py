"""Demand: what was asked for that was not up, from asks and from what routers hold; unknown stays unknown."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from llmgw_controller.core.activation import Pending, Ready, Refused
from llmgw_controller.core.availability import Availability
from llmgw_controller.core.demand import Asked, begun, demand, ended, held_unknown
from llmgw_controller.core.rows import ActivationRow, Phase
from llmgw_kit.ids import ModelId
from tests.unit.controller.build import NOW, activity, member, model, node, replica, router, shard, snapshot

COLD = model("cold", replicas=0, activate_on_demand=True)
UP = model("up", replicas=1)
ENDS = [Ready(), Refused("no_capacity", "cold: full", 30.0), Pending("placing", None, None), None]


def asked(name: str, at: float, **changes: object) -> Asked:
    return replace(begun(None, name, 3, at), **changes)  # type: ignore[arg-type]


def world(**changes: object):
    up = replica(UP, 1, Phase.READY, shard("up/1", "n1", 0))
    plain = snapshot(
        [COLD, UP], [node("n1")], [up], activity=activity(router(), now=NOW), routers={"r1": member()}
    )
    return replace(plain, **changes)


@given(st.lists(st.one_of(st.none(), st.sampled_from(range(len(ENDS)))), max_size=30))
def test_every_ask_is_open_or_ended_in_one_way(steps):
    """None: another begins; else the number of an end, where one is open."""
    one = begun(None, "m", 1, 0.0)
    for at, step in enumerate(steps, 1):
        if step is None:
            one = begun(one, "m", at, float(at))
        elif one.open:
            one = ended(one, ENDS[step], float(at))
        assert one.asks == one.open + one.served + one.refused + one.given_up
        assert one.first_at == 0.0 <= one.last_at
        assert (one.refusal is None) is (one.refused == 0)


def test_what_is_not_up_stands_first_then_the_newest_ask():
    known = [asked("up", NOW - 1), asked("cold", NOW - 60), asked("nobody-serves-this", NOW - 30)]
    lines = demand(world(), known, NOW)
    assert [(one.name, one.unmet) for one in lines] == [
        ("nobody-serves-this", True), ("cold", True), ("up", False)
    ]  # fmt: skip
    assert [one.state and one.state.availability for one in lines] == [
        None, Availability.COLD, Availability.READY
    ]  # fmt: skip


def test_what_an_earlier_leader_was_asked_is_told_as_far_as_its_row_says_and_not_counted():
    open_row = ActivationRow(COLD.name, NOW - 500, NOW - 3)
    snap = world()
    snap = replace(snap, stored=replace(snap.stored, activations={COLD.name: open_row}))
    (line,) = demand(snap, [], NOW)
    assert (line.name, line.asked, line.first_at, line.last_at) == ("cold", None, NOW - 500, NOW - 3)
    (line,) = demand(snap, [asked("cold", NOW - 5)], NOW)
    assert (line.first_at, line.last_at) == (NOW - 500, NOW - 3)


def test_what_routers_hold_is_told_although_no_ask_was_seen_and_unknown_while_one_is_silent():
    held = {ModelId("up"): 2}
    (line,) = demand(world(held=held), [], NOW)
    assert (line.name, line.held, line.asked, line.first_at) == ("up", 2, None, None)
    silent = world(held=held)
    silent = replace(silent, stored=replace(silent.stored, routers={**silent.stored.routers, "r2": member()}))
    assert held_unknown(silent)
    assert [one.held for one in demand(silent, [asked("cold", NOW)], NOW)] == [None, None]
    # Nobody routes: nothing can be held.
    alone = replace(world(), stored=replace(world().stored, routers={}))
    assert not held_unknown(alone)
    assert [one.held for one in demand(alone, [asked("cold", NOW)], NOW)] == [0]
