"""Weights brought here before anything starts from them, and the removal of what nobody uses.

Both belong to the node and not to a session: a leader that changes must not break a fetch off.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from llmgw_agent.core.shard import Shard, ShardState
from llmgw_agent.core.weights import Held, Removal, WeightsKey, told
from llmgw_agent.ports import WeightsLike
from llmgw_kit.errors import Conflict, LlmgwError, NotFound, Unavailable
from llmgw_kit.ids import ShardId
from llmgw_kit.lifecycle import cancel_all

log = logging.getLogger(__name__)

#: Prefetches at one time; each already fetches several files at once.
MOST = 4

#: It will open its files in a moment: not even force removes them under it.
_BEFORE_OPENING = frozenset({ShardState.FETCHING, ShardState.VERIFYING})


class WeightsDesk:
    """What is asked of the weights themselves. `shards` are all of the node; `changed` tells that something
    is worth a look."""

    def __init__(
        self,
        weights: WeightsLike,
        shards: Callable[[], Mapping[ShardId, Shard]],
        changed: Callable[[], None],
    ) -> None:
        self._weights, self._shards, self._changed = weights, shards, changed
        self._tasks: dict[WeightsKey, asyncio.Task[None]] = {}
        self._failed: dict[WeightsKey, str] = {}

    def users(self) -> dict[WeightsKey, tuple[ShardId, ...]]:
        """Shards that have not exited, by the version they were started from."""
        found: dict[WeightsKey, tuple[ShardId, ...]] = {}
        for shard_id, shard in self._shards().items():
            if shard.state is not ShardState.EXITED and shard.spec.weights is not None:
                key = WeightsKey(shard.spec.weights.model, shard.spec.weights.version)
                found[key] = (*found.get(key, ()), shard_id)
        return found

    def told_of(self, held: Sequence[Held]) -> tuple[Held, ...]:
        """What is on disk, with what is known of it here."""
        return told(held, flights=self._weights.flights(), failed=self._failed, users=self.users())

    def prefetch(self, key: WeightsKey, mirrors: Sequence[str]) -> str:
        """Begin to fetch, or go on. Raises Unavailable when too many are on their way."""
        if key in self._tasks:
            return f"{key} is on its way already"
        if len(self._tasks) >= MOST:
            raise Unavailable(
                f"{len(self._tasks)} versions are fetched already, {MOST} at most", code="too_many_fetches",
                next_steps=["ask again when one of them has come"],
            )  # fmt: skip
        self._failed.pop(key, None)
        task = asyncio.create_task(self._fetch(key, mirrors), name=f"prefetch {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._ended(key, task))
        return f"fetching {key}"

    async def _fetch(self, key: WeightsKey, mirrors: Sequence[str]) -> None:
        try:
            listing = await self._weights.fetch(key, mirrors, lambda _: None)
            log.info("%s is here, %d bytes", key, listing.bytes)
        except LlmgwError as e:
            log.warning("%s cannot be fetched: %s", key, e.text)
            self._failed[key] = e.text
        except OSError as e:
            log.warning("%s cannot be fetched: %s", key, e)
            self._failed[key] = f"{key}: {e}"
        except Exception as e:
            # A bug, and nobody awaits this task: it is told where a failure is looked for.
            log.exception("%s cannot be fetched", key)
            self._failed[key] = f"{key}: {type(e).__name__}: {e}; the agent's log has more"

    def _ended(self, key: WeightsKey, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        self._changed()

    async def remove(self, key: WeightsKey, *, force: bool) -> Removal:
        """Delete a version. Raises Conflict while a shard uses it, unless forced, and NotFound.

        From the look at the users to the mark inside `weights.remove` there is no await while nobody
        fetches, so no start comes between."""
        self._refuse_if_used(key, force=force)
        task = self._tasks.get(key)
        if task is not None:
            await cancel_all(task)
            self._refuse_if_used(key, force=force)
        if self._weights.fetching(key):
            raise Conflict(
                f"{key} is in use: it is being fetched for a start; remove it when that replica is ready "
                "or has been stopped",
                code="in_use",
            )
        asked_for = self._failed.pop(key, None) is not None or task is not None
        mapped = self.users().get(key, ())
        try:
            freed = await self._weights.remove(key)
        except NotFound:
            if not asked_for:
                raise
            self._changed()
            return Removal(f"{key} is not fetched any more; nothing of it had come", 0)
        except OSError as e:
            raise Unavailable(f"{key} cannot be removed: {e}") from None
        self._changed()
        if mapped:
            # Unlinked and still open: the kernel keeps the bytes until the last of them has exited.
            text = f"removed {key}: {freed} bytes come free when {', '.join(mapped)} ended"
            return Removal(text, 0)
        return Removal(f"removed {key}: {freed} bytes freed", freed)

    def _refuse_if_used(self, key: WeightsKey, *, force: bool) -> None:
        users = self.users().get(key, ())
        opening = [one for one in users if self._shards()[one].state in _BEFORE_OPENING]
        if opening:
            raise Conflict(
                f"{key} is in use by {', '.join(opening)}: a start is under way that will open it "
                "in a moment; remove it when that replica is ready or has been stopped", code="in_use",
            )  # fmt: skip
        blocking = () if force else users
        if blocking:
            raise Conflict(
                f"{key} is in use by {', '.join(blocking)}", code="in_use",
                next_steps=["stop the model's replicas on this node first"],
            )  # fmt: skip

    async def leave(self) -> None:
        """Give up what is on its way; what came stays on disk."""
        await cancel_all(*self._tasks.values())
