"""`ps` and `stop-all`: the journal and /proc, with no agent and no controller needed."""

import contextlib
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

from llmgw_agent.adapters import procfs
from llmgw_agent.adapters.journal import Journal
from llmgw_agent.adapters.machine import DataFolder
from llmgw_agent.core.adoption import Facts, Found, Verdict, decide
from llmgw_agent.core.shard import MAY_RUN, Exit, Shard, ShardState, exited
from llmgw_agent.core.sizes import show_size
from llmgw_kit.errors import StartupError

#: Between two looks whether an engine has ended.
LOOK_S = 0.05
#: After SIGKILL; longer means it hangs in the kernel.
KILL_WAIT_S = 10.0


@dataclass(frozen=True)
class Line:
    """One shard as `ps` shows it. `pid` None: nothing of it runs."""

    shard: Shard
    pid: int | None
    up_s: float | None
    resident_bytes: int | None
    #: The journal says it runs, and it does not: an agent will find out at its start.
    stale: bool


def look(data_dir: Path, now_unix_s: float) -> list[Line]:
    """All journalled shards, in order of id. Raises StartupError when there is no journal."""
    journal = _journal(data_dir)
    holders = procfs.token_holders()
    boot_id = procfs.boot_id()
    lines = []
    for shard in journal.read().values():
        pid = _running_pid(shard, boot_id, holders.get(shard.token or "", ()))
        started = None
        if pid is not None and (seen := procfs.stat(pid)) is not None:
            started = procfs.started_unix_s(seen.start_ticks)
        lines.append(
            Line(
                shard=shard, pid=pid, up_s=None if started is None else max(0.0, now_unix_s - started),
                resident_bytes=None if pid is None else procfs.resident_bytes(pid),
                stale=pid is None and shard.state in MAY_RUN,
            )
        )  # fmt: skip
    return lines


def _running_pid(shard: Shard, boot_id: str, holders: tuple[Found, ...]) -> int | None:
    at_pid = None
    if shard.process is not None and (seen := procfs.stat(shard.process.pid)) is not None and not seen.zombie:
        at_pid = procfs.found(seen)
    adoption = decide(shard, Facts(boot_id, at_pid, holders))
    return adoption.process.pid if adoption.verdict is Verdict.ADOPT and adoption.process else None


def _journal(data_dir: Path) -> Journal:
    folder = DataFolder(data_dir)
    try:
        list(folder.journal.iterdir())
    except FileNotFoundError:
        raise StartupError(f"no agent has used {data_dir} yet", next_steps=["check --data-dir"]) from None
    except OSError as e:
        raise StartupError(
            f"the journal in {data_dir} cannot be read: {e.strerror}",
            next_steps=["run this as the agent's user"],
        ) from None
    return Journal(folder.journal)


def plain(line: Line) -> dict[str, object]:
    """For --output json."""
    spec = line.shard.spec
    return {
        "shard_id": spec.shard_id, "replica_id": spec.replica_id, "model": spec.model, "engine": spec.engine,
        "state": line.shard.state.value, "pid": line.pid, "up_s": line.up_s,
        "resident_bytes": line.resident_bytes, "ports": dict(spec.ports), "devices": list(spec.device_ids),
        "stale": line.stale, "exit": vars(line.shard.exit) if line.shard.exit else None,
        "log": line.shard.log_path,
    }  # fmt: skip


def table(lines: list[Line], data_dir: Path) -> str:
    """At most 100 columns where the names allow it; words left, numbers right."""
    running = sum(line.pid is not None for line in lines)
    shards = f"{len(lines)} shard{'s'[: len(lines) != 1]}"
    head = f"{data_dir} · {shards}, {running} running · from the journal and /proc, now"
    if not lines:
        return head
    rows = [("  ", "SHARD", "MODEL", "ENGINE", "STATE", "PID", "PORT", "UP", "MEMORY", "DEVICES")]
    for line in lines:
        spec = line.shard.spec
        state = line.shard.state.value
        if line.shard.exit is not None:
            state = f"exited, {line.shard.exit.reason}"
        rows.append(
            (
                "!!" if line.stale else "  ", spec.shard_id, spec.model, spec.engine,
                "gone" if line.stale else state, "-" if line.pid is None else str(line.pid),
                str(spec.http_port or "-"), _duration(line.up_s), show_size(line.resident_bytes),
                " ".join(spec.device_ids) or "-",
            )
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = {5, 6, 7, 8}
    text = [head]
    for row in rows:
        cells = (
            cell.rjust(w) if i in right else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        text.append(" ".join(cells).rstrip())
    return "\n".join(text)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600} h {whole // 60 % 60:02d} m"


def stop_all(data_dir: Path, *, grace_s: float | None) -> list[tuple[Shard, str]]:
    """TERM every engine at once, wait for each its grace (or `grace_s`), KILL what is left.

    Returns the shards with what happened to each. Blocking."""
    journal = _journal(data_dir)
    boot_id, holders = procfs.boot_id(), procfs.token_holders()
    targets: list[tuple[Shard, int, float]] = []
    results: list[tuple[Shard, str]] = []
    began = time.monotonic()
    for shard in journal.read().values():
        pid = _running_pid(shard, boot_id, holders.get(shard.token or "", ()))
        if pid is None:
            if shard.state in MAY_RUN and shard.token:
                _kill_left(None, shard.token)
            continue
        _signal_group(pid, signal.SIGTERM)
        limit_s = shard.spec.stop_grace_s if grace_s is None else min(grace_s, shard.spec.stop_grace_s)
        targets.append((shard, pid, began + limit_s))
    for shard, pid, deadline in targets:
        while _alive(pid, shard) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        how = "stopped" if not _alive(pid, shard) else "killed: it ignored SIGTERM"
        left = _kill_left(pid, shard.token, shard.process.start_ticks if shard.process else None)
        if left:
            how = f"pids {left} do not end after SIGKILL; they hang in the kernel"
        elif shard.state is not ShardState.EXITED:
            _note(journal, shard, how)
        results.append((shard, how))
    return results


def _note(journal: Journal, shard: Shard, how: str) -> None:
    """Unless an agent runs, which sees the exit itself and is the one to write."""
    folder = DataFolder(journal.folder.parent)
    try:
        folder.open()
    except StartupError:
        return
    try:
        journal.write(exited(replace(shard, stop_reason="stopped"), Exit("stopped", f"by stop-all: {how}")))
    finally:
        folder.close()


def _alive(pid: int, shard: Shard) -> bool:
    seen = procfs.stat(pid)
    ticks = shard.process.start_ticks if shard.process else None
    return seen is not None and not seen.zombie and ticks in (None, seen.start_ticks)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # ended a moment ago
        os.killpg(pid, number)


def _kill_left(pid: int | None, token: str | None, start_ticks: int | None = None) -> list[int]:
    """SIGKILL all that is left of an engine; pids that do not go within the limit."""
    until = time.monotonic() + KILL_WAIT_S
    while left := procfs.members(pid, token, start_ticks=start_ticks):
        if time.monotonic() > until:
            return [one.pid for one in left]
        for one in left:
            try:
                os.kill(one.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(LOOK_S)
    return []
