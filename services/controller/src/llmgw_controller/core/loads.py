"""Measured starts: recorded when a replica becomes ready, read as an ETA.

A start whose weights are on the node already is another thing than one that fetches them first, by minutes.
So each record says which it was, and an ETA is made of those that are alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.heard import ShardReport
from llmgw_controller.core.hearing import report_of
from llmgw_controller.core.rows import LoadRecord, ReplicaRow, Stored
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import ModelId


@dataclass(frozen=True)
class Eta:
    """Seconds from placing to ready, of the newest starts of the same model, profile and class."""

    p50_s: float
    p90_s: float
    samples: int


def measured(snapshot: Snapshot, row: ReplicaRow, now: float) -> LoadRecord | None:
    """The start that ends `now`: what a waiting client sees, fetching and probe included, and its parts as
    the slowest shard's agent measured them. A start under another leader may have ended unseen: then the
    agents' own measure, or none."""
    model = snapshot.catalog.models.get(row.model)
    profile = model.profile(row.profile) if model else None
    if profile is None:
        return None
    reports = [report for shard in row.shards if (report := report_of(snapshot, shard)) is not None]
    whole = len(reports) == len(row.shards)
    seconds: float | None = now - row.since
    if row.since < snapshot.term_started:
        known = [own for report in reports if (own := _own_s(report)) is not None]
        seconds = max(known) if len(known) == len(row.shards) else None
    if seconds is None:
        return None
    versions = {report.engine_version for report in reports}
    return LoadRecord(
        model=row.model,
        profile=row.profile,
        gpu_class=profile.gpu_class,
        seconds=seconds,
        at=now,
        fetch_s=_slowest([report.fetch_s for report in reports]) if whole else None,
        load_s=_slowest([report.load_s for report in reports]) if whole else None,
        warm_up_s=_slowest([report.warm_up_s for report in reports]) if whole else None,
        weights_here=snapshot.watched.held_before.get(row.endpoint_id),
        memory_bytes=max((used for report in reports for _, used in report.memory_used_bytes), default=None),
        engine_version=versions.pop() if len(versions) == 1 else None,
        spec_hash=row.spec_hash,
    )


def eta(
    loads: Sequence[LoadRecord], model: ModelId, profile: Profile, *, here: bool | None = None
) -> Eta | None:
    """None when nothing alike was measured: unknown, not quick.

    `here`: the weights are on the nodes already, or are not; None: as often as not. A start that fetched
    says what it would have taken without; one that did not says nothing of fetching."""
    found = sorted(
        seconds
        for load in loads
        if (load.model, load.profile, load.gpu_class) == (model, profile.name, profile.gpu_class)
        and (seconds := _as_if(load, here=here)) is not None
    )
    if not found:
        return None
    return Eta(quantile(found, 0.5), quantile(found, 0.9), len(found))


def eta_of(stored: Stored, model: Model, profile: Profile, *, here: bool | None = None) -> Eta | None:
    """As `eta`, from the rows: a catalog of many models asks this of each at every pass."""
    return eta(stored.loads_of.get(model.name, ()), model.name, profile, here=here)


def held_somewhere(snapshot: Snapshot, model: Model, profile: Profile) -> bool | None:
    """Whether enough nodes for one replica hold the weights; placement prefers those. None: it needs none."""
    if model.weights is None:
        return None
    holders = snapshot.holders.get((model.name, model.weights.version), frozenset())
    return len(holders) >= profile.nodes


def held_where_placed(snapshot: Snapshot, row: ReplicaRow, model: Model) -> bool | None:
    """Whether all nodes of the replica hold the weights now; None: it needs none."""
    if model.weights is None:
        return None
    holders = snapshot.holders.get((model.name, model.weights.version), frozenset())
    return all(shard.node_id in holders for shard in row.shards)


def _as_if(load: LoadRecord, *, here: bool | None) -> float | None:
    """What this start says of one with the weights `here`; None: nothing."""
    if here is None or load.weights_here is None or load.weights_here is here:
        return load.seconds
    if here and load.fetch_s is not None:
        return max(0.0, load.seconds - load.fetch_s)
    return None


def _own_s(report: ShardReport) -> float | None:
    """A shard's start as its agent measured it: without `load_s` there is nothing to add to."""
    if report.load_s is None:
        return None
    return (report.fetch_s or 0.0) + report.load_s + (report.warm_up_s or 0.0)


def _slowest(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return max(known) if known and len(known) == len(parts) else None


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that `share` of them do not exceed (nearest rank)."""
    rank = -(-len(ordered) * share // 1)
    return ordered[max(0, int(rank) - 1)]
