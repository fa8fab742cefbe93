"""Hold: a replica is away for a while, and comes back by itself.

What an operator drains is replaced, never revived; so the one that takes its place is made at once, and is
not started before its time. It holds no GPU meanwhile, counts as one of its model, and outlives leaders in
its row.
"""

from dataclasses import replace

from llmgw_controller.core.activity import Verdicts
from llmgw_controller.core.apply import apply
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.plan import PutReplica
from llmgw_controller.core.replica import with_phase
from llmgw_controller.core.roster import create
from llmgw_controller.core.rows import Cause, Phase, ReplicaRow
from llmgw_controller.core.state import Snapshot

#: Reason of one that waits for its time.
HELD = "held back by an operator"


def held_successor(
    snapshot: Snapshot, gone: ReplicaRow, model: Model, *, until: float, now: float
) -> ReplicaRow:
    """The one that takes the place of `gone`, which is told to go; not started before `until`."""
    after = replace(snapshot, stored=apply(snapshot.stored, (PutReplica(gone),)))
    draft = Draft(after, now, Verdicts())
    create(draft, model, Cause.CONFIGURATION)
    (made,) = draft.stored.replicas.keys() - after.stored.replicas.keys()
    because = f"{HELD} in the place of {gone.replica_id}"
    return with_phase(draft.row(made), Phase.BACKOFF, now=now, because=because, reason=because, until=until)
