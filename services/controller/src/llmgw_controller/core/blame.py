"""Blame: what an end says, of whom, and so what follows from it. One table; an unknown word is the start's.

Whatever could repeat by itself for ever is bounded: only what cannot, or is our own doing, is nobody's.
"""

from enum import Enum


class Blame(Enum):
    #: No wait, no count: started again at once.
    NOBODY = "nobody"
    #: What it needs is not to be had for now. It waits, is never given up, and is held against nothing.
    SUPPLY = "supply"
    #: The node's own trouble: waits and counts for the replica and that node, not against the profile.
    NODE = "node"
    #: The engine as this profile starts it. Counts for all three.
    START = "start"


#: Exit reasons as agents and this controller say them.
BLAME: dict[str, Blame] = {
    # Another port is leased for the next start; `ends.py` slows a row of them down.
    "port_taken": Blame.NOBODY,
    # Took minutes of silence to judge; the node takes nothing before it was heard again.
    "node_lost": Blame.NOBODY,
    # An operator empties the node.
    "node_draining": Blame.NOBODY,
    # Nobody led for long, as the profile asked for.
    "silence": Blame.NOBODY,
    # It ran although it was in no list of ours; and what was to be stopped was not there.
    "orphan": Blame.NOBODY,
    "absent": Blame.NOBODY,
    # We gave its name to another spec.
    "replaced": Blame.NOBODY,
    # Mirror, disk, or a wrong checksum: no engine was started, so none is to blame.
    "weights_failed": Blame.SUPPLY,
    # A machine that reboots under its engine may do so each time.
    "rebooted": Blame.NODE,
    # Its process or its agent's memory of it is gone: an agent's container was replaced, or the kernel killed
    # both for want of memory, which the next start would meet again.
    "vanished": Blame.NODE,
    # By hand on the node, or by an agent that ends engines for its own reasons.
    "stopped": Blame.NODE,
    "stopping_by_itself": Blame.NODE,
    "restarted_by_itself": Blame.NODE,
    # It beats on, and does not do what it is told.
    "not_taken_up": Blame.NODE,
    # No program, no journal: nothing of the engine ran.
    "launch_failed": Blame.NODE,
    # The engine is not installed there; on other nodes it may be.
    "engine_absent": Blame.NODE,
    # The GPU's memory, or the machine's: the profile asks for more than there is.
    "out_of_memory": Blame.START,
    "crashed": Blame.START,
    "never_ready": Blame.START,
    "stalled": Blame.START,
    # The agent cannot make a command of the spec.
    "refused": Blame.START,
    "unknown": Blame.START,
}


def blame_of(reason: str) -> Blame:
    """By the stable word of an exit."""
    return BLAME.get(reason, Blame.START)
