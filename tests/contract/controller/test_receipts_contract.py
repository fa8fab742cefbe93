"""Receipts outlive what a leader loads: days after a cancelled eviction the engine may be chosen again."""

from dataclasses import replace
from typing import TYPE_CHECKING

from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.plan import Change, PutActivation, PutNode, PutRouter, Reserve
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.rows import ActivationRow, Cause, EvictionState, Phase
from llmgw_controller.core.state import EvictionPolicy, Intervals, Snapshot
from llmgw_kit.ids import LeaseTerm
from tests.unit.controller.build import (
    NOW,
    activity,
    heard,
    member,
    model,
    node,
    replica,
    report,
    router,
    shard,
    snapshot,
)

if TYPE_CHECKING:
    from tests.contract.controller.conftest import World

OLD = model("old", idle_after_s=None, min_residency_s=60.0)
NEW = model("new", idle_after_s=None, min_residency_s=60.0)
PART = shard("old/1", "n1", 0)
HELD = replica(OLD, 1, Phase.READY, PART, cause=Cause.ACTIVATION, ready_since=NOW - 7200)
N1 = node("n1", 1)
R1 = member()
TWO_DAYS_S = 172_800.0


class _Leader:
    """Decides on what its store holds; its one agent and its one router are always heard."""

    def __init__(self, world: "World", term: LeaseTerm) -> None:
        self._store, self._term = world.store, term

    async def write(self, *changes: Change) -> None:
        await self._store.commit(self._term, changes)

    async def decide(self, now: float, policy: EvictionPolicy) -> None:
        await self.write(PutActivation(ActivationRow(NEW.name, now, now)))
        plan = reconcile(await self._look(now, policy), now)
        await self.write(*plan.changes)

    async def _look(self, now: float, policy: EvictionPolicy) -> Snapshot:
        stored = await self._store.load()
        rows = list(stored.replicas.values())
        plain = snapshot(
            [OLD, NEW], [N1], rows, [heard(N1, [report(HELD, PART, ShardState.SERVING)], at=now)],
            activity=activity(router(), touched={"old/1": 7200.0}), intervals=Intervals(eviction=policy),
        )  # fmt: skip
        return replace(plain, stored=stored)


async def test_an_eviction_two_days_after_a_cancelled_one_of_the_same_engine(world: "World") -> None:
    """The first receipt is not loaded any more: it is neither met nor overwritten."""
    lease = await world.lease.acquire(holder="a", address="a:1", ttl_s=600)
    assert lease is not None
    leader = _Leader(world, lease.term)
    await leader.write(PutNode(N1), PutRouter(R1), Reserve(HELD))
    await leader.decide(NOW, EvictionPolicy.ON)
    await leader.decide(NOW + 2, EvictionPolicy.OFF)
    (first,) = await world.store.evictions(since=None, model=None, limit=9)
    assert (first.state, first.decided_at) == (EvictionState.CANCELLED, NOW)

    later = NOW + TWO_DAYS_S
    await leader.decide(later, EvictionPolicy.ON)
    (opened,) = (await world.store.load()).leaving_for.values()
    assert (opened.endpoint_id, opened.decided_at) == (HELD.endpoint_id, later)
    assert await world.store.evictions(since=None, model=None, limit=9) == [opened, first]
