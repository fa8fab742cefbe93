"""The one view of the fleet at one moment: every table and every sum of `status` is a part of it.

Close to operator.proto's rows, so that mapping is all the servicer does. Times are the term clock, which
starts from the database's wall clock. None is unknown.
"""

from collections import Counter
from dataclasses import dataclass

from llmgw_controller.core.activation import progress_of
from llmgw_controller.core.activity import Busy, Idle, Unknown, Verdict, Verdicts
from llmgw_controller.core.availability import Availability, live_rows, model_state
from llmgw_controller.core.capacity import ClassCapacity, DeviceLine, classes, device_line
from llmgw_controller.core.catalog import Model, Source
from llmgw_controller.core.claims import Rooms, rooms
from llmgw_controller.core.deployments import created_at, effective_pinned, is_stopped
from llmgw_controller.core.fabrics import FabricLine, fabrics
from llmgw_controller.core.heard import HeldWeights, ShardReport
from llmgw_controller.core.hearing import NodeState, brake, is_learning, report_of
from llmgw_controller.core.holdings import Holdings, holdings
from llmgw_controller.core.idleness import fresh_routers, idle_replicas, in_flight_of, last_asked_at
from llmgw_controller.core.proposals import Proposal, proposals
from llmgw_controller.core.reach import reach
from llmgw_controller.core.routes import endpoint_url
from llmgw_controller.core.rows import Phase, ReplicaRow, Schedulability, ShardRow
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.trouble import Trouble, troubles
from llmgw_kit.ids import ModelId, NodeId, ReplicaId, ShardId

#: A model's replicas in these are on their way up.
RISING = frozenset({Phase.WANTED, Phase.RESERVED, Phase.STARTING, Phase.BACKOFF})


@dataclass(frozen=True)
class NodeCounts:
    heard: int
    silent: int
    lost: int


@dataclass(frozen=True)
class RouterCounts:
    members: int
    heard: int
    #: Of the members that are heard; None: none is.
    oldest_report_s: float | None


@dataclass(frozen=True)
class NodeLine:
    node_id: NodeId
    state: NodeState
    schedulability: Schedulability
    #: None: not heard in this term.
    beat_age_s: float | None
    fabrics: tuple[str, ...]
    pool: str | None
    devices: tuple[DeviceLine, ...]
    replica_ids: tuple[ReplicaId, ...]
    version: str
    address: str
    disk_free_bytes: int | None
    weights: tuple[HeldWeights, ...]
    #: Why an operator set it aside; None: not said, or it is not.
    reason: str | None


@dataclass(frozen=True)
class ShardLine:
    shard: ShardRow
    #: None: no agent has spoken of it in this term.
    report: ShardReport | None


@dataclass(frozen=True)
class ReplicaLine:
    row: ReplicaRow
    unreachable: bool
    shards: tuple[ShardLine, ...]
    #: Devices it holds now.
    gpus: int
    in_flight: int | None
    #: None: neither ready nor draining, so there is nothing to judge.
    verdict: Verdict | None
    last_asked_at: float | None
    progress: float | None
    url: str | None
    #: While starting: what its last probe said, and for how long its engines have made no progress.
    probe_error: str | None
    stalled_s: float | None


@dataclass(frozen=True)
class ModelLine:
    model: ModelId
    aliases: tuple[str, ...]
    availability: Availability
    reason: str | None
    wanted: int
    ready: int
    starting: int
    gpus: int
    in_flight: int | None
    held: int
    last_asked_at: float | None
    source: Source
    profiles: tuple[str, ...]
    eta_s: float | None
    #: An operator stopped it: nothing starts it.
    stopped: bool
    pinned: bool
    #: When it was first stored; None: unknown.
    created_at: float | None
    #: Of its ready replicas together: busy if one is, else unknown if one is, else idle since the last of
    #: them. None: none is ready.
    verdict: Verdict | None


