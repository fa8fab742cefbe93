"""Recorded courses of faulty GPUs, replayed through the real NVIDIA adapter; the format: traces/README.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw_agent.adapters.fault_memory import FaultMemory
from llmgw_agent.adapters.nvidia import NvidiaDevices
from llmgw_agent.core.devices import Device, Holder
from llmgw_agent.core.health import QUIET_S
from llmgw_kit.testing.clock import FakeClock
from tests.contract.agent.fake_nvml import FakeNvml, Gpu

TRACES = Path(__file__).parent / "traces"
START = 1_800_000_000.0


class Player:
    """One trace: the invented library, the agent of now, and what it said last."""

    def __init__(self, folder: Path) -> None:
        self.nvml = FakeNvml([])
        self.clock = FakeClock(unix_s=START)
        self.memory, self.boots = folder / "device_faults.json", 1
        self.provider: NvidiaDevices | None = None
        self.told: dict[str, Device] = {}
        self.expectations = 0

    async def play(self, line: str) -> None:
        word, *rest = line.split()
        match word:
            case "gpu":
                self.nvml.gpus.append(Gpu(rest[0], energy=None))
                self._set(rest[0], rest[1:])
            case "xid":
                gpu = self.gpu(rest[0]) if rest[0] != "?" else Gpu("?", nameless=True)
                self.nvml.pending.append((gpu, int(rest[1])))
            case "set":
                self._set(rest[0], rest[1:])
            case "reset":
                fresh = Gpu(rest[0], energy=1)
                self.nvml.gpus[self.nvml.gpus.index(self.gpu(rest[0]))] = fresh
            case "agent":
                self.provider = None
            case "machine":
                self.provider, self.boots = None, self.boots + 1
            case "look":
                self.told = {one.device_id: one for one in await self._agent().read()}
            case "expect":
                self._expect(line, rest)
            case _:
                assert word.startswith("@"), f"no such word: {line}"
                await self.clock.advance(START + float(word[1:]) - self.clock.unix_s())

    def gpu(self, name: str) -> Gpu:
        return next(one for one in self.nvml.gpus if one.uuid == name)

    def _set(self, name: str, pairs: list[str]) -> None:
        gpu = self.gpu(name)
        for pair in pairs:
            key, _, value = pair.partition("=")
            field = {"ecc": "ecc_errors"}.get(key, key)
            assert hasattr(gpu, field), f"no such thing: {key}"
            setattr(gpu, field, int(value))

    def _agent(self) -> NvidiaDevices:
        if self.provider is None:
            self.provider = NvidiaDevices(
                self.nvml, holder=lambda pid, size: Holder(pid, size, None, seen=True), clock=self.clock,
                memory=FaultMemory(self.memory, f"boot-{self.boots}"), quiet_s=QUIET_S,
            )  # fmt: skip
        return self.provider

    def _expect(self, line: str, rest: list[str]) -> None:
        self.expectations += 1
        device = self.told[rest[0]]
        plain = [one for one in rest[1:] if "=" not in one]
        assert plain == [device.state.value, *([device.reason] if device.reason else [])], line
        fault = device.fault
        said = {
            "class": fault and fault.fault_class.value,
            "since": None if device.since is None else f"{device.since - START:g}",
            "fault": fault and fault.reason,
            "notes": str(len(device.notes)),
        }
        for pair in rest[1:]:
            key, equals, value = pair.partition("=")
            if equals:
                assert said[key] == value, f"{line}: {key} is {said[key]}"


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.trace")), ids=lambda path: path.stem)
async def test_a_recorded_course_ends_in_the_states_it_should(path: Path, tmp_path: Path) -> None:
    player = Player(tmp_path)
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            try:
                await player.play(line)
            except AssertionError as e:
                raise AssertionError(f"{path.name}:{number}: {e}") from None
    assert player.expectations, "a trace that expects nothing proves nothing"
