"""What the agent makes of its settings and of the machine it is on."""

import json
import socket
import sys
from pathlib import Path

import pytest
import yaml

from llmgw_agent.adapters import machine, procfs
from llmgw_agent.adapters.ports import check_free
from llmgw_agent.settings import AgentSettings
from llmgw_kit.errors import Conflict, InvalidRequest, StartupError
from llmgw_kit.settings import load
from tests.integration.agent.agent_bench import Agents


def settings(**flags: object) -> AgentSettings:
    return load(AgentSettings, config=None, flags=flags)


def test_devices_of_a_file_with_sizes_and_names(tmp_path: Path) -> None:
    config = tmp_path / "agent.yaml"
    config.write_text(
        "node_id: n1\nengine_ports: 20000 - 20010\ndisk_reserve: 2GiB\n"
        "devices:\n  - {gpu_class: H100, memory_bytes: 80GiB}\n  - {id: b, gpu_class: L4, memory: 24}\n"
    )
    made = load(AgentSettings, config=config, flags={})
    assert [(d.device_id, d.index, d.gpu_class, d.memory_total_bytes) for d in made.declared()] == [
        ("gpu-0", 0, "H100", 80 << 30),
        ("b", 1, "L4", 24),
    ]
    assert (made.port_range, made.disk_reserve) == ((20000, 20010), 2 << 30)


def test_devices_of_the_environment_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGW_AGENT_DEVICES", json.dumps([{"gpu_class": "LAB-24G", "memory_bytes": 5}]))
    monkeypatch.setenv("LLMGW_AGENT_CONTROLLER", "a:1,b:2")
    made = settings()
    assert made.declared()[0].memory_total_bytes == 5
    assert made.controllers == ("a:1", "b:2")


def test_devices_come_from_nvml_unless_they_are_declared() -> None:
    assert settings().provider == "nvidia"
    assert settings(devices=[{"gpu_class": "X"}]).provider == "declared"
    assert settings(inventory="declared").provider == "declared"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"engine_ports": "20000"}, "expected FIRST-LAST"),
        ({"devices": [{"gpu_class": "X", "memory_bytes": "lots"}]}, "no size"),
        ({"devices": [{"gpu_class": "X", "colour": "red"}]}, "Extra inputs are not permitted"),
        ({"devices": [{"gpu_class": "X"}, {"id": "gpu-0", "gpu_class": "X"}]}, "twice: gpu-0"),
        ({"controller": ""}, "is empty"),
        ({"inventory": "amd"}, "'declared' or 'nvidia'"),
    ],
)
def test_settings_that_cannot_be_meant(flags: dict[str, object], said: str) -> None:
    with pytest.raises(StartupError, match=said):
        settings(**flags)


async def test_print_config_is_a_file_it_can_be_given_back(agents: Agents) -> None:
    status, out = await agents.run("serve", "--print-config", "--node-id", "other")
    assert status == 0
    shown = yaml.safe_load(out)
    assert shown["node_id"] == "other"
    again = agents.folder / "again.yaml"
    again.write_text(out)
    status, second = await agents.run("serve", "--config", str(again), "--print-config")
    assert status == 0, second
    # The environment stands above a file, so only the flag's value differs.
    assert yaml.safe_load(second) == shown | {"node_id": "node-t"}


def test_engines_listen_where_they_are_advertised() -> None:
    assert machine.listen_host(None, "10.1.2.3") == "10.1.2.3"
    assert machine.listen_host(None, "fd00::1") == "fd00::1"
    assert machine.listen_host(None, "node-7.example") == "0.0.0.0"
    assert machine.listen_host("0.0.0.0", "10.1.2.3") == "0.0.0.0"
    assert machine.connect_host("0.0.0.0") == "127.0.0.1"
    assert machine.connect_host("::") == "::1"
    assert machine.connect_host("10.1.2.3") == "10.1.2.3"


def test_the_management_address_is_an_interfaces_own() -> None:
    assert machine.management_address("lo", None) == "127.0.0.1"
    assert machine.management_address("lo", "node-7") == "node-7"
    found = machine.management_address(None, None)
    with socket.socket() as probe:
        probe.bind((found, 0))


def test_engine_ports_in_the_kernels_range_are_refused() -> None:
    low, high = procfs.ephemeral_ports() or (0, 0)
    assert low > 24999, "the default stays below it"
    machine.check_engine_ports(20000, low - 1)
    for first, last in ((20000, low), (high, 65535), (low + 1, low + 2)):
        with pytest.raises(StartupError, match="overlap the kernel's ephemeral range"):
            machine.check_engine_ports(first, last)


def test_engines_that_are_here_are_found() -> None:
    found = machine.engines_here(sys.executable, "no-such-vllm", "no-such-python")
    assert found == ("llamacpp", "command")
    assert "llamacpp" not in machine.engines_here("/usr/bin/false", "no-such-vllm", "no-such-python")
    assert "vllm" in machine.engines_here("/usr/bin/false", "/bin/sh", "no-such-python")


def test_a_port_is_free_taken_or_not_ours_to_have() -> None:
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        port = first.getsockname()[1]
        with pytest.raises(Conflict, match=f"port {port}") as told:
            check_free("127.0.0.1", {"http": port})
        assert told.value.code == "port_taken"
    check_free("127.0.0.1", {"http": port, "rendezvous": port})
    with pytest.raises(InvalidRequest, match="engines cannot listen"):
        check_free("203.0.113.7", {"http": port})
    with pytest.raises(InvalidRequest, match="engines cannot listen"):
        check_free("no-such-host.invalid", {"http": port})


def test_a_listener_that_shares_its_port_counts_as_taken() -> None:
    with socket.socket() as first:
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        first.bind(("127.0.0.1", 0))
        first.listen()
        with pytest.raises(Conflict):
            check_free("127.0.0.1", {"http": first.getsockname()[1]})


def test_a_port_that_a_connection_of_somebody_sits_on_is_taken() -> None:
    """The kernel gives outgoing connections a port; an engine could not listen there."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
        with pytest.raises(Conflict):
            check_free("127.0.0.1", {"http": client.getsockname()[1]})
