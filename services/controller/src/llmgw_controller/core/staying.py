"""Staying: why a replica that nobody uses is kept all the same. One set of rules for eviction, `reclaim`,
`status` and `why`, so that no two of them tell different stories.

Only what is idle beyond doubt comes here at all. It must be idle for its `idle_after_s` and ready for its
`min_residency_s` (rule 6 of idleness). Only for who has waited longer than anybody is to wait the first of
them gives way, to a time that still shows that nobody uses it now: else a replica that is asked for now
and then would keep all others out for ever.
"""

from dataclasses import dataclass
from enum import Enum

from llmgw_controller.core.activity import Idle
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.deployments import effective_pinned
from llmgw_controller.core.regret import Prices
from llmgw_controller.core.rows import Cause, Phase, ReplicaRow, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.words import lasting

#: How long nobody must have used a model whose spec names no `idle_after_s`.
IDLE_AFTER_S = 3600.0


class Why(Enum):
    """Stable words, in the order they are asked."""

    NOT_READY = "not_ready"
    LEAVING = "leaving"
    PINNED = "pinned"
    ASKED_FOR = "asked_for"
    PRIORITY = "priority"
    CONFIGURED = "configured"
    LET_BE = "let_be"
    RESIDENCY = "residency"
    USED_LATELY = "used_lately"
    BUDGET = "budget"


@dataclass(frozen=True)
class Kept:
    why: Why
    text: str
    #: When time alone lets it go, term clock, should nobody use it; None: time alone never does.
    until: float | None = None


@dataclass(frozen=True)
class Asker:
    """Who wants the replica gone."""

    #: Of the model that needs the room; None: an operator, who is above all of them.
    priority: int | None = None
    #: Idle for so long is enough, whatever the model says; None: as the model says.
    idle_s: float | None = None
    #: It has waited for longer than anybody is to wait: this much of idleness is enough, and what was learnt
    #: from loads and regret gives way. None: it has not.
    overdue_idle_s: float | None = None


def kept(
    snapshot: Snapshot, row: ReplicaRow, model: Model, idle: Idle, asker: Asker, prices: Prices, now: float
) -> Kept | None:
    """What keeps it; None: it may go."""
    if row.wish is not Wish.SERVE:
        return Kept(Why.LEAVING, "it is leaving already")
    if row.phase is not Phase.READY or row.ready_since is None:
        return Kept(Why.NOT_READY, f"it is {row.phase.value}")
    if effective_pinned(snapshot.stored, model):
        return Kept(Why.PINNED, "pinned")
    if snapshot.held.get(model.name) or model.name in snapshot.stored.activations:
        return Kept(Why.ASKED_FOR, "requests wait for its model")
    return _ranked(row, model, asker) or _timed(row, model, idle, asker, prices, now)


def idle_needed_s(model: Model, asker: Asker) -> float:
    """How long nobody must have used it."""
    if asker.idle_s is not None:
        return asker.idle_s
    needed_s = model.idle_after_s if model.idle_after_s is not None else IDLE_AFTER_S
    return needed_s if asker.overdue_idle_s is None else min(needed_s, asker.overdue_idle_s)


def _ranked(row: ReplicaRow, model: Model, asker: Asker) -> Kept | None:
    if asker.priority is None:
        if row.cause is Cause.CONFIGURATION:
            return Kept(Why.CONFIGURED, f"configuration keeps {model.replicas}: another would be started")
        return None
    if model.priority > asker.priority:
        return Kept(Why.PRIORITY, f"its priority {model.priority} is above {asker.priority}")
    if row.cause is Cause.CONFIGURATION and model.priority == asker.priority:
        # It would be wanted again at once, and by the same right: the two would take turns.
        text = f"configuration keeps {model.replicas}, and its priority {model.priority} is not below"
        return Kept(Why.CONFIGURED, text)
    return None


def _timed(
    row: ReplicaRow, model: Model, idle: Idle, asker: Asker, prices: Prices, now: float
) -> Kept | None:
    assert row.ready_since is not None
    if row.until is not None and now < row.until:
        text = f"a drain of it was cancelled: let be for {lasting(row.until - now)} more"
        return Kept(Why.LET_BE, text, row.until)
    overdue = asker.overdue_idle_s is not None
    stays_s = prices.residency_s(model, model.profile(row.profile), overdue=overdue)
    if now - row.ready_since < stays_s:
        until = row.ready_since + stays_s
        text = f"ready for {lasting(now - row.ready_since)}; stays for {lasting(until - now)} more"
        return Kept(Why.RESIDENCY, text, until)
    needed_s = idle_needed_s(model, asker)
    if idle.for_s < needed_s:
        text = f"idle for {lasting(idle.for_s)} of {lasting(needed_s)}"
        return Kept(Why.USED_LATELY, text, now + needed_s - idle.for_s)
    return None
