"""Groups: carry each placed replica through its phases, as its shards' agents report.

All shards of a replica are one group: any exit takes the whole down, and it starts again as a whole
under a new epoch, a bounded number of times.
"""

from dataclasses import replace
from textwrap import shorten

from llmgw_controller.core.blame import Blame, blame_of
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.drains import DrainEnd, end_of_drain, quiet_since
from llmgw_controller.core.ends import judge_end
from llmgw_controller.core.exits import exit_of, release_exited
from llmgw_controller.core.heard import Exit, ShardState
from llmgw_controller.core.hearing import report_of
from llmgw_controller.core.loads import measured
from llmgw_controller.core.overdue import given_up, replace_stuck
from llmgw_controller.core.plan import DeleteReplica, Drain, PutAttempt, PutLoad, PutReplica, Severity, Stop
from llmgw_controller.core.replica import with_phase, with_wish
from llmgw_controller.core.roster import cancel_drain
from llmgw_controller.core.rows import Phase, ReplicaRow, Wish
from llmgw_controller.core.watchdog import hang
from llmgw_controller.core.words import counted
from llmgw_kit.ids import NodeId

#: Phases that one replica passes through at one moment; more is a step that undoes another.
STEPS_MOST = 10

#: Of an engine's last line, in characters: it stands in a row of a table.
TOLD_MOST = 300

#: States of a shard whose engine was there before and is not serving now. An adopted engine may pass
#: through LAUNCHING and LOADING again while its new agent asks after its health.
_BEFORE_SERVING = frozenset(
    {ShardState.FETCHING, ShardState.VERIFYING, ShardState.LAUNCHING, ShardState.LOADING}
)
_ENDING = frozenset({ShardState.DRAINING, ShardState.STOPPING})


def advance(draft: Draft) -> None:
    """Every replica goes as far as it can. What only passes through a phase, such as a wait of no time, has
    arrived before placing begins: else others, of whatever rank, would have the place that it just left."""
    for row in draft.replicas():
        if draft.moves_no_more(row.replica_id, row):
            continue
        for _ in range(STEPS_MOST):
            before = draft.moves
            _advance(draft, row)
            if before == draft.moves:
                draft.rests(row.replica_id, row)
                break
            if row.replica_id not in draft.stored.replicas:
                break
            row = draft.row(row.replica_id)
        else:
            raise AssertionError(f"{row.replica_id} does not come to rest: story {' / '.join(row.story)}")


def _advance(draft: Draft, row: ReplicaRow) -> None:
    if row.wish is not Wish.SERVE and row.phase not in (Phase.DRAINING, Phase.STOPPING, Phase.STOPPED):
        _leave(draft, row)
        return
    match row.phase:
        case Phase.RESERVED | Phase.STARTING | Phase.READY:
            ended = _ended(draft, row) or _hangs(draft, row)
            late = given_up(draft.snapshot, row, draft.now)
            if ended is not None:
                take_down(draft, row, ended)
            elif late is not None:
                take_down(draft, row, late[0], blamed=late[1])
            else:
                _rise(draft, row)
        case Phase.DRAINING:
            _drain(draft, row)
        case Phase.STOPPING if row.endpoint_id in draft.stored.leaving_for:
            pass  # making_room.py: its claims go over to whoever it leaves for.
        case Phase.STOPPING:
            row = release_exited(draft, row)
            if not row.holds_devices:
                stopped = with_phase(
                    row, Phase.STOPPED, now=draft.now, because="all shards exited", reason=row.reason
                )
                draft.change(PutReplica(stopped))
        case Phase.STOPPED:
            draft.change(DeleteReplica(row.replica_id))
            draft.event("stopped", row.replica_id, row.reason or "stopped")
        case Phase.BACKOFF:
            row = release_exited(draft, row)
            if not row.holds_devices and (row.until is None or draft.now >= row.until):
                draft.change(PutReplica(with_phase(row, Phase.WANTED, now=draft.now, because="backoff over")))
            else:
                replace_stuck(draft, row)
        case Phase.FAILED:
            release_exited(draft, row)
        case Phase.WANTED | Phase.UNPLACEABLE:
            pass  # placing.py


def take_down(draft: Draft, row: ReplicaRow, ended: Exit, *, blamed: tuple[NodeId, ...] = ()) -> None:
    """Stop what is left of the group and wait, or give up. Devices stay claimed until all exits are seen.
    `blamed`: the nodes at fault, where no exit names them."""
    told = _told(ended)
    judged = judge_end(draft, row, ended, told, stayed_up=_stayed_up(draft, row), blamed=blamed)
    if judged.attempt is not None:
        draft.change(PutAttempt(judged.attempt))
    row = replace(row, failures=judged.failures)
    if judged.wait_s is None:
        reason = judged.given_up or told
        draft.change(PutReplica(with_phase(row, Phase.FAILED, now=draft.now, because=reason, reason=reason)))
        text = f"given up after {counted(judged.failures, 'start')}: {reason}"
        draft.event("failed", row.replica_id, text, Severity.TROUBLE)
    else:
        until = draft.now + judged.wait_s
        draft.change(
            PutReplica(with_phase(row, Phase.BACKOFF, now=draft.now, because=told, reason=told, until=until))
        )
        severity = Severity.INFO if blame_of(ended.reason) is Blame.NOBODY else Severity.TROUBLE
        draft.event("restarting", row.replica_id, f"{told}; again in {judged.wait_s:.0f} s", severity)
    _stop_rest(draft, draft.row(row.replica_id), told)
    release_exited(draft, draft.row(row.replica_id))


