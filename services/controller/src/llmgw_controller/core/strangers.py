"""Strangers: engines that agents run and no row knows. A controller that keeps its rows in memory finds them
after each restart of its own.

They are taken up while it learns, where model, profile and spec are what the catalog says now and the group
is whole; what is left over then is ended, as any shard that is on nobody's list.
"""

from dataclasses import dataclass

from llmgw_controller.core.catalog import Model, Profile, spec_hash
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.heard import NodeHeard, ShardReport, ShardState
from llmgw_controller.core.plan import Reserve
from llmgw_controller.core.rows import Cause, Phase, ReplicaRow, ShardRow, Stored, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import ModelId, NodeId, ReplicaId, ShardId

#: A leader without rows places nothing, and tells routers nothing, for so long: agents that lost their
#: controller call again within a second or two, and what they run comes first.
HOLD_S = 3.0

#: States of a shard that runs, or is on its way to.
_RISING = frozenset(
    {
        ShardState.FETCHING,
        ShardState.VERIFYING,
        ShardState.LAUNCHING,
        ShardState.LOADING,
        ShardState.SERVING,
    }
)

#: Phases of a row of the same name that holds nothing and may be the stranger.
_BARE = frozenset({Phase.WANTED, Phase.UNPLACEABLE})


def holds_back(snapshot: Snapshot, now: float) -> bool:
    """Too early to place anything, or to say that nothing runs."""
    return snapshot.adopts and now - snapshot.term_started < HOLD_S


def may_adopt(snapshot: Snapshot, now: float) -> bool:
    """The learning window of a leader without rows, whoever was heard."""
    return snapshot.adopts and now - snapshot.term_started < snapshot.intervals.learning_window_s


def strangers_of(heard: NodeHeard, stored: Stored) -> list[ShardReport]:
    """What an agent runs and no row knows, by shard id."""
    known = {shard.shard_id for row in stored.by_node.get(heard.node_id, ()) for shard in row.shards}
    return [
        report
        for _, report in sorted(heard.shards.items())
        if report.state is not ShardState.EXITED and report.shard_id not in known
    ]


def adopt(draft: Draft) -> None:
    """Make a row of each whole group of strangers that is what the catalog would start now."""
    if not may_adopt(draft.snapshot, draft.now):
        return
    found: dict[tuple[ReplicaId, int], list[tuple[NodeId, ShardReport]]] = {}
    for node_id in sorted(draft.snapshot.heard):
        for report in strangers_of(draft.snapshot.heard[node_id], draft.stored):
            found.setdefault((report.replica_id, report.group_epoch), []).append((node_id, report))
    # Of two groups of one replica the younger: it was started because the older was to go.
    for (replica_id, epoch), members in sorted(found.items(), key=lambda one: (one[0][0], -one[0][1])):
        group = _group(draft, replica_id, epoch, members)
        if group is not None:
            _take_up(draft, replica_id, epoch, group)


@dataclass(frozen=True)
class _Group:
    model: Model
    profile: Profile
    shards: tuple[ShardRow, ...]
    reports: tuple[ShardReport, ...]


def _group(
    draft: Draft, replica_id: ReplicaId, epoch: int, members: list[tuple[NodeId, ShardReport]]
) -> _Group | None:
    """None: not ours to take up, or not whole yet."""
    name, _, number = replica_id.rpartition("/")
    model = draft.snapshot.catalog.models.get(ModelId(name))
    row = draft.stored.replicas.get(replica_id)
    free = row is None or (row.phase in _BARE and row.wish is Wish.SERVE)
    if model is None or not number.isdecimal() or not free:
        return None
    hashes = {report.spec_hash for _, report in members}
    profile = next((one for one in model.profiles if hashes == {spec_hash(model, one)}), None)
    if profile is None or any(report.state not in _RISING for _, report in members):
        return None
    by_id = {report.shard_id: (node_id, report) for node_id, report in members}
    names = [ShardId(f"{replica_id}.{epoch}.{rank}") for rank in range(profile.nodes)]
    if sorted(by_id) != sorted(names):
        return None  # A part of it is on a node that was not heard yet, or is no part of it.
    shards = tuple(
        ShardRow(report.shard_id, node_id, rank, report.device_ids, report.ports)
        for rank, (node_id, report) in enumerate(by_id[name] for name in names)
    )
    if any(len(shard.device_ids) != profile.gpus_per_node for shard in shards) or _taken(
        draft.stored, shards
    ):
        return None
    return _Group(model, profile, shards, tuple(by_id[name][1] for name in names))


def _take_up(draft: Draft, replica_id: ReplicaId, epoch: int, group: _Group) -> None:
    kept = sum(
        row.model == group.model.name and row.cause is Cause.CONFIGURATION and row.holds_devices
        for row in draft.replicas()
    )
    cause = Cause.CONFIGURATION if kept < group.model.replicas else Cause.ACTIVATION
    serves = all(report.state is ShardState.SERVING and report.probed for report in group.reports)
    row = ReplicaRow(
        replica_id=replica_id,
        model=group.model.name,
        profile=group.profile.name,
        spec_hash=spec_hash(group.model, group.profile),
        cause=cause,
        wish=Wish.SERVE,
        phase=Phase.READY if serves else Phase.STARTING,
        reason=None,
        until=None,
        group_epoch=epoch,
        failures=0,
        created_at=draft.now,
        # A start under an earlier leader: what it took is the agents' to say.
        since=draft.now if serves else draft.snapshot.term_started - 1.0,
        ready_since=draft.now if serves else None,
        credential=next((r.credential for r in group.reports if r.credential is not None), None),
        shards=group.shards,
        story=("found running; no row knew it",),
    )
    draft.change(Reserve(row))
    nodes = ", ".join(shard.node_id for shard in group.shards)
    draft.event("adopted", replica_id, f"found running on {nodes}, as the catalog has it")


def _taken(stored: Stored, shards: tuple[ShardRow, ...]) -> bool:
    """Somebody holds a device or a port of them, or two of them the same."""
    held = [s for row in stored.replicas.values() for s in row.shards if not s.released]
    devices = {(s.node_id, device) for s in held for device in s.device_ids}
    ports = {(s.node_id, port) for s in held for _, port in s.ports}
    wanted_devices = [(s.node_id, device) for s in shards for device in s.device_ids]
    wanted_ports = [(s.node_id, port) for s in shards for _, port in s.ports]
    return bool(
        devices.intersection(wanted_devices)
        or ports.intersection(wanted_ports)
        or len(set(wanted_devices)) < len(wanted_devices)
        or len(set(wanted_ports)) < len(wanted_ports)
    )
