"""Holdings: what idle replicas hold, for how long, and what it costs to bring each back.

Idle and unknown never stand in one list: what nobody could watch without a gap may be in use.
"""

from dataclasses import dataclass, replace

from llmgw_controller.core.activity import Idle, Unknown, Verdicts
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.hearing import is_learning
from llmgw_controller.core.idleness import last_asked_at
from llmgw_controller.core.plan import Change, PutEvent, PutReplica, Severity
from llmgw_controller.core.regret import prices
from llmgw_controller.core.replica import with_wish
from llmgw_controller.core.rows import Phase, ReplicaRow, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.staying import Asker, Kept, kept
from llmgw_controller.core.words import counted, lasting
from llmgw_kit.ids import ModelId, ReplicaId


@dataclass(frozen=True)
class Holding:
    """An idle replica as a holder of devices."""

    replica_id: ReplicaId
    model: ModelId
    gpu_class: str
    gpus: int
    idle_s: float
    never_asked: bool
    #: Term clock; None: never, as far as the map goes back.
    last_asked_at: float | None
    #: Measured; None: never.
    reload_s: float | None
    #: Why it stays all the same; None: it may go.
    kept: Kept | None

    @property
    def gpu_hours(self) -> float:
        """Held since it was last asked for."""
        return self.gpus * self.idle_s / 3600


@dataclass(frozen=True)
class Opaque:
    """A replica of which nobody can tell whether it is used."""

    replica_id: ReplicaId
    model: ModelId
    reason: str
    gpus: int


@dataclass(frozen=True)
class Holdings:
    #: Most GPU-hours first.
    idle: tuple[Holding, ...]
    unknown: tuple[Opaque, ...]

    @property
    def may_go(self) -> tuple[Holding, ...]:
        return tuple(one for one in self.idle if one.kept is None)


@dataclass(frozen=True)
class LetGo:
    """What becomes of one replica that is reclaimed, for the operator."""

    row: ReplicaRow
    text: str
    gpus: int


def holdings(
    snapshot: Snapshot,
    verdicts: Verdicts,
    now: float,
    *,
    idle_s: float | None = None,
    model: ModelId | None = None,
) -> Holdings:
    """Of the whole fleet or of one model. `idle_s`: what counts as long enough; None: what each model says,
    or an hour."""
    asker, costs = Asker(idle_s=idle_s), prices(snapshot, now)
    idle: list[Holding] = []
    unknown: list[Opaque] = []
    for replica_id, verdict in sorted(verdicts.by_replica.items()):
        row = snapshot.stored.replicas.get(replica_id)
        if row is None or row.phase is not Phase.READY or model not in (None, row.model):
            continue
        theirs = snapshot.catalog.models.get(row.model)
        match verdict:
            case Unknown(reason):
                unknown.append(Opaque(replica_id, row.model, reason, row.gpus_held))
            case Idle() if theirs is not None:
                profile = theirs.profile(row.profile)
                idle.append(
                    Holding(
                        replica_id=replica_id,
                        model=row.model,
                        gpu_class=_gpu_class(snapshot, row, theirs),
                        gpus=row.gpus_held,
                        idle_s=verdict.for_s,
                        never_asked=verdict.never_asked,
                        last_asked_at=last_asked_at(snapshot, replica_id, now),
                        reload_s=costs.reload_s(theirs, profile),
                        kept=kept(snapshot, row, theirs, verdict, asker, costs, now),
                    )
                )
    return Holdings(
        tuple(sorted(idle, key=lambda one: (-one.gpu_hours, one.replica_id))),
        tuple(sorted(unknown, key=lambda one: (-one.gpus, one.replica_id))),
    )


def let_go_idle(
    snapshot: Snapshot, found: Holdings, now: float
) -> tuple[tuple[LetGo, ...], tuple[Change, ...]]:
    """What is written when all that may go is let go, and how each is told. A drain that is taken back when a
    router does not acknowledge it: who asked for this wanted nobody's request cut."""
    gone: list[LetGo] = []
    changes: list[Change] = []
    for one in found.may_go:
        row = snapshot.stored.replicas[one.replica_id]
        because = f"reclaimed by operator: idle {lasting(one.idle_s)}"
        leaving = replace(with_wish(row, Wish.DRAIN, because=because), revocable=True)
        changes += [
            PutReplica(leaving),
            PutEvent(now, "leaving", one.replica_id, because, Severity.INFO),
        ]
        text = (
            f"{one.replica_id} drains: when every router has put it aside its {counted(one.gpus, 'GPU')} "
            f"{'comes' if one.gpus == 1 else 'come'} free; should a router not answer, it serves on"
        )
        gone.append(LetGo(leaving, text, one.gpus))
    return tuple(gone), tuple(changes)


def may_reclaim(snapshot: Snapshot, now: float) -> str | None:
    """Why nothing is let go just now; None: it may be."""
    if is_learning(snapshot, now):
        return "a new leader has not heard all nodes yet"
    return None


def _gpu_class(snapshot: Snapshot, row: ReplicaRow, model: Model) -> str:
    profile = model.profile(row.profile)
    if profile is not None:
        return profile.gpu_class
    # Its profile has left the catalog; what it holds has not changed by that.
    classes = {
        device.gpu_class
        for shard in row.shards
        if (node := snapshot.stored.nodes.get(shard.node_id)) is not None
        for device in node.devices
        if device.device_id in shard.device_ids
    }
    return ", ".join(sorted(classes))
