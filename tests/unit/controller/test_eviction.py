"""Eviction to make room, step by step: who may go, what is asked for before the stop, and who gets the room.

Cases of shared/cases/control-plane.md are named by their number.
"""

from dataclasses import replace

import pytest

from llmgw_controller.core.activation import Pending, Ready, Refused, decide
from llmgw_controller.core.activity import Activity, ActivityMap
from llmgw_controller.core.apply import apply
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.plan import (
    CloseActivation,
    PutActivation,
    PutDeployment,
    PutEvent,
    PutEviction,
    PutNode,
    PutReplica,
    PutRouter,
    Release,
    Reserve,
)
from llmgw_controller.core.proposals import proposals
from llmgw_controller.core.replica import with_wish
from llmgw_controller.core.state import (
    ActivationRow,
    Cause,
    DeploymentRow,
    EvictionPolicy,
    EvictionRow,
    EvictionState,
    Exit,
    Intervals,
    LoadRecord,
    Phase,
    ShardState,
    Stored,
    Wish,
)
from llmgw_kit.ids import ModelId, NodeId, ReplicaId
from tests.unit.controller.build import (
    NOW,
    Stage,
    activity,
    ask,
    heard,
    member,
    model,
    node,
    profile,
    replica,
    router,
    shard,
    snapshot,
    usual_reports,
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


# --- before the stop it can be cancelled, and is -----------------------------------------------------------


def a_request_slipped_in(room: Room) -> None:
    room.report(old__1=1)


def used_since(room: Room) -> None:
    room.later(20)
    room.report({"old/1": 10.0})


def redis_flushed(room: Room) -> None:
    room.report()
    room.map = replace(room.map, watching_since=None, epoch=None, touched={})


def redis_gone(room: Room) -> None:
    room.snap = replace(room.snap, activity=Activity(None, "redis_unreachable"))


def router_vanished(room: Room) -> None:
    room.later(20)


def router_restarted(room: Room) -> None:
    room.report()
    (one,) = room.map.routers.values()
    room.map = replace(room.map, routers={one.router_id: replace(one, incarnation="second-life")})


def another_router_came(room: Room) -> None:
    room.report()
    room.snap = replace(room.snap, stored=apply(room.snap.stored, [PutRouter(member("r2"))]))


def direct_traffic(room: Room) -> None:
    room.report()
    room.tell(room.rows["old/1"], ShardState.SERVING, running=1)


def gauge_unreadable(room: Room) -> None:
    room.report()
    room.tell(room.rows["old/1"], ShardState.SERVING, running=None, running_unknown="http_500")


def nobody_waits(room: Room) -> None:
    room.report()
    room.wanting.clear()
    gone = CloseActivation(ModelId("new"), "abandoned")
    room.snap = replace(room.snap, stored=apply(room.snap.stored, [gone]))


def not_wanted(room: Room) -> None:
    room.report()
    room.catalog(OLD)


def switched_off(room: Room) -> None:
    room.report()
    room.snap = replace(room.snap, intervals=replace(ON, eviction=EvictionPolicy.OFF))


def room_elsewhere(room: Room) -> None:
    room.report()
    more = node("n2", 1)
    room.snap = replace(
        room.snap,
        stored=apply(room.snap.stored, [PutNode(more)]),
        heard={**room.snap.heard, more.node_id: heard(more, at=room.now)},
    )


CANCELS = {
    "a request slipped in before the mark was applied": (a_request_slipped_in, "is in use"),
    "it was used since it was decided": (used_since, "was used 10 s ago"),
    "Redis is flushed": (redis_flushed, "unknown: watch restarted"),
    "Redis is away": (redis_gone, "unknown: redis unreachable"),
    "a router vanished": (router_vanished, "unknown: router silent"),
    "a router restarted": (router_restarted, "unknown: router silent"),
    "another router came that nobody has heard": (another_router_came, "unknown: router silent"),
    "an engine runs what no router sent": (direct_traffic, "is in use"),
    "an engine's gauge cannot be read": (gauge_unreadable, "unknown: engine gauge unreadable"),
    "nobody waits any more": (nobody_waits, "nobody waits for new"),
    "the model that waits is removed": (not_wanted, "new/1 is not wanted"),
    "eviction is switched off": (switched_off, "eviction is off"),
    "room came free elsewhere": (room_elsewhere, "new/1 waits no more"),
}


@pytest.mark.parametrize(("befalls", "because"), CANCELS.values(), ids=CANCELS.keys())
def test_what_cancels_it_before_the_stop(befalls, because):
    room = Room()
    room.step()
    room.acknowledge()
    befalls(room)
    room.step()
    if befalls is room_elsewhere:
        room.go_on()
    victim = room.rows["old/1"]
    assert (victim.wish, victim.phase) == (Wish.SERVE, Phase.READY), (
        "it serves on, and was never told to stop"
    )
    assert room.receipt.state is EvictionState.CANCELLED
    assert because in room.receipt.text
    (told,) = room.events("eviction_cancelled")
    assert because in told.text


def test_a_router_that_does_not_acknowledge_in_time_cancels_it_and_the_victim_is_let_be():
    room = Room()
    room.step()
    room.go_on(times=14)
    assert room.receipt.state is EvictionState.DRAINING
    room.go_on(times=4)
    assert room.receipt.state is EvictionState.CANCELLED
    assert "not every router has put old/1 aside in time" in room.receipt.text
    room.go_on(times=130)
    assert room.rows["old/1"].wish is Wish.SERVE, "not taken from its users again and again"
    room.go_on(times=30)
    states = [one.state for one in room.receipts]
    assert states == [EvictionState.CANCELLED, EvictionState.DRAINING]
    assert len({one.eviction_id for one in room.receipts}) == 2, "the first receipt is kept"
    assert {one.endpoint_id for one in room.receipts} == {"old/1@1"}


def test_acknowledged_is_not_enough_while_no_report_is_newer():
    room = Room()
    room.step()
    room.acknowledge()
    for _ in range(4):
        room.step()
    assert room.receipt.acknowledged_at is not None
    assert room.rows["old/1"].phase is Phase.DRAINING, "its last report is from before the mark"
    room.go_on()
    assert room.rows["old/1"].phase is Phase.STOPPING


def test_acknowledged_by_all_and_no_newer_report_ever_is_cancelled():
    """Its reports count as fresh, but none is newer than its word: a router whose tick hangs."""
    room = Room(intervals=replace(ON, router_stale_s=100.0))
    room.step()
    room.acknowledge()
    room.step()
    assert room.receipt.acknowledged_at is not None
    room.later(27)
    room.step()
    assert room.receipt.state is EvictionState.DRAINING
    room.step()
    assert room.receipt.state is EvictionState.CANCELLED
    assert "no report of every router is newer" in room.receipt.text


def test_a_victim_whose_engine_ends_by_itself_leaves_by_itself():
    room = Room()
    room.step()
    room.report()
    room.tell(room.rows["old/1"], ShardState.EXITED)
    room.step()
    assert room.receipt.state is EvictionState.CANCELLED
    assert "a shard exited" in room.receipt.text
    assert room.rows["new/1"].phase is Phase.RESERVED, "the room is free, and who waits takes it"


def test_an_operator_who_stops_the_victim_has_the_last_word():
    room = Room()
    room.step()
    stopped = with_wish(room.rows["old/1"], Wish.STOP, because="stopped by operator")
    room.snap = replace(room.snap, stored=apply(room.snap.stored, [PutReplica(stopped)]))
    room.go_on()
    room.obey()
    room.go_on()
    assert room.rows["new/1"].phase is Phase.RESERVED


# --- who may leave -----------------------------------------------------------------------------------------


def of_priority(priority: int, **more):
    return model("old", idle_after_s=None, min_residency_s=60.0, priority=priority, **more)


CONFIGURED = replace(HELD, cause=Cause.CONFIGURATION)
LOAD = LoadRecord(ModelId("old"), "p", "L4", 3000.0, NOW - 7200)

STAYS = {
    "unknown: no Redis": Room(watched=Activity(None)),
    "unknown: Redis was flushed": Room(watched=activity(router(), watching_since=None, epoch=None)),
    "unknown: a router sends its map again": Room(watched=activity(router(epoch="before"))),
    "unknown: a router is late": Room(watched=activity(router(age_s=16), touched={"old/1": 7200})),
    "unknown: a router vanished": Room(watched=activity(touched={"old/1": 7200})),
    "unknown: a router restarted": Room(routers={"r1": member(incarnation="second-life")}),
    "busy": Room(watched=activity(router(old__1=1), touched={"old/1": 7200})),
    "idle too short": Room(watched=activity(router(), touched={"old/1": 3590.0})),
    "idle too short for its own span": Room(model("old", idle_after_s=8000.0), NEW),
    "watched too short": Room(watched=activity(router(), watching_since=500_000.0 - 3000)),
    "a router crashed lately": Room(routers={"r1": member(crashed_at=NOW - 100)}),
    "younger than its least residency": Room(model("old", idle_after_s=None, min_residency_s=8000.0), NEW),
    "younger than thrice its measured load": Room(loads=(LOAD,)),
    "pinned by its spec": Room(of_priority(0, pinned=True), NEW),
    "of higher priority, case 23": Room(of_priority(5), NEW),
    "configured, of equal priority": Room(of_priority(0, replicas=1), NEW, rows=(CONFIGURED,)),
    "requests are held for it, case 25": Room(held={ModelId("old"): 1}),
    "asked for": Room(activations=ask(OLD)),
    "let be after a cancelled drain": Room(rows=(replace(HELD, until=NOW + 100),)),
    "the leader learns": Room(nodes=[node("n1", 1), node("n2", 1)], words=[
        heard(node("n1", 1), usual_reports(node("n1", 1), (HELD,)))], term_started=NOW - 10),
    "eviction is off": Room(intervals=Intervals()),
    "eviction is only suggested": Room(intervals=replace(ON, eviction=EvictionPolicy.SUGGEST)),
    "no evictions are left this hour": Room(intervals=replace(ON, evictions_per_hour=0)),
    "none of its model are left this hour": Room(intervals=replace(ON, evictions_per_model_per_hour=0)),
    "nobody asks for what waits": Room(wanting=(), rows=(HELD, replace(
        replica(NEW, 1, Phase.UNPLACEABLE), cause=Cause.ACTIVATION, since=NOW - 5))),
}  # fmt: skip


@pytest.mark.parametrize("room", STAYS.values(), ids=STAYS.keys())
def test_who_stays(room):
    room.step()
    assert room.receipts == []
    assert room.rows["old/1"].wish is Wish.SERVE


GOES = {
    "idle for an hour where its model says nothing": Room(),
    "never asked, and watched all the time": Room(watched=activity(router())),
    "no router at all: nobody sends anything": Room(routers={}, watched=activity()),
    "configured, of lower priority": Room(
        of_priority(0, replicas=1), model("new", priority=1), rows=(CONFIGURED,)
    ),
    "Redis's clock is minutes away from ours": Room(
        watched=activity(router(), now=3.0e9, watching_since=3.0e9 - 86_400, touched={})
    ),
}


@pytest.mark.parametrize("room", GOES.values(), ids=GOES.keys())
def test_who_goes(room):
    if room.map.now > 1e9:
        reports = {key: replace(one, at=3.0e9 - 2) for key, one in room.map.routers.items()}
        room.map = replace(room.map, routers=reports)
    room.step()
    assert room.rows["old/1"].reason == "evicted for new/1"


def test_an_operators_pin_counts_and_one_taken_away_does_not():
    pinned = Room()
    wish = DeploymentRow(ModelId("old"), stopped=False, pinned=True, changed_at=NOW)
    pinned.snap = replace(pinned.snap, stored=apply(pinned.snap.stored, [PutDeployment(wish)]))
    pinned.step()
    assert pinned.receipts == []
    freed = Room(of_priority(0, pinned=True), NEW)
    freed.snap = replace(
        freed.snap, stored=apply(freed.snap.stored, [PutDeployment(replace(wish, pinned=False))])
    )
    freed.step()
    assert freed.receipt.state is EvictionState.DRAINING


def test_case_25_a_model_that_loads_slower_than_it_may_be_idle_is_not_evicted_before_it_served():
    """The idle clock starts at READY: a start that takes longer than every span is no idleness."""
    slow = model("old", idle_after_s=10.0, min_residency_s=0.0)
    loading = replica(
        slow, 1, Phase.STARTING, shard("old/1", "n1", 0), cause=Cause.ACTIVATION, since=NOW - 9000
    )
    room = Room(slow, NEW, rows=(loading,), watched=activity(router()))
    room.go_on()
    assert room.receipts == []
    room.tell(room.rows["old/1"], ShardState.SERVING, load_s=9000.0)
    room.go_on(1.0)
    assert room.rows["old/1"].phase is Phase.READY
    room.go_on(1.0)
    assert room.receipts == [], "idle for a second, not for nine thousand"


def test_case_21_what_can_never_fit_evicts_nobody_again_and_again():
    huge = model("new", profile("p", gpus_per_node=4, tensor_parallel=4))
    room = Room(OLD, huge)
    room.go_on(3.0, times=500)
    assert room.receipts == []
    assert room.rows["old/1"].ready_since == HELD.ready_since
    assert room.rows["new/1"].phase is Phase.UNPLACEABLE


def test_case_23_a_stray_request_for_a_lesser_model_is_refused_clearly():
    room = Room(of_priority(5), NEW)
    room.step()
    answer = decide(room.snap, ModelId("new"), room.now)
    assert isinstance(answer, Refused)
    assert answer.code == "no_capacity"
    assert room.rows["old/1"].wish is Wish.SERVE


# --- case 20: the victim is asked for meanwhile ------------------------------------------------------------


def test_case_20_a_request_for_the_victim_is_new_demand_and_does_not_revive_it():
    room = Room()
    room.step()
    assert isinstance(decide(room.snap, ModelId("new"), room.now), Pending), "told to wait, not refused"
    room.wanting.add("old")
    room.snap = replace(room.snap, held={ModelId("old"): 3})
    room.go_on()
    assert isinstance(decide(room.snap, ModelId("old"), room.now), Pending), "held, for room may come"
    assert room.rows["old/1"].phase is Phase.DRAINING
    room.through()
    room.obey()
    room.go_on()
    assert room.rows["new/1"].phase is Phase.RESERVED, "the pending load is not kept waiting"
    others = [row for name, row in room.rows.items() if name.startswith("old/")]
    assert [row.phase for row in others] == [Phase.UNPLACEABLE], "queued"
    assert room.receipt.regretted_at is not None, "and it is regretted"


def test_an_engine_that_does_not_exit_holds_up_nobody_for_ever():
    """Its deadline; the outcome is an event."""
    room = Room()
    room.step()
    room.through()
    for _ in range(80):
        room.tell(room.rows["old/1"], ShardState.STOPPING)
        room.go_on()
    assert room.receipt.state is EvictionState.FAILED
    assert "the exit of old/1 is not seen" in room.events("eviction_failed")[0].text


def test_a_new_leader_goes_on_with_it_once_it_has_learnt():
    room = Room()
    room.step()
    room.acknowledge()
    room.go_on()
    started = room.now
    room.snap = replace(room.snap, term_started=started, drained=frozenset(), heard={})
    room.go_on()
    assert room.receipt.state is EvictionState.DRAINING, "judged by nobody while it learns"
    room.snap = replace(
        room.snap,
        heard={NodeId("n1"): heard(node("n1", 1), usual_reports(node("n1", 1), (HELD,)), at=room.now)},
    )
    room.go_on()
    assert room.rows["old/1"].phase is Phase.DRAINING, "routers tell a new leader everything anew"
    room.through()
    assert room.rows["old/1"].phase is Phase.STOPPING


# --- nobody steals the room --------------------------------------------------------------------------------

ELSE = model("else", idle_after_s=None, min_residency_s=60.0)
GANG = model("gang", profile("g", nodes=2, gpus_per_node=2, tensor_parallel=4), idle_after_s=None, priority=1)


def idle_one(one: Model, where: str, index: int):
    place = shard(f"{one.name}/1", where, index)
    return replica(one, 1, Phase.READY, place, cause=Cause.ACTIVATION, ready_since=NOW - 7200)


def two_nodes() -> Room:
    """Each node has two GPUs, one of each held by an idle replica."""
    return Room(
        OLD, ELSE, GANG, nodes=[node("n1", fabrics=("ib",)), node("n2", fabrics=("ib",))],
        rows=(HELD, idle_one(ELSE, "n2", 0)), wanting=("gang",), watched=activity(router()),
    )  # fmt: skip


def test_a_gang_waits_for_all_exits_and_takes_the_room_in_one_plan():
    """The first engine to exit keeps its claims: what came free earlier could go to somebody else."""
    thief = model("thief", priority=9, replicas=2)
    room = two_nodes()
    room.step()
    assert {one.victim_replica_id for one in room.receipts} == {"old/1", "else/1"}
    room.catalog(OLD, ELSE, GANG, thief)
    room.acknowledge("old/1@1", "else/1@1")
    room.go_on()
    assert room.rows["thief/1"].phase is Phase.UNPLACEABLE, "the free GPUs are kept too"
    room.go_on()
    assert {room.rows[name].phase for name in ("old/1", "else/1")} == {Phase.STOPPING}
    room.tell(room.rows["old/1"], ShardState.EXITED, exit=Exit(0, None, "stopped", ""))
    room.tell(room.rows["else/1"], ShardState.STOPPING)
    plan = room.step()
    assert not [one for one in plan.changes if isinstance(one, (Release, Reserve))]
    room.report()
    room.tell(room.rows["else/1"], ShardState.EXITED, exit=Exit(0, None, "stopped", ""))
    plan = room.step()
    freed = [i for i, one in enumerate(plan.changes) if isinstance(one, Release)]
    taken = [i for i, one in enumerate(plan.changes) if isinstance(one, Reserve)]
    assert len(freed) == 2
    assert [plan.changes[i].replica.replica_id for i in taken] == ["gang/1"]
    assert max(freed) < min(taken)
    assert sum(len(part.device_ids) for part in room.rows["gang/1"].shards) == 4
    assert room.rows["thief/1"].phase is Phase.UNPLACEABLE


def test_a_gang_is_cancelled_as_a_whole_when_one_victim_is_used():
    room = two_nodes()
    room.step()
    room.acknowledge("old/1@1", "else/1@1")
    room.report(else__1=1)
    room.step()
    assert {one.state for one in room.receipts} == {EvictionState.CANCELLED}
    assert {room.rows[name].wish for name in ("old/1", "else/1")} == {Wish.SERVE}


def test_waiting_demands_of_one_model_are_served_together():
    pair = model("pair", replicas=2, idle_after_s=None)
    rows = (HELD, idle_one(ELSE, "n1", 1))
    room = Room(OLD, ELSE, pair, nodes=[node("n1", 2)], rows=rows, wanting=(), watched=activity(router()))
    room.step()
    assert {one.beneficiary_replica_id for one in room.receipts} == {"pair/1", "pair/2"}


def test_who_has_waited_too_long_gets_room_over_budget_and_residency():
    young = replace(HELD, ready_since=NOW - 100)
    waits = replica(NEW, 1, Phase.UNPLACEABLE, cause=Cause.ACTIVATION, since=NOW - 590)
    room = Room(
        rows=(young, waits), watched=activity(router(), touched={"old/1": 40.0}), loads=(LOAD,),
        intervals=replace(ON, evictions_per_hour=0),
    )  # fmt: skip
    room.go_on(12.0)
    assert room.receipts == []
    room.go_on()
    assert room.receipt.victim_replica_id == "old/1"


@pytest.mark.parametrize(
    "why", ["busy", "unknown", "pinned", "used now", "priority", "younger than its minimum"]
)
def test_whom_no_wait_moves(why):
    waits = replica(NEW, 1, Phase.UNPLACEABLE, cause=Cause.ACTIVATION, since=NOW - 5000)
    changes = {
        "busy": {"watched": activity(router(old__1=1))},
        "unknown": {"watched": activity(router(age_s=30))},
        "pinned": {"models": (of_priority(0, pinned=True), NEW)},
        "used now": {"watched": activity(router(), touched={"old/1": 20.0})},
        "priority": {"models": (of_priority(1), NEW)},
        "younger than its minimum": {"models": (model("old", min_residency_s=9000.0), NEW)},
    }[why]
    room = Room(*changes.pop("models", ()), rows=(HELD, waits), **changes)
    room.step()
    assert room.receipts == []


def test_a_cancelled_one_costs_no_budget():
    room = Room(intervals=replace(ON, evictions_per_hour=1))
    room.step()
    room.report(old__1=1)
    room.step()
    assert room.receipt.state is EvictionState.CANCELLED
    room.report({"old/1": 4000.0})
    room.go_on(310.0, times=2)
    assert EvictionState.DRAINING in {one.state for one in room.receipts}


# --- regret ------------------------------------------------------------------------------------------------


def regretted(stored: Stored, at: float) -> Stored:
    receipt = EvictionRow(
        "old/9@1", ReplicaId("old/9"), ModelId("old"), ModelId("x"), ReplicaId("x/1"), at - 60,
        EvictionState.DONE, "", (), 1, 4000.0, None, 30.0, freed_at=at - 30, regretted_at=at,
    )  # fmt: skip
    return apply(stored, [PutEviction(receipt)])


def test_regret_doubles_the_residency():
    load = replace(LOAD, seconds=2000.0)  # Thrice that is less than the 7200 s that it is ready.
    free = Room(loads=(load,))
    free.step()
    assert free.receipts
    held_back = Room(loads=(load,))
    held_back.snap = replace(held_back.snap, stored=regretted(held_back.snap.stored, NOW - 1000))
    held_back.step()
    assert [one.state for one in held_back.receipts] == [EvictionState.DONE], "only the old one"


def test_asked_for_again_late_is_no_regret():
    room = Room()
    room.step()
    room.through()
    room.obey()
    room.go_on()
    assert room.receipt.state is EvictionState.DONE
    room.later(200)  # Past its window: never measured, so its least residency of 60 s.
    room.wanting.add("old")
    room.go_on()
    assert room.receipt.regretted_at is None


def test_a_receipt_predicts_from_those_before_it():
    room = Room()
    room.snap = replace(room.snap, stored=regretted(room.snap.stored, NOW - 90_000))
    room.step()
    receipt = next(one for one in room.receipts if one.state is EvictionState.DRAINING)
    assert receipt.predicted_free_s == 30.0


# --- what `suggest` shows ----------------------------------------------------------------------------------


def test_suggest_shows_and_does_nothing():
    room = Room(intervals=replace(ON, eviction=EvictionPolicy.SUGGEST), loads=(replace(LOAD, seconds=75.0),))
    room.step()
    (one,) = proposals(room.snap, verdicts(room.snap, room.now), room.now)
    assert one.beneficiary.replica_id == "new/1"
    assert [row.replica_id for row in one.victims] == ["old/1"]
    assert one.reload_s == 75.0
    assert "old/1 (1 GPU, idle 2 h 00 m) leaves for new/1" in one.text
    assert room.receipts == []


# --- when nobody need leave --------------------------------------------------------------------------------


def test_nobody_leaves_for_room_that_comes_free_by_itself():
    """An operator drains another replica anyhow: who waits will have that room."""
    going = replace(
        idle_one(ELSE, "n1", 1), wish=Wish.DRAIN, phase=Phase.DRAINING, reason="drained by operator"
    )
    room = Room(OLD, ELSE, NEW, nodes=[node("n1", 2)], rows=(HELD, going), watched=activity(router()))
    room.go_on(times=3)
    assert room.receipts == []
    assert room.rows["old/1"].wish is Wish.SERVE


def test_a_leader_that_has_not_heard_all_nodes_evicts_nobody_for_who_waited_under_the_one_before():
    waits = replica(NEW, 1, Phase.UNPLACEABLE, cause=Cause.ACTIVATION, since=NOW - 100)
    room = Room(
        nodes=[node("n1", 1), node("n2", 1)], rows=(HELD, waits), term_started=NOW - 10,
        words=[heard(node("n1", 1), usual_reports(node("n1", 1), (HELD,)))],
    )  # fmt: skip
    room.go_on()
    assert room.receipts == []


def test_nobody_leaves_for_the_one_too_many_that_a_rollout_starts():
    changed = model("new", profile("p", context_length=9), replicas=1, priority=1)
    before = replica(model("new", replicas=1), 1, Phase.READY, shard("new/1", "n1", 1))
    room = Room(
        OLD, changed, nodes=[node("n1", 2)], rows=(HELD, before), wanting=(), watched=activity(router())
    )
    room.go_on()
    assert room.rows["new/2"].phase is Phase.UNPLACEABLE, "the new one beside the old"
    assert room.receipts == []


def test_what_is_cancelled_serves_whoever_asked_meanwhile():
    room = Room()
    room.step()
    room.wanting.add("old")
    room.go_on()
    assert "old/2" in room.rows, "queued as new demand"
    room.report(old__1=1)
    room.step()
    room.wanting.discard("old")
    room.go_on(times=2)
    assert isinstance(decide(room.snap, ModelId("old"), room.now), Ready)
    assert room.rows["old/1"].phase is Phase.READY
    assert "old/2" not in room.rows, "the one too many is gone again"


def test_who_was_refused_just_before_finds_that_room_is_made():
    """Its stream ended with the refusal; the request still counted as held when the pass decided."""
    waits = replica(NEW, 1, Phase.UNPLACEABLE, cause=Cause.ACTIVATION, since=NOW - 5)
    patience = replace(ON, activation_stale_s=20.0)
    room = Room(rows=(HELD, waits), wanting=(), held={ModelId("new"): 1}, intervals=patience)
    room.step()
    room.snap = replace(room.snap, held={})
    room.go_on(times=5)
    assert room.receipt.state is EvictionState.DRAINING
    room.go_on(times=12)
    assert room.receipt.state is EvictionState.CANCELLED, "and nobody came"
    assert "nobody waits for new any more" in room.receipt.text
