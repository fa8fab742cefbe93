"""Whether a model can be used now; the word that routers and operators are both told."""

from dataclasses import dataclass
from enum import Enum

from llmgw_controller.core.activation import Pending, Refused, cold_eta_s, decide
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.deployments import STOPPED, is_stopped
from llmgw_controller.core.reach import reach
from llmgw_controller.core.rows import ReplicaRow, Wish
from llmgw_controller.core.state import Snapshot


class Availability(Enum):
    READY = "ready"
    STARTING = "starting"
    COLD = "cold"
    #: Wanted, but cannot run now.
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True)
class ModelState:
    availability: Availability
    #: With UNAVAILABLE, why; with STARTING, how far.
    reason: str | None
    #: Until ready, seconds; None: nothing was measured, or it takes longer than ever measured.
    eta_s: float | None


def model_state(snapshot: Snapshot, model: Model, now: float) -> ModelState:
    rows = live_rows(snapshot, model)
    routable = reach(snapshot, now).routable
    if any(row.replica_id in routable for row in rows):
        return ModelState(Availability.READY, None, None)
    if is_stopped(snapshot.stored, model.name):
        return ModelState(Availability.UNAVAILABLE, STOPPED, None)
    if not rows:
        return ModelState(Availability.COLD, None, cold_eta_s(snapshot, model))
    decision = decide(snapshot, model.name, now)
    if isinstance(decision, Refused):
        return ModelState(Availability.UNAVAILABLE, decision.text, None)
    assert isinstance(decision, Pending)
    if decision.phase == "unreachable":
        return ModelState(Availability.UNAVAILABLE, "its node is unreachable", None)
    return ModelState(Availability.STARTING, decision.phase, decision.eta_s)


def live_rows(snapshot: Snapshot, model: Model) -> list[ReplicaRow]:
    return [row for row in snapshot.stored.by_model.get(model.name, ()) if row.wish is Wish.SERVE]
