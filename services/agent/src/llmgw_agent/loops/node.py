"""All shards of this node: who owns which, and what the controller's list makes of them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from llmgw_agent.core import plan as planning
from llmgw_agent.core.devices import Device
from llmgw_agent.core.reasons import REASONS
from llmgw_agent.core.shard import MAY_RUN, Exit, Shard, ShardState
from llmgw_agent.core.spec import ShardSpec
from llmgw_agent.core.weights import Held
from llmgw_agent.loops.owner import ShardOwner
from llmgw_agent.loops.prefetch import WeightsDesk
from llmgw_agent.loops.world import World
from llmgw_agent.ports import RunningEngine
from llmgw_kit.errors import Conflict, InvalidRequest, NotFound
from llmgw_kit.ids import DeviceId, ShardId
from llmgw_kit.lifecycle import cancel_all

log = logging.getLogger(__name__)


class Node:
    """The owners, and the doors to them. `bug` fails when an owner did: the process must end then,
    and its successor adopts the engines."""

    def __init__(
        self, world: World, changed: Callable[[], None], sweep: Callable[[str], Awaitable[None]]
    ) -> None:
        self._world = world
        self._changed = changed
        self._sweep = sweep
        self._strays: frozenset[str] = frozenset()
        self._sweeping: asyncio.Task[None] | None = None
        self._owners: dict[ShardId, ShardOwner] = {}
        self._tasks: dict[ShardId, asyncio.Task[None]] = {}
        #: Ends since this agent started, by reason.
        self.exits: Counter[str] = Counter()
        self.bug: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.weights = WeightsDesk(world.weights, self.shards, changed)

    def shards(self) -> dict[ShardId, Shard]:
        """What is known of each, in order of id."""
        return {shard_id: self._owners[shard_id].shard for shard_id in sorted(self._owners)}

    def told_of(self, held: Sequence[Held]) -> tuple[Held, ...]:
        """Weights on disk, with what the node knows of them."""
        return self.weights.told_of(held)

    @property
    def world(self) -> World:
        """What its shards stand on."""
        return self._world

    def serving(self, shard_id: ShardId) -> Shard:
        """A shard whose engine answers. Raises NotFound, and Conflict when it does not serve."""
        shard = self._owner(shard_id).shard
        if shard.state is not ShardState.SERVING:
            raise Conflict(f"shard {shard_id} is {shard.state.value}, not serving", code="not_serving")
        return shard

    def see_memory(self, devices: Iterable[Device]) -> None:
        """Note with each shard what its engine has of the devices, as they were read last."""
        by_pid: dict[int, dict[DeviceId, int]] = {}
        for device in devices:
            for use in device.own:
                by_pid.setdefault(use.pid, {})[device.device_id] = use.memory_bytes
        for owner in self._owners.values():
            process = owner.shard.process
            if process is not None and owner.shard.state in MAY_RUN and process.pid in by_pid:
                owner.see_memory(by_pid[process.pid])

    def leaders(self) -> list[int]:
        """Pids of the engines' first processes, which lead their sessions."""
        found = (owner.shard.process for owner in self._owners.values() if owner.shard.state in MAY_RUN)
        return [process.pid for process in found if process is not None]

    # -- taking over ---------------------------------------------------------------------------

    def hold(self, shard: Shard) -> None:
        """An exited shard, to be reported until the controller lets go of it."""
        self._owners[shard.spec.shard_id] = ShardOwner(shard, self._world, self._changed)

    def own(self, shard: Shard, *, running: RunningEngine | None = None, confirmed: bool = True) -> None:
        """Begin to run a shard, or take a running one over."""
        owner = ShardOwner(shard, self._world, self._changed, running=running, confirmed=confirmed)
        shard_id = shard.spec.shard_id
        self._owners[shard_id] = owner
        task = asyncio.create_task(owner.run(), name=f"shard {shard_id}")
        self._tasks[shard_id] = task
        task.add_done_callback(self._ended)
        self._changed()

    def know_strays(self, tokens: frozenset[str]) -> None:
        """Engines of ours that no journal entry knows. They end with the first list of a current term:
        whatever that wants, it is not them."""
        self._strays = tokens

    def _ended(self, task: "asyncio.Task[None]") -> None:
        owner = self._owners.get(ShardId(task.get_name().removeprefix("shard ")))
        if owner is not None and owner.shard.exit is not None:
            # A controller's stop may carry a sentence, and a metric's label must be one of few words.
            reason = owner.shard.exit.reason
            self.exits[reason if reason in REASONS else "stopped"] += 1
        if not task.cancelled() and (error := task.exception()) is not None and not self.bug.done():
            self.bug.set_exception(error)

    # -- the controller's word -----------------------------------------------------------------

    def apply(self, desired: Iterable[planning.Wanted]) -> None:
        """Bring the node to a complete list received under a current term."""
        if self._strays:
            strays, self._strays = self._strays, frozenset()
            self._sweeping = asyncio.create_task(self._end_strays(strays), name="strays")
            self._sweeping.add_done_callback(self._ended)
        for action in planning.plan(self.shards(), desired):
            self._perform(action)

    async def _end_strays(self, tokens: frozenset[str]) -> None:
        for token in sorted(tokens):
            log.warning("an engine of ours that the journal does not know is ended (token %.8s...)", token)
            await self._sweep(token)

    def _perform(self, action: planning.Action) -> None:
        match action:
            case planning.Start(spec):
                self.start(spec)
            case planning.Confirm(shard_id):
                self._owners[shard_id].confirm()
            case planning.Drain(shard_id):
                self._owners[shard_id].request_drain()
            case planning.Stop(shard_id, reason):
                if reason == "orphan":
                    log.warning("shard %s: not on the controller's list; stopping it", shard_id)
                self._owners[shard_id].request_stop(reason)
            case planning.Forget(shard_id):
                self._forget(shard_id)
            case planning.Refuse(spec, text):
                self.refuse(spec, text)
            case planning.DeclareAbsent(spec):
                gone = Exit("absent", "a stop was asked for; this node has no such shard")
                self.hold(Shard(spec, state=ShardState.EXITED, exit=gone))
                self._changed()

    def start(self, spec: ShardSpec) -> str:
        """Begin a shard, or confirm one that waits for the word. Says what was done.

        Raises Conflict when it is held under another spec or has ended, or a later group of its replica is
        here."""
        owner = self._owners.get(spec.shard_id)
        if owner is None:
            here = [one.spec for one in self.shards().values()]
            if (later := planning.younger(here, spec)) is not None:
                raise Conflict(
                    f"shard {spec.shard_id} is of an earlier group of {spec.replica_id} than "
                    f"{later.shard_id}, which is here",
                    code="stale_epoch",
                )
            shard = Shard(spec)
            try:
                # Before anything else, so that a restarted agent still reports it.
                self._world.journal.write(shard)
            except OSError as e:
                log.error("journal of shard %s cannot be written: %s", spec.shard_id, e)
            self.own(shard)
            return "started"
        if owner.shard.spec.spec_hash != spec.spec_hash or owner.shard.spec.group_epoch != spec.group_epoch:
            raise Conflict(f"shard {spec.shard_id} is held under another spec", code="other_spec")
        if owner.shard.state is ShardState.EXITED:
            raise Conflict(
                f"shard {spec.shard_id} has exited; another attempt is another shard", code="exited"
            )
        owner.confirm()
        return f"is {owner.shard.state.value} already"

    def refuse(self, spec: ShardSpec, text: str) -> str:
        """Say of a shard that is not here that it ended before it began; returns what is said.

        Not in the journal: a restarted agent is told of it again, and refuses it again."""
        if spec.shard_id not in self._owners:
            log.error("shard %s cannot be started: %s", spec.shard_id, text)
            self.exits["refused"] += 1
            self.hold(Shard(spec, state=ShardState.EXITED, exit=Exit("refused", text)))
            self._changed()
        return text

    def drain(self, shard_id: ShardId) -> str:
        """Says what it is now. Raises NotFound."""
        owner = self._owner(shard_id)
        owner.request_drain()
        return f"is {owner.shard.state.value}"

    def stop(self, shard_id: ShardId, reason: str) -> str:
        """Says what happens. Raises NotFound."""
        owner = self._owner(shard_id)
        owner.request_stop(reason)
        return "has exited" if owner.shard.state is ShardState.EXITED else "stopping"

    def _owner(self, shard_id: ShardId) -> ShardOwner:
        if shard_id not in self._owners:
            raise NotFound(f"this node has no shard {shard_id}")
        return self._owners[shard_id]

    def _forget(self, shard_id: ShardId) -> None:
        del self._owners[shard_id]
        self._tasks.pop(shard_id, None)
        try:
            self._world.journal.forget(shard_id)
        except (OSError, InvalidRequest) as e:  # the latter: refused, for its name can be no file's
            log.error("journal of shard %s cannot be removed: %s", shard_id, e)
        self._changed()

    def check_silence(self, silent_s: float) -> None:
        """Stop what its profile does not let run without a controller for so long."""
        for shard_id, shard in self.shards().items():
            limit_s = shard.spec.stop_after_silence_s
            if limit_s is not None and silent_s > limit_s and shard.state in MAY_RUN:
                self._owners[shard_id].request_stop("silence")

    async def leave(self) -> None:
        """Let go of everything and leave the engines running."""
        sweeping = [self._sweeping] if self._sweeping is not None else []
        await cancel_all(*self._tasks.values(), *sweeping)
        await self.weights.leave()


def by_state(shards: Mapping[ShardId, Shard]) -> dict[ShardState, int]:
    """How many are in each state, zeros included."""
    counts = dict.fromkeys(ShardState, 0)
    for shard in shards.values():
        counts[shard.state] += 1
    return counts
