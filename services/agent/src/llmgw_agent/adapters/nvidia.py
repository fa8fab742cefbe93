"""NVIDIA GPUs through NVML (nvidia-ml-py): what each is and shows, and whether it is fit for work.

NVML blocks, for seconds when a driver is in trouble and for ever when it hangs, so one thread does nothing
but ask it (`nvml_reading.py`). Everything else, whose a process is included, is decided on the event loop:
no other state of the agent is touched from that thread.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

from llmgw_agent.adapters.fault_memory import Remembered
from llmgw_agent.adapters.nvml_reading import Nvml, Reader, Readings
from llmgw_agent.core.devices import Device, DeviceState, Holder, shared_out
from llmgw_agent.core.faults import sign, xid
from llmgw_agent.core.health import QUIET_S, Health, Sight, event, look
from llmgw_kit.clock import Clock
from llmgw_kit.errors import NotFound, StartupError, Unavailable
from llmgw_kit.ids import DeviceId

log = logging.getLogger(__name__)

#: Asking eight GPUs everything takes some milliseconds each; longer and we go on with what was seen last.
PATIENCE_S = 10.0
#: A driver that has not answered for so long is a fault of all its devices.
SILENT_S = 60.0


def load_nvml() -> Nvml:
    """The real library. Raises StartupError when this machine has none."""
    import pynvml

    return pynvml


class Remembers(Protocol):
    """Devices and faults over a restart of the agent."""

    def read(self) -> dict[DeviceId, Remembered]: ...
    def keep(self, devices: Mapping[DeviceId, Remembered]) -> None: ...


class NvidiaDevices:
    """All GPUs NVML shows, under their UUIDs. One that is gone stays on the list as MISSING."""

    def __init__(
        self, nvml: Nvml, *, holder: Callable[[int, int | None], Holder], clock: Clock,
        memory: Remembers, quiet_s: float = QUIET_S,
    ) -> None:  # fmt: skip
        """`holder` tells whose a pid is. Raises StartupError when NVML cannot be used and this node has never
        shown a GPU: one that has may be running engines, and a driver that was upgraded under them."""
        self._holder, self._clock, self._memory, self._quiet_s = holder, clock, memory, quiet_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nvml")
        self._one_reader = asyncio.Lock()
        self._asking: asyncio.Future[Readings] | None = None
        #: Monotonic, of the first question that was not answered since the last answer.
        self._unanswered_s: float | None = None
        #: NVML has answered this agent once.
        self._answered = False
        self._reader = Reader(nvml)
        remembered = memory.read()
        self._known = {name: one.device for name, one in remembered.items()}
        self._health = {name: one.health for name, one in remembered.items()}
        #: Gone with an earlier boot, perhaps for good: only the first answer tells.
        self._unsure = {name for name, one in remembered.items() if not one.this_boot}
        if remembered:
            return  # asked first by `read`, on its thread: it may hang
        try:
            self._reader.start()
        except nvml.NVMLError as e:
            raise StartupError(
                f"the NVIDIA management library cannot be used: {e}",
                next_steps=[
                    "install the NVIDIA driver, or give the container the NVIDIA runtime",
                    "on a node without NVIDIA GPUs set inventory: declared",
                ],
            ) from None

    async def read(self) -> tuple[Device, ...]:
        """Raises Unavailable when the driver does not answer, and it has not been silent for long."""
        async with self._one_reader:
            return await self._read()

    async def _read(self) -> tuple[Device, ...]:
        asked_s = self._clock.monotonic_s()
        try:
            readings = await self._ask()
        except Unavailable as e:
            self._unanswered_s = asked_s if self._unanswered_s is None else self._unanswered_s
            if self._known and not self._answered:
                log.error("%s; the GPUs are those of before, and unhealthy", e.text)
                return tuple(
                    replace(one, state=DeviceState.UNHEALTHY, reason="driver_silent") for one in self._told()
                )
            if self._clock.monotonic_s() - self._unanswered_s < SILENT_S or not self._known:
                raise
            log.error("%s; its GPUs are taken for unhealthy", e.text)
            fault = sign("driver_silent", self._clock.unix_s())
            for name in self._known:
                self._health[name] = event(self._health[name], fault)
            return self._told()
        self._unanswered_s, self._answered = None, True
        self._take(readings)
        return self._told()

    async def _ask(self) -> Readings:
        """One question at a time: a hung one is waited for, not asked beside."""
        if self._asking is None:
            self._asking = asyncio.get_running_loop().run_in_executor(self._thread, self._reader.read)
        timer = asyncio.create_task(self._clock.sleep(PATIENCE_S))
        try:
            waited: set[asyncio.Future[Any]] = {self._asking, timer}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)
        if not self._asking.done():
            raise Unavailable(f"NVML has not answered for {PATIENCE_S:g} s", code="nvml")
        asking, self._asking = self._asking, None
        try:
            return asking.result()
        except self._reader.error as e:
            raise Unavailable(f"NVML does not answer: {e}", code="nvml") from None

    def _take(self, readings: Readings) -> None:
        now = self._clock.unix_s()
        here = {one.device.device_id: one for one in readings.devices}
        for name, reading in here.items():
            shared = None
            if reading.processes is not None:
                shared = shared_out(self._holder(pid, size) for pid, size in reading.processes)
            self._known[name] = replace(
                reading.device, foreign_used_bytes=shared.foreign_bytes if shared else None,
                foreign=shared.foreign if shared else (), own=shared.own if shared else (),
            )  # fmt: skip
        for name in self._unsure - here.keys():
            del self._known[name], self._health[name]
        self._unsure = set()
        gone = self._known.keys() - here.keys()
        for code, told in readings.xids:
            # A GPU that fell off the bus may not even tell its name any more.
            named = [told] if told is not None else sorted(gone)
            log.error("GPU %s: Xid %d", ", ".join(named) or "(does not say which)", code)
            for one in named:
                self._health[one] = event(self._health.get(one, Health()), xid(code, now))
        for name in self._known:
            sight = here[name].sight if name in here else Sight(here=False)
            before = self._health.get(name, Health())
            after = look(before, sight, now, quiet_s=self._quiet_s)
            if (before.state, before.reason) != (after.state, after.reason):
                log.warning("GPU %s: %s %s", name, after.state.value, after.reason or "")
            self._health[name] = after
        self._memory.keep(
            {name: Remembered(device, self._health[name]) for name, device in self._known.items()}
        )

    def _told(self) -> tuple[Device, ...]:
        told = [_with_health(device, self._health[name]) for name, device in self._known.items()]
        return tuple(sorted(told, key=lambda one: (one.index, one.device_id)))

    def visible(self, device_ids: Sequence[DeviceId]) -> Mapping[str, str]:
        """CUDA numbers devices by speed unless told otherwise; UUIDs and the bus order leave no doubt."""
        for one in device_ids:
            if one not in self._known or not self._health[one].here:
                raise NotFound(f"this node has no device {one!r} now")
        # Empty hides them all: an engine that was given none must not find one by itself.
        return {"CUDA_VISIBLE_DEVICES": ",".join(device_ids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def close(self) -> None:
        """Let NVML go; not waited for, as a hung driver would never let us."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._asking is None:
            self._reader.stop()


def _with_health(device: Device, health: Health) -> Device:
    told = replace(
        device, state=health.state, reason=health.reason, since=health.since, fault=health.shown,
        notes=health.notes,
    )  # fmt: skip
    if health.state is not DeviceState.MISSING:
        return told
    # Nothing it last showed is true any more.
    return replace(
        told, memory_used_bytes=None, foreign_used_bytes=None, temperature_celsius=None, power_watts=None,
        foreign=(), own=(),
    )  # fmt: skip
