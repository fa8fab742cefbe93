"""Devices and their faults, remembered over a restart of the agent: that resets no GPU.

Faults are kept with the boot they were seen in; another boot has reset every device. What the devices are is
kept for a start under a driver that does not answer: the engines of such a node run on, and must be adopted.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgw_agent.adapters.files import read_json, write_json
from llmgw_agent.core.devices import Device
from llmgw_agent.core.faults import SIGNS, Fault, FaultClass
from llmgw_agent.core.health import COUNTED, Health, Standing, rebooted
from llmgw_kit.ids import DeviceId

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Remembered:
    """One device as an earlier agent knew it."""

    #: What it is; nothing it showed.
    device: Device
    health: Health
    #: False: the machine was restarted since.
    this_boot: bool = True


class FaultMemory:
    """One small file. What the devices show by themselves is not in it: they show it again."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._written: object = None

    def read(self) -> dict[DeviceId, Remembered]:
        """By device. A file that cannot be read is told and means: nothing is remembered."""
        try:
            plain = read_json(self._path) or {"boot_id": None, "devices": {}}
            found = {DeviceId(name): _from_plain(name, one) for name, one in plain["devices"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
            log.error("device faults %s cannot be read (%s); none is remembered", self._path, e)
            return {}
        if plain["boot_id"] != self._boot_id:
            return {
                name: Remembered(one.device, rebooted(one.health), this_boot=False)
                for name, one in found.items()
            }
        return found

    def keep(self, devices: Mapping[DeviceId, Remembered]) -> None:
        """Written when a device or a fault came or went; a disk that refuses is told, and tried again."""
        brief = {name: _brief(one.health) for name, one in devices.items()}
        if brief == self._written:
            return
        plain = {"boot_id": self._boot_id, "devices": {name: _plain(one) for name, one in devices.items()}}
        try:
            write_json(self._path, plain)
        except OSError as e:
            log.error("device faults cannot be written to %s: %s", self._path, e.strerror)
            return
        self._written = brief


def _lasting(health: Health) -> tuple[Standing, ...]:
    return tuple(one for one in health.faults if one.fault.reason not in SIGNS or one.fault.reason == COUNTED)


def _brief(health: Health) -> object:
    return (_lasting(health), health.newest, health.uncorrectable)


def _plain(one: Remembered) -> dict[str, Any]:
    device, health = one.device, one.health
    return {
        "index": device.index,
        "gpu_class": device.gpu_class,
        "vendor": device.vendor,
        "memory_total_bytes": device.memory_total_bytes,
        "faults": [{**_fault(one.fault), "last": one.last} for one in _lasting(health)],
        "newest": None if health.newest is None else _fault(health.newest),
        "since": health.since if _lasting(health) else None,
        "uncorrectable": health.uncorrectable,
        "energy_mj": health.energy_mj,
    }


def _fault(one: Fault) -> dict[str, Any]:
    return {"class": one.fault_class.value, "reason": one.reason, "text": one.text, "at": one.at}


def _from_plain(name: str, plain: dict[str, Any]) -> Remembered:
    device = Device(
        DeviceId(name), int(plain["index"]), str(plain["gpu_class"]), str(plain["vendor"]),
        memory_total_bytes=plain["memory_total_bytes"],
    )  # fmt: skip
    health = Health(
        faults=tuple(Standing(_fault_from(one), float(one["last"])) for one in plain["faults"]),
        newest=None if plain["newest"] is None else _fault_from(plain["newest"]),
        since=plain["since"], uncorrectable=plain["uncorrectable"], energy_mj=plain["energy_mj"],
    )  # fmt: skip
    return Remembered(device, health)


def _fault_from(plain: dict[str, Any]) -> Fault:
    return Fault(FaultClass(plain["class"]), plain["reason"], plain["text"], float(plain["at"]))
