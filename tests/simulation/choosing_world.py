"""A world for the router's choosing: the real chooser, warden and endpoints of several workers, and engines
that flap, hang, break, say that they are busy, and slow down. One event heap, one seed, no socket.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from llmgw_router.core.choosing.budget import RetryBudget
from llmgw_router.core.choosing.ejection import ABSENT
from llmgw_router.core.choosing.picking import NOBODY, PREFIX, SCAN_UP_TO, SESSION, TRIAL
from llmgw_router.core.choosing.standing import Reason
from llmgw_router.core.config import Choosing, RoutingProfile
from llmgw_router.core.table import EndpointRow, ModelRow
from llmgw_router.relay.choosing import Chooser
from llmgw_router.relay.endpoint import EngineEndpoint
from llmgw_router.relay.ipc import Probed, Suspects, Up
from llmgw_router.relay.live_routes import LiveTarget
from llmgw_router.relay.phase import CONNECTING, WAITING
from llmgw_router.relay.slots import COUNTERS, Slots
from llmgw_router.relay.warden import Warden

MODEL = ModelRow(name="m")
MOODS = ("well", "dead", "fails", "hangs", "breaks", "busy", "refuses", "slow", "denies")
CAPACITY = 64


class Violated(AssertionError):
    """A rule was broken; the message says which, when, and with which seed."""


@dataclass(eq=False)
class Engine:
    """What stands behind an endpoint id, whichever worker asks."""

    row: EndpointRow
    mood: str = "well"


class Routes:
    """A worker's table, as far as choosing looks at it."""

    def __init__(self) -> None:
        self.targets: dict[str, LiveTarget] = {"m": LiveTarget(MODEL, ())}
        self.known: dict[str, EngineEndpoint] = {}

    def endpoints(self) -> list[EngineEndpoint]:
        return list(self.known.values())

    def find(self, endpoint_id: str) -> EngineEndpoint | None:
        return self.known.get(endpoint_id)


class Worker:
    """Stands for the hub: what chooser and warden ask of it."""

    def __init__(self, world: "World", worker: int) -> None:
        self.world = world
        self.worker = worker
        self.now = 0.0
        self.counters = [0] * len(COUNTERS)
        self.chance = world.rng.random
        self.suspects: tuple[str, ...] = ()
        self.routes = Routes()
        hub = cast(Any, self)
        self.warden = Warden(hub, world.rules)
        self.choosing = Chooser(hub, world.rules)

    def tell(self, message: Up) -> None:
        if isinstance(message, Suspects):
            self.suspects = message.endpoint_ids

    def log(self, level: int, text: str) -> None:
        pass

    def apply(self, rows: list[EndpointRow]) -> None:
        known = self.routes.known
        for row in rows:
            if row.endpoint_id in known:
                known[row.endpoint_id].update(row)
            else:
                known[row.endpoint_id] = EngineEndpoint(
                    row, self.world.slots, self.worker, self.warden, lambda _: None
                )
        for gone in known.keys() - {row.endpoint_id for row in rows}:
            known.pop(gone).leaving = True
        live = tuple(known[row.endpoint_id] for row in rows if not row.draining)
        self.routes.targets = {"m": LiveTarget(MODEL, live)}


@dataclass(eq=False)
class Request:
    """What the chooser reads of an exchange."""

    worker: Worker
    started: float
    head: list[bytes]
    body: bytes
    profile: RoutingProfile
    path: bytes = b"/v1/chat/completions"
    model: str = "m"
    key: None = None
    known: None = None
    said: None = None
    phase: int = WAITING
    tried: list[EngineEndpoint] | None = None
    match: Any = None
    policy: str = ""
    decision: Any = None
    request_id: bytes = b"r"
    endpoint: EngineEndpoint | None = None
    resent: bool = False
    over: bool = False


