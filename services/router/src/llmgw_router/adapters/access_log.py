"""The access log: one JSON object a line, to stdout or a file. Made and written here, never by a worker.

A destination that does not take lines costs lines, not memory and not requests: what does not fit is counted.
"""

import asyncio
import logging
import os
import select
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from llmgw_router.relay.ipc import AccessRecord

log = logging.getLogger(__name__)

#: Records that may wait for the destination; some 50 MB.
MOST_WAITING = 100_000
#: A failing destination is told of this often.
REPEAT_S = 60.0
#: At the end the destination has so long to take what is left: a pipe that nobody reads must not hold a stop.
CLOSE_S = 2.0
#: Between two looks whether the end has come, while it takes nothing.
_LOOK_S = 0.1
#: A pipe that is ready takes so much at once without blocking.
_PIECE_BYTES = select.PIPE_BUF

_encode = msgspec.json.Encoder().encode


def fields_of(record: AccessRecord) -> dict[str, Any]:
    """What is said of an exchange. Every key is always there; None is what did not happen or is not known."""
    fields: dict[str, Any] = {"at": round(record.at_unix_s, 6), **msgspec.structs.asdict(record)}
    del fields["at_unix_s"]
    trace, given = record.trace, fields.pop("traceparent")
    # A caller's trace is found by its id also where nobody samples it.
    fields["trace"] = trace.trace_id if trace is not None else given[3:35] if given is not None else None
    fields["sampled"] = trace is not None
    return fields


def line(record: AccessRecord) -> bytes:
    """One line of JSON."""
    return _encode(fields_of(record)) + b"\n"


class AccessLog:
    """Takes records on the loop; `run` writes them in batches from a thread."""

    def __init__(
        self, path: Path | None, monotonic_s: Callable[[], float], *, close_s: float = CLOSE_S
    ) -> None:
        #: None: stdout.
        self._path = path
        self._monotonic_s = monotonic_s
        self._close_s = close_s
        #: When to give up what is not taken; None: never, somebody may read again.
        self._give_up_at: float | None = None
        #: A cancelled `run` leaves its thread behind, and the last batch must not meet it.
        self._one = threading.Lock()
        self._waiting: list[AccessRecord] = []
        self._some = asyncio.Event()
        self._file: int | None = None
        self._opened: Path | None = None
        self._said_at: float | None = None
        #: Records that nobody will read.
        self.dropped = 0
        self.written = 0

    def to(self, path: Path | None) -> None:
        """Write there from the next batch on."""
        self._path = path

    def offer(self, records: Sequence[AccessRecord]) -> None:
        room = MOST_WAITING - len(self._waiting)
        if room < len(records):
            self.dropped += len(records) - room
            records = records[:room]
        self._waiting.extend(records)
        if records:
            self._some.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._some.wait()
            await self.flush()

    async def flush(self) -> None:
        """Write what waits now."""
        self._some.clear()
        batch, self._waiting = self._waiting, []
        if batch:
            await asyncio.to_thread(self._write, batch, self._path)

    async def close(self) -> None:
        """Write what waits, for CLOSE_S at most, and let go of the file."""
        self._give_up_at = self._monotonic_s() + self._close_s
        await self.flush()
        # Also where there was nothing: a thread of before may be at it still.
        await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        with self._one:
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, batch: list[AccessRecord], path: Path | None) -> None:
        data = b"".join(map(line, batch))
        try:
            with self._one:
                self._write_all(sys.stdout.fileno() if path is None else self._open(path), data)
        except OSError as e:
            self.dropped += len(batch)
            now = self._monotonic_s()
            if self._said_at is None or now - self._said_at >= REPEAT_S:
                self._said_at = now
                log.error("access log to %s: %s; %d lines lost so far", path or "stdout", e, self.dropped)
        else:
            self.written += len(batch)

    def _open(self, path: Path) -> int:
        """The file's descriptor, a new one when it was moved away (as logrotate does)."""
        if self._file is not None:
            try:
                same = path == self._opened and os.path.samestat(os.fstat(self._file), path.stat())
            except FileNotFoundError:
                same = False
            if same:
                return self._file
            self._close_file()
        # Who may read requests' ids and tenants is the group's business.
        self._file = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640
        )
        self._opened = path
        return self._file

    def _write_all(self, fd: int, data: bytes) -> None:
        """Raises OSError; at the end also for who takes too long."""
        rest = memoryview(data)
        piece = len(rest) if stat.S_ISREG(os.fstat(fd).st_mode) else _PIECE_BYTES
        ready = select.poll()
        ready.register(fd, select.POLLOUT)
        while rest:
            if ready.poll(_LOOK_S * 1000):
                rest = rest[os.write(fd, rest[:piece]) :]
            elif self._give_up_at is not None and self._monotonic_s() >= self._give_up_at:
                raise TimeoutError("nobody takes it")
