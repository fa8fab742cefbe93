"""The activity map in Redis: one script a tick. Keys and fields are described in docs/redis.md.

The script turns ages into times by Redis's own clock, so that no router's wall clock counts, and
keeps a time only if it is newer: sent twice, late or out of order, a report can only be right.
"""

import json

import redis.exceptions

from llmgw_kit import redis as kit_redis
from llmgw_kit.errors import Unavailable
from llmgw_router.core.activity import Report
from llmgw_router.ports import ActivityReply

ACTIVITY_KEY = "{llmgw}:activity"


def router_key(router_id: str) -> str:
    return f"{{llmgw}}:router:{router_id}"


# INFO inside the script: the run id read is the one of the server that writes. Whoever finds the marks
# missing, or left by another server process, starts a new epoch: writes may have been lost, so watching
# starts anew and every router resends its whole map.
SCRIPT = """
local activity, router = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local at = string.format('%.0f', now)
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local marks = redis.call('HMGET', activity, 'watching_since', 'run_id', 'epoch')
local epoch = marks[3]
if not marks[1] or not epoch or marks[2] ~= run_id then
  epoch = at .. '-' .. ARGV[1]
  redis.call('HSET', activity, 'watching_since', at, 'run_id', run_id, 'epoch', epoch)
end
for i = 8, #ARGV, 2 do
  local used = now - tonumber(ARGV[i + 1])
  local known = tonumber(redis.call('HGET', activity, ARGV[i]) or -1)
  if used > known then
    redis.call('HSET', activity, ARGV[i], string.format('%.0f', used))
  end
end
redis.call('HSET', router, 'at', at, 'incarnation', ARGV[1], 'seq', ARGV[2],
           'in_flight', ARGV[6], 'held', ARGV[7])
if ARGV[4] == '1' or ARGV[5] == epoch then
  redis.call('HSET', router, 'epoch', epoch)
else
  redis.call('HDEL', router, 'epoch')
end
redis.call('PEXPIRE', router, ARGV[3])
return {epoch, run_id, at}
"""


class RedisActivity:
    """ActivityStore on one Redis."""

    def __init__(self, url: str, *, router_id: str, incarnation: str, ttl_s: float) -> None:
        self._redis = kit_redis.connect(url, max_connections=2)
        self._router_key = router_key(router_id)
        self._incarnation = incarnation
        self._ttl_ms = int(ttl_s * 1000)

    async def send(
        self, report: Report, *, held: dict[str, int], seq: int, epoch: str | None
    ) -> ActivityReply:
        """Write one tick. Raises Unavailable: it may have arrived or not, and may be sent again."""
        arguments: list[str | int] = [
            self._incarnation,
            seq,
            self._ttl_ms,
            "1" if report.whole else "0",
            epoch or "",
            _compact(report.in_flight),
            _compact(held),
        ]
        for replica_id, age_ms in report.ages_ms.items():
            arguments += (replica_id, age_ms)
        try:
            epoch_now, run_id, at = await self._redis.eval(
                SCRIPT, 2, ACTIVITY_KEY, self._router_key, *arguments
            )
        except (redis.exceptions.RedisError, OSError) as e:
            raise Unavailable(f"Redis does not take the activity map: {e}") from None
        return ActivityReply(epoch=str(epoch_now), run_id=str(run_id), at_unix_ms=int(at))

    async def goodbye(self) -> None:
        """Take this router's report away: its word ends now, not with the TTL. Raises Unavailable."""
        try:
            await self._redis.delete(self._router_key)
        except (redis.exceptions.RedisError, OSError) as e:
            raise Unavailable(f"Redis does not take the goodbye: {e}") from None

    async def close(self) -> None:
        await self._redis.aclose()


def _compact(counts: object) -> str:
    return json.dumps(counts, separators=(",", ":"), sort_keys=True)
