"""Making room: each open eviction from its first mark to its receipt's last word.

Before the stop it can be cancelled at any moment, and is: when a victim is used or may be, when a router
does not acknowledge, when nobody waits any more. After the stop it only goes forward.
"""

from dataclasses import dataclass, replace

from llmgw_controller.core.activity import Busy, Idle, Unknown
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.drains import DrainEnd, end_of_drain
from llmgw_controller.core.earmarks import Open, open_evictions, owed, places_after
from llmgw_controller.core.evidence import confirmed_since, evidence
from llmgw_controller.core.exits import exit_of, release_exited
from llmgw_controller.core.failing import is_resting
from llmgw_controller.core.hearing import is_learning
from llmgw_controller.core.idleness import unused_s
from llmgw_controller.core.plan import PutEviction, PutReplica, Severity
from llmgw_controller.core.replica import taken_back, with_wish
from llmgw_controller.core.rows import EvictionRow, EvictionState, Phase, ReplicaRow, Wish
from llmgw_controller.core.state import EvictionPolicy, Snapshot
from llmgw_controller.core.waiting import is_missed
from llmgw_controller.core.words import lasting
from llmgw_kit.ids import ReplicaId

#: After every router has acknowledged, so long for reports that are newer.
CONFIRM_S = 30.0

#: Unknown says nothing of the victim: it may be chosen again when it is known to be idle for a little.
UNKNOWN_RESTS_S = 30.0

#: An engine that was told to stop and is not seen to exit for so long beyond its grace holds up nobody else.
EXIT_LATE_S = 120.0

#: Two readings of idle seconds by two clocks may differ by so much without any use between them.
SLACK_S = 1.0


def settle(draft: Draft) -> None:
    """One step of each open eviction. Before placing: what is released here is placed on in the same plan."""
    for victims in open_evictions(draft.stored).values():
        stopping = [row for _, row in victims if row is None or row.wish is Wish.STOP]
        if len(stopping) == len(victims):
            _hand_over(draft, victims)
        elif not is_learning(draft.snapshot, draft.now):
            _decide(draft, victims)


def close(draft: Draft) -> None:
    """The last word of those whose room is free. After placing: it tells who has it. While whoever it is for
    may not be started yet, for its profile rests, its place is kept."""
    for name, victims in open_evictions(draft.stored).items():
        waits = draft.stored.replicas.get(name)
        if waits is not None and is_resting(waits):
            continue
        if all(row is None or not row.holds_devices for _, row in victims):
            for receipt, _ in victims:
                _done(draft, receipt)


def _decide(draft: Draft, victims: Open) -> None:
    """Cancel it, stop all of them, or wait."""
    void = _void(draft, victims)
    if void is not None:
        _cancel(draft, victims, void)
        return
    for receipt, row in victims:
        assert row is not None
        if receipt.acknowledged_at is None and _is_aside(draft, row):
            draft.change(PutEviction(replace(receipt, acknowledged_at=draft.now)))
    if all(_is_confirmed(draft, receipt, row) for receipt, row in victims):
        for receipt, row in victims:
            assert row is not None
            verdict = draft.verdicts.by_replica[row.replica_id]
            assert isinstance(verdict, Idle), f"{row.replica_id}: stopped though {verdict}"
            again = tuple(f"acknowledged by all: {line}" for line in evidence(draft.snapshot, row, verdict))
            draft.change(PutEviction(replace(receipt, evidence=(*receipt.evidence, *again))))
            draft.change(PutReplica(with_wish(row, Wish.STOP, because=row.reason or "evicted")))


@dataclass(frozen=True)
class Void:
    """Why an eviction is not to go on."""

    because: str
    #: A victim could not be put aside, or may be in use: so long it is let be, or it would be taken from its
    #: users again and again.
    rest_s: float | None = None


def _void(draft: Draft, victims: Open) -> Void | None:
    """None: it is to go on."""
    gone = _unwanted(draft, victims[0][0])
    if gone is not None:
        return Void(gone)
    for receipt, row in victims:
        if row is None or row.wish is not Wish.DRAIN or not row.revocable:
            return Void(f"{receipt.victim_replica_id} leaves by itself")
        unknown = _unknown(draft, row)
        if unknown is not None:
            return Void(unknown, UNKNOWN_RESTS_S)
        because = _in_use(draft, receipt, row) or _not_aside(draft.snapshot, receipt, row, draft.now)
        if because is not None:
            return Void(because, draft.snapshot.intervals.backoff_max_s)
    return None


def _unwanted(draft: Draft, receipt: EvictionRow) -> str | None:
    """Nobody needs the room any more."""
    snapshot = draft.snapshot
    if snapshot.intervals.eviction is not EvictionPolicy.ON and not receipt.ordered:
        return f"eviction is {snapshot.intervals.eviction.value}"
    beneficiary = snapshot.stored.replicas.get(receipt.beneficiary_replica_id or ReplicaId(""))
    model = snapshot.catalog.models.get(receipt.beneficiary_model)
    if beneficiary is None or model is None or beneficiary.wish is not Wish.SERVE:
        return f"{receipt.beneficiary_replica_id} is not wanted any more"
    if beneficiary.phase is not Phase.UNPLACEABLE:
        return f"{beneficiary.replica_id} waits no more: it is {beneficiary.phase.value}"
    if not is_missed(snapshot, beneficiary, model):
        return f"nobody waits for {beneficiary.model} any more"
    return None