@dataclass
class World:
    """Everything that is not decided by the code under test, in one place."""

    seed: int
    workers: int = 2
    rate: float = 12.0
    rules: Choosing = field(default_factory=lambda: Choosing(slow_min_samples=5))

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self.slots = Slots.create(workers=self.workers, capacity=CAPACITY)
        self.engines: dict[str, Engine] = {}
        self._made = 0
        self.calm = False
        self.served: dict[str, int] = {}
        self.unserved = 0
        self.requests = [0] * self.workers
        self.retries = [0] * self.workers
        self.running: set[Request] = set()
        #: (worker, endpoint) -> who tries it, and until when nobody else may.
        self.trials: dict[tuple[int, str], tuple[Request, float]] = {}
        self.hubs = [Worker(self, n) for n in range(self.workers)]
        self.prompts = [f"prompt {n} " * self.rng.choice((40, 200, 900)) for n in range(12)]
        for _ in range(self.rng.randint(2, 12)):
            self._add()
        self._publish()
        self.at(0.01, self._arrive)
        self.at(1.0, self._tick)
        self.at(2.0, self._probe)
        self.at(1.5, self._change)

    # --- time

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._order, action))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = until

    def close(self) -> None:
        # Views of the slots live on in endpoints; the memory goes with them.
        self.hubs.clear()

    def violated(self, what: str) -> Violated:
        return Violated(f"SEED={self.seed} t={self.now:.2f}: {what}")

    # --- the fleet

    def _add(self) -> None:
        self._made += 1
        name = f"e{self._made}@1"
        self.engines[name] = Engine(
            EndpointRow(
                endpoint_id=name,
                replica_id=name,
                group_epoch=1,
                model="m",
                host="h",
                port=1,
                weight=self.rng.choice((1, 1, 1, 3)),
                tier=self.rng.choice((0, 0, 0, 1)),
                slot=self._made % CAPACITY,
            )
        )

    def _publish(self) -> None:
        rows = [engine.row for engine in sorted(self.engines.values(), key=lambda e: e.row.endpoint_id)]
        for hub in self.hubs:
            hub.apply(rows)

    def _change(self) -> None:
        """One fault, or one change of the table."""
        self.at(self.rng.expovariate(1.5), self._change)
        if self.calm:
            return
        engine = self.rng.choice(list(self.engines.values()))
        match self.rng.randrange(10):
            case 0 if self._made < CAPACITY - 1:
                self._add()
                self._publish()
            case 1 if len(self.engines) > 2:
                del self.engines[engine.row.endpoint_id]
                self._publish()
            case 2:
                engine.row = msgspec.structs.replace(engine.row, draining=not engine.row.draining)
                self._publish()
            case _:
                engine.mood = self.rng.choice(MOODS) if self.rng.random() < 0.6 else "well"

    def calm_down(self) -> None:
        """From here on nothing goes wrong any more."""
        self.calm = True
        for engine in self.engines.values():
            engine.mood = "well"
            engine.row = msgspec.structs.replace(engine.row, draining=False)
        self._publish()

    # --- the clock of the workers, and the supervisor

    def _tick(self) -> None:
        self.at(1.0, self._tick)
        for hub in self.hubs:
            hub.now = self.now
            hub.warden.sweep()
            hub.choosing.flush()
            target = hub.routes.targets["m"]
            out = sum(one.ejected for one in target.endpoints)
            judged = sum(one.ejected and one.reason not in ABSENT for one in target.endpoints)
            total = len(target.endpoints)
            cap = max(1, int(self.rules.eject_most_share * total))
            if (judged and out > cap) or (total and out >= total):
                raise self.violated(f"{out} of {total} endpoints are ejected in worker {hub.worker}")

    def _probe(self) -> None:
        self.at(2.0, self._probe)
        suspects = {name for hub in self.hubs for name in hub.suspects if name in self.engines}
        dead = tuple(sorted(name for name in suspects if self.engines[name].mood in ("dead", "hangs")))
        for hub in self.hubs:
            hub.warden.probed(Probed(alive=tuple(sorted(suspects - set(dead))), dead=dead))

    # --- requests

    def _arrive(self) -> None:
        self.at(self.rng.expovariate(self.rate), self._arrive)
        worker = self.rng.choice(self.hubs)
        # Few prompts make up most of the traffic.
        prompt = self.prompts[min(int(self.rng.paretovariate(1.2)) - 1, len(self.prompts) - 1)]
        head = [b"x-session-id: %d" % self.rng.randrange(9)] if self.rng.random() < 0.2 else []
        body = b'{"model":"m","messages":[{"role":"user","content":"%b%d"}]}' % (
            prompt.encode(),
            self.rng.randrange(99),
        )
        request = Request(worker, worker.now, head, body, RoutingProfile(total_s=300.0))
        self.requests[worker.worker] += 1
        endpoints = worker.routes.targets["m"].endpoints
        self._go(request, worker.choosing.choose(cast(Any, request), endpoints), first=True)

    def _go(self, request: Request, endpoint: EngineEndpoint | None, *, first: bool) -> None:
        worker = request.worker
        endpoints = worker.routes.targets["m"].endpoints
        if endpoint is None:
            left = [e for e in endpoints if e not in (request.tried or ()) and e.resting_until <= worker.now]
            if first and left:
                raise self.violated(f"nobody was picked, though {left} may be asked ({request.policy})")
            if first and request.policy != NOBODY and endpoints and len(endpoints) > 1:
                raise self.violated(f"nobody was picked by {request.policy}")
            self.unserved += 1
            request.over = True
            return
        if endpoint.leaving or endpoint not in endpoints:
            raise self.violated(f"{endpoint.name} is draining or gone, and was picked")
        if endpoint in (request.tried or ()):
            raise self.violated(f"{endpoint.name} was picked again")
        self._check_load(request, endpoint)
        if endpoint.ejected and request.policy == TRIAL:
            self._check_trial(request, endpoint)
        if not first and request.phase != CONNECTING:
            self.retries[worker.worker] += 1
            share, least = self.rules.retry_share, self.rules.retry_min_per_s
            most = share * self.requests[worker.worker] + least * (RetryBudget.DEPTH + self.now)
            if self.retries[worker.worker] > most + 1:
                raise self.violated(f"{self.retries[worker.worker]} retries, over the budget of {most:.0f}")
        request.endpoint = endpoint
        endpoint.take(int(self.now * 1e9) + 1)
        if endpoint.ejected or request.match is not None:
            worker.choosing.departs(cast(Any, request), endpoint)
        self.running.add(request)
        self._ask(request, endpoint)

    def _check_load(self, request: Request, endpoint: EngineEndpoint) -> None:
        if request.policy not in (PREFIX, SESSION):
            return
        now = request.worker.now
        tier = [e for e in request.worker.routes.targets["m"].endpoints if e.tier == endpoint.tier]
        if len(tier) > SCAN_UP_TO:
            return
        usable = [e for e in tier if e.avoid_until <= now and e not in (request.tried or ())]
        if request.tried:
            # A second try is nobody's trial while there are others.
            usable = [e for e in usable if not e.ejected] or usable
        least = min((e.outstanding() + 1) / e.share for e in usable)
        load = (endpoint.outstanding() + 1) / endpoint.share
        bound = max(least * self.rules.imbalance_ratio, least + self.rules.imbalance)
        if load > bound:
            raise self.violated(f"{endpoint.name} got a known prompt at load {load}, beyond {bound}")

    def _check_trial(self, request: Request, endpoint: EngineEndpoint) -> None:
        worker = request.worker
        place = (worker.worker, endpoint.name)
        before = self.trials.get(place)
        # One that has begun to be answered tries it no longer, though it may run for long.
        waits = before is not None and not before[0].over and endpoint.trial is before[0]
        if before is not None and waits and worker.now < before[1]:
            raise self.violated(f"{endpoint.name} is tried by two in worker {worker.worker}")
        self.trials[place] = (request, worker.now + self.rules.trial_s)

    # --- what engines do

    def _ask(self, request: Request, endpoint: EngineEndpoint) -> None:
        engine = self.engines.get(endpoint.name)
        mood = "dead" if engine is None else engine.mood
        rng = self.rng
        begins_s = rng.uniform(0.05, 0.3) * (10 if mood == "slow" else 1)
        ends_s = begins_s + rng.expovariate(1 / 3.0)
        if mood == "dead":
            self.at(0.002, lambda: self._fail(request, Reason.UNREACHABLE, decisive=True))
        elif mood == "denies":
            self.at(0.002, lambda: self._fail(request, Reason.DENIED, decisive=True))
        elif mood == "fails":
            self.at(0.02, lambda: self._fail(request, Reason.FAILING))
        elif mood == "busy":
            wait_s = rng.choice((None, 1.0, 5.0, 30.0))
            self.at(0.002, lambda: self._busy(request, wait_s))
        elif mood == "refuses":
            self.at(0.01, lambda: self._end(request, 400))
        elif mood != "hangs":
            self.at(begins_s, lambda: self._begin(request, int(begins_s * 1e9)))
            if mood == "breaks":
                self.at(ends_s, lambda: self._break(request))
            else:
                self.at(ends_s, lambda: self._end(request, 200))
        # Patience ends for everybody; some leave early.
        self.at(
            rng.uniform(20, 60) if rng.random() < 0.9 else rng.uniform(0, 2), lambda: self._leave(request)
        )

    def _release(self, request: Request) -> EngineEndpoint:
        endpoint, request.endpoint = request.endpoint, None
        assert endpoint is not None
        endpoint.release(int(self.now * 1e9) + 1, request)
        self.running.discard(request)
        return endpoint

    def _begin(self, request: Request, waited_ns: int) -> None:
        if request.endpoint is not None:
            request.endpoint.began(request, 200, waited_ns)

    def _end(self, request: Request, status: int) -> None:
        if request.endpoint is not None:
            request.endpoint.ended(request, status)
            request.endpoint.speed.streamed(1000, 1.0)
            name = self._release(request).name
            request.over = True
            self.served[name] = self.served.get(name, 0) + 1

    def _break(self, request: Request) -> None:
        if request.endpoint is not None:
            request.endpoint.broke(request)
            self._release(request)
            request.over = True

    def _leave(self, request: Request) -> None:
        if request.endpoint is not None:
            self._release(request)
            request.over = True

    def _fail(self, request: Request, reason: Reason, *, decisive: bool = False) -> None:
        if request.endpoint is not None:
            request.phase = CONNECTING if reason is Reason.UNREACHABLE else WAITING
            request.endpoint.unanswered(request, reason, decisive=decisive)
            self._again(request)

    def _busy(self, request: Request, wait_s: float | None) -> None:
        if request.endpoint is not None:
            request.endpoint.busy(request, wait_s)
            self._again(request)

    def _again(self, request: Request) -> None:
        failed = self._release(request)
        self._go(request, request.worker.choosing.again(cast(Any, request), failed), first=False)
