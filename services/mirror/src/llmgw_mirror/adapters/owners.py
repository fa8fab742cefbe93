"""Which process wrote a part, and whether it is provably gone.

Only proof counts. A process in another pid namespace (another container) or on another machine
cannot be looked for, so it may be alive; its part is then copied rather than taken (see parts.py).
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Owner:
    """Empty strings where the system does not tell; such an owner is never provably gone."""

    boot_id: str
    pid_namespace: str
    pid: int
    started_ticks: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Any) -> "Owner | None":
        """None when it was written by another release or damaged."""
        try:
            return Owner(
                str(value["boot_id"]),
                str(value["pid_namespace"]),
                int(value["pid"]),
                str(value["started_ticks"]),
            )
        except (KeyError, TypeError, ValueError):
            return None


def this_process() -> Owner:
    return Owner(_boot_id(), _pid_namespace(), os.getpid(), _started_ticks(os.getpid()) or "")


def provably_gone(owner: Owner | None) -> bool:
    """Whether nothing of this owner can write any more."""
    if owner is None or not owner.boot_id or not owner.pid_namespace or not owner.started_ticks:
        return False
    if owner.boot_id != _boot_id() or owner.pid_namespace != _pid_namespace():
        return False
    return _started_ticks(owner.pid) != owner.started_ticks


def same_boot(owner: Owner | None) -> bool:
    """Whether the page cache the owner wrote into is still ours."""
    return owner is not None and owner.boot_id != "" and owner.boot_id == _boot_id()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started_ticks(pid: int) -> str | None:
    """Clock ticks after boot at which the process started (proc(5), field 22); a pid alone is reused."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]
