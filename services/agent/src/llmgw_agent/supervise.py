"""`llmgw-agent supervise`: keeps `serve` running inside a container, and engines out of its falls.

A container lives as long as its first process. If that were the agent itself, its crash would take
the engines along; so a small process stands above it that has no reason to crash: standard library
only, one thread, no event loop.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

#: Names a pipe on which `serve` says that it is up, and which data folder it uses.
READY_VARIABLE = "LLMGW_SUPERVISE_READY_FD"

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
FIRST_PAUSE_S, MOST_PAUSE_S = 0.5, 30.0
#: After so long the next fall counts as the first again.
STEADY_S = 60.0
#: How often the child is looked at when no signal wakes us.
LOOK_S = 1.0


@dataclass
class Supervisor:
    """One `serve` after another, until one ends by its own will or we are told to stop."""

    arguments: Sequence[str]
    stopping: int | None = None
    data_dir: str | None = None
    _child: "subprocess.Popen[bytes] | None" = None
    #: Whether this `serve` has said that it is up.
    _up: bool = False
    _wake: tuple[int, int] = field(default_factory=os.pipe)

    def run(self) -> int:
        """Exit status of the last `serve`."""
        # Engines orphaned by a dead agent become our children, not init's: somebody must reap them.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for descriptor in self._wake:
            os.set_blocking(descriptor, False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told)
        signal.signal(signal.SIGHUP, self._hung_up)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            status = self._serve_once()
            if self.stopping is not None:
                self._stop_engines()
                return status
            if status == 0:
                return 0
            if self.data_dir is None:
                # It never came up: a fault of configuration, told once, and there are no engines yet.
                return status if status > 0 else 128 - status
            if time.monotonic() - began > STEADY_S:
                pause_s = FIRST_PAUSE_S
            _say(f"serve ended ({_shown(status)}); engines go on; again in {pause_s:g} s")
            if (told := self._pause(pause_s)) is not None:
                self._stop_engines()
                return 128 + told
            pause_s = min(pause_s * 2, MOST_PAUSE_S)

    def _told(self, number: int, _: object) -> None:
        self.stopping = number
        if self._child is not None and self._child.returncode is None:
            self._child.send_signal(number)

    def _hung_up(self, number: int, _: object) -> None:
        # To an agent that is up alone: to one that just begins it would be the end.
        if self._up and self.stopping is None and self._child is not None and self._child.returncode is None:
            self._child.send_signal(number)

    def _serve_once(self) -> int:
        ready, said = os.pipe()
        self._up = False
        # A session of its own: Ctrl-C in a terminal reaches it once, through us.
        self._child = subprocess.Popen(
            [sys.executable, "-m", "llmgw_agent", *self.arguments],
            pass_fds=(said,), env={**os.environ, READY_VARIABLE: str(said)}, start_new_session=True,
        )  # fmt: skip
        os.close(said)
        os.set_blocking(ready, False)
        if self.stopping is not None:  # told between the decision and the start
            self._child.send_signal(self.stopping)
        heard, open_pipe = b"", True
        try:
            while self._reap() is None:
                watched = [self._wake[0], *([ready] if open_pipe else [])]
                for descriptor in select.select(watched, [], [], LOOK_S)[0]:
                    data = _read(descriptor)
                    if descriptor == ready:
                        heard += data
                        open_pipe = bool(data)
                        self._heard(heard)
            self._heard(heard + _read(ready))
        finally:
            os.close(ready)
        assert self._child.returncode is not None
        return self._child.returncode

    def _heard(self, data: bytes) -> None:
        if b"\n" in data:
            self._up = True
            self.data_dir = json.loads(data.partition(b"\n")[0])["data_dir"]

    def _reap(self) -> int | None:
        """Collect every ended child; the status of `serve` once it is among them."""
        assert self._child is not None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return self._child.returncode
            if pid == 0:
                return self._child.returncode
            if pid == self._child.pid:
                self._child.returncode = os.waitstatus_to_exitcode(status)

    def _pause(self, seconds: float) -> int | None:
        """Wait; the signal that told us to stop meanwhile, if one did."""
        until = time.monotonic() + seconds
        while self.stopping is None and (left := until - time.monotonic()) > 0:
            if select.select([self._wake[0]], [], [], left)[0]:
                _read(self._wake[0])
            self._reap()
        return self.stopping

    def _stop_engines(self) -> None:
        """The container ends now: its engines get TERM and their grace instead of a bare KILL."""
        if self.data_dir is None:
            return
        stopper = subprocess.Popen(
            [sys.executable, "-m", "llmgw_agent", "stop-all", "--data-dir", self.data_dir]
        )
        self._child = stopper
        while self._reap() is None:
            if select.select([self._wake[0]], [], [], LOOK_S)[0]:
                _read(self._wake[0])


def supervise(arguments: Sequence[str]) -> int:
    """Run `llmgw-agent ARGUMENTS` and start it again when it falls. Returns its exit status."""
    return Supervisor(arguments).run()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except BlockingIOError:
        return b""


def _shown(status: int) -> str:
    return f"exit {status}" if status >= 0 else f"signal {-status}"


def _say(text: str) -> None:
    print(f"supervise: {text}", file=sys.stderr, flush=True)
