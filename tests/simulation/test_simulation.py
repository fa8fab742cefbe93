"""Short simulation: some seeds in every run, one seed by hand, and proof that the checkers can see.

`make sim SEED=N` runs `test_one_seed` with that seed; `make sim` runs the short ones.
"""

import os
from collections import Counter

import pytest

from tests.simulation.checks import Violation
from tests.simulation.plants import PLANTS, planted
from tests.simulation.sim import Plan, simulate

#: Even ones do not make room, odd ones do.
WITHOUT_ROOM, MAKING_ROOM = (2, 4, 6), (1, 5, 9)
#: A planted bug must show within so many seeds.
PATIENCE = 25


LOOKED_AT = (
    "terms",
    "requests",
    "engines started",
    "evictions",
    "replicas added for a queue",
    "sessions fenced",
)


@pytest.mark.parametrize("seed", WITHOUT_ROOM)
def test_short(seed):
    sim = simulate(seed)
    for what in LOOKED_AT:
        assert sim.checks.counts.get(what, 0) > 1, f"nothing to check: {what}"


def test_short_makes_room():
    """Evictions begin, are done and are taken back: else their checkers have looked at nothing."""
    counts: Counter[str] = Counter()
    for seed in MAKING_ROOM:
        counts.update(simulate(seed).checks.counts)
    for what in (*LOOKED_AT, "evictions for room, done", "evictions for room, cancelled"):
        assert counts[what] > 0, f"nothing to check over seeds {MAKING_ROOM}: {what}"


def test_one_seed():
    by_hand = os.environ.get("LLMGW_SIM_SEED")
    simulate(int(by_hand or 0), minutes=60 if by_hand else 20)


def test_short_same_seed_same_trace():
    first, second, other = simulate(3, minutes=5), simulate(3, minutes=5), simulate(4, minutes=5)
    assert first.world.trace == second.world.trace != other.world.trace


def test_short_a_fence_that_is_off_is_caught():
    with pytest.raises(Violation, match="a write of term .* landed after one of term"):
        for seed in range(PATIENCE):
            simulate(seed, fence=False)


#: What each bug is caught by; any of several where it shows in more than one way.
CAUGHT_BY = {
    "unknown is idle": "not heard for|evicted as idle, used",
    "busy is idle": "evicted as idle, used|evicted, in use",
    "silence is exit": "which was not lost|freed while it lives",
    "any phase is routed to": "never served",
    "no learning window": "withdrawn though it serves",
    "drains are not waited for": "requests running",
    "claims are not looked at": "claimed by",
    "ports are not looked at": "claimed by",
    "fabrics are not looked at": "share no fabric",
    "who asks is not placed": "waits for .* although it fits|grow has one replica after",
    "unhealthy devices are in no part": "parts Parts",
    "what starts holds nothing": "told to be free",
    "a pass never rests": "a second pass still changes|no rest",
    "lost commands stay lost": "desired not reached|engines nobody knows|although it fits",
    "silent nodes are routed to": "told to routers, dead for",
    "a device is forgotten": "devices told, .* there",
    "tombstones stay": "tombstones left",
    "an agent gives its own ports": "share \\['20000'\\] of n",
    "nobody may act": "leaders after the faults",
    "nobody makes room": "although nobody uses the room|desired not reached: .*'gang': 0",
    "room that was made is anybody's": "for whom no room was made",
    "used a moment ago is no matter": "evicted for room, used",
    "time is an exit": "share \\[|freed while it lives",
    "a start may wait for ever": "desired not reached|although it fits|although nobody uses",
    "nobody looks twice": "grow has one replica after",
    "what was added stays": "desired not reached: .*'grow': [23]",
    "goodbyes are all the same": "a router left with its activity lost",
    "old sessions are listened to": "is listened to in session",
    "nobody is ever lost": "desired not reached|ready are|grow has one replica after",
}
#: More of the fault that makes the bug matter, where it is rare.
PROVOKED_BY = {
    "unknown is idle": Plan(redis_away=2.0, router_crash=1.0),
    "silent nodes are routed to": Plan(cut_long=1.0, engine_crash=4.0),
    "tombstones stay": Plan(cut_long=0.3),
    "nobody is ever lost": Plan(node_dies=1.0),
    "time is an exit": Plan(agent_stuck=1.5),
    "a start may wait for ever": Plan(agent_deaf=2.0),
    "goodbyes are all the same": Plan(router_leaves=1.0),
    "old sessions are listened to": Plan(agent_twin=1.0),
    "lost commands stay lost": Plan(agent_crash=1.0),
}


#: Where the bug shows in one world of many: one that is known to show it, to be quick.
FIRST_SEED = {"nobody is ever lost": 18, "room that was made is anybody's": 15, "nobody makes room": 1}


@pytest.mark.parametrize("name", list(PLANTS))
def test_short_a_planted_bug_is_caught(name):
    with planted(name), pytest.raises(Violation, match=CAUGHT_BY[name]):
        first = FIRST_SEED.get(name, 0)
        for seed in range(first, first + PATIENCE):
            simulate(seed, faults=PROVOKED_BY.get(name))
