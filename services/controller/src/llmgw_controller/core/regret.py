"""Regret: what it costs to have let a model go, learnt from evictions that proved wrong.

A victim whose model is asked for again within a few of its own load times should have stayed. Each such
receipt of the last day doubles what the model counts in the next choice, and how long it is let be.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.loads import quantile
from llmgw_controller.core.plan import PutEviction, Severity
from llmgw_controller.core.rows import Cause, EvictionRow, EvictionState, LoadRecord, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.words import lasting
from llmgw_kit.ids import ModelId

#: Older regret is forgotten: use changes from day to day.
REMEMBERED_S = 86_400.0

#: A model regretted more often than this is not held any dearer: eight times is enough.
DOUBLINGS_MOST = 3


@dataclass(frozen=True)
class Prices:
    """Medians of measured loads and the weight of regret, made once for many questions of one moment."""

    #: (model, profile, GPU class) -> seconds from placing to ready.
    medians: dict[tuple[str, str, str], float]
    regrets: dict[ModelId, int]
    residency_loads: float

    def reload_s(self, model: Model, profile: Profile | None) -> float | None:
        """Measured cost of bringing it back; None: never measured."""
        if profile is None:
            return None
        return self.medians.get((model.name, profile.name, profile.gpu_class))

    def weight(self, model: ModelId) -> int:
        """1, and twice as much for each regret."""
        return 1 << min(self.regrets.get(model, 0), DOUBLINGS_MOST)

    def cost_s(self, model: Model, profile: Profile | None) -> float:
        """What its leaving counts in a choice. A load that was never measured may take all the time that its
        profile allows: unknown is dear, not free."""
        seconds = self.reload_s(model, profile)
        if seconds is None:
            seconds = profile.ready_timeout_s if profile is not None else model.min_residency_s
        return seconds * self.weight(model.name)

    def residency_s(self, model: Model, profile: Profile | None, *, overdue: bool = False) -> float:
        """How long it is left alone once it is ready. The catalog's minimum always counts; what the measured
        load and regret add gives way when somebody has waited too long."""
        seconds = self.reload_s(model, profile)
        if overdue or seconds is None:
            return model.min_residency_s
        return max(model.min_residency_s, self.residency_loads * seconds * self.weight(model.name))


def prices(snapshot: Snapshot, now: float) -> Prices:
    """Of all models, from the newest starts and the receipts of the last day."""
    return Prices(
        _medians(snapshot.stored.loads),
        _regrets(snapshot, now),
        snapshot.intervals.residency_loads,
    )


def note_regrets(draft: Draft) -> None:
    """Mark the receipts whose victim is asked for again too soon."""
    for key in sorted(draft.stored.evictions):
        receipt = draft.stored.evictions[key]
        if receipt.state is not EvictionState.DONE or receipt.regretted_at is not None:
            continue
        if receipt.freed_at is None or draft.now > receipt.freed_at + _window_s(draft.snapshot, receipt):
            continue
        if not _asked_again(draft, receipt):
            continue
        draft.change(PutEviction(replace(receipt, regretted_at=draft.now)))
        later = lasting(draft.now - receipt.freed_at)
        text = f"asked for again {later} after it left for {receipt.beneficiary_model}: let be for longer"
        draft.event("eviction_regretted", receipt.victim_replica_id, text, Severity.NOTE)


def _window_s(snapshot: Snapshot, receipt: EvictionRow) -> float:
    """A load that was never measured is taken for its model's minimum residency."""
    if receipt.reload_s is not None:
        return snapshot.intervals.regret_loads * receipt.reload_s
    model = snapshot.catalog.models.get(receipt.victim_model)
    return model.min_residency_s if model is not None else 0.0


def _asked_again(draft: Draft, receipt: EvictionRow) -> bool:
    """By somebody's request. A replica that configuration wants is wanted anyhow, and says nothing."""
    name = receipt.victim_model
    return (
        name in draft.stored.activations
        or bool(draft.snapshot.held.get(name))
        or any(
            row.wish is Wish.SERVE and row.cause is Cause.ACTIVATION and row.created_at > receipt.decided_at
            for row in draft.stored.by_model.get(name, ())
        )
    )


def _medians(loads: Sequence[LoadRecord]) -> dict[tuple[str, str, str], float]:
    found: dict[tuple[str, str, str], list[float]] = {}
    for load in loads:
        found.setdefault((load.model, load.profile, load.gpu_class), []).append(load.seconds)
    return {key: quantile(sorted(seconds), 0.5) for key, seconds in found.items()}


def _regrets(snapshot: Snapshot, now: float) -> dict[ModelId, int]:
    found: dict[ModelId, int] = {}
    for receipt in snapshot.stored.evictions.values():
        if receipt.regretted_at is not None and now - receipt.regretted_at <= REMEMBERED_S:
            found[receipt.victim_model] = found.get(receipt.victim_model, 0) + 1
    return found
