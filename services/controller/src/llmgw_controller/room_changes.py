"""Room made for one model because an operator says so."""

import asyncio
import logging
from collections.abc import Sequence

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.eviction import begin_ordered
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.ordered import NotOrdered, order
from llmgw_controller.core.proposals import Proposal
from llmgw_controller.core.rows import Cause
from llmgw_controller.core.words import counted
from llmgw_controller.reign import Reign
from llmgw_controller.replica_changes import known
from llmgw_kit.errors import Conflict, Unavailable

log = logging.getLogger(__name__)

#: Codes of refusals that pass by themselves.
_PASSING = frozenset({"learning"})


async def make_room(
    reign: Reign, names: Sequence[str], model: Model, *, dry_run: bool
) -> list[pb.ReplicaChange]:
    """Let these go, all or none, for the replica of the model that waits. Raises NotFound, Conflict with why
    not, and Unavailable while the leader is new."""
    async with reign.ledger.writing() as stored:
        snapshot, now = reign.snapshot(stored), reign.tenure.now()
        rows = [known(reign, snapshot, name, now) for name in dict.fromkeys(names)]
        judged = verdicts(snapshot, now)
        # In a thread, as a pass decides: it looks through the fleet.
        found = await asyncio.to_thread(order, snapshot, judged, rows, model, now)
        if isinstance(found, NotOrdered):
            kind = Unavailable if found.code in _PASSING else Conflict
            raise kind(found.text, code=found.code, next_steps=[found.step])
        if not dry_run:
            draft = Draft(snapshot, now, judged)
            begin_ordered(draft, found)
            await reign.ledger.commit(draft.plan().changes)
            log.info("ordered by an operator: %s", found.text)
    reign.hints()
    return [_told(row.replica_id, found) for row in found.victims]


def _told(name: str, found: Proposal) -> pb.ReplicaChange:
    row = next(one for one in found.victims if one.replica_id == name)
    kept = row.cause is Cause.CONFIGURATION
    again = "; configuration keeps its model, which then waits for room" if kept else ""
    text = (
        f"{name} is put aside by its routers, then stops, and its {counted(row.gpus_held, 'GPU')} "
        f"{'goes' if row.gpus_held == 1 else 'go'} to {found.beneficiary.replica_id}, to nobody else{again}. "
        "If it is used before that, it stays: llmgwctl evictions"
    )
    return pb.ReplicaChange(replica_id=name, outcome="draining", text=text, gpus=row.gpus_held, another=kept)
