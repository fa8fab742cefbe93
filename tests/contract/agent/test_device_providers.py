"""One suite for both providers of devices, then what only NVML can show."""

from __future__ import annotations

import ast
import asyncio
import json
import threading
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from llmgw_agent.adapters import nvml_reading
from llmgw_agent.adapters.declared import DeclaredDevices
from llmgw_agent.adapters.fault_memory import FaultMemory
from llmgw_agent.adapters.nvidia import PATIENCE_S, SILENT_S, NvidiaDevices
from llmgw_agent.core.devices import Device, DeviceState, ForeignProcess, Holder, OwnUse
from llmgw_agent.core.faults import FaultClass
from llmgw_agent.ports import DeviceProvider
from llmgw_kit.errors import NotFound, StartupError, Unavailable
from llmgw_kit.ids import DeviceId
from llmgw_kit.testing.clock import FakeClock
from tests.contract.agent.fake_nvml import FakeNvml, Gpu


def holder(pid: int, size: int | None) -> Holder:
    """Pid 7 is of an engine of ours; pids from 90 on cannot be seen."""
    return Holder(pid, size, 7 if pid == 7 else None, seen=pid < 90, name=f"p{pid}", user="eve")


def nvidia(
    nvml: FakeNvml, folder: Path, clock: FakeClock | None = None, *, boot: str = "b1"
) -> NvidiaDevices:
    """The real adapter over an invented library."""
    memory = FaultMemory(folder / "device_faults.json", boot)
    return NvidiaDevices(nvml, holder=holder, clock=clock or FakeClock(), memory=memory)


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
        self.declared = DeclaredDevices(devices, folder / "devices.json", FakeClock())
        self.provider = self.declared

    def break_second(self) -> None:
        self.declared.set_state("gpu-1", DeviceState.UNHEALTHY, "xid_79")

    def lose_second(self) -> None:
        self.declared.set_state("gpu-1", DeviceState.MISSING, "vanished")


class NvidiaBench(Bench):
    def __init__(self, folder: Path) -> None:
        self.nvml = FakeNvml([Gpu("GPU-a"), Gpu("GPU-b")])
        self.provider = nvidia(self.nvml, folder)

    def break_second(self) -> None:
        self.nvml.pending.append((self.nvml.gpus[1], 79))

    def lose_second(self) -> None:
        del self.nvml.gpus[1]


@pytest.fixture(params=["declared", "nvidia"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return DeclaredBench(tmp_path) if request.param == "declared" else NvidiaBench(tmp_path)


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


async def test_nvidia_shows_readings_and_unknown_ones_as_unknown(tmp_path: Path) -> None:
    gpu = Gpu("GPU-a", used=3 << 30, power_mw=None, ecc_errors=None)
    (device,) = await nvidia(FakeNvml([gpu]), tmp_path).read()
    assert (device.memory_used_bytes, device.temperature_celsius, device.driver_version) == (
        3 << 30,
        40,
        "570.1",
    )
    assert device.power_watts is None
    assert device.state is DeviceState.HEALTHY


async def test_nvidia_case_33_memory_of_ours_and_of_others_is_told_apart(tmp_path: Path) -> None:
    gpu = Gpu("GPU-a", processes=[(7, 10 << 30), (8, 2 << 30)], drawing=[(8, 2 << 30), (9, 1 << 30)])
    provider = nvidia(FakeNvml([gpu]), tmp_path)
    (device,) = await provider.read()
    assert device.own == (OwnUse(7, 10 << 30),)
    assert device.foreign == (
        ForeignProcess(8, "p8", "eve", 2 << 30),
        ForeignProcess(9, "p9", "eve", 1 << 30),
    )
    assert device.foreign_used_bytes == 3 << 30
    gpu.processes.append((10, None))
    assert (await provider.read())[0].foreign_used_bytes is None, "part of a sum is not the sum"
    gpu.processes[:], gpu.drawing[:] = [(7, None)], []
    assert (await provider.read())[0].foreign_used_bytes == 0
    gpu.processes.append((90, 5 << 30))
    (device,) = await provider.read()
    assert device.foreign_used_bytes is None, "whose it is cannot be told from in here"
    assert device.foreign == ()


async def test_nvidia_shows_engines_exactly_their_devices(tmp_path: Path) -> None:
    provider = nvidia(FakeNvml([Gpu("GPU-a"), Gpu("GPU-b")]), tmp_path)
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
        (Gpu("GPU-a", recovery=1), "reset_required"),
        (Gpu("GPU-a", recovery=2), "reboot_required"),
    ],
)
async def test_nvidia_faults_that_a_gpu_shows_are_unhealthy(gpu: Gpu, reason: str, tmp_path: Path) -> None:
    (device,) = await nvidia(FakeNvml([gpu]), tmp_path).read()
    assert (device.state, device.reason) == (DeviceState.UNHEALTHY, reason)


