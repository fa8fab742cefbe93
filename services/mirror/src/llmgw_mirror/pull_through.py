"""Fetching on a client's demand: off unless an operator names repositories by pattern.

A demand waits for the registry's listing, which takes a moment, and not for the bytes: clients do not
repeat the call by which they learn the commit, and do repeat those that come after it.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from llmgw_kit.clock import Clock
from llmgw_kit.errors import LlmgwError, Unavailable
from llmgw_kit.lifecycle import cancel_all
from llmgw_mirror.fetching_repository import FetchingRepository, Order

log = logging.getLogger(__name__)

#: Of one demand; a client gives up on a file's metadata after ten seconds.
PATIENCE_S = 7.0
#: A refusal of the registry is not asked for again so soon, and so many are remembered: an engine that
#: restarts in a loop asks for the same missing file every second.
REFUSED_S, REMEMBERED = 30.0, 512
#: Different things asked for at one time; a client that invents paths must not fill the memory, nor the
#: registry's patience.
ASKING_MOST = 64
ASKED_BY = "pull-through"


@dataclass(frozen=True)
class _Key:
    repository: str
    revision: str
    path: str | None


class PullThrough:
    """`patterns`: of repository ids, as in a shell; none: nothing is pulled."""

    def __init__(
        self,
        fetching: FetchingRepository,
        patterns: Sequence[str],
        clock: Clock,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._fetching = fetching
        self._patterns = tuple(patterns)
        self._clock = clock
        self._patience_s = patience_s
        self._asking: dict[_Key, asyncio.Task[None]] = {}
        self._refused: OrderedDict[_Key, tuple[float, LlmgwError]] = OrderedDict()

    def allows(self, repository: str) -> bool:
        return any(fnmatchcase(repository, pattern) for pattern in self._patterns)

    async def demand(self, repository: str, revision: str, path: str | None = None) -> None:
        """Returns when it is on its way, or here: the usual choice of weights, or this file with what
        belongs to it. Raises as the registry does, InvalidRequest for what needs an operator's word."""
        key = _Key(repository, revision, path)
        if (before := self._refused.get(key)) is not None and self._clock.monotonic_s() < before[0]:
            raise before[1]
        task = self._asking.get(key)
        if task is None:
            if len(self._asking) >= ASKING_MOST:
                raise Unavailable(
                    f"the registry is asked for {len(self._asking)} other things, not yet for {repository!r}",
                    code="busy",
                    retry_after_s=2.0,
                    next_steps=["ask again in a moment"],
                )
            task = asyncio.create_task(self._ask(key), name=f"pull {repository}")
            self._asking[key] = task
            task.add_done_callback(lambda done: self._asked(key, done))
        await asyncio.wait({task}, timeout=self._patience_s)
        if not task.done():
            raise Unavailable(
                f"the registry is being asked for {repository!r}",
                retry_after_s=2.0,
                next_steps=["ask again in a moment"],
            )
        task.result()

    async def close(self) -> None:
        await cancel_all(*self._asking.values())

    def _asked(self, key: _Key, task: asyncio.Task[None]) -> None:
        self._asking.pop(key, None)
        # Who asked may be gone; a refusal was logged, and is remembered for whoever asks again.
        if not task.cancelled() and (e := task.exception()) is not None and not isinstance(e, LlmgwError):
            log.error("asking for %s failed by a bug", key.repository, exc_info=e)

    async def _ask(self, key: _Key) -> None:
        paths = () if key.path is None else (key.path,)
        order = Order(key.repository, key.revision, paths=paths, asked_by=ASKED_BY)
        try:
            await self._fetching.fetch(order)
        except LlmgwError as e:
            log.info("%s %s is not pulled: %s", key.repository, key.revision, e.text)
            self._refused[key] = (self._clock.monotonic_s() + REFUSED_S, e)
            self._refused.move_to_end(key)
            if len(self._refused) > REMEMBERED:
                self._refused.popitem(last=False)
            raise
        log.info("%s %s is pulled on a client's demand", key.repository, key.revision)
