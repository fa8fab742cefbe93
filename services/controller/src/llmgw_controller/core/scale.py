"""Scale: how many replicas of each model there are to be, and which leave when there are too many.

Up by one at a time, when requests have waited without a break and the newest replica had time to help.
What a request or a load has brought up leaves only because it is idle: a load that comes and goes never
stops what it may use again. What is more than configuration and demand want, as after a lower `replicas`
or where a rollout or a silent node had brought in another, leaves at once, those that serve nobody first;
it drains.
"""

from dataclasses import replace

from llmgw_controller.core.activity import Busy, Idle
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.deployments import STOPPED, effective_pinned, is_stopped
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.earmarks import owed
from llmgw_controller.core.hearing import is_learning
from llmgw_controller.core.idleness import may_leave
from llmgw_controller.core.plan import PutReplica
from llmgw_controller.core.replica import is_unreachable
from llmgw_controller.core.rollout import outdated, roll, surge_most
from llmgw_controller.core.roster import IDLE, cancel_drain, create, let_go, live
from llmgw_controller.core.rows import Cause, Phase, ReplicaRow, Wish
from llmgw_controller.core.state import EvictionPolicy, Intervals
from llmgw_kit.ids import ModelId

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

#: On its way up, or waiting to be: until it serves or is given up, nobody knows whether one more helps.
_RISING = frozenset({Phase.WANTED, Phase.UNPLACEABLE, Phase.RESERVED, Phase.STARTING, Phase.BACKOFF})


def adjust(draft: Draft) -> None:
    """Create, let go, and replace, model by model. One that found nothing to do in an earlier round, and of
    which nothing has moved since, finds nothing now."""
    for name in sorted({*draft.snapshot.catalog.models, *draft.stored.by_model}):
        rows = draft.stored.by_model.get(name, ())
        if draft.moves_no_more(f"adjust {name}", rows):
            continue
        before = (draft.moves, draft.looks)
        _adjust(draft, name)
        if before == (draft.moves, draft.looks):
            draft.rests(f"adjust {name}", rows)


def _adjust(draft: Draft, name: ModelId) -> None:
    model = draft.snapshot.catalog.models.get(name)
    if model is not None and is_stopped(draft.stored, model.name):
        for row in live(draft, name):
            let_go(draft, row, because=STOPPED)
    elif model is not None:
        _call_back(draft, model)
        _adopt(draft, model)
        _create(draft, model)
        _grow(draft, model)
        roll(draft, model, target(draft, model))
        _shrink(draft, model)
        _retire(draft, model)
    elif name not in draft.stored.models:
        # A stored model that the catalog does not show could not be read: that is no removal.
        for row in live(draft, name):
            let_go(draft, row, because="model removed")


def target(draft: Draft, model: Model, *, more: int = 0) -> int:
    """What configuration keeps up, or one for whoever asked until it is let go as idle; and those that
    were added because requests waited, with `more` as if there were so many more of these."""
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
    base = max(model.replicas, 1 if activated else 0)
    return max(base, _grown(draft, model, rows, base, more))


def _grown(draft: Draft, model: Model, rows: list[ReplicaRow], base: int, more: int) -> int:
    """With those that were added. While a rollout is under way each of them may stand there twice, old and
    new, so then it is as many as before."""
    if model.max_replicas is None:
        return 0
    added = more + sum(row.cause is Cause.DEMAND for row in rows)
    standing = draft.snapshot.watched.standing.get(model.name)
    if added and standing is not None and any(_is_replaced(draft, row, model) for row in rows):
        return min(model.max_replicas, standing)
    return min(model.max_replicas, base + added)


def _is_replaced(draft: Draft, row: ReplicaRow, model: Model) -> bool:
    """It serves, and a rollout will end it. What has failed and waits takes the new spec where it is."""
    return row.phase is Phase.READY and outdated(draft, row, model)


def _call_back(draft: Draft, model: Model) -> None:
    """A request that comes while an idle replica drains is new demand, and the replica is still there: it
    takes it, as long as nothing was stopped. What leaves to make room for others is not called back here."""
    for row in draft.stored.by_model.get(model.name, ()):
        if row.wish is not Wish.DRAIN or not row.revocable or row.reason != IDLE:
            continue
        if (
            model.name in draft.stored.activations
            or draft.snapshot.held.get(model.name)
            or isinstance(draft.verdicts.by_replica.get(row.replica_id), Busy)
            or effective_pinned(draft.stored, model)
        ):
            # What a router sends it now stands in no report yet.
            rest_s = draft.snapshot.intervals.router_stale_s
            cancel_drain(draft, row, because="wanted again", rest_s=rest_s)