async def test_nvidia_xids_of_applications_are_no_fault_and_drivers_without_events_work(
    tmp_path: Path,
) -> None:
    nvml = FakeNvml([Gpu("GPU-a")])
    provider = nvidia(nvml, tmp_path)
    nvml.pending += [(nvml.gpus[0], 13), (nvml.gpus[0], 31)]
    assert (await provider.read())[0].state is DeviceState.HEALTHY
    quiet = nvidia(FakeNvml([Gpu("GPU-a")], events=False), tmp_path)
    assert (await quiet.read())[0].state is DeviceState.HEALTHY


async def test_nvidia_a_gpu_that_answers_nothing_is_missing_until_it_answers_again(tmp_path: Path) -> None:
    nvml = FakeNvml([Gpu("GPU-a"), Gpu("GPU-b")])
    provider = nvidia(nvml, tmp_path)
    await provider.read()
    nvml.gpus[0].lost = True
    nvml.pending.append((nvml.gpus[0], 79))
    assert [one.state for one in await provider.read()] == [DeviceState.MISSING, DeviceState.HEALTHY]
    with pytest.raises(NotFound):
        provider.visible([DeviceId("GPU-a")])
    nvml.gpus[0].lost = False
    assert [one.state for one in await provider.read()] == [DeviceState.HEALTHY] * 2


async def test_nvidia_a_driver_that_does_not_answer_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    nvml = FakeNvml([Gpu("GPU-a")])
    provider = nvidia(nvml, tmp_path)
    await provider.read()
    nvml.driver_hangs = True
    with pytest.raises(Unavailable, match="Driver Not Loaded"):
        await provider.read()
    nvml.driver_hangs = False
    assert (await provider.read())[0].state is DeviceState.HEALTHY
    provider.close()
    assert nvml.shut


def test_nvidia_without_the_library_is_a_start_up_fault_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="Shared Library Not Found") as told:
        nvidia(FakeNvml([], usable=False), tmp_path)
    assert any("inventory: declared" in step for step in told.value.next_steps)


async def test_nvidia_notes_hurt_nobody(tmp_path: Path) -> None:
    gpu = Gpu("GPU-a", remap_pending=True, slowed=0x40, recovery=3)
    (device,) = await nvidia(FakeNvml([gpu]), tmp_path).read()
    assert device.state is DeviceState.HEALTHY
    assert device.notes == (
        "a memory row is remapped at the next reset",
        "the driver asks to end peer-to-peer work",
        "slowed down by heat",
    )


async def test_nvidia_is_asked_from_one_thread_that_is_not_the_loops(tmp_path: Path) -> None:
    nvml = FakeNvml([Gpu("GPU-a")])
    provider = nvidia(nvml, tmp_path)
    await asyncio.gather(*(provider.read() for _ in range(5)))
    assert len(nvml.threads) == 1
    assert threading.get_ident() not in nvml.threads


async def test_nvidia_a_fallen_gpu_that_tells_no_name_is_known_by_its_absence(tmp_path: Path) -> None:
    nvml = FakeNvml([Gpu("GPU-a"), Gpu("GPU-b")])
    provider = nvidia(nvml, tmp_path)
    await provider.read()
    nvml.gpus[1].lost = nvml.gpus[1].nameless = True
    nvml.pending.append((nvml.gpus[1], 79))
    first, second = await provider.read()
    assert (first.state, first.reason) == (DeviceState.HEALTHY, None)
    assert (second.state, second.reason) == (DeviceState.MISSING, "xid_79")


async def test_nvidia_a_device_that_came_later_or_back_tells_its_events(tmp_path: Path) -> None:
    nvml = FakeNvml([Gpu("GPU-a")])
    provider = nvidia(nvml, tmp_path)
    await provider.read()
    nvml.gpus.append(Gpu("GPU-b"))
    await provider.read()
    assert nvml.registered == ["GPU-a", "GPU-b"]


async def test_nvidia_a_reloaded_driver_is_met_anew(tmp_path: Path) -> None:
    nvml = FakeNvml([Gpu("GPU-a", energy=500)])
    provider = nvidia(nvml, tmp_path)
    nvml.pending.append((nvml.gpus[0], 119))
    assert (await provider.read())[0].reason == "xid_119"
    nvml.driver_hangs = True
    for _ in range(2):
        with pytest.raises(Unavailable, match="Driver Not Loaded"):
            await provider.read()
    nvml.driver_hangs, nvml.gpus[0].energy = False, 3
    assert (await provider.read())[0].state is DeviceState.HEALTHY
    assert nvml.registered == ["GPU-a"]


