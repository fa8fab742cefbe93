"""The routers' map in Redis, read whole; keys and fields as docs/redis.md has them."""

import json
import logging
import re
from collections.abc import Collection
from typing import Any

import redis.exceptions

from llmgw_controller.core.activity import Activity, ActivityMap, RouterReport
from llmgw_kit import redis as kit_redis
from llmgw_kit.ids import ReplicaId, RouterId

log = logging.getLogger(__name__)

ACTIVITY_KEY = "{llmgw}:activity"
ROUTER_PREFIX = "{llmgw}:router:"
#: Fields of the activity hash that name no replica.
_MARKS = frozenset({"watching_since", "run_id", "epoch"})


class RedisActivity:
    """ActivityReader. Says once when Redis goes away and once when it is back."""

    def __init__(self, url: str) -> None:
        self._redis = kit_redis.connect(url, max_connections=2)
        self._away = False

    async def read(self) -> Activity:
        """As in the port."""
        try:
            found = Activity(map=await self._read(), missing_reason="")
        except (redis.exceptions.RedisError, OSError) as e:
            if not self._away:
                log.warning("Redis does not answer (%s): idleness is unknown, nothing is evicted", e)
            self._away = True
            return Activity(map=None, missing_reason="redis_unreachable")
        if self._away:
            log.info("Redis answers again")
        self._away = False
        return found

    async def _read(self) -> ActivityMap:
        keys = [key async for key in self._redis.scan_iter(match=f"{ROUTER_PREFIX}*", count=1000)]
        # One transaction, so that times and the clock they are compared with are of one moment.
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.time()
            pipe.info("server")
            pipe.hgetall(ACTIVITY_KEY)
            for key in sorted(keys):
                pipe.hgetall(key)
            (seconds, microseconds), info, marks, *reports = await pipe.execute()
        return activity_map(
            now=seconds + microseconds / 1e6,
            run_id=str(info["run_id"]),
            fields=marks,
            routers=dict(zip(sorted(keys), reports, strict=True)),
        )

    async def forget(self, replica_ids: Collection[ReplicaId]) -> None:
        """As in the port."""
        try:
            await self._redis.hdel(ACTIVITY_KEY, *sorted(replica_ids))
        except (redis.exceptions.RedisError, OSError) as e:
            log.info("times of replicas that are gone stay in Redis for now: %s", e)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()


def activity_map(
    *, now: float, run_id: str, fields: dict[str, str], routers: dict[str, dict[str, str]]
) -> ActivityMap:
    """From what Redis holds to core types. Marks left by another server process are as good as none: writes
    may have been lost between the two."""
    ours = fields.get("run_id") == run_id
    reports = (_report(key.removeprefix(ROUTER_PREFIX), report) for key, report in routers.items())
    return ActivityMap(
        now=now,
        watching_since=_seconds(fields.get("watching_since")) if ours else None,
        epoch=fields.get("epoch") if ours else None,
        touched={
            ReplicaId(name): at
            for name, text in fields.items()
            if name not in _MARKS and (at := _seconds(text)) is not None
        },
        routers={report.router_id: report for report in reports if report is not None},
    )


def _report(router_id: str, fields: dict[str, str]) -> RouterReport | None:
    """None for a report that has just expired, or that cannot be read: its router then counts as silent."""
    at = _seconds(fields.get("at"))
    if at is None or "incarnation" not in fields:
        return None
    in_flight, held = _counts(fields.get("in_flight")), _counts(fields.get("held"))
    if in_flight is None or held is None:
        log.warning("the report of router %s in Redis cannot be read; it counts as silent", router_id)
        return None
    return RouterReport(
        router_id=RouterId(router_id),
        incarnation=fields["incarnation"],
        at=at,
        # No epoch: the router has not yet sent its whole map to this one.
        epoch=fields.get("epoch", ""),
        in_flight={ReplicaId(name): count for name, count in in_flight.items()},
        held=held,
    )


def _seconds(text: str | None) -> float | None:
    """From unix milliseconds."""
    if text is None or not re.fullmatch(r"\d{1,16}", text):
        return None
    return int(text) / 1000


def _counts(text: str | None) -> dict[str, int] | None:
    try:
        found: Any = json.loads(text or "{}")
    except ValueError:
        return None
    if not isinstance(found, dict) or not all(isinstance(count, int) for count in found.values()):
        return None
    return found


class NoActivity:
    """ActivityReader where no Redis is configured."""

    async def read(self) -> Activity:
        """As in the port."""
        return Activity()

    async def forget(self, replica_ids: Collection[ReplicaId]) -> None:
        """Nothing to forget."""

    async def close(self) -> None:
        """Nothing to close."""
