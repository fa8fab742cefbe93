"""Eviction to make room, step by step: who may go, what is asked for before the stop, and who gets the room.

Cases of shared/cases/control-plane.md are named by their number.
"""

from dataclasses import replace

from llmgw_controller.core.apply import apply
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.plan import CloseActivation, PutActivation, PutEvent, Release, Reserve
from llmgw_controller.core.state import (
    ActivationRow,
    Cause,
    EvictionPolicy,
    EvictionState,
    Intervals,
    Phase,
    Wish,
)
from llmgw_kit.ids import ModelId, ReplicaId
from tests.unit.controller.build import (
    NOW,
    Stage,
    activity,
    ask,
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
    """A stage with one router, whose reports and acknowledgements the test gives."""

    def __init__(
        self, *models: Model, nodes=None, rows=(HELD,), watched=FRESH, intervals=ON, **changes
    ) -> None:
        made = snapshot(
            models or (OLD, NEW), nodes or [node("n1", 1)], rows, activity=watched,
            routers=changes.pop("routers", {"r1": member()}), intervals=intervals,
            activations=changes.pop("activations", ask(NEW)), **changes,
        )  # fmt: skip
        super().__init__(made)

    def acknowledge(self, *endpoints: str) -> None:
        self.snap = replace(self.snap, drained=self.snap.drained | set(endpoints or ("old/1@1",)))

    def report(self, touched: dict[str, float] | None = None, **in_flight: int) -> None:
        """The router reports now; `touched`: seconds ago. The map's clock goes with ours."""
        before = self.snap.activity.map
        assert before is not None
        at = before.now + (self.now - getattr(self, "reported_at", NOW))
        self.reported_at = self.now
        times = {**before.touched, **{ReplicaId(name): at - ago for name, ago in (touched or {}).items()}}
        reports = {
            name: replace(
                one, at=at, in_flight={ReplicaId(key.replace("__", "/")): n for key, n in in_flight.items()}
            )
            for name, one in before.routers.items()
        }
        self.snap = replace(
            self.snap,
            activity=replace(self.snap.activity, map=replace(before, now=at, touched=times, routers=reports)),
        )

    def asked(self, name: str) -> None:
        """Somebody waits for the model, and goes on doing so."""
        old = self.snap.stored.activations.get(ModelId(name))
        row = ActivationRow(ModelId(name), old.opened_at if old else self.now, self.now)
        self.snap = replace(self.snap, stored=apply(self.snap.stored, [PutActivation(row)]))

    def unasked(self, name: str) -> None:
        self.snap = replace(
            self.snap, stored=apply(self.snap.stored, [CloseActivation(ModelId(name), "abandoned")])
        )

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

    def go_on(self, seconds: float = 2.0) -> None:
        """A pass in a world where all is well: the router reports, who asked goes on asking."""
        self.report()
        for name in self.snap.stored.activations:
            self.asked(name)
        self.step(seconds)

    def through(self) -> None:
        """From the mark to the stop: acknowledged, and confirmed by a newer report."""
        self.acknowledge()
        self.go_on()
        self.go_on()


def test_an_idle_replica_makes_room_and_the_claims_go_over_in_one_plan():
    room = Room()
    room.step()
    victim = room.rows["old/1"]
    assert (victim.wish, victim.phase, victim.revocable) == (Wish.DRAIN, Phase.DRAINING, True)
    assert victim.reason == "evicted for new/1"
    assert room.receipt.state is EvictionState.DRAINING
    assert any("router r1: report" in line for line in room.receipt.evidence)
    room.through()
    assert room.rows["old/1"].phase is Phase.STOPPING
    room.obey()
    plan = room.step()
    freed = [
        i for i, one in enumerate(plan.changes) if isinstance(one, Release) and one.replica_id == "old/1"
    ]
    taken = [i for i, one in enumerate(plan.changes) if isinstance(one, Reserve)]
    assert freed and taken and freed[0] < taken[0], "released and reserved by one transaction"
    assert room.rows["new/1"].shards[0].device_ids == HELD.shards[0].device_ids
    assert "old/1" not in room.rows
    assert room.receipt.state is EvictionState.DONE
    assert room.receipt.freed_at is not None
    assert "made room for new/1" in room.events("evicted")[0].text