@dataclass(frozen=True)
class FleetView:
    at: float
    #: Age of the oldest part that counts as heard: beats of nodes in reach.
    age_s: float
    term: int
    learning: bool
    brake: bool
    trouble: tuple[Trouble, ...]
    capacity: tuple[ClassCapacity, ...]
    fabrics: tuple[FabricLine, ...]
    node_counts: NodeCounts
    router_counts: RouterCounts
    nodes: tuple[NodeLine, ...]
    replicas: tuple[ReplicaLine, ...]
    models: tuple[ModelLine, ...]
    holdings: Holdings
    #: With `eviction: suggest`.
    proposals: tuple[Proposal, ...]

    @property
    def devices(self) -> tuple[DeviceLine, ...]:
        return tuple(line for node in self.nodes for line in node.devices)


def fleet_view(snapshot: Snapshot, verdicts: Verdicts, now: float) -> FleetView:
    found = rooms(snapshot, now)
    nodes = tuple(_node(snapshot, found, node_id, verdicts, now) for node_id in found)
    devices = tuple(line for node in nodes for line in node.devices)
    replicas = _replicas(snapshot, verdicts, now)
    by_model: dict[ModelId, list[ReplicaLine]] = {}
    for line in replicas:
        by_model.setdefault(line.row.model, []).append(line)
    beats = [
        node.beat_age_s for node in nodes if node.state is NodeState.READY and node.beat_age_s is not None
    ]
    return FleetView(
        at=now,
        age_s=max(beats, default=0.0),
        term=snapshot.term,
        learning=is_learning(snapshot, now),
        brake=brake(snapshot, now).on,
        trouble=troubles(snapshot, found, verdicts, now),
        capacity=classes(devices),
        fabrics=fabrics(found, idle_replicas(snapshot, verdicts)),
        node_counts=_node_counts(nodes),
        router_counts=_router_counts(snapshot),
        nodes=nodes,
        replicas=replicas,
        models=tuple(
            _model(snapshot, model, by_model.get(model.name, []), now)
            for model in snapshot.catalog.sorted_models()
        ),
        holdings=holdings(snapshot, verdicts, now),
        proposals=proposals(snapshot, verdicts, now),
    )


def _node(snapshot: Snapshot, found: Rooms, node_id: NodeId, verdicts: Verdicts, now: float) -> NodeLine:
    room = found[node_id]
    heard = snapshot.heard.get(node_id)
    return NodeLine(
        node_id=node_id,
        state=room.state,
        schedulability=room.node.schedulability,
        beat_age_s=max(0.0, now - heard.heard_at) if heard else None,
        fabrics=room.node.fabrics,
        pool=room.node.pool,
        devices=tuple(device_line(device, snapshot.stored, verdicts) for device in room.devices),
        replica_ids=tuple(
            row.replica_id
            for row in snapshot.stored.by_node.get(node_id, ())
            if any(shard.node_id == node_id and not shard.released for shard in row.shards)
        ),
        version=room.node.version,
        address=room.node.address,
        disk_free_bytes=heard.disk_free_bytes if heard else None,
        weights=heard.weights if heard else (),
        reason=room.node.reason,
    )


def _replicas(snapshot: Snapshot, verdicts: Verdicts, now: float) -> tuple[ReplicaLine, ...]:
    unreachable, flights = reach(snapshot, now).unreachable, _flights(snapshot)
    kept: dict[ShardId, ShardLine] = snapshot.found.get("shard lines", {})
    lines: dict[ShardId, ShardLine] = {}
    found = []
    for row in snapshot.stored.sorted_replicas:
        shards = []
        for shard in row.shards:
            report, line = report_of(snapshot, shard), kept.get(shard.shard_id)
            if line is None or line.shard is not shard or line.report is not report:
                line = ShardLine(shard, report)
            shards.append(line)
            lines[shard.shard_id] = line
        verdict = verdicts.by_replica.get(row.replica_id)
        # Without an engine there is none that could have one; else over all member routers, or unknown.
        in_flight = 0 if verdict is None else None if flights is None else flights[row.replica_id]
        cut_off = row.replica_id in unreachable
        found.append(_replica(snapshot, row, tuple(shards), verdict, in_flight, now, unreachable=cut_off))
    snapshot.found["shard lines"] = lines
    return tuple(found)


