"""Members: the routers whose word idleness needs, what is known of each, and which may be forgotten."""

from collections.abc import Mapping
from dataclasses import dataclass

from llmgw_controller.core.idleness import fresh_routers
from llmgw_controller.core.rows import RouterRow
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.words import lasting
from llmgw_kit.ids import RouterId


@dataclass(frozen=True)
class Member:
    row: RouterRow
    #: It has a route stream open at this leader.
    watching: bool
    #: Of its present incarnation's newest report, while that is fresh; None: none is.
    report_age_s: float | None
    #: Version of the routes that all its workers have applied, of this term; None: not said yet.
    applied_version: int | None
    #: None: unknown, as its report is.
    in_flight: int | None
    held: int
    #: Some router of this id reports, be it a later incarnation that has not joined yet.
    reports: bool


def members(
    snapshot: Snapshot, watching: frozenset[RouterId], applied: Mapping[RouterId, int]
) -> tuple[Member, ...]:
    """By id."""
    return tuple(
        _member(snapshot, row, applied.get(row.router_id), watching=row.router_id in watching)
        for _, row in sorted(snapshot.stored.routers.items())
    )


def why_kept(member: Member) -> str | None:
    """Why it may not be forgotten; None: nothing is heard of it, and idleness waits for it in vain."""
    if member.watching:
        return "it watches the routes now"
    if member.report_age_s is not None:
        return f"it reported {lasting(member.report_age_s)} ago"
    if member.reports:
        return "a router of this id was started again and reports; it joins as soon as it reaches the leader"
    return None


def _member(snapshot: Snapshot, row: RouterRow, applied: int | None, *, watching: bool) -> Member:
    report = fresh_routers(snapshot).get(row.router_id)
    own = report if report is not None and report.incarnation == row.incarnation else None
    watched = snapshot.activity.map
    return Member(
        row,
        watching=watching,
        report_age_s=max(0.0, watched.now - own.at) if own is not None and watched is not None else None,
        applied_version=applied,
        in_flight=None if own is None else sum(own.in_flight.values()),
        held=0 if own is None else sum(own.held.values()),
        reports=report is not None,
    )
