"""Cold models that somebody waits for: one call a model, to whoever leads, while it is wanted (M7)."""

import asyncio
import contextlib
import logging

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Conflict, LlmgwError, NotLeader, Unavailable
from llmgw_router.leader import LeaderFollower
from llmgw_router.ports import Phase, Ready, Refused, Workers
from llmgw_router.relay.ipc import ActivationRefused, StartPhase

log = logging.getLogger(__name__)

#: After the leader said "ready", the table releases what is held. If it does not, ask again after this.
AGAIN_S = 5.0
RETRY_FIRST_S = 0.2
RETRY_MOST_S = 2.0
#: A call that stays open says once how many wait; so often it is made anew where that has changed much.
RENEW_S = 10.0


class Activations:
    """Told by the pool what is wanted; the controller starts it, the table releases who waits."""

    def __init__(self, follower: LeaderFollower, workers: Workers, clock: Clock) -> None:
        self._follower = follower
        self._workers = workers
        self._clock = clock
        self._waiting: dict[str, int] = {}
        #: What the open call has said.
        self._told: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._renewing: asyncio.Task[None] | None = None
        #: Last word of the leader on each start, for the admin pages.
        self.phases: dict[str, Phase] = {}

    def want(self, model: str, waiting: int) -> None:
        """`waiting` requests are held for `model`."""
        self._waiting[model] = waiting
        task = self._tasks.get(model)
        if task is None or task.done():
            log.info("model %s is wanted: asking the controller to start it", model)
            self._ask(model)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew(), name="renew activations")

    def _ask(self, model: str) -> None:
        self._told.pop(model, None)
        self._tasks[model] = asyncio.create_task(self._start(model), name=f"activate {model}")

    async def _renew(self) -> None:
        """While anything is wanted: let the controller's number of those who wait follow ours."""
        while self._tasks:
            await self._clock.sleep(RENEW_S)
            for model, task in list(self._tasks.items()):
                told, waiting = self._told.get(model), self._waiting.get(model)
                if told is None or waiting is None or task.done():
                    continue
                if abs(waiting - told) * 4 >= told:
                    # Its row outlives the moment between the two calls.
                    task.cancel()
                    self._ask(model)

    def unwant(self, model: str) -> None:
        """Nobody waits any more: the controller's side sees the call end."""
        self._waiting.pop(model, None)
        self._told.pop(model, None)
        self.phases.pop(model, None)
        task = self._tasks.pop(model, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """End every call."""
        tasks = [*self._tasks.values(), *([self._renewing] if self._renewing is not None else ())]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _start(self, model: str) -> None:
        wait_s = RETRY_FIRST_S
        while True:
            session = await self._follower.session()
            try:
                waiting = self._told[model] = self._waiting.get(model, 1)
                async with contextlib.aclosing(session.activate(model, waiting=waiting)) as events:
                    async for event in events:
                        match event:
                            case Phase():
                                self.phases[model] = event
                                self._workers.tell_phase(
                                    StartPhase(
                                        model=model,
                                        phase=event.phase,
                                        progress=event.progress,
                                        eta_s=event.eta_s,
                                    )
                                )
                                wait_s = RETRY_FIRST_S
                            case Ready():
                                wait_s = AGAIN_S
                            case Refused():
                                self._refuse(model, event)
                                return
            except (Conflict, Unavailable) as e:
                # The leader changed or went away: the next one is asked the same.
                if isinstance(e, NotLeader):
                    self._follower.doubt(session, e)
                log.debug("activation of %s at %s: %s", model, session.address, e.text)
            except LlmgwError as e:
                self._refuse(model, Refused(code=e.code, text=e.text, retry_after_s=None))
                return
            await self._clock.sleep(wait_s)
            wait_s = min(wait_s * 2, RETRY_MOST_S)

    def _refuse(self, model: str, refused: Refused) -> None:
        log.warning("model %s is not started: %s (%s)", model, refused.text, refused.code)
        self.phases.pop(model, None)
        self._workers.refuse(
            ActivationRefused(
                model=model, text=refused.text, code=refused.code or None, retry_after_s=refused.retry_after_s
            )
        )
