"""The router's choosing under engines that flap: rules that hold at every pick, and rest when faults stop.

A failure prints its seed; LLMGW_SIM_SEED=N runs that one alone.
"""

import os
from typing import Any

import pytest

from llmgw_router.core.choosing import picking
from llmgw_router.core.choosing.standing import Standing
from llmgw_router.core.config import Choosing
from llmgw_router.relay import warden
from tests.simulation.choosing_world import Violated, World

CHAOS_S = 120.0
CALM_S = 200.0
_ONE = os.environ.get("LLMGW_SIM_SEED")
SEEDS = [int(_ONE)] if _ONE else range(30)


def play(seed: int) -> World:
    world = World(seed)
    world.run(CHAOS_S)
    world.calm_down()
    world.run(CALM_S)
    for hub in world.hubs:
        target = hub.routes.targets["m"]
        for one in target.endpoints:
            if one.ejected or one.trial is not None or one.avoid_until > hub.now or one.slow_until:
                raise world.violated(f"{one.name} is still left alone: {one.reason}, slow {one.slow_until}")
        if hub.suspects:
            raise world.violated(f"{hub.suspects} are still suspected")
    best = min(engine.row.tier for engine in world.engines.values())
    before = dict(world.served)
    world.run(60.0)
    for name, engine in world.engines.items():
        if engine.row.tier == best and world.served.get(name, 0) == before.get(name, 0):
            raise world.violated(f"{name} gets nothing, though all is well")
    # Nobody comes any more; whoever runs ends or leaves.
    world.rate = 1e-9
    world.run(120.0)
    for hub in world.hubs:
        for one in hub.routes.known.values():
            if one.in_flight:
                raise world.violated(f"{one.name} holds {one.in_flight} requests that are over")
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_the_rules_of_choosing_hold(seed: int) -> None:
    world = play(seed)
    assert sum(world.served.values()) > 200


# --- each checker fails when its rule is broken


def caught(says: str) -> None:
    with pytest.raises(Violated, match=says):
        for seed in range(30):
            play(seed)


def test_a_cap_that_is_not_kept_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warden, "may_eject", lambda *_, **__: True)
    monkeypatch.setattr(warden, "too_many", lambda *_: [])
    caught("endpoints are ejected")


def test_a_shrunken_model_without_its_cap_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warden, "too_many", lambda *_: [])
    caught("endpoints are ejected")


def test_ho25_a_trial_that_is_never_given_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def for_ever(self: Standing, by: object, now: float, rules: Choosing) -> None:
        self.trial, self.avoid_until = by, float("inf")

    monkeypatch.setattr(Standing, "begin_trial", for_ever)
    monkeypatch.setattr(Standing, "gave_up", lambda self, now: None)
    caught("still left alone")


def test_two_trials_at_once_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaseless(self: Standing, by: object, now: float, rules: Choosing) -> None:
        self.trial = by

    monkeypatch.setattr(Standing, "begin_trial", leaseless)
    caught("is tried by two")


def test_affinity_without_a_bound_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = picking._matched

    def unbounded(usable: list, rules: Choosing, chance: float, match: object) -> object:  # type: ignore[type-arg]
        for one in usable:
            if one.name in match.worth:  # type: ignore[attr-defined]
                return one, picking.PREFIX
        return real(usable, rules, chance, match)  # type: ignore[arg-type]

    monkeypatch.setattr(picking, "_matched", unbounded)
    caught("beyond")


def test_a_pick_that_gives_up_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = picking.pick

    def no_panic(*args: object, **more: object) -> object:
        found: Any = real(*args, **more)  # type: ignore[arg-type]
        return (None, picking.NOBODY) if found[1] == picking.PANIC else found

    monkeypatch.setattr("llmgw_router.relay.choosing.pick", no_panic)
    caught("nobody was picked")
