"""What is explained to operators, to llmgw.v1.operator: why something fits or not, and who disagrees."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.disagreement import Disagreement, told
from llmgw_controller.core.doctor import Examination
from llmgw_controller.core.explain import TEXT, Fit
from llmgw_controller.core.fix import Fix
from llmgw_controller.core.idle_holders import IdleHolder
from llmgw_controller.core.why import NearMissLine, Why, WhyProfile
from llmgw_controller.wire_nodes import USE_TO_WIRE
from llmgw_controller.wire_operator import SEVERITY_TO_WIRE

_FIT = {
    Fit.NOW: pb.WHY_VERDICT_FITS_NOW,
    Fit.AFTER_EVICTION: pb.WHY_VERDICT_FITS_AFTER_EVICTION,
    Fit.NEVER: pb.WHY_VERDICT_NEVER_FITS,
}


def why(found: Why, about: pb.ViewInfo, last_asked_at: float | None) -> pb.WhyResponse:
    """Would another replica fit, and if not, what is in the way."""
    return pb.WhyResponse(
        info=about,
        model=found.model,
        verdict=_FIT[found.fit],
        profiles=[_why_profile(one, found) for one in found.profiles],
        now=found.now,
        held=found.held,
        waiting_since_unix_s=found.waiting_since,
        held_back=found.held_back,
        last_asked_unix_s=last_asked_at,
        idle=[_idle(one) for one in found.idle],
        eviction=found.eviction.value,
        replicas=found.replicas,
    )


def _idle(one: IdleHolder) -> pb.WhyIdle:
    return pb.WhyIdle(
        replica_id=one.replica_id,
        gpus=one.gpus,
        idle_s=one.idle_s,
        never_asked=one.never_asked,
        kept_because=one.kept.why.value if one.kept is not None else None,
        kept_text=one.kept.text if one.kept is not None else None,
        kept_until_unix_s=one.kept.until if one.kept is not None else None,
    )


def _why_profile(one: WhyProfile, found: Why) -> pb.WhyProfile:
    explanation = one.explanation
    memory = explanation.memory
    return pb.WhyProfile(
        profile=explanation.profile,
        verdict=_FIT[explanation.fit],
        needs=explanation.needs,
        nodes_considered=explanation.considered,
        filters=[
            pb.WhyFilter(
                reason=filtered.reason.value,
                count=len(filtered.node_ids),
                node_ids=list(filtered.node_ids),
                text=TEXT[filtered.reason],
            )
            for filtered in explanation.filters
        ],
        fitting_nodes=list(explanation.fitting),
        placement=[
            pb.WhyPlacement(node_id=spot.node_id, device_ids=list(spot.device_ids))
            for spot in explanation.spots
        ],
        near_misses=[_near_miss(line, found) for line in one.near],
        other_ways=[_fix(fix) for fix in one.others],
        fix=one.fix,
        cheapest=_fix(one.cheapest) if one.cheapest is not None else None,
        memory_bytes=memory.size_bytes,
        memory_source=memory.source.value if memory.source is not None else None,
    )


def _near_miss(line: NearMissLine, found: Why) -> pb.WhyNearMiss:
    miss = line.miss
    return pb.WhyNearMiss(
        node_id=miss.node_id,
        free=miss.free,
        needed=miss.needed,
        evict_replica_ids=list(miss.evict),
        text=line.text,
        uses=[USE_TO_WIRE[part] for part in found.parts_of(miss.node_id)],
        fabric=line.fabric,
    )


def _fix(one: Fix) -> pb.WhyFix:
    return pb.WhyFix(
        command=one.command or "",
        text=one.text,
        frees_in_s=one.frees_in_s,
        ready_in_s=one.ready_in_s,
        reload_s=one.reload_s,
    )


def doctor(found: Examination, about: pb.ViewInfo) -> pb.DoctorResponse:
    """What disagrees, and what was looked at."""
    return pb.DoctorResponse(
        info=about,
        disagreements=[_disagreement(one) for one in found.disagreements],
        checked=list(found.checked),
    )


def _disagreement(one: Disagreement) -> pb.Disagreement:
    return pb.Disagreement(
        severity=SEVERITY_TO_WIRE[one.severity],
        kind=one.kind,
        subject=one.subject,
        witnesses=[pb.Witness(who=witness.who, says=witness.says) for witness in one.witnesses],
        outcome=one.outcome,
        since_unix_s=one.since,
    )


def add_disagreements(message: pb.GetStatusResponse, found: Examination) -> None:
    """Into a status, after its troubles and before its notes: what each disagreement means, a line a kind."""
    lines = [
        pb.Trouble(
            severity=pb.TROUBLE_SEVERITY_TROUBLE,
            kind="disagreement",
            subject=one.subject,
            text=one.text,
            since_unix_s=one.since,
            fix="llmgwctl doctor",
        )
        for one in told(found.disagreements)
    ]
    known = list(message.trouble)
    troubles = [one for one in known if one.severity == pb.TROUBLE_SEVERITY_TROUBLE]
    del message.trouble[:]
    message.trouble.extend([*troubles, *lines, *known[len(troubles) :]])
