"""Rollout: replace replicas that no longer are what the catalog says, or stand on a draining node.

So many at a time as the model lets be away. `surge` starts new ones beside the old where there is room, and
drains an old one when a new one serves; where there is none, and with `stop_first` always, old ones leave
first, but only if their leaving makes the room: a spec that fits nowhere must not take down what runs.
Whatever does not come up again uses up what may be away, so a bad spec stops by itself.
"""

from dataclasses import replace

from llmgw_controller.core.catalog import Model, Rollout, spec_hash
from llmgw_controller.core.claims import rooms
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.explain import Explanation, Fit
from llmgw_controller.core.failing import startable
from llmgw_controller.core.hearing import is_learning
from llmgw_controller.core.placement import explain, memo_of
from llmgw_controller.core.plan import PutReplica
from llmgw_controller.core.replica import with_phase
from llmgw_controller.core.roster import create, let_go, live
from llmgw_controller.core.rows import Phase, ReplicaRow, Schedulability, Stored, Wish
from llmgw_kit.ids import ReplicaId

_RISING = frozenset({Phase.WANTED, Phase.RESERVED, Phase.STARTING, Phase.BACKOFF, Phase.FAILED})


def is_current(row: ReplicaRow, model: Model) -> bool:
    return model.spec_hashes.get(row.profile) == row.spec_hash


def is_outdated(stored: Stored, row: ReplicaRow, model: Model) -> bool:
    """To be replaced although nothing is wrong with it."""
    if not is_current(row, model):
        return True
    nodes = (stored.nodes.get(shard.node_id) for shard in row.shards)
    return any(node and node.schedulability is Schedulability.DRAINING for node in nodes)


def outdated(draft: Draft, row: ReplicaRow, model: Model) -> bool:
    """By the rows as this pass has them."""
    return is_outdated(draft.stored, row, model)


def roll(draft: Draft, model: Model, target: int) -> None:
    """The next step of a rollout, if one is due."""
    for row in live(draft, model.name):
        _renew_unplaced(draft, row, model)
        if row.phase in (Phase.RESERVED, Phase.STARTING) and outdated(draft, row, model):
            let_go(draft, row, because="spec or node changed before it was ready")
    rows = live(draft, model.name)
    ready = [row for row in rows if row.phase is Phase.READY]
    old = [row for row in ready if outdated(draft, row, model)]
    if not old or is_learning(draft.snapshot, draft.now):
        return
    fresh = [row for row in rows if row not in old]
    waiting = sum(row.phase is Phase.UNPLACEABLE for row in fresh)
    rising = sum(row.phase in _RISING for row in fresh)
    leaving = _leaving(draft, model)
    # Waiting, and neither one too many nor one that somebody leaves for: the fleet is short of room as it is,
    # which must not keep the others at the old spec for ever.
    short = max(0, waiting - max(0, len(rows) - target) - leaving)
    if short and (told := _best(draft, model, frozenset())) is not None and told.fit is Fit.NOW:
        short = 0  # Room came free in this very pass: it is placed next.
    # How many of those that serve may go before new ones serve.
    spare = len(ready) - max(0, target - short - model.max_unavailable)
    if model.rollout is Rollout.STOP_FIRST:
        away = leaving + waiting - short + rising
        _stop_first(draft, model, old, min(spare, model.max_unavailable - away))
    elif len(ready) > target:
        for row in old[: len(ready) - target]:
            let_go(draft, row, because="replaced")
    elif waiting:
        # Whoever leaves already makes room for one of them.
        _stop_first(draft, model, old, min(spare, waiting - leaving))
    else:
        beside = model.max_unavailable - max(rising, len(rows) - target) - leaving
        for row in old[: max(0, min(beside, len(old) - rising))]:
            create(draft, model, row.cause)


def surge_most(draft: Draft, model: Model, rows: list[ReplicaRow]) -> int:
    """How many more than wanted a rollout may hold; they are its own to end."""
    if model.rollout is Rollout.STOP_FIRST:
        return 0
    return model.max_unavailable if any(outdated(draft, row, model) for row in rows) else 0


def _stop_first(draft: Draft, model: Model, old: list[ReplicaRow], most: int) -> None:
    """Let go what one new replica needs to leave, if that is not more than `most`. The next round of this
    pass does it for the next one."""
    if most <= 0:
        return
    told = _best(draft, model, frozenset(row.replica_id for row in old))
    if told is None:
        return
    going = [row for row in old if row.replica_id in told.leaving]
    if told.fit is Fit.NOW and model.rollout is Rollout.STOP_FIRST:
        going = old[:1]
    for row in going if len(going) <= most else ():
        let_go(draft, row, because="replaced; the old one leaves first")


def _best(draft: Draft, model: Model, evictable: frozenset[ReplicaId]) -> Explanation | None:
    """What the planner would find for one replica more, of the first profile that has any chance; None: none
    has, or all of them fail when they are started."""
    draft.looks += 1
    found = rooms(draft.snapshot, draft.now)
    memo = memo_of(draft.snapshot, found)
    told = (
        explain(model, profile, found, evictable=evictable, memo=memo)
        for profile in startable(draft.stored, model, draft.snapshot.intervals)
    )
    return next((one for one in told if one.fit is not Fit.NEVER), None)


def _renew_unplaced(draft: Draft, row: ReplicaRow, model: Model) -> None:
    """What holds no place takes the new spec where it stands, and its failures are forgotten."""
    if row.holds_devices or is_current(row, model):
        return
    first = model.profiles[0]
    fresh = replace(row, profile=first.name, spec_hash=spec_hash(model, first), failures=0)
    if row.phase in (Phase.UNPLACEABLE, Phase.FAILED, Phase.BACKOFF):
        draft.change(PutReplica(with_phase(fresh, Phase.WANTED, now=draft.now, because="new spec")))
    elif row.phase is Phase.WANTED:
        draft.change(PutReplica(fresh))


def _leaving(draft: Draft, model: Model) -> int:
    rows = draft.stored.by_model.get(model.name, ())
    return sum(row.wish is not Wish.SERVE and row.holds_devices for row in rows)
