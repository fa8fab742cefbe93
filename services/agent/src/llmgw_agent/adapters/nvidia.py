"""NVIDIA GPUs through NVML (nvidia-ml-py). Field names and codes: the NVML API reference.

NVML blocks, for seconds when a driver is in trouble, so it is called on a thread of its own.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from llmgw_agent.core.devices import Device, DeviceState, gpu_class_of, with_missing, xid_reason
from llmgw_kit.errors import NotFound, StartupError, Unavailable
from llmgw_kit.ids import DeviceId

log = logging.getLogger(__name__)

VENDOR = "nvidia"


#: The module pynvml, or what a test puts in its place. It has no types of its own.
Nvml = Any


def load_nvml() -> Nvml:
    """The real library. Raises StartupError when this machine has none."""
    import pynvml

    return pynvml


class NvidiaDevices:
    """All GPUs NVML shows, under their UUIDs. One that is gone stays on the list as MISSING."""

    def __init__(self, nvml: Nvml, *, ours: Callable[[int], bool | None]) -> None:
        """`ours` tells whether a pid belongs to an engine this agent started, None when it cannot tell.

        Raises StartupError when NVML cannot be used."""
        self._nvml = nvml
        self._ours = ours
        self._known: tuple[Device, ...] = ()
        self._xids: dict[str, str] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nvml")
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as e:
            raise StartupError(
                f"the NVIDIA management library cannot be used: {e}",
                next_steps=[
                    "install the NVIDIA driver, or give the container the NVIDIA runtime",
                    "on a node without NVIDIA GPUs set inventory: declared",
                ],
            ) from None
        self._driver = _text(nvml.nvmlSystemGetDriverVersion())
        self._events = self._listen()

    def _listen(self) -> Any:
        """Register for Xid events; None where the driver has none."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as e:
            log.warning("NVML tells no Xid events here (%s); a failing GPU shows only by its other signs", e)
            return None
        return events

    async def read(self) -> tuple[Device, ...]:
        """Raises Unavailable when the driver does not answer."""
        try:
            seen = await asyncio.get_running_loop().run_in_executor(self._thread, self._read)
        except self._nvml.NVMLError as e:
            raise Unavailable(f"NVML does not answer: {e}", code="nvml") from None
        self._known = with_missing(self._known, seen)
        return self._known

    def _read(self) -> tuple[Device, ...]:
        self._drain_events()
        found = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            device = self._device(index)
            if device is not None:
                found.append(device)
        return tuple(found)

    def _drain_events(self) -> None:
        if self._events is None:
            return
        nvml = self._nvml
        while True:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:
                return  # a time-out: nothing more has happened
            reason = xid_reason(int(event.eventData))
            if reason is not None:
                uuid = self._ask(nvml.nvmlDeviceGetUUID, event.device)
                log.error("GPU %s: Xid %d", uuid or "(does not say which)", int(event.eventData))
                if uuid is not None:
                    # For as long as this agent runs: what clears it is a reset, and a look by somebody.
                    self._xids.setdefault(_text(uuid), reason)

    def _device(self, index: int) -> Device | None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            name = _text(nvml.nvmlDeviceGetName(handle))
        except nvml.NVMLError as e:
            # Fallen off the bus: it still counts, and answers nothing.
            log.error("GPU %d does not answer: %s", index, e)
            return None
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        power_mw = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        reason = self._xids.get(uuid) or self._memory_fault(handle)
        return Device(
            device_id=DeviceId(uuid), index=index, gpu_class=gpu_class_of(name), vendor=VENDOR,
            memory_total_bytes=None if memory is None else int(memory.total),
            memory_used_bytes=None if memory is None else int(memory.used),
            foreign_used_bytes=self._foreign(handle),
            temperature_celsius=self._ask(nvml.nvmlDeviceGetTemperature, handle, 0),
            power_watts=None if power_mw is None else power_mw / 1000,
            driver_version=self._driver,
            state=DeviceState.HEALTHY if reason is None else DeviceState.UNHEALTHY, reason=reason,
        )  # fmt: skip

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """None where this device or driver does not tell."""
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None

    def _memory_fault(self, handle: Any) -> str | None:
        """Uncorrected ECC errors since the driver was loaded, or rows that could not be remapped."""
        nvml = self._nvml
        rows = self._ask(nvml.nvmlDeviceGetRemappedRows, handle)
        if rows is not None and rows[3]:
            return "row_remap_failed"
        errors = self._ask(
            nvml.nvmlDeviceGetTotalEccErrors,
            handle,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        )
        return "ecc_uncorrectable" if errors else None

    def _foreign(self, handle: Any) -> int | None:
        """Memory of processes that are not ours; None when of one of them neither can be told (another
        user's, or a container that sees other pids than NVML): part of a sum is not the sum."""
        processes = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        if processes is None:
            return None
        total = 0
        for one in processes:
            owned = self._ours(int(one.pid))
            if owned:
                continue
            if owned is None or one.usedGpuMemory is None:
                return None
            total += int(one.usedGpuMemory)
        return total

    def visible(self, device_ids: Sequence[DeviceId]) -> Mapping[str, str]:
        """CUDA numbers devices by speed unless told otherwise; UUIDs and the bus order leave no doubt."""
        known = {one.device_id for one in self._known if one.state is not DeviceState.MISSING}
        for one in device_ids:
            if one not in known:
                raise NotFound(f"this node has no device {one!r} now")
        # Empty hides them all: an engine that was given none must not find one by itself.
        return {"CUDA_VISIBLE_DEVICES": ",".join(device_ids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def close(self) -> None:
        """Let NVML go."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as e:
            log.warning("NVML did not shut down: %s", e)


def ours(leaders: Callable[[], Sequence[int]]) -> Callable[[int], bool | None]:
    """Whether a pid is in a session that one of our engines leads; None for a pid not to be seen here."""

    def check(pid: int) -> bool | None:
        try:
            return os.getsid(pid) in leaders()
        except ProcessLookupError:
            return None

    return check


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
