"""Random but possible fleets, for properties that must hold in all of them."""

from dataclasses import replace

from hypothesis import strategies as st

from llmgw_controller.core.activity import Activity
from llmgw_controller.core.catalog import spec_hash
from llmgw_controller.core.heard import DeviceState, Exit, ShardState
from llmgw_controller.core.rows import AttemptRow, Phase, Schedulability, Tombstone
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import ModelId, NodeId, ReplicaId, ShardId
from tests.unit.controller.build import (
    GIB,
    NOW,
    TERM_STARTED,
    activity,
    ask,
    device,
    heard,
    member,
    model,
    node,
    profile,
    replica,
    report,
    router,
    shard,
    snapshot,
)

MODELS = (
    model("a", profile("a1"), replicas=1),
    model("b", profile("b2", gpus_per_node=2, tensor_parallel=2), profile("b1", gpu_class="H100")),
    model("c", profile("c2x2", nodes=2, gpus_per_node=2, extra_ports=("rendezvous",)), replicas=1),
)
#: A catalog that has moved on: one model changed, one is gone.
LATER = (model("a", profile("a1", context_length=9), replicas=2), MODELS[1])

_HOLDING = (Phase.RESERVED, Phase.STARTING, Phase.READY, Phase.DRAINING, Phase.STOPPING, Phase.BACKOFF)
_BARE = (Phase.WANTED, Phase.UNPLACEABLE, Phase.STOPPED, Phase.FAILED)


@st.composite
def fleets(draw: st.DrawFn) -> Snapshot:
    """Up to four nodes with up to four devices; claims never overlap, anything else may."""
    count = draw(st.integers(1, 4))
    # Half of the fleets are in good health, or faults would hide all that placing does.
    well = draw(st.booleans())
    term_started = draw(st.sampled_from([TERM_STARTED, NOW - 5]))
    nodes = []
    for number in range(1, count + 1):
        lost_at = None if well else draw(st.sampled_from([None, None, None, NOW - 100]))
        nodes.append(
            node(
                f"n{number}",
                draw(st.integers(0, 4)),
                gpu_class=draw(st.sampled_from(["L4", "L4", "L4", "H100"])),
                fabrics=draw(st.sampled_from([(), ("ib",)])),
                schedulability=Schedulability.SCHEDULABLE
                if well
                else draw(st.sampled_from(list(Schedulability))),
                lost_at=lost_at,
            )
        )
    rows, reports, free = [], {}, {one.node_id: [d.index for d in one.devices] for one in nodes}
    for number in range(1, draw(st.integers(0, 4)) + 1):
        one = draw(st.sampled_from(MODELS))
        spots = [name for name, left in free.items() if len(left) >= one.profiles[0].gpus_per_node]
        phase = draw(st.sampled_from(_BARE + _HOLDING))
        since = NOW - draw(st.sampled_from([0.0, 3.0, 30.0, 3000.0]))
        failures = draw(st.integers(0, 5))
        if phase in _BARE or len(spots) < one.profiles[0].nodes:
            phase = phase if phase in _BARE else Phase.WANTED
            rows.append(replica(one, number, phase, since=since, failures=failures))
            continue
        parts = []
        for rank, name in enumerate(draw(st.permutations(spots))[: one.profiles[0].nodes]):
            indexes = [free[name].pop(0) for _ in range(one.profiles[0].gpus_per_node)]
            part = shard(f"{one.name}/{number}", name, *indexes, rank=rank, port=20000 + number)
            parts.append(part)
        until = NOW + draw(st.sampled_from([-1.0, 60.0])) if phase is Phase.BACKOFF else None
        row = replica(one, number, phase, *parts, since=since, failures=failures, until=until)
        rows.append(row)
        for part in parts:
            state = draw(st.sampled_from([None, *ShardState]))
            if state is not None:
                ended = Exit(1, None, draw(st.sampled_from(["crashed", "port_taken", "stopped"])), "boom")
                reports[part.shard_id] = report(
                    row,
                    part,
                    state,
                    exit=ended if state is ShardState.EXITED else None,
                    running=draw(st.sampled_from([None, 0, 0, 2])),
                    running_unknown=draw(st.sampled_from([None, "HTTP 500"])),
                    adopted=draw(st.booleans()),
                )
    words = []
    for one in nodes:
        age = 1.0 if well else draw(st.sampled_from([None, 1.0, 1.0, 1.0, 60.0, 1000.0]))
        if age is None or NOW - age < term_started:
            continue
        mine = [
            reports[part.shard_id]
            for row in rows
            for part in row.shards
            if part.node_id == one.node_id and part.shard_id in reports
        ]
        if one.devices and not well and draw(st.integers(0, 5)) == 0:
            stale = shard("ghost/1", one.node_id, 0)
            mine.append(report(replica(MODELS[0], 9, Phase.READY, stale), stale, ShardState.SERVING))
        devices = tuple(
            device(
                d,
                state=DeviceState.HEALTHY
                if well
                else draw(st.sampled_from([DeviceState.HEALTHY] * 4 + list(DeviceState))),
                foreign_used_bytes=None if well else draw(st.sampled_from([None, 0, 0, GIB])),
            )
            for d in one.devices
        )
        words.append(
            heard(one, mine, at=NOW - age, devices=devices, connected=well or draw(st.integers(0, 4)) > 0)
        )
    watched: Activity = draw(
        st.sampled_from(
            [
                Activity(None),
                activity(router(), touched={"a/1": 4000, "b/1": 4000, "c/2": 5000}),
                activity(),
                activity(router(), touched={"a/1": 4000, "b/2": 1}),
                activity(router(a__1=3)),
                activity(router(age_s=60)),
                activity(router(epoch="old")),
                activity(router(), watching_since=None),
            ]
        )
    )
    stones = (
        draw(st.sampled_from([(), (Tombstone(NodeId("n1"), ShardId("x/1.1.0"), rows[0].replica_id, 1.0),)]))
        if rows
        else ()
    )
    asked = draw(st.sampled_from([None, MODELS[1], MODELS[2]]))
    made = snapshot(
        draw(st.sampled_from([MODELS, LATER])),
        nodes,
        rows,
        words,
        term_started=term_started,
        activity=watched,
        routers=draw(st.sampled_from([{}, {"r1": member()}])),
        drained=frozenset(draw(st.sets(st.sampled_from(["a/1@1", "b/2@1", "c/3@1"])))),
        tombstones=stones,
        activations=ask(asked) if asked else {},
    )
    return replace(made, held=draw(st.sampled_from([{}, {ModelId("b"): 2}])))


@st.composite
def fleets_that_failed(draw: st.DrawFn) -> Snapshot:
    """The same, with failed starts on record: some of them of older specs."""
    made = draw(fleets())
    attempts = []
    for _ in range(draw(st.integers(1, 5))):
        one = draw(st.sampled_from(MODELS))
        first = one.profiles[0]
        why = draw(st.sampled_from(["crashed", "crashed", "never_ready", "rebooted"]))
        attempts.append(
            AttemptRow(
                model=one.name,
                profile=first.name,
                gpu_class=first.gpu_class,
                spec_hash=draw(st.sampled_from([spec_hash(one, first), spec_hash(one, first), "old"])),
                replica_id=ReplicaId(f"{one.name}/{draw(st.integers(1, 4))}"),
                node_ids=(NodeId(f"n{draw(st.integers(1, 4))}"),),
                reason=why,
                text=why,
                at=NOW - draw(st.sampled_from([0.0, 3.0, 30.0, 3000.0])),
            )
        )
    return replace(made, stored=replace(made.stored, attempts=tuple(attempts)))
