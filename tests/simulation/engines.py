"""What an engine does beside serving: its habits, drawn once a start."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmgw_controller.core.heard import Exit

if TYPE_CHECKING:
    from tests.simulation.sim import Sim

#: An agent gives an engine so long to become ready before it ends it.
READY_TIMEOUT_S = 90.0
#: From TERM to KILL.
GRACE_S = 20.0


@dataclass(frozen=True)
class Habits:
    """Times are seconds after the start, or after the moment named; None: never."""

    load_s: float
    #: Ends by itself while it loads, in this way.
    crash: Exit | None = None
    #: Stays in LOADING until its agent's patience is over.
    never_ready: bool = False
    #: After it serves: takes requests and answers none. Of a gang: its ranks wait for each other.
    hangs_after_s: float | None = None
    ignores_term: bool = False
    gauge_unreadable: bool = False
    #: After it serves, clients reach it past every router; for so long.
    direct_after_s: float | None = None
    direct_for_s: float = 0.0

    def stop_s(self, sim: "Sim") -> float:
        """From TERM to the end of the group."""
        return GRACE_S if self.ignores_term else sim.world.between(0.1, 6.0)


#: (kind, chance a start, how it ends).
CRASHES = (
    ("engine out of memory", 0.03, Exit(1, None, "crashed", "CUDA out of memory")),
    ("engine crash code", 0.02, Exit(134, 6, "crashed", "assertion failed")),
)


def draw(sim: "Sim", *, gang: bool) -> Habits:
    """In times of peace engines only differ in how long they load."""
    world = sim.world
    load_s = world.between(2.0, 25.0)
    if not sim.faulty:
        return Habits(load_s)
    if world.chance(0.05):
        sim.landed("engine slow to load")
        load_s = world.between(40.0, 80.0)
    crash = None
    for kind, share, ended in CRASHES:
        if world.chance(share):
            sim.landed(kind)
            crash = ended
    return Habits(
        load_s,
        crash=crash,
        never_ready=_some(sim, "engine never ready", 0.02),
        hangs_after_s=world.between(1.0, 300.0)
        if _some(sim, "rank deadlock" if gang else "engine hangs", 0.08 if gang else 0.03)
        else None,
        ignores_term=_some(sim, "engine ignores TERM", 0.1),
        gauge_unreadable=_some(sim, "gauge unreadable", 0.05),
        direct_after_s=world.between(1.0, 120.0) if _some(sim, "direct traffic", 0.04) else None,
        direct_for_s=world.between(20.0, 200.0),
    )


def _some(sim: "Sim", kind: str, share: float) -> bool:
    if not sim.world.chance(share):
        return False
    sim.landed(kind)
    return True