async def test_nvidia_a_driver_that_hangs_is_a_fault_of_all_its_devices_in_the_end(tmp_path: Path) -> None:
    nvml, clock = FakeNvml([Gpu("GPU-a")]), FakeClock()
    provider = nvidia(nvml, tmp_path, clock)
    await provider.read()
    nvml.gate = threading.Event()
    try:
        told: list[Device] = []
        for _ in range(int(SILENT_S // PATIENCE_S) + 1):
            reading = asyncio.create_task(provider.read())
            await clock.until_asleep()
            await clock.advance(PATIENCE_S)
            try:
                told += await reading
            except Unavailable as e:
                assert "10 s" in e.text
        assert [(one.state, one.reason) for one in told] == [(DeviceState.UNHEALTHY, "driver_silent")] * 2
    finally:
        nvml.gate.set()
    (device,) = await provider.read()
    assert device.reason == "driver_silent", "suspect until it was quiet for a while"


async def test_nvidia_faults_outlive_the_agent_and_end_with_the_boot(tmp_path: Path) -> None:
    nvml = FakeNvml([Gpu("GPU-a", energy=500), Gpu("GPU-b", remap_failed=True)])
    nvml.pending.append((nvml.gpus[0], 48))
    before = await nvidia(nvml, tmp_path).read()
    nvml.gpus[0].energy = 700
    later = FakeClock(unix_s=1_800_000_900.0)
    after = await nvidia(nvml, tmp_path, later).read()
    assert [(one.reason, one.since) for one in after] == [
        ("xid_48", before[0].since),
        ("row_remap_failed", 1_800_000_900.0),
    ]
    after = await nvidia(nvml, tmp_path, later, boot="b2").read()
    assert [one.reason for one in after] == [None, "row_remap_failed"]
    assert after[0].fault == before[0].fault, "what it had is still told"
    (tmp_path / "device_faults.json").write_text('{"boot_id": "b1", "devices": {"GPU-a": 3}}')
    assert (await nvidia(nvml, tmp_path, later).read())[0].state is DeviceState.HEALTHY


async def test_declared_devices_show_class_since_notes_and_who_else_is_there(tmp_path: Path) -> None:
    clock = FakeClock()
    declared = DeclaredDevices(
        [Device(DeviceId("gpu-0"), 0, "LAB", "declared")], tmp_path / "devices.json", clock
    )
    assert [(one.since, one.fault, one.foreign_used_bytes) for one in await declared.read()] == [
        (None, None, None)
    ]
    told = {
        "gpu-0": {
            "state": "unhealthy", "reason": "xid_94", "notes": ["slowed down by heat"],
            "foreign": [{"pid": 7, "name": "python3", "user": "eve", "memory_bytes": 1 << 30}],
        }
    }  # fmt: skip
    (tmp_path / "devices.json").write_text(json.dumps(told))
    await clock.advance(5)
    (broken,) = await declared.read()
    assert broken.since == clock.unix_s()
    assert broken.fault is not None
    assert broken.fault.fault_class is FaultClass.SUSPECT
    assert broken.notes == ("slowed down by heat",)
    assert broken.foreign == (ForeignProcess(7, "python3", "eve", 1 << 30),)
    assert broken.foreign_used_bytes == 1 << 30
    await clock.advance(5)
    (tmp_path / "devices.json").write_text('{"gpu-0": {"foreign": 3}}')
    assert await declared.read() == (broken,), "what makes no sense changes nothing"
    (tmp_path / "devices.json").unlink()
    (healed,) = await declared.read()
    assert (healed.state, healed.since, healed.fault) == (
        DeviceState.HEALTHY,
        clock.unix_s(),
        broken.fault,
    )


async def test_nvidia_case_38_an_agent_starts_under_a_driver_that_does_not_answer(tmp_path: Path) -> None:
    nvml = FakeNvml([Gpu("GPU-a", energy=500)])
    before = await nvidia(nvml, tmp_path).read()
    nvml.usable = False
    again = nvidia(nvml, tmp_path)
    (device,) = await again.read()
    assert (device.device_id, device.gpu_class) == (before[0].device_id, "H100")
    assert (device.memory_total_bytes, device.memory_used_bytes) == (80 << 30, None)
    assert (device.state, device.reason) == (DeviceState.UNHEALTHY, "driver_silent")
    nvml.usable = True
    assert [(one.state, one.reason) for one in await again.read()] == [(DeviceState.HEALTHY, None)]


async def test_nvidia_a_gpu_taken_out_of_the_machine_is_forgotten_with_the_boot(tmp_path: Path) -> None:
    nvml = FakeNvml([Gpu("GPU-a"), Gpu("GPU-b")])
    await nvidia(nvml, tmp_path).read()
    del nvml.gpus[1]
    assert [one.state for one in await nvidia(nvml, tmp_path).read()] == [
        DeviceState.HEALTHY,
        DeviceState.MISSING,
    ]
    assert len(await nvidia(nvml, tmp_path, boot="b2").read()) == 1


def test_every_name_that_is_asked_of_the_library_exists_in_the_real_one() -> None:
    import pynvml

    asked: set[str] = set()
    for node in ast.walk(ast.parse(Path(nvml_reading.__file__).read_text())):
        if isinstance(node, ast.Attribute) and node.attr.lower().startswith("nvml"):
            asked.add(node.attr)
        if isinstance(node, ast.Constant) and str(node.value).startswith("NVML_FI"):
            asked.add(str(node.value))
    answer = dict(pynvml.c_nvmlFieldValue_t._fields_)
    assert {"nvmlReturn", "value"} <= answer.keys()
    asked.discard("nvmlReturn")
    assert len(asked) > 20
    assert {name for name in asked if not hasattr(pynvml, name)} == set()
    assert {name for name in asked if not hasattr(FakeNvml([]), name)} == set()
