"""The life of one shard on this node: one enum, one table, one function.

Written by one pen only, the task that owns the engine process; everybody else reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from llmgw_agent.core.spec import ShardSpec
from llmgw_kit.ids import DeviceId


class ShardState(Enum):
    """As reported to the controller; the values are written to the journal."""

    FETCHING = "fetching"
    VERIFYING = "verifying"
    LAUNCHING = "launching"
    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPING = "stopping"
    EXITED = "exited"


class Event(Enum):
    """What can happen to a shard."""

    WEIGHTS_HERE = "weights here"
    WEIGHTS_CORRUPT = "weights corrupt"
    VERIFIED = "verified"
    LAUNCHED = "launched"
    READY = "ready"
    DRAIN = "drain"
    STOP = "stop"
    EXIT = "exit"


_S, _E = ShardState, Event

#: A shard that never launched has nothing to drain: nobody was ever routed to it. One that is loading
#: may have been adopted in mid-service, so its drain leaves the engine running.
TABLE: Mapping[tuple[ShardState, Event], ShardState] = {
    (_S.FETCHING, _E.WEIGHTS_HERE): _S.VERIFYING,
    (_S.VERIFYING, _E.WEIGHTS_CORRUPT): _S.FETCHING,
    (_S.VERIFYING, _E.VERIFIED): _S.LAUNCHING,
    (_S.LAUNCHING, _E.LAUNCHED): _S.LOADING,
    (_S.LOADING, _E.READY): _S.SERVING,
    (_S.FETCHING, _E.DRAIN): _S.STOPPING,
    (_S.VERIFYING, _E.DRAIN): _S.STOPPING,
    (_S.LAUNCHING, _E.DRAIN): _S.STOPPING,
    (_S.LOADING, _E.DRAIN): _S.DRAINING,
    (_S.SERVING, _E.DRAIN): _S.DRAINING,
    **{(state, _E.STOP): _S.STOPPING for state in _S if state not in (_S.STOPPING, _S.EXITED)},
    **{(state, _E.EXIT): _S.EXITED for state in _S if state is not _S.EXITED},
}

#: An engine process may exist.
MAY_RUN = frozenset({_S.LAUNCHING, _S.LOADING, _S.SERVING, _S.DRAINING, _S.STOPPING})


class InvalidTransition(AssertionError):
    """A bug in the caller, never an operating error. Carries the story."""


@dataclass(frozen=True)
class Exit:
    """How it ended. Code and signal are None where the operating system could not tell us:
    the process was not our child, or died while no agent watched."""

    reason: str
    message: str = ""
    code: int | None = None
    signal: int | None = None


@dataclass(frozen=True)
class Ended:
    """What the kernel told of an exit; both None when the process was not our child."""

    code: int | None = None
    signal: int | None = None


@dataclass(frozen=True)
class ProcessIdentity:
    """One process for good: a pid is reused, a pid with its start time and boot is not.

    `start_ticks`: clock ticks since boot, field 22 of /proc/PID/stat."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True)
class Shard:
    """All that is known of one shard."""

    spec: ShardSpec
    state: ShardState = ShardState.FETCHING
    #: Random word in the environment of the engine and all its children; None before the launch.
    token: str | None = None
    process: ProcessIdentity | None = None
    exit: Exit | None = None
    #: 0..1 while FETCHING or VERIFYING; None when unknown.
    progress: float | None = None
    #: One real request was answered by this process.
    probed: bool = False
    #: The engine's own count; None when there is no gauge or it cannot be read (then the reason says why).
    running: int | None = None
    running_unknown: str | None = None
    #: Why its newest probe was not answered; None: none failed since the last that was.
    probe_error: str | None = None
    #: It has requests and its counters of work stand still for so long; None: that cannot be told.
    stalled_s: float | None = None
    #: Parts of the start, in seconds, once measured: weights here and checked; from launch to SERVING; from
    #: there to the first answer.
    fetch_s: float | None = None
    load_s: float | None = None
    warm_up_s: float | None = None
    #: As the engine names itself.
    engine_version: str | None = None
    #: Most that each device was seen to hold for it, in order of id; none where the vendor does not tell.
    memory_used: tuple[tuple[DeviceId, int], ...] = ()
    #: Wall clock of the launch, for people and for what is left of the ready time-out after a restart.
    launched_unix_s: float | None = None
    #: Taken over from an earlier agent process.
    adopted: bool = False
    log_path: str | None = None
    #: Why a stop was asked for, until the exit carries it.
    stop_reason: str | None = None
    story: tuple[str, ...] = ()


def step(shard: Shard, event: Event, *, because: str) -> Shard:
    """The shard after `event`. Raises InvalidTransition for a pair that is not in the table."""
    after = TABLE.get((shard.state, event))
    if after is None:
        raise InvalidTransition(
            f"{shard.spec.shard_id}: {event.value} in {shard.state.name} ({because}); "
            f"story: {' / '.join(shard.story) or 'none'}"
        )
    line = f"{shard.state.name} -> {after.name}: {because}"
    return replace(shard, state=after, story=(*shard.story, line)[-20:])


def with_memory(shard: Shard, seen: Mapping[DeviceId, int]) -> Shard:
    """The most of each device, of what was seen before and now."""
    most = dict(shard.memory_used)
    for device_id, size in seen.items():
        most[device_id] = max(size, most.get(device_id, 0))
    return replace(shard, memory_used=tuple(sorted(most.items())))


def exited(shard: Shard, how: Exit) -> Shard:
    """The end: what only a living engine has is forgotten, so that no old gauge is reported."""
    ended = step(shard, Event.EXIT, because=how.reason)
    return replace(
        ended, exit=how, progress=None, running=None, running_unknown=None, probe_error=None, stalled_s=None
    )
