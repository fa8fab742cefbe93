"""The pass on a store that misbehaves: what is tried again, what ends the term, what is a bug."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from llmgw.v1 import agent_pb2 as pb
from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.adapters.store_memory import MemoryStore
from llmgw_controller.catalog_file import parse_models
from llmgw_controller.core.apply import apply
from llmgw_controller.core.catalog import spec_hash
from llmgw_controller.core.plan import Change, PutNode, PutReplica, Reserve
from llmgw_controller.core.rows import Schedulability, Stored
from llmgw_controller.ledger import CHECK_S
from llmgw_controller.ports import ClaimTaken, Fenced
from llmgw_controller.reign import Reign
from llmgw_kit.errors import Unavailable
from llmgw_kit.ids import LeaseTerm, NodeId, ReplicaId
from llmgw_kit.lifecycle import cancel_all
from llmgw_kit.testing.clock import FakeClock

from .reigns import KEPT, Outcomes, hello, reign_on


class Moody(MemoryStore):
    """Fails as it is told: `moods` are used up one a call, None is a good day."""

    def __init__(self, lease: MemoryLease) -> None:
        super().__init__(lease)
        self.on_load: list[Exception | None] = []
        self.on_commit: list[Exception | None] = []
        #: Commits whose answer is lost after they were written.
        self.lost_answers = 0
        self.loads = 0
        self.committed: list[Change] = []

    async def load(self) -> Stored:
        self.loads += 1
        if self.on_load and (mood := self.on_load.pop(0)):
            raise mood
        return await super().load()

    async def commit(self, term: LeaseTerm, changes: Sequence[Change]) -> None:
        if self.on_commit and (mood := self.on_commit.pop(0)):
            raise mood
        await super().commit(term, changes)
        self.committed += changes
        if self.lost_answers:
            self.lost_answers -= 1
            raise Unavailable("the answer to COMMIT was lost")


async def moody(clock: FakeClock) -> tuple[Reign, Moody]:
    lease = MemoryLease(clock)
    store = Moody(lease)
    reign = await reign_on(clock, store, lease=lease)
    await reign.fleet.open(hello())
    return reign, store


async def run_for(reign: Reign, clock: FakeClock, seconds: float) -> asyncio.Task[None]:
    """The loop for so long; the caller ends it."""
    task = asyncio.create_task(reign._passes.run())
    for _ in range(int(seconds / 0.1)):
        await clock.advance(0.1)
        await asyncio.sleep(0.002)  # decisions are made in a thread
        if task.done():
            break
    return task


def outcomes(reign: Reign) -> list[str]:
    metrics = reign.world.metrics
    assert isinstance(metrics, Outcomes)
    return metrics.seen


async def test_a_taken_claim_is_decided_again_at_once(fake_clock: FakeClock) -> None:
    reign, store = await moody(fake_clock)
    store.on_commit = [ClaimTaken("another took it")]
    task = await run_for(reign, fake_clock, 1.0)
    assert outcomes(reign)[:2] == ["claim_taken", "changed"]
    assert len((await store.load()).replicas) == 1
    await cancel_all(task)


async def test_a_silent_store_is_tried_again_and_nothing_is_done_meanwhile(fake_clock: FakeClock) -> None:
    reign, store = await moody(fake_clock)
    reign.ledger.doubt()
    store.on_load = [Unavailable("no answer")] * 3
    task = await run_for(reign, fake_clock, 6.0)
    assert outcomes(reign)[:4] == ["unavailable"] * 3 + ["changed"]
    await cancel_all(task)


async def test_a_commit_of_unknown_outcome_is_read_before_anything_is_decided(fake_clock: FakeClock) -> None:
    reign, store = await moody(fake_clock)
    store.lost_answers = 1
    task = await run_for(reign, fake_clock, 4.0)
    assert outcomes(reign)[0] == "unavailable"
    # It had landed: the next pass read that, and reserved nothing a second time.
    assert sum(isinstance(change, Reserve) for change in store.committed) == 1
    await cancel_all(task)


async def test_passes_go_by_the_copy_and_check_it_now_and_then(fake_clock: FakeClock) -> None:
    """Nobody else writes while the term holds; reading all rows again is the dearest part of a pass."""
    reign, store = await moody(fake_clock)
    await reign._passes.once()
    before = store.loads
    for _ in range(10):
        await reign._passes.once()
    assert store.loads == before
    assert reign.ledger.read_at == reign.tenure.now(), "the rows that a view shows are of now all the same"
    rows = reign.ledger.stored
    store._stored = replace(store._stored)
    await fake_clock.advance(CHECK_S)
    await reign._passes.once()
    await reign._passes.once()
    assert store.loads == before + 1
    assert reign.ledger.stored is rows, "of equal rows ours stay, with all that was found of them"
    assert not [event for event in await told_of(store) if event == "rows_differ"]


async def test_what_was_written_behind_the_leaders_back_counts_after_a_check_and_is_told(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    reign, store = await moody(fake_clock)
    await reign._passes.once()
    row = (await store.load()).nodes[NodeId("n1")]
    by_hand = replace(row, schedulability=Schedulability.CORDONED)
    store._stored = apply(store._stored, [PutNode(by_hand)])
    await reign._passes.once()
    assert reign.ledger.stored.nodes[row.node_id] == row
    await fake_clock.advance(CHECK_S)
    await reign._passes.once()
    assert reign.ledger.stored.nodes[row.node_id] == by_hand
    assert (await told_of(store)).count("rows_differ") == 1
    assert "nodes n1" in caplog.text


async def test_a_check_that_fails_ends_no_term_and_is_made_again(fake_clock: FakeClock) -> None:
    reign, store = await moody(fake_clock)
    await reign._passes.once()
    await fake_clock.advance(CHECK_S)
    store.on_load = [Unavailable("no answer")]
    before = store.loads
    task = await run_for(reign, fake_clock, 4.0)
    assert outcomes(reign)[0] == "unavailable"
    assert store.loads == before + 2
    await cancel_all(task)


async def told_of(store: MemoryStore) -> list[str]:
    """Kinds of events, newest first."""
    return [event.kind for event in await store.events(since=None, subject=None, limit=100)]


async def test_the_fence_ends_the_loop(fake_clock: FakeClock) -> None:
    reign, store = await moody(fake_clock)
    store.on_commit = [Fenced("another leads")]
    task = await run_for(reign, fake_clock, 1.0)
    with pytest.raises(Fenced):
        await task


async def test_a_bug_is_not_swallowed(fake_clock: FakeClock) -> None:
    reign, store = await moody(fake_clock)
    reign.ledger.doubt()
    store.on_load = [ZeroDivisionError()]
    task = await run_for(reign, fake_clock, 1.0)
    with pytest.raises(ZeroDivisionError):
        await task


async def test_a_term_that_ran_out_reads_and_writes_nothing(fake_clock: FakeClock) -> None:
    reign, store = await moody(fake_clock)
    before = len(store.committed)
    reign.tenure.end()
    task = await run_for(reign, fake_clock, 1.0)
    with pytest.raises(Fenced):
        await task
    assert len(store.committed) == before


async def test_each_generation_has_a_credential_of_its_own_in_all_its_rows(fake_clock: FakeClock) -> None:
    reign, store = await moody(fake_clock)
    await reign._passes.once()
    rows = [change.replica for change in store.committed if isinstance(change, (Reserve, PutReplica))]
    placed = [row.credential for row in rows if row.group_epoch > 0]
    assert placed
    assert len(set(placed)) == 1
    assert placed[0]


async def test_an_engine_that_is_taken_up_keeps_the_credential_that_it_checks(fake_clock: FakeClock) -> None:
    """Also in what the same pass writes of it later; its next generation has another."""
    (tiny,) = parse_models([KEPT], where="test")
    runs = pb.ObservedShard(
        shard_id="tiny/1.7.0", replica_id="tiny/1", group_epoch=7,
        spec_hash=spec_hash(tiny, tiny.profiles[0]), state=pb.SHARD_STATE_SERVING, probed=True, pid=7,
        pid_start_ticks=1, ports={"http": 20003},
        device_ids=["n1-1"], credential="checked",
    )  # fmt: skip
    lease = MemoryLease(fake_clock)
    store = Moody(lease)
    reign = await reign_on(fake_clock, store, lease=lease, adopts=True)
    session = await reign.fleet.open(hello(shards=[runs]))
    await reign._passes.once()
    rows = [change.replica for change in store.committed if isinstance(change, (Reserve, PutReplica))]
    assert {row.credential for row in rows if row.group_epoch == 7} == {"checked"}

    runs.state, runs.probed = pb.SHARD_STATE_EXITED, False
    runs.exit.reason = "crashed"
    ended = pb.ConnectRequest(session_epoch=session.epoch, shard_status=pb.ShardStatus(shards=[runs]))
    await reign.fleet.hear(session, ended)
    task = await run_for(reign, fake_clock, 15.0)
    row = (await store.load()).replicas[ReplicaId("tiny/1")]
    assert row.group_epoch == 8
    assert row.credential not in (None, "checked")
    await cancel_all(task)


async def test_without_a_hint_a_pass_comes_each_interval(fake_clock: FakeClock) -> None:
    reign, _ = await moody(fake_clock)
    task = await run_for(reign, fake_clock, 8.0)
    assert 4 <= len(outcomes(reign)) <= 6
    await cancel_all(task)


@pytest.mark.parametrize("fails", ["on_load", "on_commit"])
async def test_an_inventory_that_could_not_be_written_is_written_by_the_next_pass(
    fake_clock: FakeClock, fails: str
) -> None:
    """Its agent has said it and says it no more until something else changes."""
    reign, store = await moody(fake_clock)
    session = await reign.fleet.open(hello("n2"))
    inventory = pb.Inventory(management_address="10.0.0.9", fabrics=["ib-1"])
    if fails == "on_load":
        reign.ledger.doubt()
    setattr(store, fails, [Unavailable("no answer")])
    with pytest.raises(Unavailable):
        await reign.fleet.hear(session, pb.ConnectRequest(session_epoch=session.epoch, inventory=inventory))
    assert reign.fleet.heard()[NodeId("n2")].devices == (), "what was heard counts at once"
    assert (await store.load()).nodes[NodeId("n2")].address == "10.0.0.1"
    await reign._passes.once()
    row = (await store.load()).nodes[NodeId("n2")]
    assert (row.address, row.fabrics, row.devices) == ("10.0.0.9", ("ib-1",), ())
    written = len(store.committed)
    await reign._passes.once()
    assert len(store.committed) == written, "and only once"
