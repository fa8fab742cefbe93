"""Engine processes: started in a session of their own, watched by pidfd, ended as a whole.

They must outlive us: nothing of theirs is tied to this process, neither a pipe nor the event loop's
child watcher, which kills what it holds when the loop is closed.
"""

import asyncio
import errno
import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from llmgw_agent.adapters import procfs
from llmgw_agent.adapters.ports import check_free
from llmgw_agent.core import marks
from llmgw_agent.core.adoption import Found
from llmgw_agent.core.shard import Ended, ProcessIdentity
from llmgw_agent.ports import RunningEngine
from llmgw_kit.clock import Clock
from llmgw_kit.errors import InvalidRequest, Unavailable
from llmgw_kit.text import printable

log = logging.getLogger(__name__)

#: How often the members of a killed engine are looked for until none is left.
SWEEP_INTERVAL_S = 0.05
#: A process that SIGKILL does not end hangs in the kernel, often on a GPU: told again and again.
SWEEP_WARN_S = 10.0


class EngineProcess:
    """One running engine. `ended` resolves once its first process is gone; `sweep` ends the rest."""

    def __init__(
        self, identity: ProcessIdentity, token: str, child: "subprocess.Popen[bytes] | None", clock: Clock
    ) -> None:
        self.identity = identity
        self._token = token
        self._clock = clock
        self._child = child
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Ended] = self._loop.create_future()
        try:
            self._pidfd: int | None = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            self._pidfd = None
            self._finish()
            return
        self._loop.add_reader(self._pidfd, self._finish)

    def _finish(self) -> None:
        self.close()
        if self.ended.done():
            return
        if self._child is None:
            self.ended.set_result(Ended())
            return
        code = self._child.wait()
        self.ended.set_result(Ended(code=code) if code >= 0 else Ended(signal=-code))

    def close(self) -> None:
        """Stop watching; the engine is left alone."""
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def terminate(self) -> None:
        """SIGTERM to the whole group: launchers often do not pass it on."""
        self._signal_group(signal.SIGTERM)

    def _signal_group(self, number: signal.Signals) -> None:
        if self.ended.done():
            return
        try:
            os.killpg(self.identity.pid, number)
        except ProcessLookupError:
            pass  # it ended a moment ago; `ended` is about to say so
        except PermissionError as e:
            log.error("pid %d may not be signalled: %s", self.identity.pid, e.strerror)

    async def kill(self) -> None:
        """SIGKILL everything of this engine; returns when nothing of it is left."""
        self._signal_group(signal.SIGKILL)
        await sweep(self.identity.pid, self._token, self._clock, start_ticks=self.identity.start_ticks)
        await self.ended