def _replica(
    snapshot: Snapshot,
    row: ReplicaRow,
    shards: tuple[ShardLine, ...],
    verdict: Verdict | None,
    in_flight: int | None,
    now: float,
    *,
    unreachable: bool,
) -> ReplicaLine:
    reports = [line.report for line in shards if line.report is not None]
    stalled = [report.stalled_s for report in reports if report.stalled_s]
    return ReplicaLine(
        row=row,
        unreachable=unreachable,
        shards=shards,
        gpus=row.gpus_held,
        in_flight=in_flight,
        verdict=verdict,
        last_asked_at=last_asked_at(snapshot, row.replica_id, now),
        progress=progress_of(snapshot, row) if row.phase in RISING else None,
        url=endpoint_url(snapshot, row),
        probe_error=next((report.probe_error for report in reports if report.probe_error), None),
        stalled_s=max(stalled, default=None),
    )


def _model(snapshot: Snapshot, model: Model, mine: list[ReplicaLine], now: float) -> ModelLine:
    state = model_state(snapshot, model, now)
    wanted = live_rows(snapshot, model)
    flights = [line.in_flight for line in mine]
    known = [count for count in flights if count is not None]
    asked = [line.last_asked_at for line in mine if line.last_asked_at is not None]
    return ModelLine(
        model=model.name,
        aliases=model.aliases,
        availability=state.availability,
        reason=state.reason,
        wanted=len(wanted),
        ready=sum(row.replica_id in reach(snapshot, now).routable for row in wanted),
        starting=sum(row.phase in RISING for row in wanted),
        gpus=sum(line.gpus for line in mine),
        in_flight=sum(known) if len(known) == len(flights) else None,
        held=snapshot.held.get(model.name, 0),
        last_asked_at=max(asked, default=None),
        source=model.source,
        profiles=tuple(profile.name for profile in model.profiles),
        eta_s=state.eta_s,
        stopped=is_stopped(snapshot.stored, model.name),
        pinned=effective_pinned(snapshot.stored, model),
        created_at=created_at(snapshot.stored, model),
        verdict=_together([line.verdict for line in mine if line.row.phase is Phase.READY]),
    )


def _together(found: list[Verdict | None]) -> Verdict | None:
    known = [verdict for verdict in found if verdict is not None]
    busy = [verdict for verdict in known if isinstance(verdict, Busy)]
    unknown = [verdict for verdict in known if isinstance(verdict, Unknown)]
    idle = [verdict for verdict in known if isinstance(verdict, Idle)]
    if busy or unknown:
        return (busy or unknown)[0]
    if not idle:
        return None
    return Idle(min(one.for_s for one in idle), never_asked=all(one.never_asked for one in idle))


def _flights(snapshot: Snapshot) -> Counter[ReplicaId] | None:
    """Requests at each replica that has any, over all member routers; None: unknown, for a sum without one of
    them would only be a lower bound."""
    fresh = fresh_routers(snapshot)
    if snapshot.activity.map is None or any(name not in fresh for name in snapshot.stored.routers):
        return None
    return in_flight_of(snapshot)


def _node_counts(nodes: tuple[NodeLine, ...]) -> NodeCounts:
    states = [node.state for node in nodes]
    return NodeCounts(
        heard=states.count(NodeState.READY),
        silent=states.count(NodeState.UNREACHABLE) + states.count(NodeState.ENROLLED),
        lost=states.count(NodeState.LOST),
    )


def _router_counts(snapshot: Snapshot) -> RouterCounts:
    fresh = fresh_routers(snapshot)
    heard = [name for name in sorted(snapshot.stored.routers) if name in fresh]
    activity = snapshot.activity.map
    ages = [max(0.0, activity.now - fresh[name].at) for name in heard] if activity else []
    return RouterCounts(len(snapshot.stored.routers), len(heard), max(ages, default=None))
