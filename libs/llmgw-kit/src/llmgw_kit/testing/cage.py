"""The cage: a small init for a group of processes. Nothing that it holds outlives its owner.

Run by `llmgw_kit.testing.processes`, never imported for its effects. The owner speaks
JSON lines over the socket that is the cage's standard input, and end of file there, however it comes
about (a clean close, a crash, `kill -9`), means: end everything, then exit.

Why a process of its own: engines are meant to outlive the agent that started them, so at an agent's
death they become somebody's orphans. The cage is a *child subreaper* (prctl(2), Linux), so that
somebody is the cage: it reaps them as init would, and can find them all when the end comes.

Only the standard library, one thread, no event loop: it must be able to fork safely and to die late.

    → {"op": "spawn", "key": K, "argv": […], "env": {…}, "cwd": D, "log": F, "user": U?, "last_signal": N}
    ← {"op": "spawned", "key": K, "pid": P}          or {"op": "failed", "key": K, "error": text}
    → {"op": "signal", "key": K, "pid": P, "signal": N, "scope": "process" | "group" | "tree"}
    ← {"op": "signalled", "key": K}
    ← {"op": "exited", "pid": P, "code": C}           C < 0: ended by signal -C, as subprocess tells it
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

# <linux/prctl.h>, <linux/securebits.h>, <linux/capability.h>
PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_SET_SECUREBITS, PR_SET_CHILD_SUBREAPER, PR_CAP_AMBIENT = (
    1,
    8,
    28,
    36,
    47,
)
SECBIT_NO_SETUID_FIXUP, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, CAP_VERSION_3 = 4, 2, 1, 0x20080522

#: How long a child may take over its last signal before everything is killed.
LAST_SIGNAL_GRACE_S = 1.0
#: After so long a process that cannot be killed is stuck in the kernel; waiting on would hide it.
SWEEP_LIMIT_S = 20.0

libc = ctypes.CDLL(None, use_errno=True)


class CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class CapData(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def become(user: str) -> None:
    """Turn this process (root) into `user`, keeping only the right to pass closed folders.

    Postgres refuses to run as root, and the folder it works in often lies where only root may enter
    (/root/llmgw, a 0700 temporary folder). CAP_DAC_OVERRIDE as an *ambient* capability survives the
    exec and lets it through, so nothing need be copied or opened to others. The secure bit is for
    access(2), with which Postgres looks at its own binary: without it the call ignores capabilities.
    Where the machine grants neither the program starts without, and says itself what it could not read.
    """
    entry = pwd.getpwnam(user)
    libc.prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    bit = 1 << CAP_DAC_OVERRIDE
    data = (CapData * 2)(CapData(bit, bit, bit), CapData(0, 0, 0))
    if libc.capset(ctypes.byref(CapHeader(CAP_VERSION_3, 0)), ctypes.byref(data)) == 0:
        libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0)


def descendants(root: int) -> list[int]:
    """Every process below `root`, from /proc. One look can miss what changes parents meanwhile.

    Zombies are among them: of a process with many threads the first may be a zombie while another lives and
    holds the children; to signal one that is really dead does no harm.
    """
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                fields = stat.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended while we looked
        parents[int(name)] = int(fields[1])
    found: list[int] = []
    for pid in parents:
        above = pid
        while above in parents and above != root:
            above = parents[above]
        if above == root and pid != root:
            found.append(pid)
    return found


class Cage:
    """The children, and the one conversation with the owner."""

    def __init__(self, owner: socket.socket) -> None:
        self.owner = owner
        self.children: dict[int, int] = {}  # pid -> last signal
        self.received = b""

    def say(self, **message: object) -> None:
        # Suppressed: the owner is gone; its end of file is already on the way and ends us.
        with suppress(OSError):
            self.owner.sendall(json.dumps(message).encode() + b"\n")

    def spawn(self, key: str, argv: list[str], env: dict[str, str], cwd: str, log: str,
              last_signal: int, user: str | None = None) -> None:  # fmt: skip
        mine = os.getpid()

        def prepare() -> None:
            if user is not None:
                become(user)
            # After the change of user, which clears it. The net below the cage itself: if the cage is
            # killed, its children go too.
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != mine:
                os._exit(127)

        try:
            with open(log, "ab") as out:
                child = subprocess.Popen(
                    argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                    start_new_session=True, preexec_fn=prepare,
                )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as problem:
            self.say(op="failed", key=key, error=f"{argv[0]}: {problem}")
            return
        child.returncode = 0  # reaped by us; Popen must neither wait for it nor warn
        self.children[child.pid] = last_signal
        self.say(op="spawned", key=key, pid=child.pid)

    def send_signal(self, pid: int, number: int, scope: str) -> None:
        if pid not in self.children:
            return  # reaped already: the number may be another process by now
        # Suppressed: it has ended and is about to be reaped.
        with suppress(ProcessLookupError):
            (os.killpg if scope == "group" else os.kill)(pid, number)
        for below in descendants(pid) if scope == "tree" else ():
            with suppress(ProcessLookupError):
                os.kill(below, number)

    def reap(self) -> bool:
        """Collect every ended child, those inherited from dead agents included; is there any child left?"""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if self.children.pop(pid, None) is not None:
                self.say(op="exited", pid=pid, code=os.waitstatus_to_exitcode(status))

    def hear(self) -> bool:
        """One reading from the owner. False: end of file."""
        try:
            data = self.owner.recv(1 << 16)
        except OSError:
            return False
        *lines, self.received = (self.received + data).split(b"\n")
        for line in lines:
            self.obey(json.loads(line))
        return bool(data)

    def obey(self, message: dict[str, Any]) -> None:
        operation = message.pop("op")
        if operation == "spawn":
            self.spawn(**message)
        elif operation == "signal":
            self.send_signal(message["pid"], message["signal"], message["scope"])
            self.say(op="signalled", key=message["key"])
        else:
            raise AssertionError(f"the owner sent {operation!r}")

    def sweep(self) -> list[int]:
        """End everything below us; returns what could not be ended.

        Over when the kernel says that we have no child: whoever is orphaned below becomes one. A look into
        /proc that finds nobody proves less, since families change between its lines.
        """
        for pid, number in list(self.children.items()):
            self.send_signal(pid, number, "process")
        started = time.monotonic()
        while self.reap():
            left = descendants(os.getpid())
            waited = time.monotonic() - started
            if waited > SWEEP_LIMIT_S:
                return left
            gently = waited < LAST_SIGNAL_GRACE_S and any(n != signal.SIGKILL for n in self.children.values())
            for pid in () if gently else left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        return []


def main() -> int:
    """Serve the owner until it is gone, then end everything."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Ctrl-C goes to the owner, which says what to stop and in which order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    waker, wakened = socket.socketpair()
    waker.setblocking(False)
    wakened.setblocking(False)
    ending = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: ending.append(True))
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    cage = Cage(socket.socket(fileno=0))
    watched = selectors.DefaultSelector()
    watched.register(cage.owner, selectors.EVENT_READ)
    watched.register(wakened, selectors.EVENT_READ)
    while not ending:
        for ready, _ in watched.select():
            if ready.fileobj is wakened:
                wakened.recv(4096)
                cage.reap()
            elif not cage.hear():
                ending.append(True)
    left = cage.sweep()
    if left:
        print(f"cage: processes {left} did not end after SIGKILL; they hang in the kernel", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
