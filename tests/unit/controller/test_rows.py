"""Rows: what changes make of them, what a node is to run, and what a router is sent."""

from dataclasses import replace

import pytest

from llmgw_controller.core.apply import LOADS_KEPT, Claimed, apply
from llmgw_controller.core.availability import Availability
from llmgw_controller.core.catalog import merged
from llmgw_controller.core.desired import desired_for
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.plan import (
    DeleteReplica,
    JudgeNode,
    PutEvent,
    PutLoad,
    PutReplica,
    Release,
    Reserve,
    Severity,
)
from llmgw_controller.core.routes import diff, routes
from llmgw_controller.core.rows import LoadRecord, Phase, PortQuarantine, Stored, Wish
from llmgw_controller.wire_routing import catalog_model, endpoint
from llmgw_kit.ids import ModelId, NodeId, ShardId
from tests.unit.controller.build import NOW, Stage, heard, model, node, replica, report, shard, snapshot

ONE = model()
HELD = replica(ONE, 1, Phase.RESERVED, shard("m/1", "n1", 0))
BASE = Stored(
    nodes={NodeId("n1"): node("n1")},
    replicas={HELD.replica_id: HELD},
    quarantine=(PortQuarantine(NodeId("n1"), 20005, NOW - 1),),
)


@pytest.mark.parametrize(
    ("part", "taken"),
    [
        (shard("m/2", "n1", 0, port=20001), "device n1:0"),
        (shard("m/2", "n1", 1, port=20000), "port 20000"),
        (shard("m/2", "n2", 0, port=20000), None),
        (shard("m/2", "n1", 1, port=20001), None),
    ],
    ids=["same device", "same port", "another node", "another device and port"],
)
def test_a_reservation_takes_all_or_nothing(part, taken):
    row = replica(ONE, 2, Phase.RESERVED, part)
    if taken:
        with pytest.raises(Claimed, match=taken):
            apply(BASE, [PutEvent(NOW, "x", "x", "x", Severity.INFO), Reserve(row)])
    else:
        assert apply(BASE, [Reserve(row)]).replicas[row.replica_id] == row


def test_a_reservation_cannot_collide_with_itself():
    row = replica(
        ONE, 2, Phase.RESERVED, shard("m/2", "n1", 1, port=1), shard("m/2", "n1", 1, rank=1, port=2)
    )
    with pytest.raises(Claimed):
        apply(BASE, [Reserve(row)])


def test_a_released_shard_frees_its_devices_and_rests_its_port():
    rest = PortQuarantine(NodeId("n1"), 20000, NOW + 60)
    freed = apply(BASE, [Release(HELD.replica_id, (HELD.shards[0].shard_id,), (rest,))])
    assert freed.replicas[HELD.replica_id].shards[0].released
    assert rest in freed.quarantine
    again = replica(ONE, 2, Phase.RESERVED, shard("m/2", "n1", 0, port=20005))
    after = apply(freed, [Reserve(again)])
    assert after.quarantine == (rest,), "the lease replaced the rest that was over"


def test_claims_are_taken_and_freed_by_their_own_changes_only():
    for row in (replace(HELD, shards=()), replace(HELD, shards=(shard("m/1", "n1", 1, epoch=2),))):
        with pytest.raises(AssertionError, match="holds"):
            apply(BASE, [PutReplica(row)])
    with pytest.raises(AssertionError, match="deleted while it holds"):
        apply(BASE, [DeleteReplica(HELD.replica_id)])


def test_judging_a_node_touches_nothing_else():
    judged = apply(BASE, [JudgeNode(NodeId("n1"), NOW)]).nodes[NodeId("n1")]
    assert judged == replace(node("n1"), lost_at=NOW)


def test_only_the_newest_starts_are_kept():
    loads = [PutLoad(LoadRecord(ONE.name, "p", "L4", float(number), float(number))) for number in range(30)]
    other = LoadRecord(ModelId("z"), "p", "L4", 1.0, 0.0)
    kept = apply(Stored(), [PutLoad(other), *loads]).loads
    assert len(kept) == LOADS_KEPT + 1
    assert other in kept
    assert max(load.seconds for load in kept) == 29.0


def test_the_old_rows_stay_as_they_were():
    before = BASE.replicas[HELD.replica_id]
    apply(BASE, [Release(HELD.replica_id, (HELD.shards[0].shard_id,), ())])
    assert BASE.replicas[HELD.replica_id] is before
    assert not before.shards[0].released


WISHES = {
    Phase.RESERVED: Wish.SERVE,
    Phase.STARTING: Wish.SERVE,
    Phase.READY: Wish.SERVE,
    Phase.DRAINING: Wish.DRAIN,
    Phase.STOPPING: Wish.STOP,
    Phase.BACKOFF: Wish.STOP,
    Phase.FAILED: Wish.STOP,
}


@pytest.mark.parametrize("phase", list(WISHES))
def test_what_a_node_is_to_do_in_each_phase(phase):
    parts = (shard("m/1", "n1", 0), shard("m/1", "n2", 0, rank=1))
    row = replica(ONE, 1, phase, *parts)
    snap = snapshot([ONE], [node("n1"), node("n2")], [row])
    assert desired_for(NodeId("n1"), snap.stored, snap.catalog) == ((row, parts[0], WISHES[phase]),)
    gone = replace(row, shards=tuple(replace(part, released=True) for part in parts))
    snap = snapshot([ONE], [node("n1")], [gone])
    assert desired_for(NodeId("n1"), snap.stored, snap.catalog) == ()


