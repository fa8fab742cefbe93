"""What is looked at before anything starts: ports, room on the disk, another lab in the same folder."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from llmgw_kit.errors import StartupError
from llmgw_kit.testing.ports import free_ports
from llmgw_lab.layout import (
    DEFAULT_PORTS,
    ENGINE_PORTS_END,
    ENGINE_PORTS_FROM,
    ENGINE_PORTS_OF_LAB,
    HOST,
    Layout,
    port_variable,
)

#: The real model's 93 MB three times (mirror, two nodes), Postgres 60 MB, and as much again to breathe.
NEEDED_BYTES = 700 * 1000 * 1000
MB = 1_000_000
#: What a lab makes in its folder; `make lab-clean` knows the same four.
CLEARED = ("config", "data", "log")
LOCK = "lock"


def require_free_ports(ports: Mapping[str, int]) -> None:
    """Bind each once. Raises StartupError naming every taken port, who holds it and what moves ours."""
    taken = []
    for name, port in ports.items():
        with socket.socket() as probe:
            # As servers do: a port in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
                probe.listen(1)
            except OSError as problem:
                if problem.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                taken.append((name, port, _why(problem, port)))
    if taken:
        told = [f"port {port} ({name}) {why}" for name, port, why in taken]
        first = taken[0]
        raise StartupError(
            told[0] if len(told) == 1 else f"{len(told)} ports that the lab needs are taken",
            next_steps=[
                *(told if len(told) > 1 else ()),
                f"stop what holds it, or move the lab: make lab {port_variable(first[0])}={first[1] + 10000}",
                "or let the system choose all ports: make lab LAB_FREE_PORTS=1",
            ],
        )


def _why(problem: OSError, port: int) -> str:
    if problem.errno == errno.EACCES:
        return "may not be used by this account"
    holder = holder_of(port)
    return f"is held by {holder}" if holder else "is taken by a process this account cannot see"


def holder_of(port: int) -> str | None:
    """Who listens on a TCP port of this machine, as `pid 123: name args`; None when not visible.

    From /proc/net/tcp and /proc/*/fd (proc(5)), since lsof and ss are not everywhere.
    """
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if any(os.readlink(fd) in inodes for fd in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
                if len(words) > 1 and Path(words[0]).name.startswith("python") and "/" in words[1]:
                    words = [Path(words[1]).name, *words[2:]]  # a script says more than its interpreter
                return f"pid {process.name}: {' '.join(words)[:60]}"
        except OSError:
            continue  # it ended, or is not ours to look into
    return None


def require_disk(folder: Path) -> None:
    """Raises StartupError when the disk under `folder` has less room than a lab writes."""
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise StartupError(
            f"{free // MB} MB are free under {folder}; the lab writes up to {NEEDED_BYTES // MB} MB",
            next_steps=["make room, or put the lab elsewhere: make lab LAB_DIR=/path/with/room"],
        )


def require_lab_folder(folder: Path) -> None:
    """Raises StartupError when `folder` holds what no lab put there: a lab clears its folder, and
    somebody else's `data` would be lost with it."""
    found = {entry.name for entry in folder.iterdir()}
    foreign = sorted(found - {*CLEARED, LOCK}) or (sorted(found) if found and LOCK not in found else [])
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise StartupError(
            f"{folder} is not the folder of a lab: it holds {', '.join(foreign[:3])}{more}",
            next_steps=[
                "a lab clears its folder at each start; give it an empty or a new one: LAB_DIR=.lab2"
            ],
        )


def clear_folder(folder: Path) -> None:
    """Remove what an earlier run left: each starts from nothing, so its first request finds a cold model."""
    for name in CLEARED:
        shutil.rmtree(folder / name, ignore_errors=True)


def lock_folder(folder: Path) -> IO[str]:
    """Hold the folder for this lab until the returned file is closed or we die. Raises StartupError."""
    lock = (folder / LOCK).open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise StartupError(
            f"another lab runs in {folder} (pid {holder})",
            next_steps=[
                "stop it with Ctrl-C, or give this one a folder: make lab LAB_DIR=.lab2 LAB_FREE_PORTS=1"
            ],
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def chosen_ports(environ: Mapping[str, str]) -> dict[str, int]:
    """The ports to use: LAB_<PART>_PORT over the documented ones. Raises StartupError for a bad value."""
    ports = {}
    for name, default in DEFAULT_PORTS.items():
        text = environ.get(port_variable(name), str(default))
        if not text.isdigit() or not 0 < int(text) < 65536:
            raise StartupError(f"{port_variable(name)}={text}: expected a port between 1 and 65535")
        ports[name] = int(text)
    doubled = [name for name in ports if list(ports.values()).count(ports[name]) > 1]
    if doubled:
        raise StartupError(
            f"{' and '.join(doubled)} would share port {ports[doubled[0]]}",
            next_steps=[f"set {port_variable(doubled[0])} to another port"],
        )
    return ports


def free_layout(folder: Path) -> Layout:
    """A layout on ports from the operating system, for tests and for a second lab.

    Engine ports must lie below the range the system gives from, so labs that run side by side take
    different slices of it by their process id. Two may still meet; agents look before they launch.
    """
    ports = dict(zip(DEFAULT_PORTS, free_ports(len(DEFAULT_PORTS)), strict=True))
    slices = (ENGINE_PORTS_END - ENGINE_PORTS_FROM) // ENGINE_PORTS_OF_LAB
    return Layout(folder, ports, ENGINE_PORTS_FROM + os.getpid() % slices * ENGINE_PORTS_OF_LAB)
