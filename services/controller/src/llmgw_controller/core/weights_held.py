"""Weights on the nodes: who holds what, who uses it, who wants it, and where it could be brought.

The agents' own word comes first: each names the shards it started from a version. The rows add what no
agent has taken up yet, so that a replica just placed counts as a user.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from llmgw_controller.core.catalog import Catalog, Model, Weights
from llmgw_controller.core.claims import rooms
from llmgw_controller.core.explain import Reason
from llmgw_controller.core.heard import HeldWeights, NodeHeard
from llmgw_controller.core.placement import explain
from llmgw_controller.core.rollout import is_current
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import ModelId, NodeId, ReplicaId

#: What keeps weights from being of use on a node for as long as it is as it is; to be full is none of it.
_USELESS = frozenset(
    {
        Reason.WRONG_CLASS,
        Reason.TOO_FEW_DEVICES,
        Reason.TOO_LITTLE_MEMORY,
        Reason.NOT_WHOLE,
        Reason.POOL,
        Reason.PINNED_ELSEWHERE,
        Reason.NO_FABRIC,
        Reason.LOST,
        Reason.UNREACHABLE,
        Reason.NOT_HEARD,
        Reason.ENGINE_MISSING,
    }
)


@dataclass(frozen=True)
class WeightsLine:
    """One version on one node."""

    node_id: NodeId
    held: HeldWeights
    used_by: tuple[ReplicaId, ...]
    #: A model of the catalog names this version.
    wanted: bool
    disk_free_bytes: int | None


@dataclass(frozen=True)
class Pressure:
    """A node whose disk does not take a version it may be asked to fetch."""

    node_id: NodeId
    free_bytes: int
    model: ModelId
    version: str
    needed_bytes: int
    #: Held there, complete, and wanted by no model of the catalog: what may go.
    spare_bytes: int


def weights_lines(snapshot: Snapshot) -> tuple[WeightsLine, ...]:
    """By node, model, version; of nodes heard in this term."""
    return tuple(
        WeightsLine(
            node_id,
            held,
            users_on(snapshot, node_id, held.model, held.version),
            is_wanted(snapshot.catalog, held.model, held.version),
            heard.disk_free_bytes,
        )
        for node_id, heard in sorted(snapshot.heard.items())
        for held in heard.weights
    )


def is_wanted(catalog: Catalog, model: str, version: str) -> bool:
    found = catalog.models.get(ModelId(model))
    return found is not None and found.weights is not None and found.weights.version == version


def users_on(snapshot: Snapshot, node_id: NodeId, model: str, version: str) -> tuple[ReplicaId, ...]:
    """Replicas with a shard there that has not exited and maps, or will map, the version."""
    heard = snapshot.heard.get(node_id)
    found: set[ReplicaId] = set()
    if heard is not None:
        for held in heard.weights:
            if (held.model, held.version) == (model, version):
                found.update(_replica(heard, shard_id) for shard_id in held.shard_ids)
    current = snapshot.catalog.models.get(ModelId(model))
    if current is not None and is_wanted(snapshot.catalog, model, version):
        found.update(
            row.replica_id
            for row in snapshot.stored.replicas.values()
            if row.model == current.name
            and is_current(row, current)
            and any(shard.node_id == node_id and not shard.released for shard in row.shards)
        )
    return tuple(sorted(found))


def _replica(heard: NodeHeard, shard_id: str) -> ReplicaId:
    report = next((one for name, one in heard.shards.items() if name == shard_id), None)
    # A shard is named by its replica, its group epoch and its rank.
    return report.replica_id if report is not None else ReplicaId(shard_id.rsplit(".", 2)[0])


def holders(snapshot: Snapshot, model: str, version: str) -> tuple[NodeId, ...]:
    """Nodes that hold any of it."""
    return tuple(
        node_id
        for node_id, heard in sorted(snapshot.heard.items())
        if any((held.model, held.version) == (model, version) for held in heard.weights)
    )


def useful_on(snapshot: Snapshot, model: Model, now: float) -> tuple[NodeId, ...]:
    """Nodes that a profile of the model could be placed on, were they empty; from the planner's filters."""
    found = rooms(snapshot, now)
    useless: list[set[NodeId]] = []
    for profile in model.profiles:
        explanation = explain(model, profile, found)
        useless.append(
            {
                node_id
                for filtered in explanation.filters
                if filtered.reason in _USELESS
                for node_id in filtered.node_ids
            }
        )
    return tuple(node_id for node_id in found if any(node_id not in one for one in useless))


def size_of(snapshot: Snapshot, model: ModelId, weights: Weights) -> int | None:
    """Bytes of a version: as its catalog entry says, else as some node holds it; None: nobody knows."""
    sizes = [file.size_bytes for file in weights.files]
    known = [size for size in sizes if size is not None]
    if sizes and len(known) == len(sizes):
        return sum(known)
    return _held_sizes(snapshot).get((model, weights.version))


def _held_sizes(snapshot: Snapshot) -> dict[tuple[str, str], int]:
    """(model, version) -> bytes, as the first node says that holds all of it."""
    before: tuple[object, dict[tuple[str, str], int]] | None = snapshot.found.get("held sizes")
    if before is None or before[0] is not snapshot.heard:
        found: dict[tuple[str, str], int] = {}
        for _, heard in sorted(snapshot.heard.items()):
            for held in heard.weights:
                if held.complete:
                    found.setdefault((held.model, held.version), held.size_bytes)
        before = snapshot.found["held sizes"] = (snapshot.heard, found)
    return before[1]


def pressure(snapshot: Snapshot) -> Iterator[Pressure]:
    """Connected nodes whose disk has less free than the largest version they could be asked to fetch."""
    wanted = [
        (size, model.name, model.weights.version, {profile.gpu_class for profile in model.profiles})
        for model in snapshot.catalog.sorted_models()
        if model.weights is not None and (size := size_of(snapshot, model.name, model.weights)) is not None
    ]
    wanted.sort(key=lambda one: one[:3], reverse=True)
    for node_id, heard in sorted(snapshot.heard.items()):
        if not heard.connected or heard.disk_free_bytes is None:
            continue
        classes = {device.gpu_class for device in heard.devices}
        complete = {(held.model, held.version) for held in heard.weights if held.complete}
        # The largest that is missing is the first one met, and what the disk takes is no trouble: on a
        # healthy node the first look is the last.
        for size, name, version, fits in wanted:
            if size <= heard.disk_free_bytes:
                break
            if fits.isdisjoint(classes) or (name, version) in complete:
                continue
            spare = sum(
                held.size_bytes
                for held in heard.weights
                if not is_wanted(snapshot.catalog, held.model, held.version) and not held.shard_ids
            )
            yield Pressure(node_id, heard.disk_free_bytes, name, version, size, spare)
            break
