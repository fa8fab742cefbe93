"""Processes of an earlier lab in the same folder, found by a mark in their environment.

The cage ends everything when the lab ends, `kill -9` included. This is the net for the rest: somebody
killed the cage itself while an engine had already outlived its agent.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

#: Set in everything the lab starts, and by the catalog in every engine; its value is the lab's folder.
MARK = "LLMGW_LAB"
END_WITHIN_S = 10.0


def marked_processes(folder: Path) -> list[int]:
    """Pids of live processes that carry this lab's mark, ours excepted."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # it ended, or is not ours to read
    return sorted(found)


def end_leftovers(folder: Path) -> list[int]:
    """SIGKILL them and wait until they are gone; returns which there were."""
    ended: list[int] = []
    deadline = time.monotonic() + END_WITHIN_S
    while (left := marked_processes(folder)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            if pid not in ended:
                ended.append(pid)
        time.sleep(0.05)
    return ended
