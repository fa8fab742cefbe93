"""A simulated router in simple form: picks, streams, held requests, one map a tick."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmgw_controller.core.activity import RouterReport
from llmgw_controller.core.routes import RouteTable
from llmgw_kit.ids import ModelId, ReplicaId, RouterId
from tests.simulation.world import Pipe

if TYPE_CHECKING:
    from tests.simulation.controller import Controller, Routes
    from tests.simulation.sim import Sim

TICK_S = 5.0
HOLD_S = 120.0


@dataclass
class Router:
    sim: "Sim"
    name: str
    life: int = 0
    running: bool = True
    highest_term: int = 0
    version: tuple[int, int] = (0, 0)
    table: RouteTable = field(default_factory=RouteTable)
    leader: "Controller | None" = None
    pipe: Pipe | None = None
    flights: dict[ReplicaId, int] = field(default_factory=dict)
    touched: dict[ReplicaId, float] = field(default_factory=dict)
    unsent: set[ReplicaId] = field(default_factory=set)
    map_epoch: str | None = None
    #: Nothing that it is told arrives before.
    deaf_until: float = 0.0
    #: When each held request began, by model.
    waiting: dict[ModelId, list[float]] = field(default_factory=dict)
    #: Model -> when it was last asked for in vain, and never since with success.
    missed_at: dict[ModelId, float] = field(default_factory=dict)

    @property
    def incarnation(self) -> str:
        return f"{self.name}#{self.life}"

    def boot(self) -> None:
        world = self.sim.world
        world.at(world.between(0.0, 1.0), self._watch, self.life)
        world.at(world.between(0.0, TICK_S), self._tick, self.life)
        # Also for one that an operator has taken out just now: it comes back, and is asked for then.
        for name in sorted(self.sim.all_models):
            world.at(world.between(0.0, 30.0), self._request, self.life, name)

    def held(self) -> dict[ModelId, int]:
        return {model: len(held) for model, held in self.waiting.items() if held} if self.running else {}

    def deafen(self, seconds: float) -> None:
        """What it is told comes late; it serves by what it knows."""
        self.sim.world.note(self.name, f"hears nothing for {seconds:.0f} s")
        self.deaf_until = self.sim.world.now + seconds
        self.sim.checks.deaf_until[self.name] = self.deaf_until

    def crash(self) -> None:
        if not self.running:
            return
        self.sim.world.note(self.name, "crashes")
        self.running = False
        self.sim.checks.forgets(self.name)
        self.sim.world.at(self.sim.world.between(1.0, 60.0), self._restart)

    def leave(self) -> None:
        """Stops on purpose: what it has is finished, its map sent a last time if Redis takes it, and the
        leader told goodbye; without a leader it is gone like one that crashed."""
        if not self.running:
            return
        for replica_id, count in self.flights.items():
            if count:
                self._touch(replica_id)
        self.flights = {}
        self.sim.checks.forgets(self.name)
        lost = not self.sim.redis.up or self.sim.world.chance(0.4)
        if not lost:
            self._send_map()
        self.sim.world.note(self.name, f"says goodbye{', its last map lost' if lost else ''}")
        if self.leader is not None:
            self.leader.goodbye(self, lost=lost)
        self.running = False
        self.sim.world.at(self.sim.world.between(1.0, 60.0), self._restart)

    def _restart(self) -> None:
        self.sim.world.note(self.name, "starts")
        self.life += 1
        self.running, self.leader, self.pipe = True, None, None
        self.highest_term, self.version, self.table = 0, (0, 0), RouteTable()
        self.flights, self.touched, self.unsent, self.waiting = {}, {}, set(), {}
        self.map_epoch = None
        self.boot()

    # --- routes

    def send(self, leader: "Controller", message: "Routes") -> None:
        """From the leader's side: down the stream that this router holds open, in order."""
        if self.running and self.leader is leader and self.pipe is not None:
            self.pipe.send((self.life, message))

    def _hear(self, told: tuple[int, "Routes"]) -> None:
        life, message = told
        if life != self.life or not self.running or message.term < self.highest_term:
            return
        if (message.term, message.version) <= self.version:
            return
        self.highest_term, self.version = message.term, (message.term, message.version)
        self.table = message.table
        for model in list(self.waiting):
            if self._endpoints(model):
                for _ in self.waiting.pop(model):
                    self._pick(model)

    def _watch(self, life: int) -> None:
        if life != self.life or not self.running:
            return
        self.sim.world.at(1.0, self._watch, life)
        if self.leader is None or not self.leader.says_it_leads or self.name not in self.leader.watchers:
            self.leader = next((one for one in self.sim.controllers if one.says_it_leads), None)
            self.pipe = Pipe(self.sim.world, self._hear, lambda: self.sim.world.now < self.deaf_until)
            if self.leader is not None and not self.leader.watch(self):
                self.leader = None
        if self.leader is not None:
            drained = {
                key
                for key, endpoint in self.table.endpoints.items()
                if endpoint.draining and not self.flights.get(endpoint.replica_id)
            }
            self.leader.acknowledge(self, drained)

    # --- requests

    def _request(self, life: int, model: ModelId) -> None:
        if life != self.life or not self.running:
            return
        gap_s = self.sim.gap_s(model)
        self.sim.world.at(gap_s or 10.0, self._request, life, model)
        if gap_s is not None:
            self._pick(model)

    def _endpoints(self, model: ModelId) -> list[str]:
        return [
            key
            for key, endpoint in sorted(self.table.endpoints.items())
            if endpoint.model == model and not endpoint.draining
        ]

    def _pick(self, model: ModelId) -> None:
        found = self._endpoints(model)
        world = self.sim.world
        if not found:
            self.missed_at[model] = world.now
            waiting = self.waiting.setdefault(model, [])
            waiting.append(world.now)
            if len(waiting) == 1:
                self._activate(self.life, model)
            return
        self.missed_at.pop(model, None)
        endpoint = self.table.endpoints[world.rng.choice(found)]
        self._touch(endpoint.replica_id)
        self.flights[endpoint.replica_id] = self.flights.get(endpoint.replica_id, 0) + 1
        key = (self.name, endpoint.endpoint_id)
        self.sim.checks.uses(key, 1)
        self.sim.checks.count("requests")
        world.at(world.between(0.5, 25.0), self._release, self.life, endpoint.replica_id, key)

    def _release(self, life: int, replica_id: ReplicaId, key: tuple[str, str]) -> None:
        if life != self.life or not self.running:
            return
        if self.sim.checks.hangs_since(key[1]) is not None:
            self.sim.world.at(5.0, self._release, life, replica_id, key)
            return
        self._touch(replica_id)
        self.flights[replica_id] -= 1
        self.sim.checks.uses(key, -1)

    def _touch(self, replica_id: ReplicaId) -> None:
        self.touched[replica_id] = self.sim.world.now
        self.unsent.add(replica_id)
        self.sim.checks.used(replica_id, self.name)

    def _activate(self, life: int, model: ModelId) -> None:
        """Ask again while somebody waits; whoever waited too long is told so and leaves."""
        if life != self.life or not self.running:
            return
        now = self.sim.world.now
        waiting = [since for since in self.waiting.get(model, []) if now - since < HOLD_S]
        if not waiting:
            self.waiting.pop(model, None)
            return
        self.waiting[model] = waiting
        if self.leader is not None:
            self.leader.ask(model)
        self.sim.world.at(5.0, self._activate, life, model)

    def refused(self, model: ModelId) -> None:
        if self.waiting.pop(model, None):
            self.sim.checks.count("refused")

    # --- the map

    def _tick(self, life: int) -> None:
        if life != self.life or not self.running:
            return
        self.sim.world.at(TICK_S, self._tick, life)
        if self.sim.redis.up:
            self._send_map()

    def _send_map(self) -> None:
        redis = self.sim.redis
        now = self.sim.world.now
        whole = redis.epoch is None or redis.epoch != self.map_epoch
        names = set(self.touched) if whole else self.unsent
        report = RouterReport(
            router_id=RouterId(self.name),
            incarnation=self.incarnation,
            at=0.0,
            epoch="",
            in_flight=dict(self.flights),
            held=self.held(),  # type: ignore[arg-type]
        )
        ages = {replica_id: now - self.touched[replica_id] for replica_id in sorted(names)}
        redis.send_map(report, ages)
        self.sim.checks.words[RouterId(self.name)] = now
        self.map_epoch = redis.epoch
        self.unsent = set()
