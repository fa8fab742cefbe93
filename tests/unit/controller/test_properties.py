"""What holds in every fleet: sums, claims, rest, and no eviction without evidence."""

from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, given, settings

from llmgw_controller.core.activity import Idle
from llmgw_controller.core.apply import apply
from llmgw_controller.core.availability import Availability
from llmgw_controller.core.capacity import Part, parts
from llmgw_controller.core.heard import DeviceState, ShardState
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.plan import Release, Reserve
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.routes import RouteDelta, RouteTable, diff, routes
from llmgw_controller.core.rows import Phase, Wish
from llmgw_controller.core.view import fleet_view
from llmgw_controller.core.why import why
from tests.unit.controller.build import NOW
from tests.unit.controller.worlds import fleets, fleets_that_failed

thorough = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@thorough
@given(fleets() | fleets_that_failed())
def test_a_second_pass_over_its_own_rows_changes_nothing(snap):
    plan = reconcile(snap, NOW)
    again = reconcile(replace(snap, stored=apply(snap.stored, plan.changes)), NOW)
    assert again.changes == ()
    assert set(again.commands) <= set(plan.commands), "only what may be said again is said again"
    assert reconcile(snap, NOW) == plan


@thorough
@given(fleets() | fleets_that_failed())
def test_no_device_and_no_port_is_given_twice(snap):
    stored = apply(snap.stored, reconcile(snap, NOW).changes)
    held = [part for row in stored.replicas.values() for part in row.shards if not part.released]
    devices = Counter((part.node_id, device) for part in held for device in part.device_ids)
    ports = Counter((part.node_id, port) for part in held for _, port in part.ports)
    assert not [key for key, count in (devices | ports).items() if count > 1]
    resting = {(q.node_id, q.port) for q in stored.quarantine if q.until > NOW}
    assert not resting & set(ports)


@thorough
@given(fleets())
def test_devices_come_free_only_by_a_seen_exit_or_with_their_node(snap):
    plan = reconcile(snap, NOW)
    lost = {
        one.node_id for one in apply(snap.stored, plan.changes).nodes.values() if one.lost_at is not None
    } | {one.node_id for one in snap.stored.nodes.values() if one.lost_at is not None}
    for change in plan.changes:
        if not isinstance(change, Release):
            continue
        row = snap.stored.replicas[change.replica_id]
        for part in row.shards:
            if part.shard_id not in change.shard_ids or part.node_id in lost:
                continue
            word = snap.heard[part.node_id]
            report = word.shards.get(part.shard_id)
            assert report.state is ShardState.EXITED if report else word.heard_at >= row.since


@thorough
@given(fleets())
def test_nothing_is_placed_on_a_device_that_is_not_known_to_be_free(snap):
    for change in reconcile(snap, NOW).changes:
        if not isinstance(change, Reserve):
            continue
        for part in change.replica.shards:
            word = snap.heard[part.node_id]
            assert NOW - word.heard_at <= 15 and word.connected
            for report in word.devices:
                if report.device_id in part.device_ids:
                    assert report.state is DeviceState.HEALTHY
                    assert (report.foreign_used_bytes or 0) < snap.intervals.foreign_bytes


@thorough
@given(fleets())
def test_what_leaves_as_idle_was_idle(snap):
    plan = reconcile(snap, NOW)
    found = verdicts(snap, NOW)
    for replica_id, row in apply(snap.stored, plan.changes).replicas.items():
        before = snap.stored.replicas.get(replica_id)
        if row.reason == "idle" and before and before.wish is Wish.SERVE and row.wish is not Wish.SERVE:
            verdict = found.by_replica[replica_id]
            assert isinstance(verdict, Idle)
            assert verdict.for_s >= 600


