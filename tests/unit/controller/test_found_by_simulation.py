"""Worlds in which a seed of the simulation found the core at fault, each made small."""

from llmgw_controller.core.heard import Exit, ShardState
from llmgw_controller.core.hearing import is_silent, last_seen
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.routes import routes
from llmgw_controller.core.rows import Cause, Phase, Schedulability, Wish
from llmgw_controller.core.state import Watched
from llmgw_kit.ids import ReplicaId
from tests.unit.controller.build import (
    NOW,
    activity,
    after,
    heard,
    member,
    model,
    node,
    replica,
    report,
    router,
    shard,
    snapshot,
    usual_reports,
)


def test_an_activated_replica_on_a_draining_node_is_replaced_without_end():
    """Seed 5: the rollout started a successor, nobody asked for the model, so the successor was let go as not
    asked for, and the rollout started another; the pass never came to rest and the leader died of it."""
    one = model("m", replicas=0)
    nodes = [node("n1", schedulability=Schedulability.DRAINING), node("n2")]
    row = replica(one, 1, Phase.READY, shard("m/1", "n1", 0), cause=Cause.ACTIVATION)
    words = [heard(one, usual_reports(one, [row])) for one in nodes]
    plan = reconcile(
        snapshot(
            [one], nodes, [row], words,
            activity=activity(router(), touched={"m/1": 5.0}), routers={"r1": member()},
        ),
        NOW,
    )  # fmt: skip
    placed = [change.replica for change in plan.changes if type(change).__name__ == "Reserve"]
    assert [(row.replica_id, row.shards[0].node_id) for row in placed] == [("m/2", "n2")]


def test_a_leader_that_wakes_does_not_take_a_silent_node_for_one_in_reach():
    """Seed 15: a node was silent for two minutes and its replica replaced. The leader slept for six seconds;
    at its waking the node counted as heard, so its dead endpoint went back to the routers, and the replica
    that served in its place was drained as one too many."""
    one = model("m", replicas=1)
    nodes = [node("n1"), node("n2")]
    old = replica(one, 1, Phase.READY, shard("m/1", "n1", 0))
    new = replica(one, 2, Phase.READY, shard("m/2", "n2", 0), cause=Cause.ACTIVATION)
    words = [
        heard(nodes[0], usual_reports(nodes[0], [old]), at=NOW - 130, connected=False),
        heard(nodes[1], usual_reports(nodes[1], [new]), at=NOW - 9),
    ]
    snap = snapshot([one], nodes, [old, new], words, awake_since=NOW - 1, asleep_since=NOW - 7)
    assert [is_silent(snap, node.node_id, NOW) for node in nodes] == [True, False]
    assert list(routes(snap, NOW).endpoints) == ["m/2@1"]
    # Its own sleep is not counted: of the 130 s six were not the node's.
    assert last_seen(snap, nodes[0].node_id) == NOW - 124


def test_what_found_its_port_taken_does_not_lose_its_place_to_who_comes_after_it():
    """Seed 10143: its wait was no time at all, but while the pass carried it through that, one of lower
    priority was placed on the device that it had left."""
    one, other = model("m", replicas=1, priority=5), model("other", replicas=1)
    row = replica(one, 1, Phase.RESERVED, shard("m/1", "n1", 0), since=NOW - 4)
    waits = replica(other, 1, Phase.UNPLACEABLE, reason="full", since=NOW - 60)
    only = node("n1", 1)
    taken = report(row, row.shards[0], ShardState.EXITED, exit=Exit(None, None, "port_taken", ""))
    snap = snapshot([one, other], [only], [row, waits], [heard(only, [taken])])
    rows = after(snap, reconcile(snap, NOW)).stored.replicas
    assert [(key, row.phase) for key, row in sorted(rows.items())] == [
        ("m/1", Phase.RESERVED), ("other/1", Phase.UNPLACEABLE),
    ]  # fmt: skip
    assert rows[row.replica_id].group_epoch == 2


def test_more_than_configuration_keeps_are_not_added_to_and_taken_from_without_end():
    """Seed 63: of three replicas two counted as kept by configuration, which wants one. The third was lost
    with its node, requests waited, and each round added one by demand and let it go as one too many."""
    one = model("m", replicas=1, max_replicas=3)
    only = node("n1", 4)
    rows = [replica(one, number, Phase.READY, shard(f"m/{number}", "n1", number)) for number in (1, 2)]
    snap = snapshot(
        [one], [only], rows, watched=Watched(pressed_since={one.name: NOW - 100}), held={one.name: 3}
    )
    left = after(snap, reconcile(snap, NOW)).stored.replicas
    assert [(key, row.wish, row.cause) for key, row in sorted(left.items())] == [
        ("m/1", Wish.SERVE, Cause.CONFIGURATION), ("m/2", Wish.SERVE, Cause.DEMAND),
        ("m/3", Wish.SERVE, Cause.DEMAND),
    ]  # fmt: skip
    assert left[ReplicaId("m/3")].phase is Phase.RESERVED
