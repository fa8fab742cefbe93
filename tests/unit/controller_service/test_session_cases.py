"""Sessions that end in odd ways: reboots, restarts, stops while away (cases 1, 3, 4, 7, 10, 38)."""

import pytest

from llmgw.v1 import agent_pb2 as pb
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.routes import RouteTable, routes
from llmgw_controller.core.rows import Phase, ReplicaRow
from llmgw_controller.fleet import Session
from llmgw_controller.reign import Reign
from llmgw_controller.replica_changes import stop_replica
from llmgw_kit.ids import NodeId, ReplicaId, ShardId
from llmgw_kit.testing.clock import FakeClock

from .reigns import hello, reign_on
from .test_sessions import messages, said

N1 = NodeId("n1")
ONE = ReplicaId("tiny/1")
S1 = ShardId("tiny/1.1.0")


def observed(reign: Reign, state: str = "SERVING", **more: object) -> list[pb.ObservedShard]:
    """The shard of tiny/1 as its agent would tell it."""
    row = reign.ledger.stored.replicas[ONE]
    (shard,) = row.shards
    made = pb.ObservedShard(
        shard_id=shard.shard_id, replica_id=ONE, group_epoch=row.group_epoch, spec_hash=row.spec_hash,
        state=getattr(pb, f"SHARD_STATE_{state}"), probed=state == "SERVING", pid=7, running_requests=0,
        ports=dict(shard.ports), device_ids=list(shard.device_ids), **more,  # type: ignore[arg-type]
    )  # fmt: skip
    return [made]


@pytest.fixture
async def serving(fake_clock: FakeClock) -> tuple[Reign, Session]:
    """tiny/1 serves on n1."""
    reign = await reign_on(fake_clock)
    session = await reign.fleet.open(hello())
    await reign._passes.once()
    await reign.fleet.hear(session, said(session, shard_status=pb.ShardStatus(shards=observed(reign))))
    await reign._passes.once()
    assert one(reign).phase is Phase.READY
    return reign, session


def one(reign: Reign) -> ReplicaRow:
    return reign.ledger.stored.replicas[ONE]


def table(reign: Reign) -> RouteTable:
    return routes(reign.snapshot(reign.ledger.stored), reign.tenure.now())


async def kinds(reign: Reign) -> list[str]:
    rows = await reign.world.store.events(since=None, subject=None, limit=99)
    return [row.kind for row in reversed(rows)]


async def awake(reign: Reign, clock: FakeClock, seconds: int) -> None:
    for _ in range(seconds):
        await clock.advance(1)
        assert reign._awake.since is None


async def test_a_reboot_means_that_its_engines_are_gone_at_once(serving: tuple[Reign, Session]) -> None:
    reign, _ = serving
    # The old stream is still open: the machine lost its power and said no goodbye. And its journal is lost.
    await reign.fleet.open(hello(boot="b2", instance="i2"))
    assert "node_rebooted" in await kinds(reign)
    assert "session_fenced" not in await kinds(reign), "one agent after the other, not two"
    await reign._passes.once()
    assert one(reign).phase is Phase.BACKOFF
    assert one(reign).reason == "rebooted: node n1 was rebooted"
    assert not one(reign).holds_devices


async def test_after_a_reboot_the_agents_own_word_counts(serving: tuple[Reign, Session]) -> None:
    reign, _ = serving
    ended = observed(reign, "EXITED", exit=pb.ShardExit(reason="rebooted", message="its own words"))
    await reign.fleet.open(hello(boot="b2", instance="i2", shards=ended))
    await reign._passes.once()
    assert one(reign).reason == "rebooted: its own words"


async def test_a_restarted_agent_that_says_nothing_of_a_shard_is_given_time(
    serving: tuple[Reign, Session], fake_clock: FakeClock
) -> None:
    """The same boot: only the agent is new, and its engines may be alive."""
    reign, session = serving
    reign.fleet.closed(session)
    again = await reign.fleet.open(hello(instance="i2"))
    await reign._passes.once()
    assert one(reign).phase is Phase.READY
    assert one(reign).holds_devices
    # It speaks of it in time: nothing was restarted.
    status = pb.ShardStatus(shards=observed(reign, adopted=True))
    await reign.fleet.hear(again, said(again, shard_status=status))
    await reign._passes.once()
    assert (one(reign).phase, one(reign).group_epoch) == (Phase.READY, 1)