def _ended(draft: Draft, row: ReplicaRow) -> Exit | None:
    """Why the group can no longer serve as it is; None while it can."""
    for shard in row.shards:
        if shard.released:
            return Exit(None, None, "node_lost", f"node {shard.node_id} is lost")
        if (ended := exit_of(draft.snapshot, row, shard)) is not None:
            return ended
        report = report_of(draft.snapshot, shard)
        if report is None:
            continue
        if report.state in _ENDING:
            return Exit(None, None, "stopping_by_itself", f"its agent says {report.state.value}")
        if row.phase is Phase.READY and report.state in _BEFORE_SERVING and not report.adopted:
            # The same epoch at the same port would be another engine: routers must learn of it.
            return Exit(None, None, "restarted_by_itself", f"its agent says {report.state.value}")
    return None


def _hangs(draft: Draft, row: ReplicaRow) -> Exit | None:
    """It still runs, and gets nowhere: see watchdog.py."""
    ended = hang(draft.snapshot, row, draft.now)
    if ended is not None:
        draft.event("stalled", row.replica_id, ended.message, Severity.TROUBLE)
    return ended


def _rise(draft: Draft, row: ReplicaRow) -> None:
    reports = [report_of(draft.snapshot, shard) for shard in row.shards]
    if row.phase is Phase.RESERVED and all(reports):
        draft.change(PutReplica(with_phase(row, Phase.STARTING, now=draft.now, because="taken up")))
    elif row.phase is Phase.STARTING and all(
        report and report.state is ShardState.SERVING and report.probed for report in reports
    ):
        load = measured(draft.snapshot, row, draft.now)
        draft.change(
            PutReplica(with_phase(row, Phase.READY, now=draft.now, because="all shards serve, probed"))
        )
        if load is not None:
            draft.change(PutLoad(load))
        draft.event("ready", row.replica_id, f"ready {draft.now - row.since:.0f} s after its start")


def _leave(draft: Draft, row: ReplicaRow) -> None:
    """First step of a replica no longer wanted: finish streams if it may have any, else end at once."""
    reason = row.reason or "wished"
    if row.phase is Phase.READY and row.wish is Wish.DRAIN:
        draft.change(
            PutReplica(with_phase(row, Phase.DRAINING, now=draft.now, because="wished", reason=reason))
        )
        if not row.revocable:
            for shard in row.shards:
                draft.command(Drain(shard.node_id, shard.shard_id))
        return
    if row.wish is Wish.DRAIN:
        row = with_wish(row, Wish.STOP, because=reason)
    if row.phase in (Phase.WANTED, Phase.UNPLACEABLE):
        draft.change(
            PutReplica(with_phase(row, Phase.STOPPED, now=draft.now, because="never placed", reason=reason))
        )
        return
    _stop(draft, row, because=reason)


def _drain(draft: Draft, row: ReplicaRow) -> None:
    if row.wish is Wish.STOP:
        _stop(draft, row, because="stop wished")
        return
    if row.revocable and row.endpoint_id in draft.stored.leaving_for:
        return  # making_room.py decides, for all that leave together.
    quiet_at = quiet_since(draft.snapshot, row)
    if quiet_at != row.quiet_at:
        draft.change(PutReplica(replace(row, quiet_at=quiet_at)))
        row = draft.row(row.replica_id)
    end = end_of_drain(draft.snapshot, row, draft.now)
    if end is None:
        return
    if end is DrainEnd.TAKEN_BACK:
        cancel_drain(draft, row, because=end.value, rest_s=draft.snapshot.intervals.backoff_max_s)
        return
    if not end.clean:
        draft.event("drain_cut", row.replica_id, end.value, Severity.NOTE)
    _stop(draft, with_wish(row, Wish.STOP, because=row.reason or end.value), because=end.value)


def _stop(draft: Draft, row: ReplicaRow, *, because: str) -> None:
    draft.change(
        PutReplica(with_phase(row, Phase.STOPPING, now=draft.now, because=because, reason=row.reason))
    )
    _stop_rest(draft, draft.row(row.replica_id), row.reason or because)


def _stop_rest(draft: Draft, row: ReplicaRow, reason: str) -> None:
    for shard in row.shards:
        if not shard.released and exit_of(draft.snapshot, row, shard) is None:
            draft.command(Stop(shard.node_id, shard.shard_id, reason))


def _stayed_up(draft: Draft, row: ReplicaRow) -> bool:
    """It had been READY long enough for earlier failures to be history."""
    if row.phase is not Phase.READY or row.ready_since is None:
        return False
    model = draft.snapshot.catalog.models.get(row.model)
    profile = model.profile(row.profile) if model else None
    return profile is not None and draft.now - row.ready_since >= profile.min_uptime_s


def _told(ended: Exit) -> str:
    how = ""
    if ended.signal is not None:
        how = f" by signal {ended.signal}"
    elif ended.code is not None:
        how = f" with code {ended.code}"
    message = ended.message.strip().splitlines()
    return f"{ended.reason}{how}" + (
        f": {shorten(message[-1], TOLD_MOST, placeholder='…')}" if message else ""
    )
