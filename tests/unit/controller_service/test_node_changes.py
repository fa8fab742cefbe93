"""Nodes drained, given up and taken back by hand, on memory."""

import pytest

from llmgw.v1 import agent_pb2 as pb
from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.adapters.store_memory import MemoryStore
from llmgw_controller.core.hearing import NodeState, brake, node_state
from llmgw_controller.core.rows import Phase, Schedulability
from llmgw_controller.node_changes import (
    confirm_lost,
    cordon_node,
    drain_node,
    uncordon_node,
    uncordon_nodes,
)
from llmgw_controller.reign import Reign
from llmgw_kit.errors import Conflict, InvalidRequest, NotFound
from llmgw_kit.ids import NodeId, ReplicaId
from llmgw_kit.testing.clock import FakeClock

from .reigns import hello, reign_on

N1, N2 = NodeId("n1"), NodeId("n2")
ONE = ReplicaId("tiny/1")


@pytest.fixture
async def reign(fake_clock: FakeClock) -> Reign:
    """Two nodes, the one replica on the first; the second is there too."""
    reign = await reign_on(fake_clock)
    await reign.fleet.open(hello("n1"))
    await reign._passes.once()
    await reign.fleet.open(hello("n2"))
    await reign._passes.once()
    return reign


async def told(reign: Reign, subject: str) -> list[tuple[str, str]]:
    rows = await reign.world.store.events(since=None, subject=subject, limit=100)
    return [(row.kind, row.text) for row in reversed(rows)]


async def awake(reign: Reign, clock: FakeClock, seconds: float) -> None:
    """Time passes for a leader that looks at its clock all the while: it has not slept itself."""
    for _ in range(int(seconds)):
        await clock.advance(1)
        assert reign._awake.since is None


async def test_a_drain_is_told_a_replica_at_a_time_and_a_dry_run_changes_nothing(reign: Reign) -> None:
    before = reign.ledger.stored
    dry = await drain_node(reign, "n1", "driver update", dry_run=True)
    assert reign.ledger.stored == before
    answer = await drain_node(reign, "n1", "driver update", dry_run=False)
    assert answer == dry
    (step,) = answer.steps
    assert (step.replica_id, step.outcome) == ("tiny/1", "stops first")
    assert "starts on n2" in step.text
    # The steps name each replica; that it was said before them too made every line twice.
    assert answer.change.text == (
        "n1 is drained: nothing new is placed there; 1 replica stops first; "
        "to end it: llmgwctl node uncordon n1"
    )
    row = reign.ledger.stored.nodes[N1]
    assert (row.schedulability, row.reason) == (Schedulability.DRAINING, "driver update")
    assert ("node_draining", "by operator: driver update") in await told(reign, "n1")
    again = await drain_node(reign, "n1", None, dry_run=False)
    assert (again.change.outcome, again.change.text) == (
        "unchanged",
        "n1 is draining already; still to go: 1 replica",
    )
    # It does move.
    await reign._passes.once()
    serving = [row for row in reign.ledger.stored.replicas.values() if row.wish.value == "serve"]
    assert [row.shards[0].node_id for row in serving] == ["n2"]


async def test_a_drain_outlives_the_leader_and_the_agents_session(fake_clock: FakeClock) -> None:
    lease = MemoryLease(fake_clock)
    store = MemoryStore(lease)
    first = await reign_on(fake_clock, store, lease=lease)
    await first.fleet.open(hello("n1"))
    await drain_node(first, "n1", "driver update", dry_run=False)
    await lease.release(first.tenure.lease)
    second = await reign_on(fake_clock, store, lease=lease)
    await second.fleet.open(hello("n1", instance="i2"))
    row = (await store.load()).nodes[N1]
    assert (row.schedulability, row.reason) == (Schedulability.DRAINING, "driver update")
    await second._passes.once()
    assert not any(row.shards for row in second.ledger.stored.replicas.values())
    # And uncordon ends it.
    assert (await uncordon_node(second, "n1")).outcome == "uncordoned"
    row = second.ledger.stored.nodes[N1]
    assert (row.schedulability, row.reason) == (Schedulability.SCHEDULABLE, None)
    await second._passes.once()
    assert any(row.shards for row in second.ledger.stored.replicas.values())


async def test_a_cordon_keeps_its_reason_and_may_get_a_new_one(reign: Reign) -> None:
    dry = await cordon_node(reign, "n1", "fan", dry_run=True)
    assert reign.ledger.stored.nodes[N1].reason is None
    assert await cordon_node(reign, "n1", "fan") == dry
    await reign.fleet.open(hello("n1", instance="i2"))
    assert reign.ledger.stored.nodes[N1].reason == "fan"
    assert (await cordon_node(reign, "n1", "fan")).outcome == "unchanged"
    await cordon_node(reign, "n1", "driver")
    assert reign.ledger.stored.nodes[N1].reason == "driver"
    before = reign.ledger.stored
    assert (await uncordon_node(reign, "n1", dry_run=True)).outcome == "uncordoned"
    assert reign.ledger.stored == before


