"""Rollout: replace replicas that no longer are what the catalog says, or stand on a draining node.

One at a time: start a new one beside the old where there is room, drain the old when the new serves.
Where there is none, the old one leaves first, but only if its leaving would make the room: a spec that
fits nowhere must not take down what runs.
"""

from dataclasses import replace

from llmgw_controller.core.catalog import Model, spec_hash
from llmgw_controller.core.claims import rooms
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.explain import Fit
from llmgw_controller.core.hearing import is_learning
from llmgw_controller.core.placement import explain
from llmgw_controller.core.plan import PutReplica
from llmgw_controller.core.replica import with_phase
from llmgw_controller.core.roster import create, let_go, live
from llmgw_controller.core.state import Phase, ReplicaRow, Schedulability, Wish
from llmgw_kit.ids import ReplicaId

_RISING = frozenset({Phase.WANTED, Phase.RESERVED, Phase.STARTING, Phase.BACKOFF, Phase.FAILED})


def is_current(row: ReplicaRow, model: Model) -> bool:
    return model.spec_hashes.get(row.profile) == row.spec_hash


def outdated(draft: Draft, row: ReplicaRow, model: Model) -> bool:
    """To be replaced although nothing is wrong with it."""
    if not is_current(row, model):
        return True
    nodes = [draft.stored.nodes.get(shard.node_id) for shard in row.shards]
    return any(node and node.schedulability is Schedulability.DRAINING for node in nodes)


def roll(draft: Draft, model: Model, target: int) -> None:
    """The next step of a rollout, if one is due."""
    rows = live(draft, model.name)
    for row in rows:
        _renew_unplaced(draft, row, model)
        if row.phase in (Phase.RESERVED, Phase.STARTING) and outdated(draft, row, model):
            let_go(draft, row, because="spec or node changed before it was ready")
    rows = live(draft, model.name)
    old = [row for row in rows if row.phase is Phase.READY and outdated(draft, row, model)]
    if not old or is_learning(draft.snapshot, draft.now) or _leaving(draft, model):
        return
    fresh = [row for row in rows if row not in old]
    if any(row.phase is Phase.UNPLACEABLE for row in fresh):
        for row in old:
            if _would_make_room(draft, row, model):
                let_go(draft, row, because="replaced; no room for both")
                return
    elif any(row.phase in _RISING for row in fresh):
        return
    elif len(rows) > target:
        let_go(draft, old[0], because="replaced")
    else:
        create(draft, model, old[0].cause)


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


def _leaving(draft: Draft, model: Model) -> bool:
    return any(row.wish is not Wish.SERVE for row in draft.stored.by_model.get(model.name, ()))


def _would_make_room(draft: Draft, old: ReplicaRow, model: Model) -> bool:
    found = rooms(draft.snapshot, draft.now)
    gone: frozenset[ReplicaId] = frozenset({old.replica_id})
    return any(
        explain(model, profile, found, evictable=gone).fit is Fit.AFTER_EVICTION for profile in model.profiles
    )
