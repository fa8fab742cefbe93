"""One run of the lab: bring everything up, ask, show, and stay."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from rich.console import Console

from llmgw_kit.errors import LlmgwError
from llmgw_kit.testing.processes import Cage, ChildFailed
from llmgw_lab import ask, models, watch
from llmgw_lab.layout import CONTROLLERS, Layout
from llmgw_lab.leftovers import MARK
from llmgw_lab.progress import Shown, Step
from llmgw_lab.suite import Suite
from llmgw_lab.words import paste, welcome

#: A service killed by hand comes back after so long, as a supervisor would do it.
RESTART_AFTER_S = 2.0
#: So many restarts of one part in a row without a quiet minute: it is broken, not visited.
RESTARTS_MAX = 5
QUIET_S = 60.0


class Session:
    """Owns the suite of one lab."""

    def __init__(self, cage: Cage, layout: Layout, model: str) -> None:
        self.layout, self.model = layout, model
        self.console = Console(highlight=False, emoji=False)
        self.shown = Shown(self.console)
        self.suite = Suite(cage, layout, models=[])
        self.answered = False

    async def run(self, *, once: bool) -> None:
        """All of it. Raises ChildFailed or LlmgwError with what went wrong."""
        self.console.print(f"llmgw lab in {self.layout.folder}", soft_wrap=True)
        with self.shown.running():
            await self._start()
        await self._while_all_live(self._first_request())
        if once:
            return
        self.console.print(paste(self.layout, self.model), markup=False, soft_wrap=True)
        await self._stay()

    async def close(self) -> None:
        """Stop everything in order; the cage ends what is left, the engines among it."""
        if self.suite.children or self.suite.postgres.process:
            with suppress(ChildFailed):  # the cage is gone: so is everything in it
                await self.suite.close()
            self.console.print("stopped; nothing is left running")

    async def _start(self) -> None:
        with self.shown.step("models") as step:
            real = await asyncio.to_thread(models.real_model)
            tiny = await asyncio.to_thread(models.tiny_model, self.layout.data("models"))
            mark = {MARK: str(self.layout.folder)}
            self.suite.models = [models.catalog_entry(model, env=mark) for model in (real, tiny)]
            step.conclude(", ".join(f"{m.name} {m.size_bytes / 1e6:.1f} MB" for m in (real, tiny)))
        with self.shown.step("Postgres") as step:
            await self.suite.postgres.start()
            step.conclude(f"127.0.0.1:{self.suite.postgres.port}")
        with self.shown.step("Redis") as step:
            await self.suite.redis.start()
            step.conclude(f"127.0.0.1:{self.suite.redis.port}")
        # All at once: each waits for its peers by itself, which is worth seeing every day.
        await self.suite.start(*self.suite.parts)
        ready = [asyncio.create_task(self._ready(part)) for part in self.suite.parts]
        try:
            await asyncio.gather(*ready)
        finally:
            for task in ready:
                task.cancel()
            await asyncio.wait(ready)

    async def _ready(self, part: str) -> None:
        with self.shown.step(part) as step:
            step.say("starting")
            await self.suite.until_ready(part)
            if part in self.suite.agents:
                step.say("looking for the leader")
                await self.suite.until_heard(part)
            step.conclude(welcome(self.layout, part, self.suite.nodes))

    async def _while_all_live(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work, unless a service ends meanwhile; before the first answer none is restarted."""
        ends = {asyncio.create_task(child.wait()): part for part, child in self.suite.children.items()}
        doing = asyncio.create_task(work)
        try:
            await asyncio.wait({doing, *ends}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = [part for task, part in ends.items() if task.done()]
            for task in (doing, *ends):
                task.cancel()
            await asyncio.wait({doing, *ends})
        if ended:
            raise ChildFailed(self.suite.obituary(ended[0]))
        doing.result()

    async def _first_request(self) -> None:
        self.console.print()
        self.console.print(f"asking {self.model}, which is cold: {ask.MESSAGES[self.model][-1]['content']}")
        answer = await self._ask()
        self.answered = True
        self.console.print(
            f"\n{answer.tokens} tokens; the first after {answer.first_token_s:.1f} s, cold start included, "
            f"the last after {answer.whole_s:.1f} s\n"
        )
        await self.suite.until_at_rest(self.model)
        self.console.print("$ llmgwctl status")
        code, text = await self.suite.ctl("status")
        self.console.print(text, markup=False, soft_wrap=True, end="")
        if code not in (0, 1):  # 1: trouble found, which is for the reader to see
            raise LlmgwError(f"llmgwctl status ended with {code}")

    async def _ask(self) -> ask.Answer:
        first_text = asyncio.Event()
        waiting = asyncio.create_task(self._show_cold_start(first_text))

        async def on_text(text: str) -> None:
            # The live line must be gone before the answer is written where it stood.
            first_text.set()
            await waiting
            self.console.file.write(text)
            self.console.file.flush()

        try:
            return await ask.ask(self.layout.router_url, self.model, on_text=on_text)
        finally:
            waiting.cancel()
            await asyncio.wait({waiting})

    async def _show_cold_start(self, until: asyncio.Event) -> None:
        with self.shown.running(), self.shown.step("cold start") as step:
            telling = asyncio.create_task(self._tell(step))
            try:
                await until.wait()
                step.conclude(f"{self.model} answers")
            finally:
                telling.cancel()
                await asyncio.wait({telling})

    async def _tell(self, step: Step) -> None:
        addresses = [self.layout.address(name) for name in CONTROLLERS]
        await watch.tell(addresses, self.model, step.say)

    async def _stay(self) -> None:
        """Until cancelled: say when a service ends and start it again, as a supervisor would."""
        await asyncio.gather(*(self._keep(part) for part in list(self.suite.children)))

    async def _keep(self, part: str) -> None:
        loop = asyncio.get_running_loop()
        restarts, started = 0, loop.time()
        while True:
            await self.suite.children[part].wait()
            restarts = 1 if loop.time() - started > QUIET_S else restarts + 1
            if restarts > RESTARTS_MAX:
                raise ChildFailed(f"{part} ended {restarts} times in a row; {self.suite.obituary(part)}")
            # Killed by hand it has nothing to say; of itself it has.
            by_signal = (self.suite.children[part].code or 0) < 0
            how = self.suite.ending(part) if by_signal else self.suite.obituary(part)
            self.console.print(f"{how}\n{part} is started again", markup=False, soft_wrap=True)
            await asyncio.sleep(RESTART_AFTER_S)
            await self.suite.start(part)
            started = loop.time()
