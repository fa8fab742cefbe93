"""Attending one running engine: ready, one real answer, then what it works on for as long as it runs."""

import asyncio
import logging
from typing import Any, Protocol

from llmgw_agent.core.progress import Progress, moved, observed
from llmgw_agent.core.shard import Shard, ShardState
from llmgw_agent.engines.base import Engine, probes
from llmgw_agent.engines.catalog import engine_named
from llmgw_agent.loops.world import ShardFailed, World
from llmgw_kit.addresses import HostPort
from llmgw_kit.errors import InvalidRequest, Unavailable

log = logging.getLogger(__name__)

#: How often a loading engine is asked whether it is ready: often at first, as small models load at once.
READY_POLL_FIRST_S, READY_POLL_MOST_S = 0.25, 1.0
#: Between two probes that were not answered.
PROBE_RETRY_S = 2.0
#: A first token of a large model on a cold GPU, compilation included.
FIRST_PROBE_PATIENCE_S = 60.0
#: One token of an engine at rest that has answered before. Its gauge is not read meanwhile.
PROBE_PATIENCE_S = 10.0
#: A draining engine's gauge decides when it may be stopped, so it is read more often.
DRAIN_POLL_S = 1.0
#: Least time an adopted engine gets to answer, however long ago it was launched.
ADOPTED_PATIENCE_S = 30.0


class Attended(Protocol):
    """The shard's owner, who alone changes it."""

    shard: Shard

    def mark_ready(self, because: str) -> None:
        """LOADING -> SERVING."""
        ...

    def mark_probed(self, warm_up_s: float | None) -> None:
        """One real request was answered, so long after it was ready; None: it has no server to ask."""
        ...

    def seen_alive(self) -> None:
        """Its process has not been seen to end."""
        ...

    def keep(self, **values: Any) -> None:
        """Replace fields that outlive this agent, and note them in the journal."""
        ...

    def update(self, **values: Any) -> None:
        """Replace fields that are no part of the state."""
        ...


