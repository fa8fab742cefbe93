"""Whose processes hold a device's memory: engines of ours with all their children, never by mistake."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmgw_agent.adapters import procfs
from llmgw_agent.adapters.ownership import Ownership
from llmgw_agent.core import marks
from llmgw_kit.testing.processes import Cage

#: Starts one child that stays, an orphan without its environment, and one that leaves group and session.
FAMILY = """
import os, sys, time
def say(name):
    with open(sys.argv[1] + "/" + name + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(sys.argv[1] + "/" + name + ".part", sys.argv[1] + "/" + name)
if os.fork() == 0:
    say("child")
    time.sleep(600)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        say("runaway")
        time.sleep(600)
    os._exit(0)
if os.fork() == 0:
    if os.fork() == 0:
        say("orphan")
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {})
    os._exit(0)
say("leader")
time.sleep(600)
"""


@contextmanager
def family(cage: Cage, folder: Path, **variables: str) -> Iterator[dict[str, int]]:
    """An engine's processes by name, as an engine is started: leading a session."""
    folder.mkdir()
    bare = {name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")}
    leader = subprocess.Popen(
        [sys.executable, "-c", FAMILY, str(folder)], env=bare | variables, start_new_session=True
    )
    try:
        names = ("leader", "child", "runaway", "orphan")
        while not all((folder / name).exists() for name in names):
            assert leader.poll() is None
            time.sleep(0.01)
        yield {name: int((folder / name).read_text()) for name in names}
    finally:
        for one in procfs.members(leader.pid, variables.get(marks.TOKEN, "no such token")):
            os.kill(one.pid, 9)
        leader.wait()


def test_children_of_our_engines_are_ours_wherever_they_went(cage: Cage, tmp_path: Path) -> None:
    ours = {marks.OWNER: "me", marks.TOKEN: "token-of-mine"}
    with family(cage, tmp_path / "ours", **ours) as pids:
        deadline = time.monotonic() + 30
        while marks.TOKEN in (procfs.environment(pids["orphan"]) or {}):
            assert time.monotonic() < deadline, "it has no environment of ours any more"
        owners = Ownership(lambda: [pids["leader"]], "me")
        found = {name: owners.holder(pid, 5) for name, pid in pids.items()}
        assert {name: one.engine_pid for name, one in found.items()} == dict.fromkeys(pids, pids["leader"])
        assert procfs.stat(pids["runaway"]).session != pids["leader"]  # type: ignore[union-attr]
        # An engine that the node has let go of, its runaway on its way out: ours, and no stranger.
        assert Ownership(list, "me").holder(pids["runaway"], 5).engine_pid == pids["runaway"]


def test_engines_of_another_agent_and_other_programs_are_foreign_with_name_and_user(
    cage: Cage, tmp_path: Path
) -> None:
    theirs = {marks.OWNER: "another", marks.TOKEN: "token-of-theirs"}
    with family(cage, tmp_path / "theirs", **theirs) as pids:
        owners = Ownership(lambda: [2**22 + 7], "me")
        for pid in (*pids.values(), os.getpid()):
            one = owners.holder(pid, 5)
            assert (one.engine_pid, one.seen, one.memory_bytes) == (None, True, 5)
            assert one.user == pwd.getpwuid(os.getuid()).pw_name
            assert one.name is not None
            assert "python" in one.name or "pytest" in one.name


def test_a_pid_that_is_not_to_be_seen_here_is_neither() -> None:
    one = Ownership(list, "me").holder(2**22 + 1, 5)
    assert (one.engine_pid, one.seen, one.name, one.user) == (None, False, None, None)


def test_the_kernels_count_of_memory_kills_is_read_or_unknown() -> None:
    count = procfs.oom_kills()
    assert count is None or count >= 0
