"""A pynvml-shaped module over invented GPUs: the same names, the same kinds of answers and errors."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As pynvml raises it."""


@dataclass
class Gpu:
    """One invented GPU, changed by tests."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    total: int = 80 << 30
    used: int = 1 << 30
    lost: bool = False
    #: It does not even tell its name any more.
    nameless: bool = False
    remap_failed: bool = False
    remap_pending: bool = False
    #: nvmlDeviceGpuRecoveryAction_t; None: this driver does not tell.
    recovery: int | None = None
    #: nvmlClocksEventReasons.
    slowed: int = 0
    #: mJ since the driver was loaded; None: not supported.
    energy: int | None = None
    ecc_errors: int | None = 0
    temperature: int = 40
    power_mw: int | None = 72_000
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    drawing: list[tuple[int, int | None]] = field(default_factory=list)


class FakeNvml:
    """Stands where the module `pynvml` does."""

    NVMLError = NVMLError
    nvmlEventTypeXidCriticalError = 8
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230

    def __init__(self, gpus: list[Gpu], *, usable: bool = True, events: bool = True) -> None:
        self.gpus = gpus
        self.usable = usable
        self.events_supported = events
        self.pending: list[tuple[Gpu, int]] = []
        self.driver_hangs = False
        self.shut = False
        #: Set by a test that wants calls to hang until it lets go.
        self.gate: threading.Event | None = None
        #: A question asked after nvmlShutdown, or from two threads at a time, is a bug of ours.
        self.open = False
        self.stale = False
        self.threads: set[int] = set()
        self.registered: list[str] = []

    def nvmlInit(self) -> None:
        if not self.usable:
            raise NVMLError("NVML Shared Library Not Found")
        if self.driver_hangs:
            raise NVMLError("Driver Not Loaded")
        self.open, self.stale = True, False

    def nvmlShutdown(self) -> None:
        self.shut, self.open = True, False

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.1"

    def nvmlDeviceGetCount(self) -> int:
        assert self.open, "asked of a library that was shut down"
        self.threads.add(threading.get_ident())
        if self.gate is not None:
            self.gate.wait()
        if self.driver_hangs:
            self.stale = True
            raise NVMLError("Driver Not Loaded")
        if self.stale:
            raise NVMLError("Uninitialized")  # of the driver that was: only another nvmlInit helps
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        return self._alive(self.gpus[index])

    @staticmethod
    def _alive(gpu: Gpu) -> Gpu:
        if gpu.lost:
            raise NVMLError("GPU is lost")
        return gpu

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        if gpu.nameless:
            raise NVMLError("Unknown Error")
        return self._alive(gpu).uuid

    def nvmlDeviceGetName(self, gpu: Gpu) -> bytes:
        return gpu.name.encode()  # some versions answer bytes

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu) -> Any:
        return SimpleNamespace(total=gpu.total, used=gpu.used)

    def nvmlDeviceGetPowerUsage(self, gpu: Gpu) -> int:
        if gpu.power_mw is None:
            raise NVMLError("Not Supported")
        return gpu.power_mw

    def nvmlDeviceGetTemperature(self, gpu: Gpu, sensor: int) -> int:
        assert sensor == 0
        return gpu.temperature

    def nvmlDeviceGetRemappedRows(self, gpu: Gpu) -> list[int]:
        return [0, 0, int(gpu.remap_pending), int(gpu.remap_failed)]

    def nvmlDeviceGetRetiredPagesPendingStatus(self, gpu: Gpu) -> int:
        raise NVMLError("Not Supported")

    def nvmlDeviceGetFieldValues(self, gpu: Gpu, fields: list[int]) -> list[Any]:
        assert fields == [self.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        known = gpu.recovery is not None
        return [SimpleNamespace(nvmlReturn=0 if known else 3, value=SimpleNamespace(uiVal=gpu.recovery or 0))]

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: Gpu) -> int:
        return gpu.slowed

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: Gpu) -> int:
        if gpu.energy is None:
            raise NVMLError("Not Supported")
        return gpu.energy

    def nvmlDeviceGetTotalEccErrors(self, gpu: Gpu, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0)
        if gpu.ecc_errors is None:
            raise NVMLError("Not Supported")
        return gpu.ecc_errors

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Gpu) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.processes]

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: Gpu) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.drawing]

    def nvmlEventSetCreate(self) -> object:
        if not self.events_supported:
            raise NVMLError("Not Supported")
        return object()

    def nvmlDeviceRegisterEvents(self, gpu: Gpu, kinds: int, events: object) -> None:
        assert kinds == self.nvmlEventTypeXidCriticalError
        self.registered.append(gpu.uuid)

    def nvmlEventSetFree(self, events: object) -> None:
        self.registered.clear()

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> Any:
        if not self.pending:
            raise NVMLError("Timeout")
        gpu, code = self.pending.pop(0)
        return SimpleNamespace(device=gpu, eventData=code)
