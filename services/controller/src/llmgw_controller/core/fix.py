"""One way to make a replica fit, with its price."""

from dataclasses import dataclass

from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.loads import eta
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import ReplicaId


@dataclass(frozen=True)
class Fix:
    """One way to make it fit, with its price. Times are seconds from now; None: never measured."""

    #: To be typed as it stands; None: nothing to type, only to wait for or to decide.
    command: str | None
    text: str
    frees_in_s: float | None = None
    ready_in_s: float | None = None
    reload_s: float | None = None
    #: What leaves for it.
    leaving: tuple[ReplicaId, ...] = ()


def ready_in(snapshot: Snapshot, model: Model, profile: Profile) -> float | None:
    """From placing to ready, the median of what was measured."""
    known = eta(snapshot.stored.loads, model.name, profile)
    return known.p50_s if known is not None else None
