"""Devices from configuration: for labs, tests, and engines on the CPU.

Their health follows a small file, so that a test can break a GPU while everything runs.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from llmgw_agent.adapters.files import write_json
from llmgw_agent.core.devices import Device, DeviceState
from llmgw_kit.errors import InvalidRequest, NotFound
from llmgw_kit.ids import DeviceId
from llmgw_kit.names import did_you_mean

log = logging.getLogger(__name__)


class DeclaredDevices:
    """`state_file` holds {"gpu-0": {"state": "unhealthy", "reason": "xid_79"}}; what it does not name
    is healthy. It need not exist."""

    def __init__(self, devices: Sequence[Device], state_file: Path) -> None:
        self._devices = tuple(devices)
        self._state_file = state_file
        self._last: dict[str, dict[str, str]] = {}

    async def read(self) -> tuple[Device, ...]:
        """All declared devices with the states of the file."""
        states = self._states()
        return tuple(self._with_state(one, states.get(one.device_id)) for one in self._devices)

    def _states(self) -> dict[str, dict[str, str]]:
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

    @staticmethod
    def _with_state(device: Device, told: Mapping[str, str] | None) -> Device:
        if not told:
            return device
        try:
            state = DeviceState(str(told.get("state", "healthy")).lower())
        except ValueError:
            state = DeviceState.UNHEALTHY
        reason = None if state is DeviceState.HEALTHY else str(told.get("reason", "declared"))
        return replace(device, state=state, reason=reason)

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
        known = [one.device_id for one in self._devices]
        if device_id not in known:
            raise NotFound(
                f"this node has no device {device_id!r}{did_you_mean(device_id, known)}",
                next_steps=[f"declared: {', '.join(known) or 'none'}"],
            )

    def close(self) -> None:
        """Nothing is held."""


def parse_state(word: str) -> DeviceState:
    """Raises InvalidRequest for an unknown word."""
    try:
        return DeviceState(word.lower())
    except ValueError:
        known = ", ".join(one.value for one in DeviceState)
        raise InvalidRequest(f"unknown device state {word!r}; known: {known}") from None
