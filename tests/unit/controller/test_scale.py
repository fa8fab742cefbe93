"""Growing and shrinking with what is asked, on virtual time: one at a time, slowly, and never by a guess."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw_controller.core.activity import Activity
from llmgw_controller.core.catalog import Profile
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.replica import is_routable
from llmgw_controller.core.rows import Cause, Phase, ReplicaRow, Schedulability, Wish
from llmgw_controller.core.state import Intervals, Watched
from llmgw_controller.core.watching import watch
from llmgw_kit.ids import ModelId, NodeId, ReplicaId
from tests.unit.controller.build import (
    NOW,
    Stage,
    activity,
    heard,
    member,
    model,
    node,
    profile,
    replica,
    report,
    router,
    shard,
    snapshot,
)

M = ModelId("m")
GROWS = {"replicas": 1, "max_replicas": 3, "idle_after_s": 120.0, "min_residency_s": 10.0}


class Load(Stage):
    """A stage whose engines take `load_s` to come up, under a router's load that the test sets."""

    def __init__(
        self, *, gpus: int = 6, load_s: float = 20.0, running: Profile | None = None, **of_model
    ) -> None:
        self.load_s = load_s
        one = model("m", running or profile(concurrency=4), **{**GROWS, **of_model})
        row = replica(one, 1, Phase.READY, shard("m/1", "n1", 0))
        super().__init__(snapshot([one], [node("n1", gpus)], [row], routers={"r1": member()}))
        self.held = 0
        #: By replica id.
        self.flights: dict[str, int] = {}
        self.touched: dict[str, float] = {}
        self.most = 1

    @property
    def serving(self) -> list[str]:
        return [key for key, row in sorted(self.rows.items()) if is_routable(row, self.snap, self.now)]

    @property
    def live(self) -> list[ReplicaRow]:
        return [row for _, row in sorted(self.rows.items()) if row.wish is Wish.SERVE]

    def run(self, seconds: float) -> None:
        """Looks and passes every two seconds; routers acknowledge at once, engines do as they are told."""
        until = self.now + seconds
        while self.now < until:
            self._routers()
            self.snap = replace(self.snap, watched=watch(self.snap.watched, self.snap, self.now))
            self.step()
            self._engines()
            self.most = max(self.most, len(self.live))
            rising = [row for row in self.live if row.phase is not Phase.READY]
            assert len(rising) <= 1, "one at a time"

    def _routers(self) -> None:
        for name, count in self.flights.items():
            if count:
                self.touched[name] = self.now
        ago = {name: self.now - at for name, at in self.touched.items()}
        flights = {ReplicaId(name): count for name, count in self.flights.items()}
        one = replace(router("r1"), in_flight=flights, held={"m": self.held})
        draining = frozenset(row.endpoint_id for row in self.rows.values() if row.phase is Phase.DRAINING)
        self.snap = replace(
            self.snap,
            activity=activity(one, touched=ago),
            held={M: self.held} if self.held else {},
            drained=draining,
        )

    def _engines(self) -> None:
        self.obey()
        for row in self.rows.values():
            if row.phase in (Phase.RESERVED, Phase.STARTING) and self.now - row.since < self.load_s:
                self.tell(row, ShardState.LOADING)


def test_sustained_waiting_adds_one_after_another_up_to_the_bound_and_idleness_takes_them_back():
    load = Load()
    load.held = 5
    load.run(28)
    assert len(load.live) == 1, "not yet"
    load.run(8)
    assert [(row.cause, row.phase is Phase.READY) for row in load.live] == [
        (Cause.CONFIGURATION, True), (Cause.DEMAND, False),
    ]  # fmt: skip
    load.run(40)
    assert len(load.live) == 2, "the newest has not had time to help"
    load.run(20)
    assert len(load.live) == 3
    load.run(300)
    assert load.most == 3, "never more than max_replicas"
    load.held = 0
    load.flights = {"m/1": 1, "m/2": 1, "m/3": 0}
    load.run(130)
    assert load.serving == ["m/1", "m/2"], "one that is used stays, one that is not goes"
    load.flights = {}
    load.run(400)
    assert load.serving == ["m/1"], "never below replicas, however idle"


