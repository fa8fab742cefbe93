"""Questions put to the pass itself: what would become of one more replica, as things are or if they changed.

`why` has no search of its own. It lets `reconcile` decide on a snapshot and looks at what the replica asked
about has become; so a reason, a backoff or a promise that the pass knows of counts here too.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from llmgw_controller.core.apply import apply
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.claims import Rooms, rooms
from llmgw_controller.core.deployments import is_stopped
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.heard import NodeHeard
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.placing import place_waiting, rank
from llmgw_controller.core.plan import PutDeployment, PutReplica
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.replica import with_wish
from llmgw_controller.core.roster import create, leaving_wish
from llmgw_controller.core.rows import Cause, DeploymentRow, Phase, ReplicaRow, Schedulability, Stored, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import NodeId, ReplicaId

WAITING = frozenset({Phase.WANTED, Phase.UNPLACEABLE})

_PLACED = frozenset({Phase.RESERVED, Phase.STARTING, Phase.READY})


@dataclass(frozen=True)
class Question:
    """A snapshot in which one replica of the model waits for room."""

    snapshot: Snapshot
    model: Model
    replica_id: ReplicaId
    #: It stands in the rows; else one more was made up to ask about.
    real: bool
    #: As things are, without what was made up.
    plain: Snapshot


@dataclass(frozen=True)
class Answer:
    """What one pass makes of it."""

    #: The rows after the pass.
    snapshot: Snapshot
    row: ReplicaRow

    @property
    def placed(self) -> bool:
        return self.row.phase in _PLACED and bool(self.row.shards)


def waiting(snapshot: Snapshot, model: Model) -> Question | None:
    """About the replica of the model that is placed next; None: none waits."""
    rows = sorted(
        (
            row
            for row in snapshot.stored.by_model.get(model.name, ())
            if row.wish is Wish.SERVE and row.phase in WAITING
        ),
        key=lambda row: (row.created_at, row.replica_id),
    )
    return Question(snapshot, model, rows[0].replica_id, real=True, plain=snapshot) if rows else None


def one_more(snapshot: Snapshot, model: Model, now: float) -> Question:
    """About a replica that there is not."""
    rows = [row for row in snapshot.stored.by_model.get(model.name, ()) if row.wish is Wish.SERVE]
    if model.replicas > len(rows) and not is_stopped(snapshot.stored, model.name):
        # Configuration wants it, and the next pass creates it: it is as good as there.
        made_up = _created(snapshot, model, now)
        return replace(made_up, real=True, plain=made_up.snapshot)
    # Wanted by configuration, so that no rule about surplus takes it away again in the same pass.
    more = replace(model, replicas=len(rows) + 1)
    catalog = replace(snapshot.catalog, models={**snapshot.catalog.models, model.name: more})
    asked = replace(snapshot, catalog=catalog)
    if is_stopped(asked.stored, model.name):
        asked = replace(asked, stored=_started(asked.stored, model))
    return replace(_created(asked, more, now), plain=snapshot)


def _created(snapshot: Snapshot, model: Model, now: float) -> Question:
    draft = Draft(snapshot, now, verdicts(snapshot, now))
    create(draft, model, Cause.CONFIGURATION)
    (made,) = draft.stored.replicas.keys() - snapshot.stored.replicas.keys()
    return Question(draft.snapshot, model, made, real=False, plain=snapshot)


def _started(stored: Stored, model: Model) -> Stored:
    known = stored.deployments[model.name]
    row = DeploymentRow(model.name, stopped=False, pinned=known.pinned, changed_at=known.changed_at)
    return apply(stored, (PutDeployment(row),))


def ask(asked: Question, now: float) -> Answer | None:
    """One pass. None: the replica is wanted no more."""
    plan = reconcile(asked.snapshot, now)
    after = replace(asked.snapshot, stored=apply(asked.snapshot.stored, plan.changes))
    row = after.stored.replicas.get(asked.replica_id)
    return None if row is None or row.wish is not Wish.SERVE else Answer(after, row)


def rooms_before(asked: Question, answer: Answer, now: float) -> Rooms:
    """What the replica is offered: the rooms as the pass leaves them without it and without those that are
    placed after it, and with what is kept for those before it."""
    mine = _order(answer.row, asked.model)
    stored = answer.snapshot.stored
    later = {asked.replica_id} | {
        row.replica_id
        for row in stored.sorted_replicas
        if row.wish is Wish.SERVE
        and row.phase in WAITING
        and (model := answer.snapshot.catalog.models.get(row.model)) is not None
        and _order(row, model) > mine
    }
    left = {key: row for key, row in stored.replicas.items() if key not in later}
    without = replace(answer.snapshot, stored=replace(stored, replicas=left))
    found = place_waiting(Draft(without, now, verdicts(without, now)))
    return found if found is not None else rooms(without, now)


def _order(row: ReplicaRow, model: Model) -> tuple[int, int, int, float, str]:
    return *rank(model), row.created_at, row.replica_id


# What could change; each gives the same question in another world.


def gone(asked: Question, replica_ids: frozenset[ReplicaId]) -> Question:
    """These have left, and their exits were seen."""
    stored = asked.snapshot.stored
    rows = {key: row for key, row in stored.replicas.items() if key not in replica_ids}
    heard = {
        node_id: replace(
            word,
            shards={key: one for key, one in word.shards.items() if one.replica_id not in replica_ids},
        )
        for node_id, word in asked.snapshot.heard.items()
    }
    return _in(asked, replace(asked.snapshot, stored=replace(stored, replicas=rows), heard=heard))


def drained(asked: Question, replica_ids: frozenset[ReplicaId], now: float) -> Question:
    """An operator drains these, a pass sees to their successors while they still hold their GPUs, and then
    they are gone. Who is only asked about does not wait meanwhile, so nothing is kept for it."""
    snapshot = asked.plain
    for name in sorted(replica_ids):
        row = snapshot.stored.replicas[name]
        leaving = with_wish(row, leaving_wish(row), because="asked why")
        snapshot = replace(snapshot, stored=apply(snapshot.stored, (PutReplica(leaving),)))
    changes = reconcile(snapshot, now).changes
    snapshot = replace(snapshot, stored=apply(snapshot.stored, changes))
    after = gone(replace(asked, snapshot=snapshot), replica_ids)
    if asked.real:
        return after
    # Whoever waits for the room has it before the one that is only asked about.
    left = after.snapshot
    left = replace(left, stored=apply(left.stored, reconcile(left, now).changes))
    return one_more(left, left.catalog.models[asked.model.name], now)


def uncordoned(asked: Question, node_ids: Collection[NodeId]) -> Question:
    """An operator takes these nodes back."""
    return replace(_in(asked, _open(asked.snapshot, node_ids)), plain=_open(asked.plain, node_ids))


def _open(snapshot: Snapshot, node_ids: Collection[NodeId]) -> Snapshot:
    nodes = dict(snapshot.stored.nodes)
    for node_id in node_ids:
        nodes[node_id] = replace(nodes[node_id], schedulability=Schedulability.SCHEDULABLE)
    return replace(snapshot, stored=replace(snapshot.stored, nodes=nodes))


def heard_again(asked: Question, node_id: NodeId, now: float) -> Question:
    """A silent node speaks, and all it ran still runs."""
    word: NodeHeard | None = asked.snapshot.heard.get(node_id)
    if word is None:
        return asked
    heard = {**asked.snapshot.heard, node_id: replace(word, heard_at=now, connected=True)}
    return _in(asked, replace(asked.snapshot, heard=heard))


def stopped(asked: Question, model: Model, now: float) -> Question:
    """An operator stops another model as a whole, and its exits were seen."""
    rows = asked.snapshot.stored.by_model.get(model.name, ())
    left = gone(asked, frozenset(row.replica_id for row in rows))
    known = left.snapshot.stored.deployments.get(model.name)
    wish = DeploymentRow(model.name, stopped=True, pinned=known.pinned if known else None, changed_at=now)
    stored = apply(left.snapshot.stored, (PutDeployment(wish),))
    return _in(left, replace(left.snapshot, stored=stored))


def _in(asked: Question, snapshot: Snapshot) -> Question:
    return replace(asked, snapshot=snapshot)
