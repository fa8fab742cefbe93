"""The store: what was committed is what is loaded, all or nothing, under the term that holds the lease."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from llmgw_controller.core.apply import apply
from llmgw_controller.core.plan import (
    Change,
    CloseActivation,
    DeleteReplica,
    DropModel,
    DropRouter,
    DropTombstone,
    ForgetAttempts,
    JudgeNode,
    PutActivation,
    PutAttempt,
    PutDeployment,
    PutEvent,
    PutEviction,
    PutLoad,
    PutModel,
    PutNode,
    PutReplica,
    PutRouter,
    PutTombstone,
    RaiseIdleFloor,
    Release,
    Reserve,
    Severity,
)
from llmgw_controller.core.rows import (
    ActivationRow,
    AttemptRow,
    Cause,
    DeploymentRow,
    DeviceRow,
    EvictionRow,
    EvictionState,
    LoadRecord,
    NodeRow,
    Phase,
    PortQuarantine,
    ReplicaRow,
    RouterRow,
    Schedulability,
    ShardRow,
    Stored,
    Tombstone,
    Wish,
)
from llmgw_controller.ports import ClaimTaken, Fenced
from llmgw_kit.ids import DeviceId, LeaseTerm, ModelId, NodeId, ReplicaId, RouterId, SessionEpoch, ShardId

if TYPE_CHECKING:
    from tests.contract.controller.conftest import World

#: Later than any clock of this test, so that nothing counts as long over.
T = 4_000_000_000.123456
NODE = NodeRow(
    node_id=NodeId("n1"), boot_id="boot", agent_instance="i1", version="0.1.0", address="10.0.0.1",
    fabrics=("ib-1", "ib-2"), pool="batch", engine_ports=(20000, 24999),
    devices=(DeviceRow(DeviceId("d0"), 0, "L4", 24 * 2**30), DeviceRow(DeviceId("d1"), 1, "L4", None)),
    schedulability=Schedulability.SCHEDULABLE, session_epoch=SessionEpoch(3), last_heard=T, lost_at=None,
)  # fmt: skip


def replica(name: str = "m/1", *, device: str = "d0", port: int = 20000, epoch: int = 1) -> ReplicaRow:
    shard = ShardRow(
        shard_id=ShardId(f"{name}.{epoch}.0"), node_id=NodeId("n1"), rank=0, device_ids=(DeviceId(device),),
        ports=(("http", port), ("rendezvous", port + 1)),
    )  # fmt: skip
    return ReplicaRow(
        replica_id=ReplicaId(name), model=ModelId("m"), profile="default", spec_hash="abc",
        cause=Cause.ACTIVATION, wish=Wish.SERVE, phase=Phase.RESERVED, reason=None, until=None,
        group_epoch=epoch, failures=0, created_at=T, since=T + 0.5, ready_since=None, credential="secret",
        shards=(shard,),
        story=("wanted", "reserved"),
    )  # fmt: skip


def release(row: ReplicaRow, *quarantine: PortQuarantine) -> Release:
    return Release(row.replica_id, tuple(shard.shard_id for shard in row.shards), quarantine)


ONE = replica()
NEXT = replace(replica(epoch=2, device="d1", port=20010), failures=1)
STONE = Tombstone(NodeId("n1"), ShardId("m/1.1.0"), ReplicaId("m/1"), T)
RESTING = PortQuarantine(NodeId("n1"), 20000, T + 60)

RECEIPT = EvictionRow(
    eviction_id="m/1@1", victim_replica_id=ReplicaId("m/1"), victim_model=ModelId("m"),
    beneficiary_model=ModelId("o"), beneficiary_replica_id=ReplicaId("o/1"), decided_at=T,
    state=EvictionState.DRAINING, text="makes room", evidence=("r1 heard 2 s ago", "idle 3 h"), gpus=2,
    idle_s=10_800.0, predicted_free_s=20.0, reload_s=None,
)  # fmt: skip


def attempt(number: int) -> AttemptRow:
    return AttemptRow(
        ModelId("m"), "default", "L4", "abc", ReplicaId("m/1"), (NodeId("n1"), NodeId("n2")), "crashed",
        f"crashed with code {number}", T + number,
    )  # fmt: skip


#: Each list is one commit after the other; both stores must come to the same rows as `apply`.
HISTORIES: dict[str, list[list[Change]]] = {
    "node": [[PutNode(NODE)]],
    "node changes": [
        [PutNode(NODE)],
        [PutNode(replace(NODE, pool=None, engine_ports=None, devices=NODE.devices[:1], fabrics=()))],
    ],
    "node judged": [
        [PutNode(NODE)],
        [JudgeNode(NODE.node_id, T)],
        [PutTombstone(STONE)],
        [PutTombstone(STONE)],
    ],
    "node forgiven": [
        [PutNode(NODE), JudgeNode(NODE.node_id, T), PutTombstone(STONE)],
        [DropTombstone(STONE.node_id, STONE.shard_id), JudgeNode(NODE.node_id, None)],
    ],
    "reserved": [[PutNode(NODE), Reserve(ONE)]],
    "moved": [
        [Reserve(ONE)],
        [PutReplica(replace(ONE, phase=Phase.BACKOFF, reason="crashed", until=T + 5, ready_since=T + 1))],
    ],
    "released": [[Reserve(ONE)], [release(ONE, RESTING, PortQuarantine(NodeId("n1"), 20001, T + 60))]],
    "deleted": [[Reserve(ONE)], [release(ONE), DeleteReplica(ONE.replica_id)]],
    "next epoch": [[Reserve(ONE)], [release(ONE)], [Reserve(NEXT)]],
    "released and taken in one plan": [
        [Reserve(ONE)],
        [release(ONE, RESTING), Reserve(replica("m/2", port=20000))],
    ],
    "wanted only": [[PutReplica(replace(ONE, shards=(), phase=Phase.WANTED, credential=None))]],
    "a drain that may be taken back, and how quiet it is": [
        [Reserve(replace(ONE, phase=Phase.DRAINING, wish=Wish.DRAIN, cause=Cause.DEMAND, revocable=True))],
        [PutReplica(replace(ONE, phase=Phase.DRAINING, wish=Wish.DRAIN, cause=Cause.DEMAND, quiet_at=T + 2))],
    ],
    "activation": [
        [PutActivation(ActivationRow(ModelId("m"), T, T))],
        [PutActivation(ActivationRow(ModelId("m"), T, T + 9))],
    ],
    "activation closed": [
        [PutActivation(ActivationRow(ModelId("m"), T, T))],
        [CloseActivation(ModelId("m"), "ready")],
    ],
    "router": [
        [PutRouter(RouterRow(RouterId("r"), "i1", T))],
        [PutRouter(RouterRow(RouterId("r"), "i2", T + 1, T + 1))],
    ],
    "router gone": [[PutRouter(RouterRow(RouterId("r"), "i1", T))], [DropRouter(RouterId("r"))]],
    "loads": [
        [PutLoad(LoadRecord(ModelId("m"), "default", "L4", float(i), T + i)) for i in range(23)],
        [PutLoad(LoadRecord(ModelId("o"), "default", "L4", 1.5, T))],
        [PutLoad(LoadRecord(ModelId("p"), "d", "L4", 9.0, T, 4.0, 3.0, 2.0, False, 2**34, "b7000", "abc"))],
    ],
    "operator's activation": [[PutActivation(ActivationRow(ModelId("m"), T, T, T + 600))]],
    "set aside": [[PutNode(replace(NODE, schedulability=Schedulability.CORDONED, reason="new driver"))]],
    "deployment": [
        [PutDeployment(DeploymentRow(ModelId("m"), stopped=True, pinned=None, changed_at=T))],
        [PutDeployment(DeploymentRow(ModelId("m"), stopped=True, pinned=False, changed_at=T + 1))],
    ],
    "deployment without a wish": [
        [PutDeployment(DeploymentRow(ModelId("m"), stopped=True, pinned=None, changed_at=T))],
        [PutDeployment(DeploymentRow(ModelId("m"), stopped=False, pinned=None, changed_at=T + 1))],
    ],
    "attempts": [
        [PutAttempt(attempt(i)) for i in range(23)],
        [PutAttempt(replace(attempt(1), profile="other"))],
    ],
    "attempts of a profile forgotten": [
        [PutAttempt(attempt(1)), PutAttempt(replace(attempt(2), profile="other"))],
        [ForgetAttempts(ModelId("m"), "other")],
    ],
    "attempts forgotten": [
        [PutAttempt(attempt(1)), PutAttempt(replace(attempt(2), model=ModelId("o")))],
        [ForgetAttempts(ModelId("m"))],
    ],
    "eviction": [
        [PutEviction(RECEIPT)],
        [PutEviction(replace(RECEIPT, acknowledged_at=T + 4))],
        [PutEviction(replace(RECEIPT, state=EvictionState.DONE, freed_at=T + 9, regretted_at=T + 30))],
    ],
    "a receipt's id again": [
        [PutEviction(RECEIPT)],
        [
            PutEviction(
                replace(
                    RECEIPT,
                    victim_replica_id=ReplicaId("m/2"),
                    victim_model=ModelId("m2"),
                    beneficiary_model=ModelId("p"),
                    beneficiary_replica_id=ReplicaId("p/1"),
                    decided_at=T + 172_800,
                    text="makes room again",
                    evidence=(),
                    gpus=4,
                    idle_s=60.0,
                    predicted_free_s=None,
                    reload_s=9.0,
                )
            )
        ],
    ],
    "idle floor": [[RaiseIdleFloor(T)], [RaiseIdleFloor(T - 5)]],
}


async def lead(world: "World", holder: str = "a") -> LeaseTerm:
    lease = await world.lease.acquire(holder=holder, address=f"{holder}:1", ttl_s=600)
    assert lease is not None
    return lease.term


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
async def test_both_stores_come_to_what_apply_says(world: "World", history: list[list[Change]]) -> None:
    term = await lead(world)
    expected = Stored()
    for changes in history:
        expected = apply(expected, changes)
        await world.store.commit(term, changes)
    loaded = await world.store.load()
    assert replace(loaded, loads=()) == replace(expected, loads=())
    assert sorted(loaded.loads, key=repr) == sorted(expected.loads, key=repr)


async def test_models_are_kept_as_what_they_mean(world: "World") -> None:
    term = await lead(world)
    await world.store.commit(term, [PutModel(ModelId("m"), '{"b": 1, "a": [true, "ü"]}', 10.0)])
    await world.store.commit(term, [PutModel(ModelId("n"), "{}", 11.0), DropModel(ModelId("n"))])
    assert {name: json.loads(text) for name, text in (await world.store.load()).models.items()} == {
        "m": {"a": [True, "ü"], "b": 1}
    }
    # Of a change the time of the first form stays.
    await world.store.commit(term, [PutModel(ModelId("m"), "{}", 20.0)])
    assert (await world.store.load()).created == {"m": 10.0}


@pytest.mark.parametrize(
    "second",
    [replica("m/2", device="d0", port=20010), replica("m/2", device="d1", port=20001)],
    ids=["same device", "same port"],
)
async def test_nothing_is_given_twice_and_nothing_half_written(world: "World", second: ReplicaRow) -> None:
    term = await lead(world)
    await world.store.commit(term, [Reserve(ONE)])
    before = await world.store.load()
    with pytest.raises(ClaimTaken):
        await world.store.commit(
            term, [PutEvent(T, "placed", "m/2", "…", Severity.INFO), Reserve(second), PutNode(NODE)]
        )
    assert await world.store.load() == before
    assert await world.store.events(since=None, subject=None, limit=10) == []


async def test_a_replica_that_holds_claims_is_not_deleted(world: "World") -> None:
    term = await lead(world)
    await world.store.commit(term, [Reserve(ONE)])
    with pytest.raises(AssertionError):
        await world.store.commit(term, [DeleteReplica(ONE.replica_id)])
    assert ONE.replica_id in (await world.store.load()).replicas


async def test_without_the_lease_nothing_is_written(world: "World") -> None:
    with pytest.raises(Fenced):
        await world.store.commit(LeaseTerm(1), [PutNode(NODE)])
    assert (await world.store.load()).nodes == {}


async def test_after_the_lease_ran_out_nothing_is_written(world: "World") -> None:
    term = await lead(world)
    await world.let_the_lease_run_out()
    with pytest.raises(Fenced):
        await world.store.commit(term, [PutNode(NODE)])
    assert (await world.store.load()).nodes == {}


async def test_an_old_term_writes_nothing_beside_a_new_leader(world: "World") -> None:
    old = await lead(world)
    await world.let_the_lease_run_out()
    new = await lead(world, "b")
    with pytest.raises(Fenced):
        await world.store.commit(old, [PutNode(NODE)])
    await world.store.commit(new, [PutNode(NODE)])
    assert (await world.store.load()).nodes == {NODE.node_id: NODE}


async def test_events_come_newest_first_and_filtered(world: "World") -> None:
    term = await lead(world)
    for position, subject in enumerate(["m/1", "n1", "m/1"]):
        await world.store.commit(
            term, [PutEvent(T + position, "kind", subject, f"{position}", Severity.TROUBLE)]
        )
    events = await world.store.events(since=None, subject=None, limit=10)
    assert [event.text for event in events] == ["2", "1", "0"]
    assert (events[0].term, events[0].severity, events[0].at) == (term, Severity.TROUBLE, T + 2)
    assert [e.text for e in await world.store.events(since=T + 1, subject=None, limit=10)] == ["2", "1"]
    assert [e.text for e in await world.store.events(since=None, subject="m/1", limit=10)] == ["2", "0"]
    assert [e.text for e in await world.store.events(since=None, subject="m", limit=10)] == ["2", "0"]
    assert await world.store.events(since=None, subject="m/", limit=10) == []
    assert await world.store.events(since=None, subject="n", limit=10) == [], "a name's begin is no name"
    await world.store.commit(term, [PutEvent(T + 3, "kind", "n1:0", "3", Severity.TROUBLE)])
    assert [e.text for e in await world.store.events(since=None, subject="n1", limit=10)] == ["3", "1"]
    assert [e.text for e in await world.store.events_after(0, subject="n1", limit=10)] == ["1", "3"]
    assert [e.text for e in await world.store.events(since=None, subject=None, limit=1)] == ["3"]


async def test_old_events_are_forgotten_by_the_leader_only(world: "World") -> None:
    term = await lead(world)
    for age in range(4):
        await world.store.commit(term, [PutEvent(T - age, "kind", "s", f"{age}", Severity.INFO)])
    assert await world.store.prune_events(term, before=T - 1) == 2
    assert {event.text for event in await world.store.events(since=None, subject=None, limit=9)} == {"0", "1"}
    await world.let_the_lease_run_out()
    with pytest.raises(Fenced):
        await world.store.prune_events(term, before=T + 1)
    assert len(await world.store.events(since=None, subject=None, limit=9)) == 2


async def test_receipts_are_listed_newest_first_of_either_side(world: "World") -> None:
    term, store = await lead(world), world.store
    later = replace(
        RECEIPT, eviction_id="x/1@1", victim_model=ModelId("x"), beneficiary_model=ModelId("m"),
        decided_at=T + 60,
    )  # fmt: skip
    await store.commit(term, [PutEviction(RECEIPT), PutEviction(later)])
    assert await store.evictions(since=None, model=None, limit=10) == [later, RECEIPT]
    assert await store.evictions(since=None, model=ModelId("m"), limit=10) == [later, RECEIPT]
    assert await store.evictions(since=None, model=ModelId("o"), limit=10) == [RECEIPT]
    assert await store.evictions(since=T + 1, model=None, limit=10) == [later]
    assert await store.evictions(since=None, model=None, limit=1) == [later]


#: What engines, kernels and people have put into texts: a NUL, half a character, colours, an emoji.
UGLY = "GPU \0 lost \ud83d \x1b[31m\u2028 \U0001f642"
CLEAN = "GPU \ufffd lost \ufffd \x1b[31m\u2028 \U0001f642"


async def test_no_text_keeps_a_plan_from_being_written(world: "World") -> None:
    """A text the store refuses would end each reign in turn: the next leader hears the same words."""
    term = await lead(world)
    failed = replace(ONE, reason=UGLY, story=("wanted", UGLY))
    told = replace(attempt(1), reason=UGLY, text=UGLY)
    load = LoadRecord(ModelId("m"), "default", "L4", 3.5, T, engine_version=UGLY)
    changes: list[Change] = [
        PutNode(replace(NODE, reason=UGLY, version=UGLY)),
        Reserve(ONE),
        PutReplica(failed),
        PutAttempt(told),
        PutLoad(load),
        PutEviction(replace(RECEIPT, text=UGLY, evidence=(UGLY,))),
        PutEvent(T, "crashed", "n1", UGLY, Severity.TROUBLE),
    ]
    await world.store.commit(term, changes)
    stored = await world.store.load()
    assert stored.replicas[ONE.replica_id] == replace(failed, reason=CLEAN, story=("wanted", CLEAN))
    assert (stored.nodes[NODE.node_id].reason, stored.nodes[NODE.node_id].version) == (CLEAN, CLEAN)
    assert [(one.reason, one.text) for one in stored.attempts] == [(CLEAN, CLEAN)]
    assert [one.engine_version for one in stored.loads] == [CLEAN]
    assert [(one.text, one.evidence) for one in stored.evictions.values()] == [(CLEAN, (CLEAN,))]
    assert [event.text for event in await world.store.events(since=None, subject="n1", limit=9)] == [CLEAN]
