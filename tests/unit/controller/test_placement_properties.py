"""Placement over random fleets, checked by rules that know nothing of filters, scores or memos."""

import random
from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from llmgw_controller.core.activity import Verdicts
from llmgw_controller.core.capacity import parts
from llmgw_controller.core.catalog import Engine, Model, Profile, Rollout, Spread
from llmgw_controller.core.claims import rooms, with_claim, with_promise
from llmgw_controller.core.finder import Finder
from llmgw_controller.core.heard import DeviceState, Exit, ShardState
from llmgw_controller.core.placement import explain, placed
from llmgw_controller.core.port_bands import bands, ports_needed
from llmgw_controller.core.rows import NodeRow, Phase, ReplicaRow, Schedulability
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.view import fleet_view
from llmgw_kit.ids import DeviceId, NodeId, ReplicaId
from tests.unit.controller.build import (
    GIB,
    NOW,
    Stage,
    device,
    heard,
    model,
    node,
    profile,
    snapshot,
    weights_of,
)

ENGINES = (Engine.LLAMACPP, Engine.VLLM, Engine.SGLANG)
thorough = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def profiles(draw: st.DrawFn, name: str) -> Profile:
    gpus = draw(st.integers(1, 4))
    nodes = draw(st.sampled_from([1, 1, 1, 2, 3]))
    return profile(
        name,
        engine=draw(st.sampled_from(ENGINES if nodes == 1 else ENGINES[1:])),
        gpu_class=draw(st.sampled_from(["L4", "L4", "H100"])),
        nodes=nodes,
        gpus_per_node=gpus,
        tensor_parallel=gpus,
        pipeline_parallel=nodes,
        memory_bytes=draw(st.sampled_from([None, None, 8 * GIB, 23 * GIB, 30 * GIB])),
        pool=draw(st.sampled_from([None, None, None, "research"])),
        whole_nodes=draw(st.sampled_from([False, False, False, True])),
    )


@st.composite
def catalogs(draw: st.DrawFn) -> tuple[Model, ...]:
    return tuple(
        model(
            name,
            *(draw(profiles(f"p{n}")) for n in range(draw(st.integers(1, 2)))),
            replicas=draw(st.integers(0, 3)),
            priority=draw(st.integers(0, 2)),
            spread=draw(st.sampled_from(list(Spread))),
            rollout=draw(st.sampled_from(list(Rollout))),
            max_unavailable=draw(st.integers(1, 2)),
        )
        for name in "abcd"[: draw(st.integers(1, 4))]
    )


@st.composite
def fleets(draw: st.DrawFn) -> Snapshot:
    """Up to six nodes, some not well; a strange process here and there; few ports on some."""
    nodes, words = [], []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        one = node(
            f"n{number}",
            draw(st.integers(0, 5)),
            gpu_class=draw(st.sampled_from(["L4", "L4", "H100"])),
            fabrics=draw(st.sampled_from([(), ("ib-1",), ("ib-1",), ("ib-1", "ib-2"), ("ib-2",)])),
            pool=draw(st.sampled_from([None, None, None, "research"])),
            engine_ports=draw(st.sampled_from([(20000, 20099), (20000, 20099), (20000, 20019), None])),
            schedulability=draw(st.sampled_from([Schedulability.SCHEDULABLE] * 4 + list(Schedulability))),
        )
        nodes.append(one)
        devices = tuple(
            device(
                row,
                state=draw(st.sampled_from([DeviceState.HEALTHY] * 8 + list(DeviceState))),
                foreign_used_bytes=draw(st.sampled_from([0, 0, 0, None, 400 * 1024**2, 2 * GIB])),
            )
            for row in one.devices
        )
        words.append(heard(one, devices=devices, engines=("llamacpp", "vllm", "sglang")))
    return snapshot(draw(catalogs()), nodes, [], words)


def profile_of(snap: Snapshot, row: ReplicaRow) -> Profile:
    found = snap.catalog.models[row.model].profile(row.profile)
    assert found is not None
    return found


def usable(
    snap: Snapshot, one: NodeRow, claimed: set[tuple[NodeId, DeviceId]], asks: Profile
) -> list[DeviceId]:
    """Devices that a person would call free for this profile."""
    return [
        report.device_id
        for report in snap.heard[one.node_id].devices
        if report.gpu_class == asks.gpu_class
        and report.state is DeviceState.HEALTHY
        and (report.foreign_used_bytes or 0) < snap.intervals.foreign_bytes
        and 24 * GIB - (report.foreign_used_bytes or 0) >= (asks.memory_bytes or 0)
        and (one.node_id, report.device_id) not in claimed
    ]


