"""One look at all GPUs through NVML. Called on one thread only; see `nvidia.py`.

Names and codes: the NVML API reference (docs.nvidia.com/deploy/nvml-api); clock event reasons, page
retirement and row remapping: its pages "Field Values", "Dynamic Page Retirement", "Row Remapper". NVML's
energy counter counts since the driver was last loaded, so one that shrinks tells of a reload or reset.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmgw_agent.core.devices import Device, gpu_class_of
from llmgw_agent.core.health import Sight
from llmgw_kit.ids import DeviceId

log = logging.getLogger(__name__)

VENDOR = "nvidia"

#: The module pynvml, or what a test puts in its place. It has no types of its own.
Nvml = Any

#: nvmlDeviceGpuRecoveryAction_t: what the driver asks for.
_RECOVERY = {
    1: "reset_required", 2: "reboot_required", 4: "reset_required", 6: "reset_required", 7: "reboot_required",
}  # fmt: skip
_RECOVERY_NOTES = {
    3: "the driver asks to end peer-to-peer work",
    5: "the driver asks to recover the IMEX domain",
}
#: nvmlClocksEventReasons: software and hardware thermal slowdown; hardware slowdown, power brake.
_THERMAL, _HARDWARE = 0x20 | 0x40, 0x8 | 0x80


@dataclass(frozen=True)
class Reading:
    """One GPU. `processes` are (pid, bytes or None), each pid once; None: the driver does not tell."""

    device: Device
    sight: Sight
    processes: tuple[tuple[int, int | None], ...] | None


@dataclass(frozen=True)
class Readings:
    """All that answered, and the Xid events since the last look: code and UUID, None where neither the
    event nor the device tells whose it is."""

    devices: tuple[Reading, ...]
    xids: tuple[tuple[int, DeviceId | None], ...]


class Reader:
    """Holds NVML. After an error of the library itself the next `read` starts it anew: a driver that was
    reloaded under us answers nothing else."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self.error: type[Exception] = nvml.NVMLError
        self._started = False
        self._driver = ""
        self._events: Any = None
        self._listened: set[str] = set()

    def start(self) -> None:
        """Raises NVMLError."""
        nvml = self._nvml
        nvml.nvmlInit()
        self._driver = _text(nvml.nvmlSystemGetDriverVersion())
        self._listened.clear()
        try:
            self._events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as e:
            log.warning("NVML tells no Xid events here (%s); a failing GPU shows only by its other signs", e)
            self._events = None
        self._started = True

    def stop(self) -> None:
        """Let the library go."""
        self._started = False
        try:
            if self._events is not None:
                self._nvml.nvmlEventSetFree(self._events)
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as e:
            log.warning("NVML did not shut down: %s", e)
        self._events = None

    def read(self) -> Readings:
        """Raises NVMLError when the driver as a whole does not answer."""
        if not self._started:
            self.start()
        try:
            count = int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError:
            self.stop()
            raise
        # Events first: a device that is read after its event cannot look healthier than it was told.
        xids = self._drain_events()
        found = [self._device(index) for index in range(count)]
        return Readings(tuple(one for one in found if one is not None), xids)

    def _drain_events(self) -> tuple[tuple[int, DeviceId | None], ...]:
        nvml, told = self._nvml, []
        while self._events is not None:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:
                break  # a time-out: nothing more has happened
            uuid = self._ask(nvml.nvmlDeviceGetUUID, event.device)
            told.append((int(event.eventData), None if uuid is None else DeviceId(_text(uuid))))
        return tuple(told)

    def _listen(self, handle: Any, uuid: str) -> None:
        """Once a device, also for one that came later or back."""
        if self._events is None or uuid in self._listened:
            return
        nvml = self._nvml
        try:
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        except nvml.NVMLError as e:
            log.warning("GPU %s tells no Xid events (%s)", uuid, e)
        self._listened.add(uuid)

    def _device(self, index: int) -> Reading | None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            name = _text(nvml.nvmlDeviceGetName(handle))
        except nvml.NVMLError as e:
            # Fallen off the bus: it still counts, and answers nothing.
            log.error("GPU %d does not answer: %s", index, e)
            return None
        self._listen(handle, uuid)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        power_mw = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        device = Device(
            device_id=DeviceId(uuid), index=index, gpu_class=gpu_class_of(name), vendor=VENDOR,
            memory_total_bytes=None if memory is None else int(memory.total),
            memory_used_bytes=None if memory is None else int(memory.used),
            temperature_celsius=self._ask(nvml.nvmlDeviceGetTemperature, handle, 0),
            power_watts=None if power_mw is None else power_mw / 1000, driver_version=self._driver,
        )  # fmt: skip
        return Reading(device, self._sight(handle), self._processes(handle))

    def _sight(self, handle: Any) -> Sight:
        nvml = self._nvml
        signs: set[str] = set()
        notes: list[str] = []
        # Corrected, uncorrected, pending, failed.
        rows = self._ask(nvml.nvmlDeviceGetRemappedRows, handle)
        if rows is not None and rows[3]:
            signs.add("row_remap_failed")
        if rows is not None and rows[2]:
            notes.append("a memory row is remapped at the next reset")
        if self._ask(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle):
            notes.append("a memory page is retired at the next reset")
        action = self._recovery(handle)
        if action in _RECOVERY:
            signs.add(_RECOVERY[action])
        if action in _RECOVERY_NOTES:
            notes.append(_RECOVERY_NOTES[action])
        slowed = self._ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
        if slowed & _THERMAL:
            notes.append("slowed down by heat")
        elif slowed & _HARDWARE:
            notes.append("slowed down by its power supply")
        return Sight(
            signs=frozenset(signs), notes=tuple(notes),
            uncorrectable=self._ask(
                nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            energy_mj=self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle),
        )  # fmt: skip

    def _recovery(self, handle: Any) -> int | None:
        """None where driver or library are too old to tell."""
        field = getattr(self._nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        values = None if field is None else self._ask(self._nvml.nvmlDeviceGetFieldValues, handle, [field])
        if not values or values[0].nvmlReturn != 0:
            return None
        return int(values[0].value.uiVal)

    def _processes(self, handle: Any) -> tuple[tuple[int, int | None], ...] | None:
        nvml = self._nvml
        computing = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        if computing is None:
            return None
        drawing = self._ask(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle) or []
        # A program that does both is on both lists with the same memory.
        found: dict[int, int | None] = {}
        for one in (*drawing, *computing):
            found[int(one.pid)] = None if one.usedGpuMemory is None else int(one.usedGpuMemory)
        return tuple(sorted(found.items()))

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """None where this device or driver does not tell."""
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
