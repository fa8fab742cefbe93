"""Ends: what follows when a group that was to serve has ended: whether it counts, how long it waits, and
whether it is given up.
"""

from dataclasses import dataclass

from llmgw_controller.core.backoff import delay_s
from llmgw_controller.core.blame import Blame, blame_of
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.exits import exit_of
from llmgw_controller.core.failing import profile_rests_until, startable, told_failing, with_attempt
from llmgw_controller.core.heard import Exit
from llmgw_controller.core.rows import AttemptRow, ReplicaRow
from llmgw_kit.ids import NodeId

#: What could not be had is asked for again after as long as after so many failures: a mirror that is down is
#: down for all, and a thousand replicas that asked every few seconds would be felt by the store.
SUPPLY_LEVEL = 4

#: So many ports of its nodes resting already, a taken port is no chance any more: it waits before the next.
PORTS_TRIED = 5


@dataclass(frozen=True)
class Judgement:
    #: Failures of the row from now on.
    failures: int
    #: For the store; None: nothing is held against anybody.
    attempt: AttemptRow | None
    #: It starts again after so long; None: it does not, for this reason.
    wait_s: float | None
    given_up: str | None = None


def judge_end(
    draft: Draft,
    row: ReplicaRow,
    ended: Exit,
    told: str,
    *,
    stayed_up: bool,
    blamed: tuple[NodeId, ...] = (),
) -> Judgement:
    """`told`: the end in words. `stayed_up`: it had been READY so long that this is no failed start, and
    earlier ones are history. `blamed`: the nodes at fault; else those whose exits say the same."""
    blame, intervals = blame_of(ended.reason), draft.snapshot.intervals
    before = 0 if stayed_up else row.failures
    if blame is Blame.NOBODY:
        wait_s = delay_s(row.replica_id, 1, intervals) if _ports_run_out(draft, row, ended) else 0.0
        return Judgement(before, None, wait_s)
    if blame is Blame.SUPPLY:
        return Judgement(before, None, delay_s(row.replica_id, SUPPLY_LEVEL, intervals))
    failures = before + 1
    attempt = None if stayed_up else _attempt(draft, row, ended, told, blamed)
    if failures >= intervals.max_failures:
        return Judgement(failures, attempt, None, told)
    wait_s = delay_s(row.replica_id, failures, intervals)
    model = draft.snapshot.catalog.models.get(row.model)
    profile = model.profile(row.profile) if model else None
    if attempt is not None and model is not None and profile is not None:
        after = with_attempt(draft.stored, attempt)
        if not startable(after, model, intervals):
            return Judgement(failures, attempt, None, told_failing(after, model, intervals))
        # Not sooner than any other replica might try it: it would only be put back.
        rests_until = profile_rests_until(after, model, profile, intervals)
        wait_s = max(wait_s, (rests_until or draft.now) - draft.now)
    return Judgement(failures, attempt, wait_s)


def _attempt(
    draft: Draft, row: ReplicaRow, ended: Exit, told: str, at: tuple[NodeId, ...]
) -> AttemptRow | None:
    """None: the catalog no longer has its profile, so nobody will ask."""
    model = draft.snapshot.catalog.models.get(row.model)
    profile = model.profile(row.profile) if model else None
    if profile is None:
        return None
    exits = [(shard.node_id, exit_of(draft.snapshot, row, shard)) for shard in row.shards]
    same = {node_id for node_id, how in exits if how is not None and how.reason == ended.reason}
    blamed = set(at) or same
    return AttemptRow(
        model=row.model,
        profile=row.profile,
        gpu_class=profile.gpu_class,
        spec_hash=row.spec_hash,
        replica_id=row.replica_id,
        node_ids=tuple(sorted(blamed or {node_id for node_id, _ in exits})),
        reason=ended.reason,
        text=told,
        at=draft.now,
    )


def _ports_run_out(draft: Draft, row: ReplicaRow, ended: Exit) -> bool:
    if ended.reason != "port_taken":
        return False
    nodes = {shard.node_id for shard in row.shards}
    resting = (one for one in draft.stored.quarantine if one.until > draft.now and one.node_id in nodes)
    return sum(1 for _ in resting) >= PORTS_TRIED
