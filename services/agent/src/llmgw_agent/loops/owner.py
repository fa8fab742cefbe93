"""One task owns one shard from its weights to its exit. The rest of the agent sends it requests.

    weights -> verify -> launch -> load -> serve -> drain -> stop -> exit

The journal is written before the launch (what we are about to do) and after each change of state.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from llmgw_agent.core import marks
from llmgw_agent.core.paths import folder_name
from llmgw_agent.core.reasons import recognised
from llmgw_agent.core.shard import Event, Exit, Shard, ShardState, exited, step, with_memory
from llmgw_agent.core.weights import WeightsKey
from llmgw_agent.engines.catalog import engine_named
from llmgw_agent.loops.attend import Attendant
from llmgw_agent.loops.waiting import within
from llmgw_agent.loops.world import ShardFailed, World
from llmgw_agent.ports import RunningEngine
from llmgw_kit.errors import Conflict, LlmgwError
from llmgw_kit.ids import DeviceId

log = logging.getLogger(__name__)
T = TypeVar("T")


class _StopAsked(Exception):
    """A stop came before the engine was launched."""


class ShardOwner:
    """`shard` is the truth about it; only this object replaces it."""

    def __init__(
        self, shard: Shard, world: World, changed: Callable[[], None], *,
        running: RunningEngine | None = None, confirmed: bool = True,
    ) -> None:  # fmt: skip
        self.shard = shard
        self._world = world
        self._changed = changed
        self._running = running
        #: Monotonic; None for an engine that an earlier agent launched.
        self._launched_s: float | None = None
        self._oom_kills: tuple[int | None, int | None] = (world.launcher.oom_kills(),) * 2
        self._stop = asyncio.Event()
        self._confirmed = asyncio.Event()
        if confirmed:
            self._confirmed.set()

    def confirm(self) -> None:
        """The controller wants it in this life of the agent, too."""
        self._confirmed.set()

    def request_drain(self) -> None:
        """Take no new work. The engine goes on; routers keep requests away."""
        if self.shard.state in (ShardState.LOADING, ShardState.SERVING):
            self._step(Event.DRAIN, "drain asked for")
        elif self.shard.state not in (ShardState.DRAINING, ShardState.STOPPING, ShardState.EXITED):
            self.request_stop("stopped")

    def request_stop(self, reason: str) -> None:
        """TERM, grace, KILL. The first reason stays."""
        if self.shard.state is ShardState.EXITED or self._stop.is_set():
            return
        if self.shard.stop_reason is None:
            self.shard = replace(self.shard, stop_reason=reason)
        self._stop.set()

    async def run(self) -> None:
        """Until it has exited. A LlmgwError never leaves; a bug does."""
        try:
            if self._running is None:
                self._running = await self._unless_stopped(self._bring_up())
            await self._watch(self._running)
        except _StopAsked:
            self._exit(Exit(self.shard.stop_reason or "stopped", "stopped before it was launched"))
        except ShardFailed as e:
            self._exit(Exit(e.reason, e.text))
        finally:
            if self._running is not None:
                self._running.close()

    # -- bringing up ---------------------------------------------------------------------------

    async def _bring_up(self) -> RunningEngine:
        await self._confirmed.wait()
        spec = self.shard.spec
        try:
            engine = engine_named(spec.engine)
            visible = self._world.devices.visible(spec.device_ids)
        except LlmgwError as e:
            raise ShardFailed("refused", _told(e)) from None
        model_path = await self._weights_here()
        # No await from here to the return: a cancellation in between would lose a running engine.
        try:
            self._world.launcher.check_free(self._world.surroundings.listen_host, spec.bound_ports)
            launch = engine.launch(spec, replace(self._world.surroundings, model_path=model_path))
        except LlmgwError as e:
            raise ShardFailed("port_taken" if e.code == "port_taken" else "refused", _told(e)) from None
        return self._launch(launch.argv, {**visible, **spec.env, **launch.env})

    async def _weights_here(self) -> str | None:
        """Path of verified weights; None when the spec names none. Leaves the shard in LAUNCHING."""
        spec = self.shard.spec
        if spec.weights is None:
            if self.shard.state is ShardState.FETCHING:
                self._step(Event.WEIGHTS_HERE, "needs none")
            if self.shard.state is ShardState.VERIFYING:
                self.shard = replace(self.shard, fetch_s=0.0)
                self._step(Event.VERIFIED, "needs none")
            return None
        key = WeightsKey(spec.weights.model, spec.weights.version)
        self._restart_from_fetching()
        began_s = self._world.clock.monotonic_s()
        try:
            wrong = await self._fetch_and_verify(key)
            if wrong is not None:
                log.error("shard %s: %s; fetching again", spec.shard_id, wrong)
                self._step(Event.WEIGHTS_CORRUPT, wrong)
                await self._world.weights.remove(key)
                wrong = await self._fetch_and_verify(key)
            if wrong is not None:
                raise ShardFailed("weights_failed", wrong)
            path = self._world.weights.model_path(key, spec.weights.entry_file)
        except LlmgwError as e:
            raise ShardFailed("weights_failed", _told(e)) from None
        except OSError as e:
            raise ShardFailed("weights_failed", f"{key}: {e}") from None
        self.shard = replace(self.shard, fetch_s=self._world.clock.monotonic_s() - began_s)
        self._step(Event.VERIFIED, "checksums match")
        return str(path)

    def _restart_from_fetching(self) -> None:
        """A shard an earlier agent left unlaunched begins again: its weights may have gone meanwhile."""
        if self.shard.state is not ShardState.FETCHING:
            self.shard = replace(self.shard, state=ShardState.FETCHING, token=None)

    async def _fetch_and_verify(self, key: WeightsKey) -> str | None:
        listing = await self._world.weights.fetch(key, self.shard.spec.mirror_urls, self._progress)
        self._step(Event.WEIGHTS_HERE, f"{listing.bytes} bytes")
        return await self._world.weights.verify(key, listing.bytes, self._progress)

    def _progress(self, fraction: float | None) -> None:
        if self.shard.state not in (ShardState.FETCHING, ShardState.VERIFYING):
            return
        before = self.shard.progress
        after = None if fraction is None else min(1.0, max(0.0, fraction))
        # By the percent: every chunk would be a message to the controller.
        if before is None or after is None or abs(after - before) >= 0.01:
            self.update(progress=after)

    def _launch(self, argv: tuple[str, ...], env: Mapping[str, str]) -> RunningEngine:
        world, spec = self._world, self.shard.spec
        token = world.new_token()
        log_path = world.log_folder / f"{folder_name(spec.shard_id, what='shard id')}.log"
        self.shard = replace(
            self.shard,
            token=token,
            process=None,
            log_path=str(log_path),
            launched_unix_s=world.clock.unix_s(),
        )
        labels = {
            marks.TOKEN: token,
            marks.OWNER: world.owner_id,
            marks.LABEL: f"{world.node_id}/{spec.shard_id}",
            marks.SPEC_HASH: spec.spec_hash,
        }
        try:
            # The intent first: an agent that dies after the launch finds its engine by this token.
            world.journal.write(self.shard)
            running = world.launcher.launch(
                argv,
                {**world.base_env, **env, **labels},
                log_path=log_path,
                cwd=world.run_folder,
                token=token,
            )
        except OSError as e:
            raise ShardFailed("launch_failed", f"the journal cannot be written: {e}") from None
        except LlmgwError as e:
            absent = e.code == "engine_absent"
            raise ShardFailed("engine_absent" if absent else "launch_failed", _told(e)) from None
        self._launched_s = world.clock.monotonic_s()
        self._oom_kills = (world.launcher.oom_kills(),) * 2
        self.shard = replace(self.shard, process=running.identity)
        self._step(Event.LAUNCHED, f"pid {running.identity.pid}")
        log.info("shard %s: launched pid %d: %s", spec.shard_id, running.identity.pid, " ".join(argv))
        return running

    # -- watching ------------------------------------------------------------------------------

    async def _watch(self, running: RunningEngine) -> None:
        if self.shard.state is ShardState.STOPPING:
            self._stop.set()  # an earlier agent was stopping it
        attend = asyncio.create_task(
            Attendant(self, self._world).run(), name=f"attend {self.shard.spec.shard_id}"
        )
        stop = asyncio.create_task(self._stop.wait())
        note = ""
        try:
            waited: set[asyncio.Future[Any]] = {running.ended, attend, stop}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if attend.done() and not running.ended.done() and not stop.done():
                attend.result()
                raise AssertionError("attending an engine ended by itself")
        except ShardFailed as e:
            self.request_stop(e.reason)
            note = e.text
        finally:
            attend.cancel()
            stop.cancel()
            await asyncio.gather(attend, stop, return_exceptions=True)
        if running.ended.done() and self.shard.state is not ShardState.STOPPING and not self._stop.is_set():
            await self._ended_by_itself(running)
        else:
            await self._end(running, note)

    # -- ending --------------------------------------------------------------------------------

    async def _ended_by_itself(self, running: RunningEngine) -> None:
        how = running.ended.result()
        # Children of a crashed engine hold its GPU and its port.
        await running.kill()
        text = self._log_tail()
        reason = recognised(how, text, oom_killed=self._oom_killed())
        if self.shard.state is ShardState.LOADING:
            try:
                self._world.launcher.check_free(
                    self._world.surroundings.listen_host, self.shard.spec.bound_ports
                )
            except Conflict as e:
                # Taken between our test and the engine's own bind.
                reason, text = "port_taken", f"{e.text}\n{text}"
        self._exit(Exit(reason, text, how.code, how.signal))

    async def _end(self, running: RunningEngine, note: str) -> None:
        spec, clock = self.shard.spec, self._world.clock
        reason = self.shard.stop_reason or "stopped"
        if self.shard.state is not ShardState.STOPPING:
            self._step(Event.STOP, reason)
        running.terminate()
        if not await within(running.ended, clock, spec.stop_grace_s):
            note = f"{note}\nkilled: still there {spec.stop_grace_s:g} s after SIGTERM".strip()
            log.warning("shard %s: pid %d ignores SIGTERM; killing it", spec.shard_id, running.identity.pid)
        await running.kill()
        how = running.ended.result()
        if reason == "never_ready":
            note = f"{note}\n{self._log_tail()}"
        self._exit(Exit(reason, note, how.code, how.signal))

    def _oom_killed(self) -> bool:
        before, now = self._oom_kills[0], self._world.launcher.oom_kills()
        return before is not None and now is not None and now > before

    def _log_tail(self) -> str:
        return self._world.launcher.last_words(Path(self.shard.log_path)) if self.shard.log_path else ""

    def _exit(self, how: Exit) -> None:
        self.shard = exited(self.shard, how)
        self._note()
        self._changed()
        log.info(
            "shard %s: exited: %s %s", self.shard.spec.shard_id, how.reason, how.message.partition("\n")[0]
        )

    # -- state ---------------------------------------------------------------------------------

    def _step(self, event: Event, because: str) -> None:
        self.shard = replace(step(self.shard, event, because=because), progress=None)
        self._note()
        self._changed()

    def mark_ready(self, because: str) -> None:
        """LOADING -> SERVING, and how long it took."""
        if self._launched_s is not None:
            self.shard = replace(self.shard, load_s=self._world.clock.monotonic_s() - self._launched_s)
        self._step(Event.READY, because)

    def mark_probed(self, warm_up_s: float | None) -> None:
        """One real request was answered by this process, so long after it was ready."""
        # Of an adopted engine nobody saw when it became ready.
        measured = {} if self.shard.adopted or warm_up_s is None else {"warm_up_s": warm_up_s}
        self.keep(probed=True, probe_error=None, **measured)

    def keep(self, **values: Any) -> None:
        """Replace fields that outlive this agent."""
        self.update(**values)
        self._note()

    def seen_alive(self) -> None:
        """Remember the kernel's count of what it ended for want of memory, and the one before: the newest may
        already hold this engine's own end."""
        self._oom_kills = (self._oom_kills[-1], self._world.launcher.oom_kills())

    def see_memory(self, seen: Mapping[DeviceId, int]) -> None:
        """What its processes have of devices now."""
        after = with_memory(self.shard, seen)
        if after != self.shard:
            self.shard = after
            self._changed()

    def update(self, **values: Any) -> None:
        """Replace fields that are no part of the state; tells only what differs."""
        after = replace(self.shard, **values)
        if after != self.shard:
            self.shard = after
            self._changed()

    def _note(self) -> None:
        try:
            self._world.journal.write(self.shard)
        except OSError as e:
            # What runs goes on: a full disk is no reason to stop an engine. A restart of the agent now
            # sees an older state and asks the engine itself.
            log.error("journal of shard %s cannot be written: %s", self.shard.spec.shard_id, e)

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; a stop cancels it and raises _StopAsked."""
        task = asyncio.create_task(work, name=f"bring up {self.shard.spec.shard_id}")
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            if not task.done():
                task.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)
        if task.cancelled():
            assert self._stop.is_set(), f"{task.get_name()} was cancelled and nobody asked for it"
            raise _StopAsked
        return task.result()


def _told(e: LlmgwError) -> str:
    return "\n".join(e.lines())
