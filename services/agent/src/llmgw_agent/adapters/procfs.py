"""What the kernel says of processes: /proc of Linux, read without help."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmgw_agent.core import marks
from llmgw_agent.core.adoption import Found


@dataclass(frozen=True)
class Stat:
    """Fields of /proc/PID/stat (proc_pid_stat(5)). A zombie has ended and only waits to be reaped."""

    pid: int
    parent: int
    group: int
    session: int
    start_ticks: int
    zombie: bool


def boot_id() -> str:
    """Random, new at each boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def stat(pid: int) -> Stat | None:
    """None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command name is in parentheses and may hold blanks and parentheses itself.
    fields = text.rpartition(b")")[2].split()
    return Stat(
        pid=pid, parent=int(fields[1]), group=int(fields[2]), session=int(fields[3]),
        start_ticks=int(fields[19]), zombie=fields[0] in (b"Z", b"X"),
    )  # fmt: skip


def environment(pid: int) -> dict[str, str] | None:
    """As it was at exec; None when it cannot be read (another user's, or gone). A program that renames
    itself may have written over it: what is missing here proves nothing."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    pairs = (part.partition(b"=") for part in raw.split(b"\0") if b"=" in part)
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}


def resident_bytes(pid: int) -> int | None:
    """Memory in RAM, None when unknown."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def started_unix_s(start_ticks: int) -> float | None:
    """Wall clock of a start time in ticks, None when the kernel does not say when it booted."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return int(line.split()[1]) + start_ticks / os.sysconf("SC_CLK_TCK")
    return None


def live() -> Iterator[Stat]:
    """Every process that has not ended."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := stat(int(name))) is not None and not found.zombie:
            yield found


def found(stat: Stat) -> Found:
    """As adoption decides on it."""
    spec_hash = (environment(stat.pid) or {}).get(marks.SPEC_HASH)
    return Found(stat.pid, stat.start_ticks, stat.session == stat.pid, spec_hash)


def token_holders() -> dict[str, tuple[Found, ...]]:
    """All live processes that carry a shard token, by token, in order of pid."""
    holders: dict[str, list[Found]] = {}
    for one in sorted(live(), key=lambda s: s.pid):
        variables = environment(one.pid) or {}
        if token := variables.get(marks.TOKEN):
            holders.setdefault(token, []).append(
                Found(one.pid, one.start_ticks, one.session == one.pid, variables.get(marks.SPEC_HASH))
            )
    return {token: tuple(group) for token, group in holders.items()}


def members(leader: int | None, token: str | None, *, start_ticks: int | None = None) -> list[Stat]:
    """Live processes of one engine: its session, its group, and whoever carries its token wherever it went.

    `leader` None: only by token, for a pid that may by now be somebody else's. With `start_ticks` the
    same once the pid was given to another process; the kernel keeps a number back while a session or
    group bears it, so until then whoever is in that session is of the engine."""
    if leader is not None and start_ticks is not None:
        at_pid = stat(leader)
        if at_pid is not None and at_pid.start_ticks != start_ticks:
            leader = None
    gathered = []
    for one in live():
        if one.pid == os.getpid():
            continue
        inside = leader is not None and leader in (one.session, one.group, one.pid)
        if inside or (token and (environment(one.pid) or {}).get(marks.TOKEN) == token):
            gathered.append(one)
    return gathered


def oom_kills() -> int | None:
    """Processes ended for want of memory since the boot, in this machine and all its control groups
    (/proc/vmstat, Linux 4.13); None when the kernel does not tell."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return None


def ephemeral_ports() -> tuple[int, int] | None:
    """The kernel's range for outgoing connections, both ends inclusive; None when unreadable."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return None
    return int(low), int(high)
