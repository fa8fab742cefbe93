"""Scale: how many replicas of each model there are to be, and which leave when there are too many."""

from dataclasses import replace

from llmgw_controller.core.activity import Idle
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.deployments import STOPPED, is_stopped
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.hearing import is_learning
from llmgw_controller.core.idleness import may_leave
from llmgw_controller.core.plan import PutReplica
from llmgw_controller.core.replica import is_unreachable
from llmgw_controller.core.rollout import outdated, roll, surge_most
from llmgw_controller.core.roster import IDLE, create, let_go, live
from llmgw_controller.core.state import Cause, Phase, ReplicaRow

#: Who leaves first when there are too many: those that serve nobody.
_LEAVE_ORDER = (
    Phase.UNPLACEABLE,
    Phase.WANTED,
    Phase.FAILED,
    Phase.BACKOFF,
    Phase.RESERVED,
    Phase.STARTING,
    Phase.READY,
)


def adjust(draft: Draft) -> None:
    """Create, let go, and replace, model by model."""
    for name in sorted({*draft.snapshot.catalog.models, *draft.stored.by_model}):
        model = draft.snapshot.catalog.models.get(name)
        if model is not None and is_stopped(draft.stored, model.name):
            for row in live(draft, name):
                let_go(draft, row, because=STOPPED)
        elif model is not None:
            _adopt(draft, model)
            _create(draft, model)
            roll(draft, model, target(draft, model))
            _shrink(draft, model)
            _retire(draft, model)
        elif name not in draft.stored.models:
            # A stored model that the catalog does not show could not be read: that is no removal.
            for row in live(draft, name):
                let_go(draft, row, because="model removed")


def target(draft: Draft, model: Model) -> int:
    """What configuration keeps up, or one for whoever asked until it is let go as idle."""
    if is_stopped(draft.stored, model.name):
        return 0
    rows = live(draft, model.name)
    asked = model.name in draft.stored.activations
    if asked and rows and not is_learning(draft.snapshot, draft.now):
        cut_off = [row for row in rows if is_unreachable(row, draft.snapshot, draft.now)]
        if len(cut_off) == len(rows):
            # All silent, none lost yet, and somebody waits: one more, cancelled if they come back first.
            return max(model.replicas, len(rows) + 1)
    activated = asked or any(row.cause is Cause.ACTIVATION for row in rows)
    return max(model.replicas, 1 if activated else 0)


def _adopt(draft: Draft, model: Model) -> None:
    """A replica that a request started becomes one that configuration keeps, when that wants more."""
    rows = live(draft, model.name)
    missing = model.replicas - sum(row.cause is Cause.CONFIGURATION for row in rows)
    for row in [row for row in rows if row.cause is Cause.ACTIVATION][: max(0, missing)]:
        draft.change(PutReplica(replace(row, cause=Cause.CONFIGURATION)))


def _create(draft: Draft, model: Model) -> None:
    rows = live(draft, model.name)
    for position in range(len(rows), target(draft, model)):
        create(draft, model, Cause.CONFIGURATION if position < model.replicas else Cause.ACTIVATION)


def _shrink(draft: Draft, model: Model) -> None:
    if is_learning(draft.snapshot, draft.now):
        return
    rows = live(draft, model.name)
    wanted = target(draft, model)
    in_reach = [row for row in rows if not is_unreachable(row, draft.snapshot, draft.now)]
    # Those too many that a rollout has started are its own to end. And those out of reach are not
    # counted on: nothing that serves leaves because of them.
    surge = surge_most(draft, model, rows)
    surplus = min(len(rows) - wanted - surge, len(in_reach) - wanted)
    if surplus <= 0:
        return

    def leaves_first(row: ReplicaRow) -> tuple[int, bool, bool, float, int]:
        verdict = draft.verdicts.by_replica.get(row.replica_id)
        idle_s = verdict.for_s if isinstance(verdict, Idle) else -1.0
        return (
            _LEAVE_ORDER.index(row.phase),
            not outdated(draft, row, model),
            row.cause is Cause.CONFIGURATION,
            -idle_s,
            -int(row.replica_id.rpartition("/")[2]),
        )

    for row in sorted(in_reach, key=leaves_first)[:surplus]:
        let_go(draft, row, because=f"{len(rows)} replicas, {wanted} wanted")


def _retire(draft: Draft, model: Model) -> None:
    """Let go of what a request started, once nobody wants it: idle beyond doubt, or never come up."""
    if model.name in draft.stored.activations or is_learning(draft.snapshot, draft.now):
        return
    # What did not come up stays for a while: it is the answer to whoever asks meanwhile, trouble to see, and
    # first in line for room that comes free, for whoever was refused was told to come again.
    kept_s = draft.snapshot.intervals.backoff_max_s
    rows = live(draft, model.name)
    # What a rollout has started in the place of one that serves is its own to end, though nobody asks.
    replacing = any(row.phase is Phase.READY and outdated(draft, row, model) for row in rows)
    for row in rows:
        if row.cause is not Cause.ACTIVATION:
            continue
        age_s = draft.now - row.since
        if row.phase is Phase.READY:
            if may_leave(draft.snapshot, row, model, draft.verdicts, draft.now):
                let_go(draft, row, because=IDLE, revocable=True)
        elif row.phase in (Phase.WANTED, Phase.BACKOFF) and not replacing:
            let_go(draft, row, because="nobody asks for it any more")
        elif row.phase in (Phase.UNPLACEABLE, Phase.FAILED) and age_s >= kept_s:
            let_go(draft, row, because="it did not come up")
