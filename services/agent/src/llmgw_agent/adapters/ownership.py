"""Whose is a process that holds memory on a device: an engine's of ours, children included, or foreign."""

import os
import pwd
from collections.abc import Callable, Sequence
from pathlib import Path

from llmgw_agent.adapters import procfs
from llmgw_agent.core import marks
from llmgw_agent.core.devices import Holder

#: Parents looked at on the way up; deeper than any launcher nests.
MOST_PARENTS = 32


class Ownership:
    """By session and group first, as engines are started; then by the token in the environment and by
    parents, for children that left both. `leaders` are the first processes of this agent's engines."""

    def __init__(self, leaders: Callable[[], Sequence[int]], owner_id: str) -> None:
        self._leaders = leaders
        self._owner_id = owner_id

    def holder(self, pid: int, memory_bytes: int | None) -> Holder:
        """Reads /proc: a few small files."""
        seen = procfs.stat(pid)
        if seen is None:
            return Holder(pid, memory_bytes, None, seen=False)
        leaders = frozenset(self._leaders())
        engine = next((one for one in (pid, seen.session, seen.group) if one in leaders), None)
        if engine is None:
            engine = self._by_token(pid, leaders) or _by_parents(seen, leaders)
        return Holder(pid, memory_bytes, engine, seen=True, name=_name(pid), user=_user(pid))

    def _by_token(self, pid: int, leaders: frozenset[int]) -> int | None:
        marked = procfs.environment(pid) or {}
        if marked.get(marks.OWNER) != self._owner_id:
            return None
        token = marked.get(marks.TOKEN)
        same = (one for one in sorted(leaders) if (procfs.environment(one) or {}).get(marks.TOKEN) == token)
        # Ours without an engine that is known: a leftover on its way out, no reason to call it foreign.
        return next(same, pid)


def _by_parents(seen: procfs.Stat, leaders: frozenset[int]) -> int | None:
    for _ in range(MOST_PARENTS):
        if seen.parent <= 1:
            return None
        if seen.parent in leaders:
            return seen.parent
        above = procfs.stat(seen.parent)
        if above is None:
            return None
        seen = above
    return None


def _name(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip() or None
    except OSError:
        return None


def _user(pid: int) -> str | None:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