class Attendant:
    """Runs beside the owner's waiting for the process to end; cancelled when that or a stop comes."""

    def __init__(self, owner: Attended, world: World) -> None:
        self._owner = owner
        self._world = world
        self._has_gauge = False
        self._progress: Progress | None = None
        #: Monotonic, of the newest sign that it works on requests: its counters moved, or it answered us.
        self._worked_s = world.clock.monotonic_s()

    async def run(self) -> None:
        """Never returns. Raises ShardFailed when the engine never gets ready."""
        spec, world, owner = self._owner.shard.spec, self._world, self._owner
        engine = engine_named(spec.engine)
        path = engine.ready_path(spec)
        if path is None or spec.http_port is None:
            # A member without a server: its group's head answers for all, and its probe is theirs.
            if owner.shard.state is ShardState.LOADING:
                owner.mark_ready("runs, and has no server of its own")
            owner.mark_probed(None)
            await asyncio.Event().wait()
            raise AssertionError("an event nobody sets was set")
        at = HostPort(world.connect_host, spec.http_port)
        deadline = world.clock.monotonic_s() + self._patience_s()
        await self._until_ready(at, path, deadline)
        await self._until_probed(at, deadline)
        if owner.shard.engine_version is None:
            owner.keep(engine_version=await self._version(engine, at))
        self._worked_s = world.clock.monotonic_s()
        while True:
            await self._read_numbers(engine, at)
            await self._probe_again(at)
            beat_s = world.beat_interval_s()
            draining = owner.shard.state is ShardState.DRAINING
            await world.clock.sleep(min(beat_s, DRAIN_POLL_S) if draining else beat_s)

    async def _version(self, engine: Engine, at: HostPort) -> str | None:
        told = await self._world.http.version(at, engine.version_asks, self._owner.shard.spec.credential)
        if told is not None and not told.endswith("unknown"):
            return told
        return await asyncio.to_thread(self._world.installed, engine.name) or told

    def _patience_s(self) -> float:
        """What is left of the ready time-out."""
        shard = self._owner.shard
        if not shard.adopted or shard.launched_unix_s is None:
            return shard.spec.ready_timeout_s
        gone = self._world.clock.unix_s() - shard.launched_unix_s
        return max(ADOPTED_PATIENCE_S, shard.spec.ready_timeout_s - gone)

    async def _until_ready(self, at: HostPort, path: str, deadline: float) -> None:
        clock, owner = self._world.clock, self._owner
        wait_s = READY_POLL_FIRST_S
        # In LOADING only: a drain meanwhile ends the waiting, and the engine goes on as it is.
        while owner.shard.state is ShardState.LOADING:
            owner.seen_alive()
            said = await self._world.http.ready(at, path, owner.shard.spec.credential)
            if said is None and owner.shard.state is ShardState.LOADING:
                owner.mark_ready(f"{path} answers")
            elif said is not None and clock.monotonic_s() >= deadline:
                raise ShardFailed(
                    "never_ready", f"not ready within {owner.shard.spec.ready_timeout_s:g} s: {said}"
                )
            else:
                await clock.sleep(wait_s)
                wait_s = min(wait_s * 1.5, READY_POLL_MOST_S)

    async def _until_probed(self, at: HostPort, deadline: float) -> None:
        """An engine may say it is ready and then answer nothing; only an answer proves it serves."""
        clock, owner = self._world.clock, self._owner
        ready_s = clock.monotonic_s()
        while not owner.shard.probed and owner.shard.state is ShardState.SERVING:
            spec = owner.shard.spec
            owner.seen_alive()
            said = await self._world.http.probe(
                at, probes(spec), spec.credential, patience_s=FIRST_PROBE_PATIENCE_S
            )
            if said is None:
                owner.mark_probed(clock.monotonic_s() - ready_s)
            elif clock.monotonic_s() >= deadline:
                raise ShardFailed("never_ready", f"it says it is ready and answers no request: {said}")
            else:
                log.warning("shard %s: no answer to a first request: %s", spec.shard_id, said)
                owner.update(probe_error=said)
                await clock.sleep(PROBE_RETRY_S)

    async def _probe_again(self, at: HostPort) -> None:
        """Nobody has asked it for a while: it is asked one real request, so that an engine that is up and
        answers nothing is seen before a client sees it. Traffic that gets on makes that needless, and a busy
        engine is left alone: what does not get on there, the stall measure shows."""
        owner, clock = self._owner, self._world.clock
        due = clock.monotonic_s() - self._worked_s >= self._world.probe_interval_s
        failing = owner.shard.probe_error is not None
        if owner.shard.state is not ShardState.SERVING or owner.shard.running or not (due or failing):
            return
        spec = owner.shard.spec
        said = await self._world.http.probe(at, probes(spec), spec.credential, patience_s=PROBE_PATIENCE_S)
        if said is None:
            self._worked_s = clock.monotonic_s()
        elif not failing:
            log.warning("shard %s: no answer to a probe: %s", spec.shard_id, said)
        owner.update(probe_error=said)

    async def _read_numbers(self, engine: Engine, at: HostPort) -> None:
        owner, clock = self._owner, self._world.clock
        owner.seen_alive()
        try:
            numbers = await self._world.http.numbers(at, engine, owner.shard.spec.credential)
        except (Unavailable, InvalidRequest) as e:
            promised = engine.gauge_promised or self._has_gauge
            self._progress = None
            owner.update(running=None, running_unknown=e.text if promised else None, stalled_s=None)
            return
        self._has_gauge = True
        now = clock.monotonic_s()
        before, self._progress = self._progress, observed(self._progress, numbers, now)
        stalled_s = None if self._progress is None else self._progress.stalled_s(now)
        owner.update(running=numbers.running, running_unknown=None, stalled_s=stalled_s)
        if moved(before, self._progress):
            self._worked_s = now
            owner.update(probe_error=None)