async def test_a_restarted_agent_adopts_and_nothing_is_started_anew(serving: tuple[Reign, Session]) -> None:
    """Case 38: what runs is not judged again, and not told to start again."""
    reign, session = serving
    before = one(reign)
    reign.fleet.closed(session)
    again = await reign.fleet.open(hello(instance="i2", shards=observed(reign, "LAUNCHING", adopted=True)))
    await reign._passes.once()
    assert one(reign) == before
    told = [message.WhichOneof("body") for message in await messages(again)]
    assert told == ["desired"]


async def test_a_session_that_blinks_leaves_no_mark(
    serving: tuple[Reign, Session], fake_clock: FakeClock
) -> None:
    """Cases 1 and 10: silence routes around; the first snapshot after it routes back, with no other word."""
    reign, session = serving
    endpoint = set(table(reign).endpoints)
    before = one(reign)
    reign.fleet.closed(session)
    await awake(reign, fake_clock, 16)
    assert not table(reign).endpoints
    await reign._passes.once()
    assert one(reign) == before, "reachability stands in no row"
    await reign.fleet.open(hello(shards=observed(reign)))
    assert set(table(reign).endpoints) == endpoint
    await reign._passes.once()
    assert one(reign) == before


async def test_a_stop_while_the_node_is_away_is_done_when_it_returns(
    serving: tuple[Reign, Session], fake_clock: FakeClock
) -> None:
    """Cases 4 and 7: the wish outlives the absence; the GPU is free when the exit was seen, not before."""
    reign, session = serving
    reign.fleet.closed(session)
    await awake(reign, fake_clock, 60)
    running = observed(reign)
    await stop_replica(reign, ONE, dry_run=False)
    await reign._passes.once()
    assert one(reign).phase is Phase.STOPPING
    await awake(reign, fake_clock, 60)
    await reign._passes.once()
    assert one(reign).holds_devices
    back = await reign.fleet.open(hello(shards=running))
    await reign._passes.once()
    heard = await messages(back)
    wishes = {shard.spec.shard_id: shard.wish for shard in heard[0].desired.shards}
    assert wishes[S1] == pb.SHARD_WISH_STOP
    assert one(reign).holds_devices
    ended = [replace_state(running[0])]
    await reign.fleet.hear(back, said(back, shard_status=pb.ShardStatus(shards=ended)))
    await reign._passes.once()
    assert ONE not in reign.ledger.stored.replicas


async def test_a_copy_given_up_is_told_to_stop_when_its_node_returns(
    serving: tuple[Reign, Session], fake_clock: FakeClock
) -> None:
    """Case 3: no row speaks for it any more, its tombstone does; its GPUs are held by a stale shard."""
    reign, session = serving
    await reign.fleet.open(hello("n2"))
    await reign.fleet.open(hello("n3"))
    n2 = reign.fleet._sessions[NodeId("n2")], reign.fleet._sessions[NodeId("n3")]
    running = observed(reign)
    reign.fleet.closed(session)
    for _ in range(31):
        await awake(reign, fake_clock, 10)
        for other in n2:
            await reign.fleet.hear(other, said(other, beat=pb.Beat(sequence=1)))
    await reign._passes.once()
    assert reign.ledger.stored.nodes[N1].lost_at is not None
    moved = one(reign).shards[0]
    assert moved.node_id != N1
    await awake(reign, fake_clock, 1)
    back = await reign.fleet.open(hello(shards=running))
    await reign._passes.once()
    assert [list(m.desired.shards) for m in await messages(back) if m.HasField("desired")] == [[]]
    assert reign.ledger.stored.nodes[N1].lost_at is not None, "takes no work yet"
    assert reign.fleet.heard()[N1].shards[S1].state is ShardState.SERVING
    await reign.fleet.hear(back, said(back, shard_status=pb.ShardStatus(shards=[replace_state(running[0])])))
    await reign._passes.once()
    assert reign.ledger.stored.nodes[N1].lost_at is None
    assert not reign.ledger.stored.tombstones


def replace_state(shard: pb.ObservedShard) -> pb.ObservedShard:
    """The same, stopped."""
    ended = pb.ObservedShard()
    ended.CopyFrom(shard)
    ended.state = pb.SHARD_STATE_EXITED
    ended.exit.CopyFrom(pb.ShardExit(reason="stopped", code=0))
    return ended
