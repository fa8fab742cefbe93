"""Devices from configuration: for labs, tests, and engines on the CPU.

Their health follows a small file, looked at as often as real devices are, so that a lab or a test can break
a GPU, or put somebody else on it, while everything runs.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmgw_agent.adapters.files import write_json
from llmgw_agent.core.devices import Device, DeviceState, ForeignProcess
from llmgw_agent.core.faults import named
from llmgw_kit.clock import Clock
from llmgw_kit.errors import InvalidRequest, NotFound
from llmgw_kit.ids import DeviceId
from llmgw_kit.names import did_you_mean

log = logging.getLogger(__name__)


class DeclaredDevices:
    """`state_file` holds {"gpu-0": {"state": "unhealthy", "reason": "xid_79"}}; what it does not name
    is healthy. It need not exist. Besides `state` (healthy, unhealthy, missing) and `reason` an entry may
    hold `notes` (texts) and `foreign` ([{"pid": 7, "name": "python3", "user": "eve", "memory_bytes": 9}])."""

    def __init__(self, devices: Sequence[Device], state_file: Path, clock: Clock) -> None:
        self._devices = {one.device_id: one for one in devices}
        self._state_file = state_file
        self._clock = clock
        self._last: dict[str, Any] = {}

    async def read(self) -> tuple[Device, ...]:
        """All declared devices with the states of the file."""
        states, now = self._states(), self._clock.unix_s()
        for name, before in self._devices.items():
            told = states.get(name)
            try:
                after = _told(before, told if isinstance(told, dict) else {}, now)
            except (TypeError, ValueError, KeyError, AttributeError) as e:
                log.warning("device states %s: %s makes no sense (%r)", self._state_file, name, e)
                continue
            self._devices[name] = after
        return tuple(self._devices.values())

    def _states(self) -> dict[str, Any]:
        try:
            states = json.loads(self._state_file.read_text())
            if not isinstance(states, dict):
                raise ValueError("it is no object")
        except FileNotFoundError:
            states = {}
        except (OSError, ValueError) as e:
            # Somebody is writing it: the last states that could be read stand until then.
            log.warning("device states %s cannot be read: %s", self._state_file, e)
            return self._last
        self._last = states
        return self._last

    def set_state(self, device_id: str, state: DeviceState, reason: str | None) -> None:
        """Change the file. Raises NotFound for a device that was not declared."""
        self._known(device_id)
        states = {**self._states(), device_id: {"state": state.value, "reason": reason or "declared"}}
        if state is DeviceState.HEALTHY:
            del states[device_id]
        write_json(self._state_file, states)

    def visible(self, device_ids: Sequence[DeviceId]) -> Mapping[str, str]:
        """Nothing to hide: these devices do not exist."""
        for one in device_ids:
            self._known(one)
        return {}

    def _known(self, device_id: str) -> None:
        known = list(self._devices)
        if device_id not in known:
            raise NotFound(
                f"this node has no device {device_id!r}{did_you_mean(device_id, known)}",
                next_steps=[f"declared: {', '.join(known) or 'none'}"],
            )

    def close(self) -> None:
        """Nothing is held."""


def _told(device: Device, told: Mapping[str, Any], now: float) -> Device:
    """As the file has it now; `since` and the fault begin where state and reason change."""
    try:
        state = DeviceState(str(told.get("state", "healthy")).lower())
    except ValueError:
        state = DeviceState.UNHEALTHY
    reason = None if state is DeviceState.HEALTHY else str(told.get("reason", "declared"))
    foreign = tuple(
        ForeignProcess(int(one["pid"]), one.get("name"), one.get("user"), one.get("memory_bytes"))
        for one in told.get("foreign", ())
    )
    sizes = [one.memory_bytes for one in foreign]
    known = [int(size) for size in sizes if size is not None]
    foreign_bytes = None if len(known) < len(sizes) or not sizes else sum(known)
    after = replace(
        device, foreign=foreign, foreign_used_bytes=foreign_bytes,
        notes=tuple(str(note) for note in told.get("notes", ())),
    )  # fmt: skip
    if (state, reason) == (device.state, device.reason):
        return after
    fault = device.fault if reason is None else named(reason, now)
    return replace(after, state=state, reason=reason, since=now, fault=fault)


def parse_state(word: str) -> DeviceState:
    """Raises InvalidRequest for an unknown word."""
    try:
        return DeviceState(word.lower())
    except ValueError:
        known = ", ".join(one.value for one in DeviceState)
        raise InvalidRequest(f"unknown device state {word!r}; known: {known}") from None
