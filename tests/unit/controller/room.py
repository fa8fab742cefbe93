"""A stage on which one model waits for the room of another, idle one."""

from dataclasses import replace

from llmgw_controller.core.activity import ActivityMap
from llmgw_controller.core.apply import apply
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.plan import PutActivation, PutEvent
from llmgw_controller.core.rows import ActivationRow, Cause, LoadRecord, Phase
from llmgw_controller.core.state import EvictionPolicy, Intervals
from llmgw_kit.ids import ModelId, ReplicaId
from tests.unit.controller.build import (
    NOW,
    Stage,
    activity,
    member,
    model,
    node,
    replica,
    router,
    shard,
    snapshot,
)

ON = Intervals(eviction=EvictionPolicy.ON)
#: Idle for two hours of the hour that is asked where the model says nothing.
OLD = model("old", idle_after_s=None, min_residency_s=60.0)
NEW = model("new", idle_after_s=None, min_residency_s=60.0)
HELD = replica(OLD, 1, Phase.READY, shard("old/1", "n1", 0), cause=Cause.ACTIVATION, ready_since=NOW - 7200)
FRESH = activity(router(), touched={"old/1": 7200.0})


class Room(Stage):
    """A stage with one router, whose reports and acknowledgements the test gives; who waits asks on."""

    def __init__(
        self, *models: Model, rows=(HELD,), watched=FRESH, intervals=ON, wanting=("new",), **changes
    ) -> None:
        nodes = changes.pop("nodes", None)
        made = snapshot(
            models or (OLD, NEW), nodes or [node("n1", 1)], rows, activity=watched,
            routers=changes.pop("routers", {"r1": member()}), intervals=intervals, **changes,
        )  # fmt: skip
        super().__init__(made)
        self.wanting = set(wanting)
        self._aged_to = self.now

    def step(self, seconds: float = 2.0):
        self._age()
        for name in sorted(self.wanting):
            old = self.snap.stored.activations.get(ModelId(name))
            row = ActivationRow(ModelId(name), old.opened_at if old else self.now, self.now)
            self.snap = replace(self.snap, stored=apply(self.snap.stored, [PutActivation(row)]))
        return super().step(seconds)

    def later(self, seconds: float) -> None:
        self.jump(self.now + seconds)

    def acknowledge(self, *endpoints: str) -> None:
        self.snap = replace(self.snap, drained=self.snap.drained | set(endpoints or ("old/1@1",)))

    def report(self, touched: dict[str, float] | None = None, **in_flight: int) -> None:
        """The router reports now; `touched`: seconds ago."""
        self._age()
        before = self.map
        newer = {ReplicaId(key): before.now - ago for key, ago in (touched or {}).items()}
        flights = {ReplicaId(key.replace("__", "/")): count for key, count in in_flight.items()}
        reports = {key: replace(one, at=before.now, in_flight=flights) for key, one in before.routers.items()}
        self.map = replace(before, touched={**before.touched, **newer}, routers=reports)

    @property
    def map(self) -> ActivityMap:
        assert self.snap.activity.map is not None
        return self.snap.activity.map

    @map.setter
    def map(self, changed: ActivityMap) -> None:
        self.snap = replace(self.snap, activity=replace(self.snap.activity, map=changed))

    def _age(self) -> None:
        """Redis's clock goes on while nobody reads the map."""
        if self.snap.activity.map is not None:
            self.map = replace(self.map, now=self.map.now + self.now - self._aged_to)
        self._aged_to = self.now

    @property
    def receipts(self):
        return [one for _, one in sorted(self.snap.stored.evictions.items())]

    @property
    def receipt(self):
        (one,) = self.receipts
        return one

    def events(self, kind: str) -> list[PutEvent]:
        return [
            one
            for plan in self.plans
            for one in plan.changes
            if isinstance(one, PutEvent) and one.kind == kind
        ]

    def go_on(self, seconds: float = 2.0, times: int = 1) -> None:
        """Passes in a world where all is well: the router reports each time."""
        for _ in range(times):
            self.report()
            self.step(seconds)

    def through(self) -> None:
        """From the mark to the stop: acknowledged, and confirmed by a newer report."""
        self.acknowledge()
        self.go_on()
        self.go_on()


def of_priority(priority: int, **more):
    return model("old", idle_after_s=None, min_residency_s=60.0, priority=priority, **more)


LOAD = LoadRecord(ModelId("old"), "p", "L4", 3000.0, NOW - 7200)
ELSE = model("else", idle_after_s=None, min_residency_s=60.0)


def idle_one(one: Model, where: str, index: int):
    place = shard(f"{one.name}/1", where, index)
    return replica(one, 1, Phase.READY, place, cause=Cause.ACTIVATION, ready_since=NOW - 7200)
