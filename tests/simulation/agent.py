"""A simulated agent and its node: engines that outlive it, a journal that survives it, one stream."""

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from llmgw_controller.core.heard import Exit, ShardReport, ShardState
from llmgw_controller.core.rows import NodeRow, ReplicaRow, ShardRow, Wish
from llmgw_kit.ids import SessionEpoch, ShardId
from tests.simulation import engines
from tests.simulation.checks import Engine
from tests.simulation.hardware import Hardware
from tests.simulation.said import Beat, Desired, Hello, Stream, Told, Welcome

if TYPE_CHECKING:
    from tests.simulation.sim import Sim

BEAT_S = 5.0
#: gRPC keepalive: a peer that answers nothing for so long is given up.
KEEPALIVE_S = 20.0


@dataclass
class Held:
    """A line of the journal: what the agent knows of one shard."""

    row: ReplicaRow
    shard: ShardRow
    state: ShardState
    engine: Engine | None = None
    exit: Exit | None = None
    adopted: bool = False
    probed: bool = False
    stop_reason: str = ""


@dataclass
class Agent:
    sim: "Sim"
    row: NodeRow
    instance: int = 0
    running: bool = True
    cut: bool = False
    dead: bool = False
    stream: Stream | None = None
    epoch: SessionEpoch | None = None
    highest_term: int = 0
    heard_at: float = 0.0
    #: Of the Desired that it last applied in this session.
    applied: int | None = None
    #: Says in each beat what it has applied; one of the release before does not.
    tells_applied: bool = True
    #: Beats on, and does nothing of what it is told before.
    stuck_until: float = 0.0
    _unread: deque[tuple[Stream, Any]] = field(default_factory=deque)
    journal: dict[ShardId, Held] = field(default_factory=dict)
    #: Direction -> until when nothing arrives in it.
    held_until: dict[str, float] = field(default_factory=dict)
    hardware: Hardware = field(default_factory=Hardware)

    @property
    def name(self) -> str:
        return self.row.node_id

    def boot(self) -> None:
        self.sim.world.at(self.sim.world.between(0.0, 2.0), self._beat, self.instance)

    # --- the process and its node, as faults see them

    def crash(self) -> None:
        """kill -9 of the agent: engines go on."""
        self.sim.world.note(self.name, "agent crashes")
        self.running = False
        self._unread.clear()
        self.sim.checks.goes_away(self.row.node_id, "agent")
        self._hang_up()
        self.instance += 1
        self.sim.world.at(self.sim.world.between(0.5, 20.0), self._restart, self.instance)

    def reboot(self) -> None:
        self.sim.world.note(self.name, "reboots")
        for held in self.journal.values():
            self._end(held, Exit(None, None, "rebooted", ""), tell=False)
        self.crash()

    def cut_off(self, seconds: float) -> None:
        """No packet in or out; engines and agent live."""
        if self.cut:
            return
        self.sim.world.note(self.name, f"cut off for {seconds:.0f} s")
        self.cut = True
        self.sim.checks.goes_away(self.row.node_id, "link")
        self.sim.world.at(seconds, self._joined)

    def die(self) -> None:
        """Never heard again; what runs there may run on."""
        self.sim.world.note(self.name, "is cut off for good")
        self.dead = True
        if not self.cut:
            self.cut = True
            self.sim.checks.goes_away(self.row.node_id, "link")

    @property
    def deaf(self) -> bool:
        """For good."""
        return self.stuck_until == inf

    def stick(self, seconds: float) -> None:
        """Words pile up unread, while what it sees is told on."""
        if self.stuck_until > self.sim.world.now:
            return
        self.sim.world.note(self.name, f"does nothing that it is told for {seconds:.0f} s")
        self.stuck_until = self.sim.world.now + seconds
        if seconds < inf:
            self.sim.world.at(seconds, self.wake)

    def wake(self) -> None:
        """It does all of it now."""
        if self.deaf:
            return
        self.stuck_until = 0.0
        while self._unread:
            stream, message = self._unread.popleft()
            if self.running and stream is self.stream:
                self._obey(message)
        self._tell()

    def crash_engine(self) -> None:
        living = sorted(key for key, held in self.journal.items() if held.engine and held.engine.alive)
        if living:
            held = self.journal[self.sim.world.rng.choice(living)]
            self._end(held, Exit(139, 11, "crashed", "segmentation fault"), tell=True)

    def held(self, direction: str) -> bool:
        """Nothing arrives that way now."""
        return self.sim.world.now < self.held_until.get(direction, 0.0)

    def hold(self, direction: str, seconds: float) -> None:
        """A link that is cut, or slow, in one direction only; what was sent comes late."""
        if self.cut or self.held(direction):
            return
        self.sim.world.note(self.name, f"nothing goes {direction} for {seconds:.0f} s")
        self.held_until[direction] = self.sim.world.now + seconds
        self.sim.checks.goes_away(self.row.node_id, direction)
        self.sim.world.at(seconds, self.sim.checks.comes_back, self.row.node_id, direction)

    def device_fails(self) -> None:
        """One more device is unhealthy or missing, or used by others; an engine on it may die of it."""
        gone = self.hardware.fail(self.sim, self.row)
        for _, held in sorted(self.journal.items()):
            if held.engine and held.engine.alive and gone & set(held.engine.device_ids):
                self._end(held, Exit(1, None, "crashed", "CUDA error: device lost"), tell=True)
        self._tell()

    def _joined(self) -> None:
        if self.dead:
            return
        self.sim.world.note(self.name, "joined again")
        self.cut = False
        self.sim.checks.comes_back(self.row.node_id, "link")
        # What was said meanwhile is gone, and a stream that lost a message is no stream any more.
        self._hang_up()

    def _restart(self, instance: int) -> None:
        if instance != self.instance:
            return
        self.sim.world.note(self.name, "agent starts")
        self.running = True
        self.sim.checks.comes_back(self.row.node_id, "agent")
        for held in self.journal.values():
            if held.engine and held.engine.alive:
                held.adopted = True
                if held.engine.habits.never_ready:
                    self.sim.world.at(engines.READY_TIMEOUT_S, self._gives_up, held)
                if held.state in (ShardState.SERVING, ShardState.LAUNCHING) and held.engine.serving_since:
                    held.state, held.probed = ShardState.LAUNCHING, False
                    self.sim.world.at(1.0, self._adopted, held, instance)
            elif held.state is not ShardState.EXITED:
                held.state = ShardState.EXITED
                held.exit = held.exit or Exit(None, None, "crashed", "ended while no agent watched")
        self._beat(instance)

    def _adopted(self, held: Held, instance: int) -> None:
        if instance == self.instance and held.engine and held.engine.alive:
            if held.state is ShardState.LAUNCHING:
                held.state, held.probed = ShardState.SERVING, True
            self._tell()

    # --- the stream

    def hear(self, stream: Stream, message: Any) -> None:
        if not self.running or self.cut or stream is not self.stream:
            return
        self.heard_at = self.sim.world.now
        if isinstance(message, str):  # Reject, or a keepalive's answer.
            if message != "pong":
                self._hang_up()
            return
        if message.term < self.highest_term:
            self._hang_up()  # A leader of the past: refuse whatever it says.
            return
        self.highest_term = message.term
        if isinstance(message, Welcome):
            self.epoch = message.epoch
        elif self.sim.world.now < self.stuck_until:
            self._unread.append((stream, message))
        else:
            self._obey(message)
        self._tell()

    def _obey(self, message: "Desired | Told") -> None:
        match message:
            case Desired():
                self._conform(message)
                self.applied = message.version if self.tells_applied else None
            case Told():
                self._carry_out(message.row, message.shard, message.wish, message.reason)

    def _beat(self, instance: int) -> None:
        if instance != self.instance or not self.running:
            return
        world = self.sim.world
        world.at(BEAT_S, self._beat, instance)
        if self.stream is not None and world.now - self.heard_at > KEEPALIVE_S:
            self._hang_up()
        if self.stream is None:
            self._dial()
        elif not self.cut:
            self._tell()

    def _dial(self) -> None:
        if self.cut:
            return
        controller = self.sim.world.rng.choice(self.sim.controllers)
        leader = next((one for one in self.sim.controllers if one.says_it_leads), controller)
        if not leader.running:
            return  # Connection refused; again at the next beat.
        self.stream = Stream(self.sim, self, leader)
        self.epoch, self.applied, self.heard_at = None, None, self.sim.world.now
        self.stream.up.send(
            Hello(
                self.row,
                f"{self.name}#{self.instance}",
                self.highest_term,
                self.reports(),
                self.hardware.reports(self.row, self.sim.world.now),
                self.tells_applied,
            )
        )

    def _hang_up(self) -> None:
        if self.stream is not None:
            self.stream.close()
            if not self.cut:
                self.stream.controller.stream_ended(self.stream)
        self.stream, self.epoch = None, None

    def _tell(self) -> None:
        if self.stream is not None and self.epoch is not None and self.running and not self.cut:
            devices = self.hardware.reports(self.row, self.sim.world.now)
            self.stream.up.send(Beat(self.epoch, self.reports(), devices, self.applied))

    def reports(self) -> tuple[ShardReport, ...]:
        return tuple(self._report(held) for _, held in sorted(self.journal.items()))

    def _report(self, held: Held) -> ShardReport:
        engine, now = held.engine, self.sim.world.now
        running: int | None = 0
        stalled_s = None
        # Of a group only the shard that answers clients has a gauge.
        if engine is not None and engine.alive and held.shard.rank == 0:
            endpoint = f"{held.row.replica_id}@{held.row.group_epoch}"
            running = sum(count for key, count in self.sim.checks.in_flight.items() if key[1] == endpoint)
            running += engine.direct(now)
            since = self.sim.checks.hangs_since(endpoint)
            stalled_s = now - since if running and since is not None else 0.0
        unreadable = bool(engine and engine.alive and engine.habits.gauge_unreadable)
        return ShardReport(
            shard_id=held.shard.shard_id,
            replica_id=held.row.replica_id,
            group_epoch=held.row.group_epoch,
            spec_hash=held.row.spec_hash,
            state=held.state,
            exit=held.exit,
            pid=1,
            pid_start_ticks=1,
            ports=held.shard.ports,
            device_ids=held.shard.device_ids,
            progress=None,
            probed=held.probed,
            running=None if unreadable else running,
            running_unknown="HTTP 500" if unreadable else None,
            load_s=None,
            adopted=held.adopted,
            stalled_s=None if unreadable else stalled_s,
        )

    # --- engines

    def _conform(self, desired: Desired) -> None:
        wanted = {shard.shard_id for _, shard, _, _ in desired.shards}
        for row, shard, wish, reason in desired.shards:
            self._carry_out(row, shard, wish, reason)
        for shard_id, held in list(self.journal.items()):
            if shard_id in wanted:
                continue
            if held.state is ShardState.EXITED:
                del self.journal[shard_id]
            else:
                self._stop(held, "orphan")

    def _carry_out(self, row: ReplicaRow, shard: ShardRow, wish: Wish, reason: str) -> None:
        held = self.journal.get(shard.shard_id)
        if held is None:
            if wish is Wish.SERVE:
                self._start(row, shard)
            else:
                ended = Exit(None, None, "stopped", "not here")
                self.journal[shard.shard_id] = Held(row, shard, ShardState.EXITED, None, ended)
        elif wish is Wish.STOP:
            self._stop(held, reason)
        elif wish is Wish.DRAIN and held.state is ShardState.SERVING:
            held.state = ShardState.DRAINING

    def _start(self, row: ReplicaRow, shard: ShardRow) -> None:
        world, sim = self.sim.world, self.sim
        of_replica = [held.row for held in self.journal.values() if held.row.replica_id == row.replica_id]
        if any(held.group_epoch > row.group_epoch for held in of_replica):
            return  # Refused: an older word than the one that started what is here.
        habits = engines.draw(sim, gang=len(row.shards) > 1)
        engine = Engine(
            shard.shard_id,
            row.replica_id,
            row.group_epoch,
            self.row.node_id,
            shard.device_ids,
            frozenset(port for _, port in shard.ports),
            world.now,
            habits,
        )
        held = Held(row, shard, ShardState.FETCHING, engine)
        self.journal[shard.shard_id] = held
        world.note(self.name, f"starts {shard.shard_id}")
        sim.checks.engine_started(engine)
        if self.hardware.disk_full(world.now):
            self._end(held, Exit(None, None, "weights_failed", "no space left on device"), tell=True)
        elif self.hardware.stolen(engine.ports, world.now):
            self._end(held, Exit(None, None, "port_taken", ""), tell=True)
        else:
            world.at(habits.load_s * 0.3, self._grow, held, ShardState.LOADING)
            if habits.crash is not None:
                world.at(habits.load_s * 0.8, self._end, held, habits.crash, True)
            elif habits.never_ready:
                world.at(engines.READY_TIMEOUT_S, self._gives_up, held)
            else:
                world.at(habits.load_s, self._grow, held, ShardState.SERVING)

    def _gives_up(self, held: Held) -> None:
        if self.running and held.state in (ShardState.FETCHING, ShardState.LOADING):
            self._end(held, Exit(None, 15, "never_ready", "not ready within its time"), tell=True)

    def _grow(self, held: Held, state: ShardState) -> None:
        """An engine comes up whether its agent watches or not."""
        if held.engine is None or not held.engine.alive or held.state is ShardState.STOPPING:
            return
        if state is ShardState.SERVING:
            held.engine.serves(self.sim.world.now)
        if self.running and held.state is not ShardState.DRAINING:
            held.state = state
            held.probed = state is ShardState.SERVING
            self._tell()
        elif not self.running:
            held.state = state  # Read again by whoever adopts it.

    def _stop(self, held: Held, reason: str) -> None:
        if held.state in (ShardState.STOPPING, ShardState.EXITED):
            return
        held.state, held.stop_reason = ShardState.STOPPING, reason
        if held.engine is not None and held.engine.alive:
            self.sim.checks.engine_stopped(held.engine, reason)
            stop_s = held.engine.habits.stop_s(self.sim)
            self.sim.world.at(stop_s, self._end, held, Exit(0, None, "stopped", ""), True)

    def _end(self, held: Held, ended: Exit, tell: bool) -> None:
        if held.engine is None or not held.engine.alive:
            return
        held.engine.alive, held.engine.ended_at = False, self.sim.world.now
        self.sim.world.note(self.name, f"{held.shard.shard_id} ends: {ended.reason}")
        held.exit = ended
        if self.running:
            held.state = ShardState.EXITED
            if tell:
                self._tell()