def test_nothing_is_started_from_another_spec_than_its_row_names():
    changed = replace(ONE, aliases=("new",))
    for phase, wish in [(Phase.RESERVED, Wish.STOP), (Phase.READY, Wish.SERVE)]:
        row = replica(ONE, 1, phase, shard("m/1", "n1", 0))
        snap = snapshot([changed], [node("n1")], [row])
        assert desired_for(NodeId("n1"), snap.stored, snap.catalog)[0][2] is wish


def ready(*addresses):
    nodes = [node(f"n{number}", address=address) for number, address in enumerate(addresses, 1)]
    rows = [
        replica(ONE, number, Phase.READY, shard(f"m/{number}", one.node_id, 0))
        for number, one in enumerate(nodes, 1)
    ]
    return snapshot([ONE], nodes, rows)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("10.0.0.7", "http://10.0.0.7:20000"),
        ("gpu-7.lan", "http://gpu-7.lan:20000"),
        ("fd00::7", "http://[fd00::7]:20000"),
        ("[fd00::7]", "http://[fd00::7]:20000"),
    ],
)
def test_urls(address, url):
    assert [one.url for one in routes(ready(address), NOW).endpoints.values()] == [url]


def test_a_gang_answers_at_its_first_rank():
    parts = (shard("m/1", "n2", 0, rank=1), shard("m/1", "n1", 0))
    table = routes(snapshot([ONE], [node("n1"), node("n2")], [replica(ONE, 1, Phase.READY, *parts)]), NOW)
    assert table.endpoints["m/1@1"].node_id == "n1"


@pytest.mark.parametrize("said", [None, 48])
def test_routers_are_told_how_many_a_replica_runs_at_once_as_the_profile_says_now(said):
    """It is no part of the spec hash: a replica that runs follows it without a restart."""
    before = ready("a")
    profiles = tuple(replace(one, concurrency=said) for one in ONE.profiles)
    after = replace(before, catalog=merged([replace(ONE, profiles=profiles)], []))
    assert [one.concurrency for one in routes(after, NOW).endpoints.values()] == [said]
    told = [endpoint(one) for one in routes(after, NOW).endpoints.values()]
    assert [one.max_concurrency if one.HasField("max_concurrency") else None for one in told] == [said]
    # Gone from the catalog while it still runs: nobody knows any more.
    gone = replace(after, catalog=merged([], []))
    assert [one.concurrency for one in routes(gone, NOW).endpoints.values()] == [None]


@pytest.mark.parametrize("share", [None, 0, 3])
def test_routers_are_told_the_share_of_a_tenant_in_those_that_wait(share):
    told = routes(snapshot([replace(ONE, max_held_per_tenant=share)], [], []), NOW).models[ONE.name]
    message = catalog_model(told)
    assert (message.max_held_per_tenant if message.HasField("max_held_per_tenant") else None) == share


def test_deltas_name_only_what_changed():
    old = routes(ready("a", "b"), NOW)
    assert diff(old, old) is None
    one = ready("a", "b")
    word = replace(one.heard[NodeId("n2")], heard_at=NOW - 20)
    new = routes(replace(one, heard={**one.heard, NodeId("n2"): word}), NOW)
    delta = diff(old, new)
    assert delta is not None
    assert (delta.upsert_endpoints, delta.remove_endpoint_ids) == ((), ("m/2@1",))
    assert (delta.upsert_models, delta.fleet.replicas_ready) == ((), 1)


def test_etas_are_told_in_steps():
    row = replica(ONE, 1, Phase.STARTING, shard("m/1", "n1", 0), since=NOW - 3)
    loads = (LoadRecord(ONE.name, "p", "L4", 30.0, 1.0),)
    table = routes(snapshot([ONE], [node("n1")], [row], loads=loads), NOW)
    told = table.models[ONE.name]
    assert (told.availability, told.eta_s) == (Availability.STARTING, 30.0)
    assert routes(snapshot([ONE], [], []), NOW).models[ONE.name].eta_s is None


def test_a_shard_of_another_epoch_says_nothing_of_this_one():
    row = replica(ONE, 1, Phase.READY, shard("m/1", "n1", 0, epoch=2), group_epoch=2)
    old = report(row, shard("m/1", "n1", 0, epoch=1), ShardState.SERVING)
    snap = snapshot([ONE], [node("n1")], [row], [heard(node("n1"), [old])])
    assert ShardId("m/1.2.0") not in snap.heard[NodeId("n1")].shards
    assert routes(snap, NOW).endpoints == {}


def test_a_name_that_was_used_never_comes_back():
    """A replica gone for good leaves its number free; what starts under it later must be another endpoint."""
    one = model(replicas=1)
    stage = Stage(snapshot([one], [node("n1")]))
    names = []
    for wanted in (1, 0, 1):
        stage.catalog(replace(one, replicas=wanted))
        for _ in range(5):
            stage.step()
            stage.obey()
        names.append([row.endpoint_id for row in stage.rows.values()])
    assert names == [["m/1@1"], [], ["m/1@2"]]
