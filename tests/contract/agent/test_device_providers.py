"""One suite for both providers of devices, then what only NVML can show."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from llmgw_agent.adapters.declared import DeclaredDevices
from llmgw_agent.adapters.nvidia import NvidiaDevices, ours
from llmgw_agent.core.devices import Device, DeviceState
from llmgw_agent.ports import DeviceProvider
from llmgw_kit.errors import NotFound, StartupError, Unavailable
from llmgw_kit.ids import DeviceId
from tests.contract.agent.fake_nvml import FakeNvml, Gpu


class Bench(ABC):
    """A node of two GPUs, and how each kind is broken."""

    provider: DeviceProvider

    @abstractmethod
    def break_second(self) -> None: ...

    @abstractmethod
    def lose_second(self) -> None: ...


class DeclaredBench(Bench):
    def __init__(self, folder: Path) -> None:
        devices = [Device(DeviceId(f"gpu-{i}"), i, "H100", "declared", 80 << 30) for i in range(2)]
        self.declared = DeclaredDevices(devices, folder / "devices.json")
        self.provider = self.declared

    def break_second(self) -> None:
        self.declared.set_state("gpu-1", DeviceState.UNHEALTHY, "xid_79")

    def lose_second(self) -> None:
        self.declared.set_state("gpu-1", DeviceState.MISSING, "vanished")


class NvidiaBench(Bench):
    def __init__(self) -> None:
        self.nvml = FakeNvml([Gpu("GPU-a"), Gpu("GPU-b")])
        self.provider = NvidiaDevices(self.nvml, ours=lambda pid: pid == 7)

    def break_second(self) -> None:
        self.nvml.pending.append((self.nvml.gpus[1], 79))

    def lose_second(self) -> None:
        del self.nvml.gpus[1]


@pytest.fixture(params=["declared", "nvidia"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return DeclaredBench(tmp_path) if request.param == "declared" else NvidiaBench()


async def test_devices_come_in_order_healthy_and_under_stable_names(bench: Bench) -> None:
    first, second = await bench.provider.read(), await bench.provider.read()
    assert [one.index for one in first] == [0, 1]
    assert [one.device_id for one in first] == [one.device_id for one in second]
    assert all(one.state is DeviceState.HEALTHY and one.reason is None for one in first)
    assert all(one.gpu_class == "H100" and one.memory_total_bytes == 80 << 30 for one in first)


async def test_a_broken_device_says_why_and_leaves_the_other_alone(bench: Bench) -> None:
    await bench.provider.read()
    bench.break_second()
    states = [(one.state, one.reason) for one in await bench.provider.read()]
    assert states == [(DeviceState.HEALTHY, None), (DeviceState.UNHEALTHY, "xid_79")]
    assert states == [(one.state, one.reason) for one in await bench.provider.read()], "it stays broken"


async def test_a_lost_device_is_missing_and_still_counted(bench: Bench) -> None:
    before = await bench.provider.read()
    bench.lose_second()
    after = await bench.provider.read()
    assert [one.device_id for one in after] == [one.device_id for one in before]
    assert (after[1].state, after[1].reason) == (DeviceState.MISSING, "vanished")


async def test_an_engine_sees_what_it_was_given_and_unknown_devices_are_refused(bench: Bench) -> None:
    devices = await bench.provider.read()
    assert isinstance(bench.provider.visible([devices[1].device_id]), dict)
    with pytest.raises(NotFound, match="no device 'gpu-77'"):
        bench.provider.visible([DeviceId("gpu-77")])
    bench.provider.close()


def test_declared_devices_hide_nothing_from_an_engine(tmp_path: Path) -> None:
    assert DeclaredBench(tmp_path).provider.visible([DeviceId("gpu-0")]) == {}


async def test_a_half_written_state_file_changes_nothing(tmp_path: Path) -> None:
    bench = DeclaredBench(tmp_path)
    bench.break_second()
    broken = await bench.provider.read()
    (tmp_path / "devices.json").write_text('{"gpu-1": {"sta')
    assert await bench.provider.read() == broken
    (tmp_path / "devices.json").unlink()
    assert (await bench.provider.read())[1].state is DeviceState.HEALTHY


async def test_nvidia_shows_readings_and_unknown_ones_as_unknown() -> None:
    gpu = Gpu("GPU-a", used=3 << 30, power_mw=None, ecc_errors=None)
    (device,) = await NvidiaDevices(FakeNvml([gpu]), ours=lambda _: False).read()
    assert (device.memory_used_bytes, device.temperature_celsius, device.driver_version) == (
        3 << 30,
        40,
        "570.1",
    )
    assert device.power_watts is None
    assert device.state is DeviceState.HEALTHY


async def test_nvidia_counts_as_foreign_what_is_not_ours_and_never_a_part_of_it() -> None:
    gpu = Gpu("GPU-a", processes=[(7, 10 << 30), (8, 2 << 30), (9, 1 << 30)])
    nvml = FakeNvml([gpu])
    provider = NvidiaDevices(nvml, ours=lambda pid: pid == 7)
    assert (await provider.read())[0].foreign_used_bytes == 3 << 30
    gpu.processes.append((10, None))
    assert (await provider.read())[0].foreign_used_bytes is None
    gpu.processes[:] = [(7, None)]
    assert (await provider.read())[0].foreign_used_bytes == 0
    contained = NvidiaDevices(nvml, ours=lambda _: None)
    assert (await contained.read())[0].foreign_used_bytes is None


async def test_nvidia_shows_engines_exactly_their_devices() -> None:
    provider = NvidiaDevices(FakeNvml([Gpu("GPU-a"), Gpu("GPU-b")]), ours=lambda _: False)
    await provider.read()
    assert provider.visible([DeviceId("GPU-b"), DeviceId("GPU-a")]) == {
        "CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert provider.visible([])["CUDA_VISIBLE_DEVICES"] == "", "none is none, not all"


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        (Gpu("GPU-a", ecc_errors=3), "ecc_uncorrectable"),
        (Gpu("GPU-a", remap_failed=True), "row_remap_failed"),
    ],
)
async def test_nvidia_memory_faults_are_unhealthy(gpu: Gpu, reason: str) -> None:
    (device,) = await NvidiaDevices(FakeNvml([gpu]), ours=lambda _: False).read()
    assert (device.state, device.reason) == (DeviceState.UNHEALTHY, reason)


async def test_nvidia_xids_of_applications_are_no_fault_and_drivers_without_events_work() -> None:
    nvml = FakeNvml([Gpu("GPU-a")])
    provider = NvidiaDevices(nvml, ours=lambda _: False)
    nvml.pending += [(nvml.gpus[0], 13), (nvml.gpus[0], 31)]
    assert (await provider.read())[0].state is DeviceState.HEALTHY
    quiet = NvidiaDevices(FakeNvml([Gpu("GPU-a")], events=False), ours=lambda _: False)
    assert (await quiet.read())[0].state is DeviceState.HEALTHY


async def test_nvidia_a_gpu_that_answers_nothing_is_missing_until_it_answers_again() -> None:
    nvml = FakeNvml([Gpu("GPU-a"), Gpu("GPU-b")])
    provider = NvidiaDevices(nvml, ours=lambda _: False)
    await provider.read()
    nvml.gpus[0].lost = True
    nvml.pending.append((nvml.gpus[0], 79))
    assert [one.state for one in await provider.read()] == [DeviceState.MISSING, DeviceState.HEALTHY]
    with pytest.raises(NotFound):
        provider.visible([DeviceId("GPU-a")])
    nvml.gpus[0].lost = False
    assert [one.state for one in await provider.read()] == [DeviceState.HEALTHY] * 2


async def test_nvidia_a_driver_that_does_not_answer_is_told_and_nothing_is_lost() -> None:
    nvml = FakeNvml([Gpu("GPU-a")])
    provider = NvidiaDevices(nvml, ours=lambda _: False)
    await provider.read()
    nvml.driver_hangs = True
    with pytest.raises(Unavailable, match="Driver Not Loaded"):
        await provider.read()
    nvml.driver_hangs = False
    assert (await provider.read())[0].state is DeviceState.HEALTHY
    provider.close()
    assert nvml.shut


def test_nvidia_without_the_library_is_a_start_up_fault_that_says_what_to_do() -> None:
    with pytest.raises(StartupError, match="Shared Library Not Found") as told:
        NvidiaDevices(FakeNvml([], usable=False), ours=lambda _: False)
    assert any("inventory: declared" in step for step in told.value.next_steps)


def test_pids_of_our_engines_are_known_by_their_session() -> None:
    mine = ours(lambda: [os.getsid(0)])
    assert mine(os.getpid())
    assert not ours(list)(os.getpid())
    assert mine(2**22 + 1) is None, "a pid that is not to be seen here"
