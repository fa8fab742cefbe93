"""Desired against held: what to start, drain, stop and forget.

Pure and level-triggered: the same lists give the same actions, and once they are carried out, none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from llmgw_agent.core.shard import Shard, ShardState
from llmgw_agent.core.spec import ShardSpec
from llmgw_kit.ids import ShardId


class Wish(Enum):
    """The controller's word for one shard. One way only: a draining shard is never revived."""

    RUN = "run"
    DRAIN = "drain"
    STOP = "stop"


@dataclass(frozen=True)
class Wanted:
    """`refused`: why nothing can be started from the spec; it still names what is to be kept or ended."""

    spec: ShardSpec
    wish: Wish
    refused: str | None = None


@dataclass(frozen=True)
class Start:
    spec: ShardSpec


@dataclass(frozen=True)
class Confirm:
    """The controller still wants a shard that an earlier agent process had not launched yet."""

    shard_id: ShardId


@dataclass(frozen=True)
class Drain:
    shard_id: ShardId


@dataclass(frozen=True)
class Stop:
    shard_id: ShardId
    reason: str


@dataclass(frozen=True)
class Forget:
    shard_id: ShardId


@dataclass(frozen=True)
class DeclareAbsent:
    """A stop is wished of a shard that is not here: say so, because GPUs are released only when an
    exit has been seen, and silence is no exit."""

    spec: ShardSpec


@dataclass(frozen=True)
class Refuse:
    """Nothing can be started from the spec: said as an exit, for that is what the controller acts on."""

    spec: ShardSpec
    text: str


Action = Refuse | Start | Confirm | Drain | Stop | Forget | DeclareAbsent

_BEFORE_DRAIN = frozenset(ShardState) - {ShardState.DRAINING, ShardState.STOPPING, ShardState.EXITED}
_UNLAUNCHED = frozenset({ShardState.FETCHING, ShardState.VERIFYING, ShardState.LAUNCHING})


def plan(held: Mapping[ShardId, Shard], desired: Iterable[Wanted]) -> tuple[Action, ...]:
    """Actions that bring `held` to the complete list `desired`, in order of shard id.

    Only for a list received in full under a current term: what is absent from it is stopped."""
    wanted = {one.spec.shard_id: one for one in desired}
    known = [one.spec for one in held.values()]
    known += [one.spec for one in wanted.values() if one.wish is Wish.RUN]
    actions: list[Action] = []
    for shard_id in sorted({*held, *wanted}):
        mine, theirs = held.get(shard_id), wanted.get(shard_id)
        begins = mine is None and theirs is not None and theirs.wish is Wish.RUN
        if begins and theirs is not None and younger(known, theirs.spec) is not None:
            # An older word than the one that started what is here. It is missing in the next complete report,
            # so whoever still wants it learns that it is not here.
            continue
        actions += _for_one(mine, theirs)
    return tuple(actions)


def younger(known: Iterable[ShardSpec], spec: ShardSpec) -> ShardSpec | None:
    """One of a later group of the same replica: beside it nothing of an earlier one is started."""
    of_replica = (one for one in known if one.replica_id == spec.replica_id)
    return next((one for one in of_replica if one.group_epoch > spec.group_epoch), None)


def _for_one(held: Shard | None, wanted: Wanted | None) -> list[Action]:
    if held is None:
        if wanted is None:
            return []
        return [_begin(wanted)]
    shard_id = held.spec.shard_id
    if wanted is None:
        if held.state is ShardState.EXITED:
            return [Forget(shard_id)]
        return _stop(held, "orphan")
    if _differs(held.spec, wanted.spec):
        return _replace(held, wanted)
    match wanted.wish:
        case Wish.RUN:
            # Nothing for an exited one: the controller decides about restarts, under a new shard.
            return [Confirm(shard_id)] if held.state in _UNLAUNCHED else []
        case Wish.DRAIN:
            return [Drain(shard_id)] if held.state in _BEFORE_DRAIN else []
        case Wish.STOP:
            return _stop(held, "stopped")


def _begin(wanted: Wanted) -> Action:
    if wanted.wish is not Wish.RUN:
        return DeclareAbsent(wanted.spec)
    return Start(wanted.spec) if wanted.refused is None else Refuse(wanted.spec, wanted.refused)


def _stop(held: Shard, reason: str) -> list[Action]:
    if held.state in (ShardState.STOPPING, ShardState.EXITED):
        return []
    return [Stop(held.spec.shard_id, reason)]


def _differs(held: ShardSpec, wanted: ShardSpec) -> bool:
    return (held.group_epoch, held.spec_hash) != (wanted.group_epoch, wanted.spec_hash)


def _replace(held: Shard, wanted: Wanted) -> list[Action]:
    """The same id under another spec: the old process goes first, and is seen to be gone."""
    if wanted.spec.group_epoch < held.spec.group_epoch:
        return []  # an older word than the one that started what runs
    if held.state is not ShardState.EXITED:
        return _stop(held, "replaced")
    return [Forget(held.spec.shard_id), _begin(wanted)]
