"""Is a device fit for work: a state machine over what the driver tells (events) and shows (looks).

    event(health, fault)        a fault was told; app faults are noted and change nothing
    look(health, sight, now)    what one reading of the device showed, and what follows from time

Suspect faults heal once nothing was heard of them for a quiet time, fatal ones only after a reset was seen:
the machine was booted anew, the driver counts the device's energy from zero again, or a device that was away
is back and cannot tell its energy. A fault that the device itself shows stands while it shows it.

`now` and all times are unix seconds of this node, for they outlive the agent. A clock that was set back makes
a quiet time longer by as much, never shorter.
"""

from dataclasses import dataclass, replace

from llmgw_agent.core.devices import DeviceState
from llmgw_agent.core.faults import SIGNS, Fault, FaultClass, sign

#: Suspect faults of GPUs come in volleys of seconds to minutes; ten quiet minutes are past any of them.
QUIET_S = 600.0

#: The sign that comes of a counter.
COUNTED = "ecc_uncorrectable"

_RANK = {FaultClass.FATAL: 0, FaultClass.SUSPECT: 1, FaultClass.APP: 2}


@dataclass(frozen=True)
class Sight:
    """One reading of a device. Counters are None where the device has none."""

    #: False: it is not on the list any more, or answers nothing.
    here: bool = True
    #: Words of `faults.SIGNS` that it shows now.
    signs: frozenset[str] = frozenset()
    #: Things to know that hurt nobody yet, for people.
    notes: tuple[str, ...] = ()
    #: Uncorrectable memory errors since the driver was loaded.
    uncorrectable: int | None = None
    #: Energy used since the driver was loaded, in mJ: less than before tells of a reset or a reload.
    energy_mj: int | None = None


@dataclass(frozen=True)
class Standing:
    """A fault that has not healed. `fault.at` is its first time, `last` its newest, from which
    its quiet counts."""

    fault: Fault
    last: float


@dataclass(frozen=True)
class Health:
    """All that is known of one device's fitness."""

    here: bool = True
    #: Not healed: at most one of each reason, oldest first.
    faults: tuple[Standing, ...] = ()
    #: The newest of any class, healed or not.
    newest: Fault | None = None
    notes: tuple[str, ...] = ()
    #: Since when state and reason are as they are; None: since before it was watched.
    since: float | None = None
    uncorrectable: int | None = None
    energy_mj: int | None = None

    @property
    def state(self) -> DeviceState:
        """What placement goes by."""
        if not self.here:
            return DeviceState.MISSING
        return DeviceState.UNHEALTHY if self.faults else DeviceState.HEALTHY

    @property
    def worst(self) -> Fault | None:
        """Of those not healed: fatal before suspect, and the first of its class, which led to the others."""
        found = (one.fault for one in self.faults)
        return min(found, key=lambda one: _RANK[one.fault_class], default=None)

    @property
    def shown(self) -> Fault | None:
        """The fault to tell people of: why it is not healthy, or else the newest it had."""
        return self.worst or self.newest

    @property
    def reason(self) -> str | None:
        """Set unless healthy."""
        worst = self.worst
        if worst is not None:
            return worst.reason
        return None if self.here else "vanished"


def event(health: Health, fault: Fault) -> Health:
    """After the driver told of a fault."""
    after = replace(health, newest=fault)
    if fault.fault_class is FaultClass.APP:
        return after
    return _dated(health, replace(after, faults=_with(health.faults, fault)), fault.at)


def look(health: Health, sight: Sight, now: float, *, quiet_s: float = QUIET_S) -> Health:
    """After one reading."""
    if not sight.here:
        return _dated(health, replace(health, here=False, notes=()), now)
    before = health
    if _was_reset(health, sight):
        health = replace(health, faults=(), uncorrectable=None)
    faults = tuple(one for one in health.faults if _stands(one, sight, now, quiet_s))
    newest = health.newest
    for fault in _shown(health, sight, now):
        # A sign that only goes on is no new fault; its time is, so that its quiet begins when it ends.
        if fault.reason == COUNTED or all(one.fault.reason != fault.reason for one in health.faults):
            newest = fault
        faults = _with(faults, fault)
    after = replace(
        health, here=True, faults=faults, newest=newest, notes=_notes(sight),
        uncorrectable=sight.uncorrectable, energy_mj=sight.energy_mj,
    )  # fmt: skip
    return _dated(before, after, now)


def rebooted(health: Health) -> Health:
    """What an earlier boot of this machine left: the newest fault is remembered, nothing is held."""
    return Health(newest=health.newest)


def _was_reset(health: Health, sight: Sight) -> bool:
    if health.energy_mj is not None and sight.energy_mj is not None:
        return sight.energy_mj < health.energy_mj
    # No counter to ask: a device that answers again after it was away must have been started anew.
    return not health.here and sight.energy_mj is None


def _stands(one: Standing, sight: Sight, now: float, quiet_s: float) -> bool:
    fault = one.fault
    if fault.reason in sight.signs:
        return True
    if fault.fault_class is FaultClass.SUSPECT:
        return now - one.last < quiet_s
    return fault.reason not in SIGNS


def _shown(health: Health, sight: Sight, now: float) -> list[Fault]:
    """The signs, and a count of errors that has grown: a count that only stands is history."""
    shown = [sign(reason, now) for reason in sorted(sight.signs)]
    before = health.uncorrectable or 0
    if sight.uncorrectable is not None and sight.uncorrectable > before:
        shown.append(sign(COUNTED, now))
    return shown


def _notes(sight: Sight) -> tuple[str, ...]:
    if not sight.uncorrectable:
        return sight.notes
    return (*sight.notes, f"uncorrectable memory errors since the driver was loaded: {sight.uncorrectable}")


def _with(faults: tuple[Standing, ...], fault: Fault) -> tuple[Standing, ...]:
    """A newer time for the one that stands already, or one more at the end."""
    if any(one.fault.reason == fault.reason for one in faults):
        return tuple(
            replace(one, last=fault.at) if one.fault.reason == fault.reason else one for one in faults
        )
    return (*faults, Standing(fault, fault.at))


def _dated(before: Health, after: Health, now: float) -> Health:
    same = (before.state, before.reason) == (after.state, after.reason)
    return after if same else replace(after, since=now)
