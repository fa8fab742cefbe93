"""What stops the lab before it starts anything: a clear line, exit 1, nothing left running."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw_kit.errors import StartupError
from llmgw_kit.testing.ports import free_ports
from llmgw_kit.testing.processes import Cage
from llmgw_lab import checks, leftovers
from llmgw_lab.layout import DEFAULT_PORTS, port_variable
from llmgw_lab.suite import command

ROOT = Path(__file__).parents[3]


def moved_ports() -> dict[str, str]:
    """Every listener of a lab on a port from the system, as environment."""
    ports = free_ports(len(DEFAULT_PORTS))
    return {port_variable(name): str(port) for name, port in zip(DEFAULT_PORTS, ports, strict=True)}


def run_lab(folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [command("llmgw-lab"), "--dir", str(folder), "--once", "--model", "tiny"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_taken_port_names_the_port_its_holder_and_what_moves_it(tmp_path: Path) -> None:
    environment = moved_ports()
    port = environment["LAB_ROUTER_PORT"]
    code = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); input()"
    holder = subprocess.Popen([sys.executable, "-c", code, port], stdin=subprocess.PIPE)
    try:
        while checks.holder_of(int(port)) is None:
            assert holder.poll() is None
        ended = run_lab(tmp_path / "lab", **environment)
    finally:
        holder.communicate(b"\n", timeout=10)
    assert ended.returncode == 1
    assert f"port {port} (router) is held by pid {holder.pid}: " in ended.stderr
    assert "LAB_ROUTER_PORT=" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not leftovers.marked_processes(tmp_path / "lab")


def test_a_second_lab_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with checks.lock_folder(tmp_path):
        ended = run_lab(tmp_path, **moved_ports())
    assert ended.returncode == 1
    assert f"another lab runs in {tmp_path} (pid {os.getpid()})" in ended.stderr


def test_a_bad_port_is_refused(tmp_path: Path) -> None:
    ended = run_lab(tmp_path, LAB_MIRROR_PORT="x")
    assert ended.returncode == 1
    assert "LAB_MIRROR_PORT=x: expected a port" in ended.stderr


@pytest.mark.parametrize("names", [("data",), ("lock", "data", "passwd")], ids=["no-lock", "a-strange-file"])
def test_a_folder_that_is_no_labs_is_refused_and_left_as_it_is(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).write_text("mine")
    ended = run_lab(tmp_path, **moved_ports())
    assert ended.returncode == 1
    assert f"{tmp_path} is not the folder of a lab: it holds {names[-1]}" in ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize(
    "names", [("data",), ("lock", "data", "passwd")], ids=["without-a-lock", "with-a-strange-file"]
)
def test_lab_clean_leaves_a_folder_that_is_no_labs(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text("mine")
    cleaned = subprocess.run(
        ["make", "-C", str(ROOT), "--silent", "lab-clean", f"LAB_DIR={tmp_path}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert cleaned.returncode != 0
    assert f"lab-clean: {tmp_path} " in cleaned.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_a_disk_without_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "NEEDED_BYTES", 1 << 62)
    with pytest.raises(StartupError, match=rf"MB are free under {tmp_path}; the lab writes up to"):
        checks.require_disk(tmp_path)


def test_marked_processes_of_an_earlier_lab_are_ended(cage: Cage, tmp_path: Path) -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    ours = cage.spawn("ours", sleeper, log=tmp_path / "a", env={leftovers.MARK: str(tmp_path)})
    other = cage.spawn("other", sleeper, log=tmp_path / "b", env={leftovers.MARK: str(tmp_path) + "2"})
    assert leftovers.end_leftovers(tmp_path) == [ours.pid]
    assert ours.join(10) == -9
    assert other.code is None
    other.stop()