@thorough
@given(fleets())
def test_the_parts_add_up_and_status_agrees_with_the_tables(snap):
    view = fleet_view(snap, verdicts(snap, NOW), NOW)
    assert sum(one.total for one in view.capacity) == len(view.devices)
    for one in view.capacity:
        assert one.parts.total == one.total
        mine = [line for line in view.devices if line.device.gpu_class == one.gpu_class]
        assert one.parts == parts(mine)
    counts = view.node_counts
    assert counts.heard + counts.silent + counts.lost == len(view.nodes)
    for line in view.devices:
        report = line.device.report
        if report is not None and report.state is not DeviceState.HEALTHY:
            assert line.part is Part.UNHEALTHY, "neither used nor free"
    held = sum(part.device_ids != () and len(part.device_ids) for row in snap.stored.replicas.values()
               for part in row.shards if not part.released)  # fmt: skip
    assert sum(line.gpus for line in view.replicas) == held
    fleet = routes(snap, NOW).fleet
    assert {one.gpu_class: one.free for one in fleet.classes} == {
        one.gpu_class: one.parts.free for one in view.capacity
    }
    assert {one.gpu_class: one.unhealthy for one in fleet.classes} == {
        one.gpu_class: one.parts.unhealthy for one in view.capacity
    }
    for one in fleet.classes:
        assert one.total == one.free + one.unhealthy + one.claimed + one.foreign + one.cordoned
    assert (fleet.nodes_heard, fleet.nodes_silent, fleet.nodes_lost) == (
        counts.heard, counts.silent, counts.lost,
    )  # fmt: skip
    assert [(one.fabric, one.nodes, one.whole_free) for one in fleet.fabrics] == [
        (one.fabric, one.nodes, one.whole_free) for one in view.fabrics
    ]
    assert dict(fleet.models) == {
        state: sum(line.availability is state for line in view.models) for state in Availability
    }
    for model in view.models:
        rows = [line.row for line in view.replicas if line.row.model == model.model]
        assert model.wanted == sum(row.wish is Wish.SERVE for row in rows)
        assert model.gpus == sum(line.gpus for line in view.replicas if line.row.model == model.model)


@thorough
@given(fleets())
def test_why_counts_every_node_once(snap):
    for model in snap.catalog.sorted_models():
        answer = why(snap, verdicts(snap, NOW), model, NOW)
        for one in answer.profiles:
            told = one.explanation
            assert told.considered == len(snap.stored.nodes)
            assert told.considered == len(told.fitting) + sum(len(part.node_ids) for part in told.filters)
            assert bool(told.spots) is (told.fit.value == "fits_now")
            assert bool(told.leaving) is (told.fit.value == "fits_after_eviction")


@thorough
@given(fleets())
def test_routes_name_only_what_serves_or_is_taken_over_unheard(snap):
    table = routes(snap, NOW)
    for endpoint in table.endpoints.values():
        row = snap.stored.replicas[endpoint.replica_id]
        assert row.phase in (Phase.READY, Phase.DRAINING)
        assert endpoint.draining is (row.phase is Phase.DRAINING)
        for part in row.shards:
            word = snap.heard.get(part.node_id)
            if word is None:
                assert NOW - snap.term_started < 30
            else:
                assert word.shards[part.shard_id].state in (ShardState.SERVING, ShardState.DRAINING)


@thorough
@given(fleets(), fleets())
def test_a_delta_turns_one_table_into_the_other(one, two):
    old, new = routes(one, NOW), routes(two, NOW)
    delta = diff(old, new)
    assert (_patched(old, delta) if delta else old) == new


def _patched(old: RouteTable, delta: RouteDelta) -> RouteTable:
    """The table a router has after the delta."""
    endpoints = {key: one for key, one in old.endpoints.items() if key not in delta.remove_endpoint_ids}
    models = {name: one for name, one in old.models.items() if name not in delta.remove_model_ids}
    return RouteTable(
        endpoints | {one.endpoint_id: one for one in delta.upsert_endpoints},
        models | {one.model: one for one in delta.upsert_models},
        delta.fleet,
    )