async def sweep(
    leader: int | None, token: str | None, clock: Clock, *, start_ticks: int | None = None
) -> None:
    """SIGKILL what is left of an engine (session, group, token) until nothing is.

    Never gives up: while one is left, its GPU is not free, and saying otherwise would give it away."""
    waited = 0.0
    while left := procfs.members(leader, token, start_ticks=start_ticks):
        for one in left:
            try:
                os.kill(one.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it ended between the look and the blow
            except PermissionError as e:
                log.error("pid %d of an engine cannot be killed: %s", one.pid, e.strerror)
        await clock.sleep(SWEEP_INTERVAL_S)
        waited += SWEEP_INTERVAL_S
        if waited >= SWEEP_WARN_S:
            log.error("pids %s do not end after SIGKILL; they hang in the kernel", [one.pid for one in left])
            waited = 0.0


class MachineTable:
    """/proc of this machine."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def boot_id(self) -> str:
        """Of this boot."""
        return procfs.boot_id()

    def process(self, pid: int) -> Found | None:
        """None when there is none, or it is a zombie."""
        seen = procfs.stat(pid)
        return None if seen is None or seen.zombie else procfs.found(seen)

    def token_holders(self) -> dict[str, tuple[Found, ...]]:
        """By token."""
        return procfs.token_holders()

    def session_members(self, leader: int) -> tuple[Found, ...]:
        """In order of pid."""
        inside = [one for one in procfs.live() if one.session == leader]
        return tuple(procfs.found(one) for one in sorted(inside, key=lambda one: one.pid))

    def strays(self, owner_id: str, known_tokens: Set[str]) -> frozenset[str]:
        """Of this owner only: another agent of this machine looks after its own."""
        variables = (procfs.environment(one.pid) or {} for one in procfs.live())
        tokens = {found.get(marks.TOKEN, "") for found in variables if found.get(marks.OWNER) == owner_id}
        return frozenset(tokens - {""} - known_tokens)

    async def sweep(self, token: str | None, leader: int | None = None) -> None:
        """Never gives up; see `sweep` of this module."""
        await sweep(leader, token, self._clock)


class Launcher:
    """Starts engines. `boot_id` is this boot's."""

    def __init__(self, boot_id: str, clock: Clock) -> None:
        self._boot_id = boot_id
        self._clock = clock

    def launch(
        self, argv: Sequence[str], env: Mapping[str, str], *, log_path: Path, cwd: Path, token: str
    ) -> RunningEngine:
        """Start a program, its output appended to `log_path`.

        Blocking, a few milliseconds, and on purpose without an await between the start and the
        return: whoever calls notes the pid next, and a kill in between is what the token is for.
        Raises InvalidRequest when there is no such program (code "engine_absent") or it may not be run,
        Unavailable when the machine refuses."""
        try:
            with log_path.open("ab") as out:
                child = subprocess.Popen(
                    argv, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                    start_new_session=True, restore_signals=True,
                )  # fmt: skip
        except (FileNotFoundError, PermissionError, NotADirectoryError) as e:
            absent = isinstance(e, FileNotFoundError) and e.filename == argv[0]
            raise InvalidRequest(
                f"cannot start {argv[0]!r}: {e.strerror}",
                code="engine_absent" if absent else "launch_failed",
                next_steps=["install it on this node, or set its path in the agent's settings"],
            ) from None  # fmt: skip
        except OSError as e:
            what = "out of memory or processes" if e.errno in (errno.ENOMEM, errno.EAGAIN) else e.strerror
            raise Unavailable(f"cannot start {argv[0]!r}: {what}", code="launch_failed") from None
        seen = procfs.stat(child.pid)
        assert seen is not None, "an unreaped child has an entry in /proc"
        return EngineProcess(
            ProcessIdentity(child.pid, seen.start_ticks, self._boot_id), token, child, self._clock
        )

    def adopt(self, identity: ProcessIdentity, token: str) -> RunningEngine:
        """Take over a process that an earlier agent started."""
        return EngineProcess(identity, token, None, self._clock)

    def check_free(self, host: str, ports: Mapping[str, int]) -> None:
        """See adapters/ports.py."""
        check_free(host, ports)

    def oom_kills(self) -> int | None:
        """Of the whole machine: the kernel counts no other way."""
        return procfs.oom_kills()

    def last_words(self, log_path: Path) -> str:
        """See `last_lines`."""
        return last_lines(log_path)


def last_lines(path: Path, *, lines: int = 20, most_bytes: int = 2000) -> str:
    """The end of a log, for people; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - most_bytes))
            text = printable(file.read().decode(errors="replace"))
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def rotate(path: Path, *, most_bytes: int) -> None:
    """Copy a long log aside and empty it in place: the engine keeps writing to the same file.

    What is written between copy and truncation is lost; an engine cannot be told to open another."""
    try:
        if path.stat().st_size <= most_bytes:
            return
        with path.open("rb") as source, path.with_suffix(".log.1").open("wb") as kept:
            source.seek(-most_bytes, os.SEEK_END)
            while chunk := source.read(1 << 20):
                kept.write(chunk)
        os.truncate(path, 0)
    except FileNotFoundError:
        return


def prune(folder: Path, *, keep: Set[str], most: int) -> None:
    """Delete the oldest logs beyond `most`, never those of `keep` (names without ending)."""
    old = [path for path in folder.glob("*.log*") if path.name.partition(".log")[0] not in keep]
    old.sort(key=lambda path: path.stat().st_mtime)
    for path in old[: max(0, len(old) - most)]:
        path.unlink(missing_ok=True)