def test_a_load_that_flaps_adds_nothing():
    load = Load()
    for _ in range(40):
        load.held = 9
        load.run(24)
        load.held = 0
        load.run(4)
    assert load.most == 1


def test_what_was_added_is_not_stopped_in_a_pause_and_not_added_twice():
    """Hysteresis: a wave of a minute every two and a bit keeps its second replica over the pauses."""
    load = Load()
    for _ in range(10):
        for _ in range(30):
            # Two of them carry the wave; one alone lets requests wait.
            load.held, load.flights = 3 if len(load.serving) < 2 else 0, dict.fromkeys(load.serving, 2)
            load.run(2)
        load.held, load.flights = 0, {}
        load.run(80)
        assert load.serving == ["m/1", "m/2"]
    assert load.most == 2


@pytest.mark.parametrize(
    ("flights", "gauge", "grows"),
    [(4, 0, True), (3, 0, False), (0, 4, True), (0, 3, False)],
    ids=["full by the routers", "a place is free", "full by the engine's gauge", "the engine has a place"],
)
def test_a_replica_that_runs_its_concurrency_counts_as_waiting(flights, gauge, grows):
    load = Load()
    load.flights = {"m/1": flights}
    for _ in range(30):
        load.run(2)
        load.tell(load.rows["m/1"], ShardState.SERVING, running=gauge)
    assert (len(load.live) > 1) is grows


def test_full_is_all_of_them():
    load = Load()
    load.held = 1
    load.run(70)
    assert load.serving == ["m/1", "m/2"]
    load.held, load.flights = 0, {"m/1": 4, "m/2": 2}
    load.run(100)
    assert len(load.live) == 2


def test_an_unknown_concurrency_never_counts_as_full():
    load = Load(running=profile())
    load.flights = {"m/1": 500}
    load.run(100)
    assert len(load.live) == 1


def test_without_max_replicas_nothing_grows():
    load = Load(max_replicas=None)
    load.held = 50
    load.run(200)
    assert len(load.live) == 1


def test_where_there_is_no_room_it_waits_in_sight_and_leaves_when_the_wait_is_over():
    load = Load(gpus=1)
    load.held = 5
    load.run(400)
    assert [row.phase for row in load.live] == [Phase.READY, Phase.UNPLACEABLE]
    load.held = 0
    load.run(10)
    assert [row.phase for row in load.live] == [Phase.READY]


def test_an_activated_model_grows_and_goes_back_to_nothing():
    load = Load(replicas=0)
    load.snap = replace(
        load.snap,
        stored=replace(
            load.snap.stored,
            replicas={
                key: replace(row, cause=Cause.ACTIVATION) for key, row in load.snap.stored.replicas.items()
            },
        ),
    )
    load.held = 5
    load.run(60)
    assert [row.cause for row in load.live] == [Cause.ACTIVATION, Cause.DEMAND]
    load.held = 0
    load.run(400)
    assert load.rows == {}


def test_configuration_takes_over_what_was_added():
    load = Load()
    load.held = 5
    load.run(70)
    load.held = 0
    load.catalog(replace(load.snap.catalog.models[M], replicas=2))
    load.run(400)
    assert [row.cause for row in load.live] == [Cause.CONFIGURATION, Cause.CONFIGURATION]


def _after_a_loss(*causes: Cause) -> Load:
    """m/1 and m/2 were on a node that is lost and wait to be placed again; m/3 stood in for it and serves."""
    load = Load()
    one = load.snap.catalog.models[M]
    rows = [
        replica(one, 1, Phase.BACKOFF, cause=causes[0]),
        replica(one, 2, Phase.BACKOFF, cause=causes[1]),
        replica(one, 3, Phase.READY, shard("m/3", "n1", 0), cause=causes[2]),
    ]
    load.snap = snapshot([one], [node("n1", 6)], rows, routers={"r1": member()})
    load.held = 5
    load.flights = {"m/3": 4}
    return load


