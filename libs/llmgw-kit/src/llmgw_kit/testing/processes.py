"""The owner's side of the cage: start programs, watch them, end them; nothing outlives the owner.

Plain threads and futures below, so that one cage serves synchronous fixtures and any event loop;
`Child.wait` is for the loop, `Child.join` for everybody else.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

#: Longest wait for the cage itself to answer; it does no work of its own.
CAGE_ANSWER_S = 20.0


Scope = Literal["process", "group", "tree"]


class ChildFailed(RuntimeError):
    """A program could not be started, or ended when it was needed. Says which, how, and its last words."""


def state_of(pid: int) -> str | None:
    """The kernel's letter for a process (proc(5)): R, S, T stopped, Z zombie; None when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


@dataclass(eq=False)
class Child:
    """One program inside the cage."""

    name: str
    pid: int
    log: Path
    _cage: Cage
    _ended: Future[int] = field(default_factory=Future)

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal as in subprocess; None while it runs."""
        if not self._ended.done():
            return None
        code: int = self._ended.result()
        return code

    def send_signal(self, number: int, *, scope: Scope = "process") -> None:
        """Deliver a signal; returns once it was sent. Nothing happens if the process has ended.

        `group` is its process group, `tree` everything below it, in whatever groups.
        """
        self._cage._ask(op="signal", pid=self.pid, signal=int(number), scope=scope)

    def kill(self) -> None:
        """SIGKILL this process only, not its group: what `kill -9 PID` does."""
        self.send_signal(signal.SIGKILL)

    def pause(self, *, scope: Scope = "process") -> None:
        """Freeze it (SIGSTOP): alive to the kernel, silent to everybody else. Returns once it has stopped."""
        self.send_signal(signal.SIGSTOP, scope=scope)
        deadline = time.monotonic() + CAGE_ANSWER_S
        while self.code is None and state_of(self.pid) not in ("T", "t"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} (pid {self.pid}) does not stop after SIGSTOP")
            time.sleep(0.001)

    def resume(self, *, scope: Scope = "process") -> None:
        """Undo `pause`."""
        self.send_signal(signal.SIGCONT, scope=scope)

    def join(self, timeout_s: float) -> int:
        """Wait for the end; raises TimeoutError."""
        try:
            return self._ended.result(timeout_s)
        except FutureTimeout:
            raise TimeoutError(f"{self.name} (pid {self.pid}) still runs after {timeout_s:g} s") from None

    async def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end on the running loop; raises TimeoutError."""
        ended = asyncio.wrap_future(self._ended)
        # Shielded: giving up waiting must not cancel the future that others wait on.
        return await asyncio.wait_for(asyncio.shield(ended), timeout_s)

    def stop(self, number: int = signal.SIGTERM, *, grace_s: float = 10.0) -> int:
        """Ask, wait, then kill the whole group. Returns the exit code."""
        self.send_signal(signal.SIGCONT)
        self.send_signal(number)
        try:
            return self.join(grace_s)
        except TimeoutError:
            self.send_signal(signal.SIGKILL, scope="group")
            return self.join(CAGE_ANSWER_S)

    def tail(self, lines: int = 15) -> str:
        """The last lines of its output."""
        try:
            with self.log.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - (1 << 16)))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


class Cage:
    """Owner of one cage process. Closing it, or dying, ends everything inside."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        # -P: the working folder must not decide which modules the cage sees. A session of its own:
        # Ctrl-C in the terminal is the owner's to handle.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "llmgw_kit.testing.cage"],
            stdin=theirs.fileno(),
            start_new_session=True,
        )
        theirs.close()
        self._socket = ours
        self._lock = threading.Lock()
        self._keys = itertools.count()
        self._waiting: dict[str, Future[int]] = {}
        self._children: dict[int, Child] = {}
        self._early_exits: dict[int, int] = {}
        self._listener = threading.Thread(target=self._listen, name="cage", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """Of the cage process, above everything inside."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False once the cage itself was killed; its children went with it."""
        return self._process.poll() is None

    def spawn(self, name: str, argv: Sequence[str], *, log: Path, cwd: Path | None = None,
              env: Mapping[str, str] | None = None, user: str | None = None,
              last_signal: int = signal.SIGKILL) -> Child:  # fmt: skip
        """Start a program; its output is appended to `log`. Raises ChildFailed when it cannot be started.

        `env` replaces the environment; None passes ours on. `last_signal` is what the cage sends first
        when its owner is gone. `user` (needs root) runs it as somebody else.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            pid = self._ask(
                op="spawn",
                argv=[str(part) for part in argv],
                env=dict(os.environ if env is None else env),
                cwd=str(cwd or Path.cwd()),
                log=str(log),
                user=user,
                last_signal=int(last_signal),
            )
        except OSError as problem:
            raise ChildFailed(f"{name} could not be started: {problem}") from problem
        child = Child(name, pid, log, self)
        with self._lock:
            self._children[pid] = child
            if pid in self._early_exits:
                child._ended.set_result(self._early_exits.pop(pid))
        return child

    def close(self) -> None:
        """End everything inside and the cage; returns when nothing is left. Safe to call twice."""
        with suppress(OSError):  # already closed, or the cage is gone
            self._socket.shutdown(socket.SHUT_WR)
        self._process.wait(60)
        self._listener.join(CAGE_ANSWER_S)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, **message: object) -> int:
        """Send one request and wait for its answer. Raises OSError with what the cage said."""
        key, answer = str(next(self._keys)), Future[int]()
        line = json.dumps(message | {"key": key}).encode() + b"\n"
        with self._lock:
            self._waiting[key] = answer
            try:
                self._socket.sendall(line)
            except OSError as problem:
                raise ChildFailed(
                    f"the cage (pid {self.pid}) that holds our processes is gone ({problem}), they with it"
                ) from problem
        try:
            return answer.result(CAGE_ANSWER_S)
        except FutureTimeout:
            raise ChildFailed(f"the cage (pid {self.pid}) does not answer") from None

    def _listen(self) -> None:
        # An OSError is the same as end of file: the cage is gone.
        with suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                self._heard(json.loads(line))
        with self._lock:
            waiting, children = list(self._waiting.values()), list(self._children.values())
            self._waiting.clear()
        for answer in waiting:
            answer.set_exception(OSError("the cage is gone"))
        for child in children:
            # Its children die with it, by SIGKILL.
            if not child._ended.done():
                child._ended.set_result(-signal.SIGKILL)

    def _heard(self, message: dict[str, Any]) -> None:
        with self._lock:
            if message["op"] == "exited":
                child = self._children.pop(message["pid"], None)
                if child is None:  # it ended before spawn() could file it
                    self._early_exits[message["pid"]] = message["code"]
                else:
                    child._ended.set_result(message["code"])
                return
            answer = self._waiting.pop(message["key"])
        if message["op"] == "failed":
            answer.set_exception(OSError(message["error"]))
        else:
            answer.set_result(message.get("pid", 0))