def check_claims(snap: Snapshot) -> None:
    """No device or port twice; each replica whole, on one fabric, of one class, alike on all nodes."""
    devices: Counter[tuple[NodeId, DeviceId]] = Counter()
    ports: Counter[tuple[NodeId, int]] = Counter()
    for row in snap.stored.replicas.values():
        held = [part for part in row.shards if not part.released]
        for part in held:
            devices.update((part.node_id, name) for name in part.device_ids)
            ports.update((part.node_id, port) for _, port in part.ports)
        if not row.shards:
            continue
        asks = profile_of(snap, row)
        assert len(row.shards) == asks.nodes == len({part.node_id for part in row.shards})
        homes = [snap.stored.nodes[part.node_id] for part in row.shards]
        if asks.nodes > 1:
            assert frozenset.intersection(*(frozenset(home.fabrics) for home in homes)), (
                "one fabric holds all"
            )
        assert len({len(part.device_ids) for part in row.shards}) == 1, "members are alike"
        for part, home in zip(row.shards, homes, strict=True):
            classes = {one.device_id: one.gpu_class for one in home.devices}
            assert {classes[name] for name in part.device_ids} == {asks.gpu_class}
            wanted = len(home.devices) if asks.whole_nodes else asks.gpus_per_node
            assert len(part.device_ids) == wanted
            assert home.pool == asks.pool
            assert len(part.ports) == ports_needed(bands(asks))
            assert home.engine_ports is not None
            assert all(home.engine_ports[0] <= port <= home.engine_ports[1] for _, port in part.ports)
    assert max([*devices.values(), *ports.values()], default=1) == 1, "claimed twice"


@thorough
@given(fleets())
def test_claims_fabrics_sums_and_a_second_pass(snap):
    stage = Stage(snap)
    stage.step()  # Proves that a second pass changes nothing.
    check_claims(stage.snap)
    view = fleet_view(stage.snap, Verdicts(), stage.now)
    for one in view.capacity:
        mine = [line for line in view.devices if line.device.gpu_class == one.gpu_class]
        assert one.parts == parts(mine)
        assert one.parts.total == one.total == len(mine)
    claimed = sum(len(part.device_ids) for row in stage.rows.values() for part in row.shards)
    assert sum(one.parts.starting for one in view.capacity) == claimed


@thorough
@given(fleets())
def test_nothing_is_placed_where_it_may_not_be(snap):
    stage = Stage(snap)
    stage.step()
    for row in stage.rows.values():
        for part in row.shards:
            home = snap.stored.nodes[part.node_id]
            assert home.schedulability is Schedulability.SCHEDULABLE
            assert set(part.device_ids) <= set(usable(snap, home, set(), profile_of(snap, row)))


@thorough
@given(fleets())
def test_who_is_refused_would_not_fit_by_hand_either(snap):
    """Nobody leaves here, so nothing is kept for anybody: a refused replica has no place at all."""
    stage = Stage(snap)
    stage.step()
    rows = stage.rows.values()
    claimed = {(part.node_id, name) for row in rows for part in row.shards for name in part.device_ids}
    leased = Counter(part.node_id for row in rows for part in row.shards for _ in part.ports)
    for row in rows:
        if row.phase is not Phase.UNPLACEABLE:
            continue
        for asks in snap.catalog.models[row.model].profiles:
            fits: dict[str, list[int]] = {}
            for home in snap.stored.nodes.values():
                free = usable(snap, home, claimed, asks)
                needed = (
                    max(asks.gpus_per_node, len(home.devices)) if asks.whole_nodes else asks.gpus_per_node
                )
                span = home.engine_ports
                # Where ports are scarce a band may find no place although there are enough of them.
                room = span is not None and span[1] - span[0] + 1 - leased[home.node_id] >= 30
                able = home.schedulability is Schedulability.SCHEDULABLE and home.pool == asks.pool
                if able and room and len(free) >= needed:
                    for fabric in home.fabrics if asks.nodes > 1 else ("any",):
                        fits.setdefault(fabric, []).append(len(home.devices) if asks.whole_nodes else 0)
            for sizes in fits.values():
                assert max(Counter(sizes).values()) < asks.nodes, f"{row.replica_id} fits as {asks.name}"