@pytest.mark.parametrize(
    "causes",
    [
        (Cause.CONFIGURATION, Cause.DEMAND, Cause.ACTIVATION),
        (Cause.DEMAND, Cause.CONFIGURATION, Cause.ACTIVATION),
    ],
    ids=["who leaves was added", "who leaves was kept"],
)
def test_who_stood_in_for_a_lost_node_takes_the_place_of_who_leaves(causes):
    """Found by the simulation, seed 300948: three replicas became one in a single pass, one of them just
    placed, and a moment later there was one more again."""
    load = _after_a_loss(*causes)
    load.run(4)
    assert len(load.live) == 2
    placed = {row.replica_id for row in load.live}
    load.run(60)
    assert "m/3" in placed
    assert {row.replica_id for row in load.live} >= placed, "nobody leaves who was just placed"
    assert {row.cause for row in load.live if row.replica_id in placed} == {Cause.CONFIGURATION, Cause.DEMAND}


def test_a_rollout_counts_those_that_serve_and_not_one_that_failed():
    """Found by the simulation, seed 301621: a replica of the old spec waited on its devices to be started
    again, one that demand had added was gone, and another was wanted and dropped without end."""
    load = Load()
    one = load.snap.catalog.models[M]
    rows = [
        # Its node is silent, so nobody has seen yet that its devices are free.
        replica(one, 1, Phase.BACKOFF, shard("m/1", "n2", 0), spec_hash="old", until=NOW + 60),
        replica(one, 3, Phase.READY, shard("m/3", "n1", 1, port=20001), cause=Cause.DEMAND),
    ]
    nodes = [node("n1", 6), node("n2", 6)]
    plain = snapshot([one], nodes, rows, routers={"r1": member()})
    words = {**plain.heard, NodeId("n2"): replace(plain.heard[NodeId("n2")], heard_at=NOW - 60)}
    load.snap = replace(plain, heard=words, watched=replace(plain.watched, standing={M: 3}))
    load.step()
    assert [row.replica_id for row in load.live] == ["m/1", "m/3"]


def test_who_is_out_of_reach_keeps_nobody_waiting_for_one_more():
    """Found by the simulation, seed 301486: beside a silent replica one was waited at for five minutes."""
    load = Load()
    one = load.snap.catalog.models[M]
    rows = [
        replica(one, 1, Phase.READY, shard("m/1", "n2", 0)),
        replica(one, 2, Phase.READY, shard("m/2", "n1", 0), cause=Cause.ACTIVATION),
    ]
    plain = snapshot([one], [node("n1", 6), node("n2", 6)], rows, routers={"r1": member()})
    words = {**plain.heard, NodeId("n2"): replace(plain.heard[NodeId("n2")], heard_at=NOW - 60)}
    watched = replace(plain.watched, pressed_since={M: NOW - 100})
    load.snap = replace(plain, heard=words, watched=watched, held={M: 5})
    load.step()
    assert [(row.replica_id, row.cause) for row in load.live if row.phase is not Phase.READY] == [
        ("m/3", Cause.DEMAND)
    ]


def test_a_lower_bound_lets_the_surplus_go():
    load = Load()
    load.held = 5
    load.run(130)
    assert len(load.live) == 3
    load.held = 0
    load.flights = dict.fromkeys(load.serving, 1)
    load.catalog(replace(load.snap.catalog.models[M], max_replicas=2))
    load.run(20)
    assert len(load.live) == 2