def _in_use(draft: Draft, receipt: EvictionRow, row: ReplicaRow) -> str | None:
    verdict = draft.verdicts.by_replica.get(row.replica_id)
    match verdict:
        case Busy():
            return f"{row.replica_id} is in use"
        case Idle():
            # Not `for_s`: a change of leader is no use of it.
            used_s = unused_s(draft.snapshot, row, draft.now)
            if used_s + SLACK_S < draft.now - receipt.decided_at:
                return f"{row.replica_id} was used {lasting(used_s)} ago"
    return None


def _unknown(draft: Draft, row: ReplicaRow) -> str | None:
    verdict = draft.verdicts.by_replica.get(row.replica_id)
    # A new leader looks at the map in a moment; until then nothing is confirmed.
    if not isinstance(verdict, Unknown) or verdict.reason == "not_read_yet":
        return None
    return f"idleness of {row.replica_id} is unknown: {verdict.reason.replace('_', ' ')}"


def _not_aside(snapshot: Snapshot, receipt: EvictionRow, row: ReplicaRow, now: float) -> str | None:
    """It cannot be put aside, or not in time."""
    if row.phase is not Phase.DRAINING:
        return None
    end = end_of_drain(snapshot, row, now)
    if end in (DrainEnd.SHARD_EXITED, DrainEnd.NODE_LOST):
        return f"{row.replica_id}: {end.value}"
    if end is DrainEnd.TAKEN_BACK:
        return f"not every router has put {row.replica_id} aside in time"
    asked_at = max(receipt.acknowledged_at or row.since, snapshot.term_started)
    if receipt.acknowledged_at is not None and now - asked_at >= CONFIRM_S:
        return f"no report of every router is newer than its word that {row.replica_id} is put aside"
    return None


def _is_aside(draft: Draft, row: ReplicaRow) -> bool:
    return row.phase is Phase.DRAINING and end_of_drain(draft.snapshot, row, draft.now) is DrainEnd.DRAINED


def _is_confirmed(draft: Draft, receipt: EvictionRow, row: ReplicaRow | None) -> bool:
    return (
        row is not None
        and receipt.acknowledged_at is not None
        and _is_aside(draft, row)
        and confirmed_since(draft.snapshot, receipt.acknowledged_at, draft.now)
    )


def _cancel(draft: Draft, victims: Open, void: Void) -> None:
    """They serve again; one that leaves on its own account goes on with that."""
    because = void.because
    until = None if void.rest_s is None else draft.now + void.rest_s
    for receipt, row in victims:
        draft.change(PutEviction(replace(receipt, state=EvictionState.CANCELLED, text=because)))
        text = f"not for {receipt.beneficiary_replica_id}: {because}"
        draft.event("eviction_cancelled", receipt.victim_replica_id, text, Severity.NOTE)
        if row is None or not row.revocable or row.wish is not Wish.DRAIN:
            continue
        ended = row.phase is Phase.DRAINING and end_of_drain(draft.snapshot, row, draft.now) in (
            DrainEnd.SHARD_EXITED,
            DrainEnd.NODE_LOST,
        )
        if not ended:
            draft.change(PutReplica(taken_back(row, now=draft.now, because=because, until=until)))


def _hand_over(draft: Draft, victims: Open) -> None:
    """All have been told to stop. Free their devices when every exit is seen, not before: what came free
    earlier could go to somebody else."""
    waited_for = [row for _, row in victims if row is not None and not _is_gone(draft, row)]
    if not waited_for:
        if _may_yet_fit(draft, victims[0][0]):
            return
        for _, row in victims:
            if row is not None:
                release_exited(draft, row)
        return
    late = [row for row in waited_for if _is_late(draft.snapshot, row, draft.now)]
    if late:
        because = f"the exit of {late[0].replica_id} is not seen for {lasting(draft.now - late[0].since)}"
        for receipt, _ in victims:
            draft.change(PutEviction(replace(receipt, state=EvictionState.FAILED, text=because)))
            draft.event("eviction_failed", receipt.victim_replica_id, because, Severity.TROUBLE)


def _may_yet_fit(draft: Draft, receipt: EvictionRow) -> bool:
    """Whoever waits has no place on the nodes that a new leader has heard, and others are still to be heard:
    what is freed now would go to somebody else, and a gang would have half of its room."""
    if not is_learning(draft.snapshot, draft.now):
        return False
    owing, name = owed(draft.stored), receipt.beneficiary_replica_id
    return name in owing and name not in places_after(draft.snapshot, owing, draft.now)


def _is_gone(draft: Draft, row: ReplicaRow) -> bool:
    return row.phase is Phase.STOPPED or (
        row.phase is Phase.STOPPING
        and all(shard.released or exit_of(draft.snapshot, row, shard) is not None for shard in row.shards)
    )


def _is_late(snapshot: Snapshot, row: ReplicaRow, now: float) -> bool:
    model = snapshot.catalog.models.get(row.model)
    profile = model.profile(row.profile) if model is not None else None
    grace_s = profile.stop_grace_s if profile is not None else 0.0
    return row.phase is Phase.STOPPING and now - row.since > grace_s + EXIT_LATE_S


def _done(draft: Draft, receipt: EvictionRow) -> None:
    beneficiary = draft.stored.replicas.get(receipt.beneficiary_replica_id or ReplicaId(""))
    took_s = draft.now - receipt.decided_at
    if beneficiary is not None and beneficiary.holds_devices:
        text = f"{receipt.victim_replica_id} made room for {beneficiary.replica_id} in {lasting(took_s)}"
    else:
        text = (
            f"{receipt.victim_replica_id} has left in {lasting(took_s)}; {receipt.beneficiary_replica_id} "
            "did not take the room"
        )
    draft.change(PutEviction(replace(receipt, state=EvictionState.DONE, text=text, freed_at=draft.now)))
    draft.event("evicted", receipt.victim_replica_id, text)
