"""The cage: what is inside ends with its owner, however the owner ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from llmgw_kit.testing.processes import Cage, ChildFailed

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
#: Starts a grandchild in a session of its own that ignores SIGTERM, then dies: an agent and its engine.
ORPHAN_MAKER = [
    sys.executable,
    "-c",
    "import subprocess, sys\n"
    "code = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'\n"
    "print(subprocess.Popen([sys.executable, '-c', code], start_new_session=True).pid, flush=True)\n",
]


def gone(pid: int, within_s: float = 10.0) -> bool:
    """Whether the process ends in time; a zombie has ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_exit_codes_and_output_are_told(tmp_path: Path) -> None:
    with Cage() as cage:
        child = cage.spawn("leaver", ["sh", "-c", "echo one; echo two; exit 3"], log=tmp_path / "log")
        assert child.join(10) == 3
        assert child.tail(1) == "two"


def test_a_program_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with (
        Cage() as cage,
        pytest.raises(ChildFailed, match=r"ghost could not be started: no-such-program: .*No such"),
    ):
        cage.spawn("ghost", ["no-such-program"], log=tmp_path / "log")


def test_stop_ends_a_program_that_ignores_sigterm(tmp_path: Path) -> None:
    with Cage() as cage:
        child = cage.spawn(
            "deaf", ["sh", "-c", "trap '' TERM; echo deaf; sleep 600 & wait; wait"], log=tmp_path / "log"
        )
        deadline = time.monotonic() + 10
        while "deaf" not in child.tail() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert child.stop(grace_s=0.2) == -signal.SIGKILL


async def test_waiting_on_the_loop(tmp_path: Path) -> None:
    with Cage() as cage:
        child = cage.spawn("sleeper", SLEEPER, log=tmp_path / "log")
        with pytest.raises(TimeoutError):
            await child.wait(0.05)
        child.kill()
        assert await child.wait(10) == -signal.SIGKILL
        assert child.code == -signal.SIGKILL


def test_orphans_are_reaped_while_open_and_ended_at_the_close(tmp_path: Path) -> None:
    with Cage() as cage:
        maker = cage.spawn("agent", ORPHAN_MAKER, log=tmp_path / "log")
        assert maker.join(10) == 0
        orphan = int(maker.tail())
        assert psutil.Process(orphan).ppid() == cage.pid
        second = cage.spawn("agent", ORPHAN_MAKER, log=tmp_path / "log2")
        second.join(10)
        os.kill(int(second.tail()), signal.SIGKILL)
        deadline = time.monotonic() + 10
        # Not a zombie either: an agent that adopted it must see it go.
        while psutil.pid_exists(int(second.tail())) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not psutil.pid_exists(int(second.tail()))
    assert not psutil.pid_exists(orphan)


#: An agent half dead, as each is for a moment under SIGKILL: its first thread is a zombie, another still
#: holds the engine. 60 and 93 are exit(2), which ends one thread, on x86-64 and arm64.
HALF_DEAD = """
import ctypes, os, platform, subprocess, sys, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(os.getpid(), engine.pid, flush=True)
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""


def test_an_engine_does_not_slip_away_while_its_agent_dies(tmp_path: Path) -> None:
    with Cage() as cage:
        script = tmp_path / "half_dead.py"
        script.write_text(HALF_DEAD)
        above = cage.spawn("above", ["sh", "-c", f"{sys.executable} {script} & wait"], log=tmp_path / "log")
        deadline = time.monotonic() + 10
        while not above.tail() and time.monotonic() < deadline:
            time.sleep(0.02)
        agent, engine = map(int, above.tail().split())
        while psutil.Process(agent).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.02)
        assert psutil.Process(engine).ppid() == agent
    assert gone(engine, 2)


OWNER = """
import sys, time
from pathlib import Path
from llmgw_kit.testing.processes import Cage
cage = Cage()
folder = Path(sys.argv[1])
child = cage.spawn("child", [sys.executable, "-c", "import time; time.sleep(600)"], log=folder / "child.log")
maker = cage.spawn("maker", eval(sys.argv[2]), log=folder / "maker.log")
maker.join(10)
print(cage.pid, child.pid, maker.tail(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["owner", "cage"])
def test_kill_dash_nine_leaves_nothing(tmp_path: Path, victim: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path), repr(ORPHAN_MAKER)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        cage, child, orphan = map(int, owner.stdout.readline().split())
        os.kill(owner.pid if victim == "owner" else cage, signal.SIGKILL)
        assert gone(cage)
        assert gone(child)
        if victim == "owner":
            assert gone(orphan)
        else:
            # The one thing the cage's own death leaves: an orphan nobody holds. The lab finds those by
            # their environment (see llmgw_lab.leftovers).
            os.kill(orphan, signal.SIGKILL)
    finally:
        owner.kill()
        owner.wait(10)