def test_a_new_spec_replaces_all_and_keeps_as_many():
    load = Load()
    load.held = 5
    load.run(130)
    load.held, load.flights = 0, {f"m/{number}": 1 for number in range(1, 9)}
    fresh = replace(load.snap.catalog.models[M], profiles=(profile(concurrency=4, args=("--new",)),))
    load.most = 0
    load.catalog(fresh)
    load.run(300)
    assert len(load.serving) == 3
    assert {row.spec_hash for row in load.live} == set(fresh.spec_hashes.values())
    assert load.most <= 4


def test_the_memory_of_a_leader_is_kept_apart_from_the_next_ones():
    """A new leader has watched nothing yet: it waits anew, and stops nothing because of it."""
    load = Load()
    load.held = 5
    load.run(70)
    load.flights = dict.fromkeys(load.serving, 1)
    load.snap = replace(load.snap, watched=Watched())
    load.run(24)
    assert len(load.live) == 2


def test_held_requests_for_what_is_not_up_are_not_waiting_for_one_more():
    load = Load(replicas=1)
    load.tell(load.rows["m/1"], ShardState.LOADING)
    snap = replace(load.snap, held={M: 3})
    assert watch(Watched(), snap, NOW).pressed_since == {}


def test_what_an_engine_runs_is_remembered_as_long_as_the_engine():
    one = model("m", **GROWS)
    row = replica(one, 1, Phase.READY, shard("m/1", "n1", 0))
    n1 = node("n1")

    def look(before: Watched, at: float, running: int | None, *rows: ReplicaRow) -> Watched:
        words = [
            heard(
                n1,
                [report(one_row, one_row.shards[0], ShardState.SERVING, running=running) for one_row in rows],
            )
        ]
        return watch(before, snapshot([one], [n1], list(rows), words, activity=Activity()), at)

    seen = look(Watched(), NOW, 2, row)
    assert seen.ran_at == {"m/1@1": NOW}
    seen = look(seen, NOW + 2, 0, row)
    assert seen.ran_at == {"m/1@1": NOW}
    assert look(seen, NOW + 4, None, row).ran_at == {"m/1@1": NOW}
    assert look(seen, NOW + 4, 0).ran_at == {}


def test_a_drained_node_is_a_rollout_too():
    load = Load(gpus=6)
    load.held = 5
    load.run(70)
    load.held, load.flights = 0, dict.fromkeys(("m/1", "m/2", "m/3", "m/4"), 1)
    nodes = {**load.snap.stored.nodes, "n2": node("n2", 6)}
    drained = replace(nodes["n1"], schedulability=Schedulability.DRAINING)
    load.snap = replace(load.snap, stored=replace(load.snap.stored, nodes={**nodes, "n1": drained}))
    load.snap = replace(load.snap, heard={**load.snap.heard, "n2": heard(node("n2", 6), at=load.now)})
    load.run(300)
    assert len(load.serving) == 2
    assert {part.node_id for row in load.live for part in row.shards} == {"n2"}


def test_the_intervals_say_how_long():
    load = Load()
    load.snap = replace(load.snap, intervals=Intervals(scale_up_after_s=100.0))
    load.held = 5
    load.run(90)
    assert len(load.live) == 1
    load.run(20)
    assert len(load.live) == 2


WAVES = st.lists(
    st.tuples(st.integers(0, 6), st.lists(st.integers(0, 5), min_size=4, max_size=4), st.integers(1, 45)),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(WAVES)
def test_whatever_the_load_does(waves):
    """Never above the bound nor below the floor, one at a time, at rest after each pass, and nothing that is
    used or waited for is let go."""
    load = Load()
    for held, flights, looks in waves:
        for _ in range(looks):
            load.held = held
            load.flights = {f"m/{number + 1}": count for number, count in enumerate(flights)}
            used = {name for name, count in load.flights.items() if count}
            serving = {name for name, row in load.rows.items() if row.wish is Wish.SERVE}
            load.run(2)
            assert 1 <= len(load.live) <= 3
            gone = {
                name for name in serving if name not in load.rows or load.rows[name].wish is not Wish.SERVE
            }
            assert not gone & used
            assert not (gone and held and len(load.live) < 3)
