"""Recorded statuses: written by the leader when they change, read back by `status --at`.

What changes the shape of the fleet (a phase, a node, a trouble) is on record within ten seconds; numbers
that move all the time are worth a record a minute; and where nothing moves at all one every ten minutes says
that somebody watched.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller import wire_operator
from llmgw_controller.leadership import Tenure
from llmgw_controller.ledger import Ledger
from llmgw_controller.ports import History, Store
from llmgw_kit.clock import Clock
from llmgw_kit.errors import InvalidRequest, NotFound, Unavailable

log = logging.getLogger(__name__)

LOOK_EVERY_S = 10.0
REST = 20.0
NUMBERS_EVERY_S = 60.0
AT_LEAST_EVERY_S = 600.0
THIN_EVERY_S = 600.0
#: Records from before so long stand a minute apart at least.
DENSE_S = 3600.0

#: Events told between a record and the time asked for: the last of them.
EVENTS_MOST = 200


class StatusRecorder:
    """The leader's pen. `status` makes the whole status of now."""

    def __init__(
        self,
        history: History,
        ledger: Ledger,
        tenure: Tenure,
        clock: Clock,
        status: Callable[[], Awaitable[pb.GetStatusResponse]],
        *,
        keep_s: float,
    ) -> None:
        self._history = history
        self._ledger = ledger
        self._tenure = tenure
        self._clock = clock
        self._status = status
        self._keep_s = keep_s
        self._shape: bytes | None = None
        self._numbers: bytes | None = None
        self._recorded_at: float | None = None
        self._thinned_at: float | None = None
        self._told: str | None = None

    async def run(self) -> None:
        """For ever. Raises Fenced."""
        took_s = 0.0
        while True:
            # Of a large fleet a look takes long: it never uses more than one part in so many of a core.
            await self._clock.sleep(max(LOOK_EVERY_S, REST * took_s))
            self._tenure.require()
            began = self._clock.monotonic_s()
            try:
                await self.look()
                self._told = None
            except Unavailable as e:
                if self._told != e.text:
                    log.warning("the status is not recorded: %s", e.text)
                self._told = e.text
            took_s = self._clock.monotonic_s() - began

    async def look(self) -> bool:
        """Record it if it is worth it; whether it was. Raises Fenced and Unavailable."""
        if not self._ledger.known:
            return False
        status = await self._status()
        now = status.info.at_unix_s
        # In a thread, as what made it: of a large fleet it is megabytes.
        shape, numbers, text = await asyncio.to_thread(_read, status)
        age_s = None if self._recorded_at is None else now - self._recorded_at
        due = (
            age_s is None
            or shape != self._shape
            or (numbers != self._numbers and age_s >= NUMBERS_EVERY_S)
            or age_s >= AT_LEAST_EVERY_S
        )
        if due:
            await self._history.record(self._tenure.term, now, text)
            self._shape, self._numbers, self._recorded_at = shape, numbers, now
        if self._thinned_at is None or now - self._thinned_at >= THIN_EVERY_S:
            await self._history.thin(
                self._tenure.term, before=now - self._keep_s, minutes_before=now - DENSE_S
            )
            self._thinned_at = now
        return due


def _read(status: pb.GetStatusResponse) -> tuple[bytes, bytes, bytes]:
    """Digests of what stays and of what moves, and the whole as it is recorded."""
    return _digest(_shape(status)), _digest(_numbers(status)), status.SerializeToString()


def _shape(status: pb.GetStatusResponse) -> object:
    """What does not move by itself."""
    return (
        sorted((one.severity, one.kind, one.subject) for one in status.trouble),
        [(row.gpu_class, row.total, row.parts.unhealthy, row.parts.cordoned) for row in status.capacity],
        [(row.fabric, row.nodes, row.whole_free) for row in status.fabrics],
        (status.nodes.heard, status.nodes.silent, status.nodes.lost),
        (status.routers.members, status.routers.heard, status.brake, status.eviction),
        [(row.model, row.availability, row.wanted, row.ready, row.stopped) for row in status.models],
        [(row.replica_id, row.phase, row.unreachable, row.group_epoch) for row in status.replicas],
        [(row.node_id, *row.homeless_replica_ids) for row in status.risks],
    )


def _numbers(status: pb.GetStatusResponse) -> object:
    """What moves with every request, without what moves with the clock."""
    return (
        [row.parts.SerializeToString(deterministic=True) for row in status.capacity],
        [(row.model, row.in_flight, row.held) for row in status.models],
        [(row.replica_id, row.in_flight, row.idleness.kind, row.progress) for row in status.replicas],
    )


def _digest(value: object) -> bytes:
    return hashlib.blake2b(repr(value).encode(), digest_size=16).digest()


async def status_at(store: Store, at: float, now: float) -> pb.GetStatusResponse:
    """The status as it was recorded last before `at`, and what has happened between the two.

    Raises InvalidRequest for a time that has not come, NotFound with the range there is, Unavailable."""
    if at > now:
        raise InvalidRequest(
            f"{_utc(at)} has not come yet; it is {_utc(now)}",
            code="not_yet",
            next_steps=["try: llmgwctl status --at -1h"],
        )
    record = await store.history.newest(at)
    if record is None:
        span = await store.history.span()
        there = f"records go from {_utc(span[0])} to {_utc(span[1])}" if span else "none was made yet"
        raise NotFound(
            f"no status is recorded from {_utc(at)} or before; {there}",
            code="not_recorded",
            next_steps=["a leader records its status within 10 s of a change", "try: llmgwctl status"],
        )
    answer = pb.GetStatusResponse.FromString(record.status)
    answer.recorded_unix_s = record.at
    answer.asked_unix_s = at
    rows = await store.events(since=record.at, until=at, subject=None, limit=EVENTS_MOST)
    between = [row for row in reversed(rows) if row.at > record.at]
    answer.events_since.extend(wire_operator.event(row) for row in between)
    return answer


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