async def test_a_node_that_is_heard_is_not_given_up(reign: Reign, fake_clock: FakeClock) -> None:
    await fake_clock.advance(3)
    before = reign.ledger.stored
    with pytest.raises(Conflict, match="n1 was heard 3 s ago") as refused:
        await confirm_lost(reign, "n1", dry_run=False)
    assert refused.value.next_steps == ("to empty it: llmgwctl node drain n1",)
    assert reign.ledger.stored == before
    with pytest.raises(NotFound, match="no node n9"):
        await confirm_lost(reign, "n9", dry_run=True)


async def test_a_new_leader_waits_for_a_node_before_it_gives_it_up(fake_clock: FakeClock) -> None:
    lease = MemoryLease(fake_clock)
    store = MemoryStore(lease)
    first = await reign_on(fake_clock, store, lease=lease)
    await first.fleet.open(hello("n1"))
    await lease.release(first.tenure.lease)
    second = await reign_on(fake_clock, store, lease=lease)
    with pytest.raises(Conflict, match="may still be heard") as refused:
        await confirm_lost(second, "n1", dry_run=False)
    assert refused.value.next_steps == ("try again in 16 s",)
    await awake(second, fake_clock, 16)
    assert (await confirm_lost(second, "n1", dry_run=False)).outcome == "lost"


async def test_confirm_lost_overrides_timer_and_brake_and_leaves_tombstones(
    reign: Reign, fake_clock: FakeClock
) -> None:
    # Both nodes fall silent together: the brake holds LOST back, however long it takes.
    await awake(reign, fake_clock, 400)
    await reign._passes.once()
    snapshot, now = reign.snapshot(reign.ledger.stored), reign.tenure.now()
    assert brake(snapshot, now).on
    assert reign.ledger.stored.nodes[N1].lost_at is None

    before = reign.ledger.stored
    dry = await confirm_lost(reign, "n1", dry_run=True)
    assert reign.ledger.stored == before
    answer = await confirm_lost(reign, "n1", dry_run=False)
    assert answer == dry
    assert (answer.outcome, list(answer.replica_ids)) == ("lost", ["tiny/1"])
    assert "silent for 6 m 40 s" in answer.text
    await reign._passes.once()
    stored = reign.ledger.stored
    assert [(stone.node_id, stone.replica_id) for stone in stored.tombstones] == [("n1", "tiny/1")]
    assert not any(s.node_id == N1 and not s.released for r in stored.replicas.values() for s in r.shards)
    assert "node_lost" in [kind for kind, _ in await told(reign, "n1")]
    assert (await confirm_lost(reign, "n1", dry_run=False)).outcome == "unchanged"

    # It comes back with its old engine: no work until that exit was seen.
    shard = stored.tombstones[0].shard_id
    await fake_clock.advance(1)
    old = [_observed(shard, "SERVING")]
    session = await reign.fleet.open(hello("n1", shards=old))
    await reign._passes.once()
    assert reign.ledger.stored.tombstones
    snapshot = reign.snapshot(reign.ledger.stored)
    assert node_state(snapshot, reign.ledger.stored.nodes[N1], reign.tenure.now()) is NodeState.READY
    assert reign.ledger.stored.nodes[N1].lost_at is not None
    assert session.epoch == 2
    await reign.fleet.open(hello("n1"))
    await reign._passes.once()
    assert not reign.ledger.stored.tombstones
    assert reign.ledger.stored.nodes[N1].lost_at is None


@pytest.mark.parametrize("reason", ["two\nlines", "x" * 201])
async def test_a_reason_that_is_no_line_is_refused(reign: Reign, reason: str) -> None:
    with pytest.raises(InvalidRequest, match="no single line"):
        await drain_node(reign, "n1", reason, dry_run=False)
    assert reign.ledger.stored.nodes[N1].schedulability is Schedulability.SCHEDULABLE
    assert reign.ledger.stored.replicas[ONE].phase is Phase.RESERVED


def _observed(shard_id: str, state: str) -> object:
    return pb.ObservedShard(
        shard_id=shard_id, replica_id="tiny/1", state=getattr(pb, f"SHARD_STATE_{state}"), probed=True
    )


async def test_several_nodes_are_taken_back_in_one_commit_or_none(reign: Reign) -> None:
    for name in ("n1", "n2"):
        await cordon_node(reign, name, None)
    before = reign.ledger.stored
    with pytest.raises(NotFound, match="no node n9"):
        await uncordon_nodes(reign, ["n1", "n9", "n2"], dry_run=False)
    await uncordon_nodes(reign, ["n1", "n2"], dry_run=True)
    assert reign.ledger.stored == before
    answers = await uncordon_nodes(reign, ["n1", "n2", "n1"], dry_run=False)
    assert [(one.node_id, one.outcome) for one in answers] == [("n1", "uncordoned"), ("n2", "uncordoned")]
    assert {row.schedulability for row in reign.ledger.stored.nodes.values()} == {Schedulability.SCHEDULABLE}
    assert ("uncordoned", "by operator") in await told(reign, "n2")