def _adopt(draft: Draft, model: Model) -> None:
    """A replica that a request started becomes one that configuration keeps, when that wants more. And while
    requests wait what is more than configuration keeps, as after a lower `replicas`, counts as added."""
    rows = live(draft, model.name)
    missing = model.replicas - sum(row.cause is Cause.CONFIGURATION for row in rows)
    if missing < 0 and model.max_replicas is not None and _is_pressed(draft, model):
        kept = [row for row in rows if row.cause is Cause.CONFIGURATION]
        for row in sorted(kept, key=lambda row: (row.created_at, row.replica_id))[model.replicas :]:
            draft.change(PutReplica(replace(row, cause=Cause.DEMAND)))
    others = [row for row in rows if row.cause is not Cause.CONFIGURATION]
    # Those that were added last: each that configuration takes is one that demand has no more.
    for row in sorted(others, key=lambda row: row.cause is Cause.DEMAND)[: max(0, missing)]:
        draft.change(PutReplica(replace(row, cause=Cause.CONFIGURATION)))


def _create(draft: Draft, model: Model) -> None:
    rows = live(draft, model.name)
    for position in range(len(rows), target(draft, model)):
        create(draft, model, Cause.CONFIGURATION if position < model.replicas else Cause.ACTIVATION)


def _grow(draft: Draft, model: Model) -> None:
    """One more, when requests have waited long enough and none that could help is on its way."""
    pressed_since = draft.snapshot.watched.pressed_since.get(model.name)
    if model.max_replicas is None or pressed_since is None or is_learning(draft.snapshot, draft.now):
        return
    rows = live(draft, model.name)
    in_reach = [row for row in rows if not is_unreachable(row, draft.snapshot, draft.now)]
    # A rollout has its own count: what is one too many by that would leave again at once. Those out of reach
    # help nobody who waits here, and count only for the most there may be.
    if target(draft, model, more=1) <= len(in_reach):
        return
    if not rows or len(rows) >= model.max_replicas or any(row.phase in _RISING for row in rows):
        return
    helps_since = max([pressed_since, *(row.ready_since for row in rows if row.ready_since is not None)])
    if draft.now - helps_since >= draft.snapshot.intervals.scale_up_after_s:
        create(draft, model, Cause.DEMAND)


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

    leaving = sorted(in_reach, key=leaves_first)[:surplus]
    for row in leaving:
        let_go(draft, row, because=f"{len(rows)} replicas, {wanted} wanted")
    _inherit(draft, model, [row for row in rows if row not in leaving], leaving)


def _inherit(draft: Draft, model: Model, staying: list[ReplicaRow], leaving: list[ReplicaRow]) -> None:
    """What demand had brought up and leaves is replaced by what stays beyond the others' need, such as one
    that stood in for a silent node: else fewer would be wanted at once, and one more a moment later."""
    demanded = sum(row.cause is Cause.DEMAND for row in leaving)
    beyond = sum(row.cause is not Cause.DEMAND for row in staying) - max(model.replicas, 1)
    spare = [row for row in staying if row.cause is Cause.ACTIVATION]
    for row in spare[: max(0, min(demanded, beyond))]:
        draft.change(PutReplica(replace(row, cause=Cause.DEMAND)))


def _retire(draft: Draft, model: Model) -> None:
    """Let go of what a request or a queue started, once nobody wants it: idle beyond doubt, or never come
    up."""
    if model.name in draft.stored.activations or is_learning(draft.snapshot, draft.now):
        return
    pressed = _is_pressed(draft, model)
    # What did not come up stays for a while: it is the answer to whoever asks meanwhile, trouble to see, and
    # first in line for room that comes free, for whoever was refused was told to come again.
    kept_s = _kept_s(draft.snapshot.intervals)
    rows = live(draft, model.name)
    made_for = owed(draft.stored)
    # What is on its way up may be the new one of a rollout: whom it replaces is asked for, or would leave.
    replacing = any(_is_replaced(draft, row, model) for row in rows)
    for row in rows:
        if row.cause is Cause.CONFIGURATION or (row.cause is Cause.DEMAND and pressed):
            continue
        if replacing and row.phase is not Phase.READY:
            continue
        age_s = draft.now - row.since
        if row.phase is Phase.READY:
            if may_leave(draft.snapshot, row, model, draft.verdicts, draft.now):
                let_go(draft, row, because=IDLE, revocable=True)
        elif row.phase in (Phase.WANTED, Phase.BACKOFF):
            let_go(draft, row, because="nobody asks for it any more")
        elif row.phase in (Phase.UNPLACEABLE, Phase.FAILED) and age_s >= kept_s:
            if row.replica_id in made_for:
                continue  # Somebody leaves for it now, and its successor would find others in that room.
            let_go(draft, row, because="it did not come up")


def _is_pressed(draft: Draft, model: Model) -> bool:
    """Its requests wait, by several looks."""
    return model.name in draft.snapshot.watched.pressed_since


def _kept_s(intervals: Intervals) -> float:
    """Where others make room, it keeps its place in the queue until its turn has surely come: a client that
    is told to come again must not begin at the end each time."""
    if intervals.eviction is EvictionPolicy.ON:
        return intervals.eviction_patience_s + intervals.backoff_max_s
    return intervals.backoff_max_s
