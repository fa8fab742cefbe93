"""The lab as a person runs it: it answers and ends, or is ended; nothing of it is ever left."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from llmgw_kit.testing.ports import free_ports
from llmgw_lab.layout import DEFAULT_PORTS, port_variable
from llmgw_lab.leftovers import marked_processes
from llmgw_lab.suite import command

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
UP = "The lab is up."
NODES = ("lab-1", "lab-2")


class Lab:
    """One `llmgw-lab` process with its output in a file."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder, self.out = folder / "lab", folder / "out"
        ports = zip(DEFAULT_PORTS, free_ports(len(DEFAULT_PORTS)), strict=True)
        environment = os.environ | {port_variable(name): str(port) for name, port in ports}
        with self.out.open("w") as out:
            self.process = subprocess.Popen(
                [command("llmgw-lab"), "--dir", str(self.folder), "--model", "tiny", *flags],
                env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        self.seen: set[psutil.Process] = set()

    @property
    def text(self) -> str:
        return self.out.read_text()

    def ctl(self, *words: str) -> str:
        """What llmgwctl says, with the addresses that the lab has told."""
        told = re.search(r"llmgwctl --controller (\S+) status", self.text)
        assert told is not None, self.text
        argv = [command("llmgwctl"), "--controller", told[1], *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False).stdout

    def look(self) -> None:
        """Note every process that is below us now."""
        try:
            self.seen |= set(psutil.Process(self.process.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return

    def named(self, word: str) -> list[psutil.Process]:
        """Those of them that run and have the word in their command line."""
        found = []
        for process in self.seen:
            with suppress(psutil.NoSuchProcess):
                if any(word in part for part in process.cmdline()):
                    found.append(process)
        return found

    def until(self, condition: Callable[[], bool], within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, self.text
            self.look()
            time.sleep(0.1)

    def until_up(self) -> None:
        self.until(lambda: UP in self.text or self.process.poll() is not None, 180)
        assert self.process.poll() is None, self.text
        self.look()

    def until_ended(self, within_s: float = 60) -> int:
        self.until(lambda: self.process.poll() is not None, within_s)
        return self.process.wait()

    def assert_nothing_left(self, within_s: float = 20) -> None:
        assert len(self.seen) > 3, "nothing was ever seen running: the check would prove nothing"

        def left() -> list[psutil.Process]:
            found = []
            for process in self.seen:
                with suppress(psutil.NoSuchProcess):
                    if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
            return found

        deadline = time.monotonic() + within_s
        while (still := left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not still, [p.cmdline() for p in still]
        assert not marked_processes(self.folder)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    started: list[Lab] = []

    def one(*flags: str) -> Lab:
        started.append(Lab(tmp_path, *flags))
        return started[-1]

    yield one
    for lab in started:
        lab.process.kill()
        lab.process.wait(10)


def test_once_answers_shows_status_and_leaves_nothing(start: Callable[..., Lab]) -> None:
    lab = start("--once")
    assert lab.until_ended(240) == 0, lab.text
    assert "tokens; the first after" in lab.text
    assert "$ llmgwctl status" in lab.text
    assert "leader controller-" in lab.text
    assert lab.text.endswith("stopped; nothing is left running\n")
    assert "Traceback" not in lab.text
    lab.assert_nothing_left()


def test_a_killed_service_comes_back_and_ctrl_c_is_the_normal_end(start: Callable[..., Lab]) -> None:
    lab = start()
    lab.until_up()
    # The router has a database there, and asks for no key.
    lab.until(lambda: "tiny" in lab.ctl("usage", "--by", "model"), 30)
    (engine,) = lab.named("llamacpp_main")
    for agent in lab.named("llmgw-agent"):
        agent.kill()
    lab.until(lambda: all(f"{node} ended by SIGKILL\n{node} is started" in lab.text for node in NODES), 30)
    lab.until(lambda: len(lab.named("llmgw-agent")) == 2, 30)
    assert engine.is_running(), "the engine must outlive its agent"
    lab.process.send_signal(signal.SIGINT)
    assert lab.until_ended() == 0, lab.text
    assert "SIGINT: stopping" in lab.text
    lab.assert_nothing_left()


def test_kill_dash_nine_leaves_nothing(start: Callable[..., Lab]) -> None:
    lab = start()
    lab.until_up()
    lab.process.kill()
    lab.process.wait(10)
    lab.assert_nothing_left()


def test_a_service_that_dies_before_the_answer_is_told_with_its_log(start: Callable[..., Lab]) -> None:
    lab = start("--once")

    lab.until(lambda: bool(lab.named("llmgw-mirror")) or lab.process.poll() is not None, 60)
    lab.named("llmgw-mirror")[0].kill()
    assert lab.until_ended(60) == 1
    assert "lab: mirror ended by SIGKILL; its last lines, from " in lab.text
    assert str(lab.folder / "log" / "mirror.log") in lab.text
    assert "Traceback" not in lab.text
    lab.assert_nothing_left()
