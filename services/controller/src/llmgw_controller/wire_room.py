"""Making room, to llmgw.v1.operator: idle holdings, proposals, receipts."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.holdings import Holding, Holdings, LetGo
from llmgw_controller.core.proposals import Proposal
from llmgw_controller.core.rows import EvictionRow


def holding(one: Holding) -> pb.IdleHolding:
    """An idle replica and its price."""
    kept = one.kept
    return pb.IdleHolding(
        replica_id=one.replica_id,
        model=one.model,
        gpu_class=one.gpu_class,
        gpus=one.gpus,
        idle_s=one.idle_s,
        never_asked=one.never_asked,
        gpu_hours=one.gpu_hours,
        last_asked_unix_s=one.last_asked_at,
        reload_s=one.reload_s,
        kept_because=kept.why.value if kept is not None else None,
        kept_text=kept.text if kept is not None else None,
        kept_until_unix_s=kept.until if kept is not None else None,
    )


def proposal(one: Proposal) -> pb.EvictionProposal:
    """What would make room for whom."""
    return pb.EvictionProposal(
        beneficiary_model=one.beneficiary.model,
        victim_replica_ids=[row.replica_id for row in one.victims],
        text=one.text,
        frees_in_s=one.frees_in_s,
        reload_s=one.reload_s,
    )


def reclaim(found: Holdings, gone: tuple[LetGo, ...], about: pb.ViewInfo) -> pb.ReclaimResponse:
    """What could go, what stays and why, what nobody can tell of; and what was let go."""
    return pb.ReclaimResponse(
        info=about,
        holdings=[holding(one) for one in found.idle],
        unknown=[
            pb.UnknownHolding(replica_id=one.replica_id, reason=one.reason, gpus=one.gpus)
            for one in found.unknown
        ],
        changes=[
            pb.ReplicaChange(replica_id=one.row.replica_id, outcome="draining", text=one.text, gpus=one.gpus)
            for one in gone
        ],
        gpus=sum(one.gpus for one in found.may_go),
        gpu_hours=sum(one.gpu_hours for one in found.may_go),
    )


def receipt(row: EvictionRow) -> pb.EvictionRow:
    """One eviction, from its evidence to its outcome."""
    return pb.EvictionRow(
        eviction_id=row.eviction_id,
        victim_replica_id=row.victim_replica_id,
        victim_model=row.victim_model,
        beneficiary_model=row.beneficiary_model,
        decided_unix_s=row.decided_at,
        state=row.state.value,
        text=row.text,
        evidence=list(row.evidence),
        gpus=row.gpus,
        idle_s=row.idle_s,
        beneficiary_replica_id=row.beneficiary_replica_id,
        predicted_free_s=row.predicted_free_s,
        real_free_s=None if row.freed_at is None else row.freed_at - row.decided_at,
        reload_s=row.reload_s,
        regretted_unix_s=row.regretted_at,
        acknowledged_unix_s=row.acknowledged_at,
    )
