"""Measured starts: recorded when a replica becomes ready, read as an ETA."""

from collections.abc import Sequence
from dataclasses import dataclass

from llmgw_controller.core.catalog import Profile
from llmgw_controller.core.hearing import report_of
from llmgw_controller.core.state import LoadRecord, ReplicaRow, Snapshot
from llmgw_kit.ids import ModelId


@dataclass(frozen=True)
class Eta:
    """Seconds from placing to ready, of the newest starts of the same model, profile and class."""

    p50_s: float
    p90_s: float
    samples: int


def measured(snapshot: Snapshot, row: ReplicaRow, now: float) -> LoadRecord | None:
    """The start that ends `now`: what a waiting client sees, fetching and probe included. A start under
    another leader may have ended unseen: then the agents' own measure, or none."""
    model = snapshot.catalog.models.get(row.model)
    profile = model.profile(row.profile) if model else None
    if profile is None:
        return None
    seconds: float | None = now - row.since
    if row.since < snapshot.term_started:
        known = [
            report.load_s
            for shard in row.shards
            if (report := report_of(snapshot, shard)) and report.load_s is not None
        ]
        seconds = max(known) if len(known) == len(row.shards) else None
    return (
        LoadRecord(row.model, row.profile, profile.gpu_class, seconds, now) if seconds is not None else None
    )


def eta(loads: Sequence[LoadRecord], model: ModelId, profile: Profile) -> Eta | None:
    """None when nothing was measured: unknown, not quick."""
    found = sorted(
        load.seconds
        for load in loads
        if (load.model, load.profile, load.gpu_class) == (model, profile.name, profile.gpu_class)
    )
    if not found:
        return None
    return Eta(_quantile(found, 0.5), _quantile(found, 0.9), len(found))


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that `share` of them do not exceed (nearest rank)."""
    rank = -(-len(ordered) * share // 1)
    return ordered[max(0, int(rank) - 1)]
