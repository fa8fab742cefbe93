"""What became of a journalled shard while no agent watched.

A pid alone proves nothing: pids are reused within minutes on a busy machine. Boot id, start time and
the token in the environment together name one process.
"""

from dataclasses import dataclass
from enum import Enum

from llmgw_agent.core.shard import MAY_RUN, Shard, ShardState


@dataclass(frozen=True)
class Found:
    """One process seen in /proc. `spec_hash` is what its environment says, None when unreadable."""

    pid: int
    start_ticks: int
    leads_session: bool
    spec_hash: str | None = None


@dataclass(frozen=True)
class Facts:
    """What /proc said at start. `at_pid` is whatever now has the journalled pid, zombies left out;
    `token_holders` carry this shard's token, in order of pid."""

    boot_id: str
    at_pid: Found | None
    token_holders: tuple[Found, ...] = ()


class Verdict(Enum):
    KEEP = "keep"  # exited before; reported until the controller has let go of it
    RESUME = "resume"  # never launched: begin again once the controller confirms
    ADOPT = "adopt"  # its engine runs
    SWEEP = "sweep"  # its engine is gone but children of it are left: end them, then it is gone
    GONE = "gone"  # nothing is left of it


@dataclass(frozen=True)
class Adoption:
    verdict: Verdict
    #: The process to take over, with ADOPT.
    process: Found | None = None
    #: Exit reason, with SWEEP and GONE.
    reason: str | None = None
    #: For people.
    because: str = ""


def decide(shard: Shard, facts: Facts) -> Adoption:
    """What to do about one journalled shard."""
    if shard.state is ShardState.EXITED:
        return Adoption(Verdict.KEEP)
    if shard.state not in MAY_RUN:
        return Adoption(Verdict.RESUME)
    if shard.process is None:
        return _unrecorded(shard, facts)
    if shard.process.boot_id != facts.boot_id:
        return Adoption(Verdict.GONE, reason="rebooted", because="the machine was restarted since the launch")
    found = facts.at_pid
    if found is not None and found.start_ticks == shard.process.start_ticks:
        if found.spec_hash is not None and found.spec_hash != shard.spec.spec_hash:
            return _lost(shard, facts, f"pid {found.pid} was started from another spec")
        return Adoption(Verdict.ADOPT, process=found)
    why = "no such process" if found is None else "the pid now belongs to another process"
    return _lost(shard, facts, f"pid {shard.process.pid}: {why}")


def _unrecorded(shard: Shard, facts: Facts) -> Adoption:
    """The agent died between the launch and the note of it: the token tells."""
    leader = next((one for one in facts.token_holders if one.leads_session), None)
    if leader is not None:
        return Adoption(Verdict.ADOPT, process=leader, because="found by its token: the launch was not noted")
    if facts.token_holders:
        return Adoption(Verdict.SWEEP, reason="vanished", because="only children of the engine are left")
    if shard.state is ShardState.LAUNCHING:
        return Adoption(Verdict.RESUME)
    return Adoption(Verdict.GONE, reason="vanished", because="it had no process")


def _lost(shard: Shard, facts: Facts, because: str) -> Adoption:
    reason = shard.stop_reason or "vanished"
    if facts.token_holders:
        return Adoption(Verdict.SWEEP, reason=reason, because=because)
    return Adoption(Verdict.GONE, reason=reason, because=because)
