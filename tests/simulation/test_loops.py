"""The real loops on a virtual clock: some seeds in every run, and proof that the checkers see through them.

`make sim LOOPS=N` runs `test_one_loop` with that seed; `make soak` runs thirty of an hour each.
"""

import os
from unittest.mock import patch

import pytest

from llmgw_controller import servicer_routing
from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.core import replica
from llmgw_controller.core.plan import RaiseIdleFloor
from tests.simulation.checks import Violation
from tests.simulation.faults import Plan
from tests.simulation.looped import simulate_loops

#: A planted bug must show within so many seeds.
PATIENCE = 12
#: A leader that is often frozen: what a short run needs to see a change of term.
STALLS = Plan(controller_stall=2.0)


def test_short_loops():
    sim = simulate_loops(1, minutes=5, faults=STALLS)
    for what in ("terms", "requests", "engines started", "replicas added for a queue"):
        assert sim.checks.counts.get(what, 0) > 1, f"nothing to check: {what}"


def test_one_loop():
    by_hand = os.environ.get("LLMGW_SIM_LOOPS")
    simulate_loops(int(by_hand or 0), minutes=60 if by_hand else 2, peace=bool(by_hand))


def test_short_loops_same_seed_same_trace():
    first, second = (simulate_loops(3, minutes=3, peace=False).world.trace for _ in range(2))
    assert first == second


def test_short_loops_without_a_fence_are_caught():
    with (
        patch.object(MemoryLease, "is_held", lambda *_: True),
        pytest.raises(Violation, match="a write of term .* landed after one of term"),
    ):
        for seed in range(PATIENCE):
            simulate_loops(seed, minutes=10, faults=STALLS, peace=False)


#: Routers that leave.
LEAVING = Plan(router_leaves=2.0)


def test_short_loops_that_take_every_goodbye_for_a_clean_one_are_caught():
    with (
        patch.object(servicer_routing, "RaiseIdleFloor", lambda _: RaiseIdleFloor(0.0)),
        pytest.raises(Violation, match="a router left with its activity lost"),
    ):
        for seed in range(PATIENCE):
            simulate_loops(seed, minutes=8, faults=LEAVING, peace=False)


def test_short_loops_of_leaders_that_do_not_learn_are_caught():
    with (
        patch.object(replica, "is_learning", lambda *_: False),
        pytest.raises(Violation, match="withdrawn though it serves"),
    ):
        for seed in range(PATIENCE):
            simulate_loops(seed, minutes=10, faults=STALLS, peace=False)
