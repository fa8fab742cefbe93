"""Worlds in which a seed of the simulation found the core at fault, each made small."""

from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.state import Cause, Phase, Schedulability
from tests.unit.controller.build import (
    NOW,
    activity,
    heard,
    member,
    model,
    node,
    replica,
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