OPS = st.lists(
    st.tuples(
        st.sampled_from(["obey", "obey", "crash", "jump", "count", "spec", "cordon", "loading"]),
        st.integers(0, 40),
    ),
    min_size=3,
    max_size=14,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleets(), OPS)
def test_lives_of_a_fleet_keep_every_claim_single(snap, ops):
    """Whatever happens in whatever order, after each pass and at rest."""
    stage = Stage(snap)
    stage.step()
    assume(stage.rows)
    for op, pick in ops:
        models = stage.snap.catalog.sorted_models()
        one = models[pick % len(models)]
        others = [other for other in models if other is not one]
        running = [
            row for row in stage.rows.values() if row.holds_devices and row.phase is not Phase.DRAINING
        ]
        match op:
            case "obey":
                stage.obey()
            case "loading":
                stage.obey(ShardState.LOADING)
            case "crash" if running:
                row = running[pick % len(running)]
                stage.tell(row, ShardState.EXITED, exit=Exit(1, None, "crashed", "boom"))
            case "jump":
                stage.jump(stage.now + 7.0 * pick)
            case "count":
                stage.catalog(*others, replace(one, replicas=pick % 4))
            case "spec":
                changed = tuple(replace(p, context_length=1000 + pick) for p in one.profiles)
                stage.catalog(*others, replace(one, profiles=changed))
            case "cordon":
                names = sorted(stage.snap.stored.nodes)
                name = names[pick % len(names)]
                flags = list(Schedulability)
                row_ = replace(stage.snap.stored.nodes[name], schedulability=flags[pick % 3])
                nodes = {**stage.snap.stored.nodes, name: row_}
                stage.snap = replace(stage.snap, stored=replace(stage.snap.stored, nodes=nodes))
        stage.step()
        check_single(stage.snap)


def check_single(snap: Snapshot) -> None:
    held = [part for row in snap.stored.replicas.values() for part in row.shards if not part.released]
    devices = Counter((part.node_id, name) for part in held for name in part.device_ids)
    ports = Counter((part.node_id, port) for part in held for _, port in part.ports)
    assert max([*devices.values(), *ports.values()], default=1) == 1
    for row in snap.stored.replicas.values():
        if len(row.shards) > 1:
            homes = [frozenset(snap.stored.nodes[part.node_id].fabrics) for part in row.shards]
            assert frozenset.intersection(*homes)


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 10**6))
def test_the_quick_search_finds_what_the_explaining_one_finds(seed):
    """One after the other on roomy nodes, with weights here and there, nodes that rest, promised devices."""
    rng = random.Random(seed)
    nodes = [
        node(
            f"n{number}", rng.randint(2, 5), fabrics=rng.choice([(), ("ib-1",), ("ib-2",), ("ib-1", "ib-2")])
        )
        for number in range(1, rng.randint(3, 8))
    ]
    models = [
        model(
            name,
            profile("p", nodes=rng.choice([1, 1, 2]), gpus_per_node=rng.choice([1, 1, 2])),
            spread=rng.choice(list(Spread)),
        )
        for name in "abc"
    ]
    words = [
        heard(home, weights=tuple(weights_of(one) for one in models if rng.random() < 0.3)) for home in nodes
    ]
    found = rooms(snapshot(models, nodes, [], words), NOW)
    finder = Finder(found)
    for number in range(14):
        one = rng.choice(models)
        asks = one.profiles[0]
        resting = frozenset(rng.sample(sorted(found), rng.choice([0, 0, 1, 2])))
        told = explain(one, asks, found, resting=resting)
        best = finder.best(one, asks, resting)
        assert best == (tuple(spot.node_id for spot in told.spots) or None)
        if best is None or rng.random() < 0.1:
            home = found[rng.choice(sorted(found))]
            kept = frozenset(device.device_id for device in home.devices[:1])
            found = with_promise(found, home.node.node_id, kept)
            finder.changed(found, home.node.node_id)
            continue
        name = ReplicaId(f"{one.name}/{number}")
        for part in placed(one, asks, found, best, replica_id=name, group_epoch=1).shards:
            ports = tuple(port for _, port in part.ports)
            found = with_claim(found, one.name, name, part.node_id, part.device_ids, ports)
            finder.changed(found, part.node_id)
