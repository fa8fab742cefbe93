"""What routers, other controllers and clocks say against the leader's own word."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from llmgw_controller.core.disagreement import Disagreement, Witness, listening
from llmgw_controller.core.hearing import report_of
from llmgw_controller.core.idleness import JUDGED, fresh_routers
from llmgw_controller.core.members import Member
from llmgw_controller.core.plan import Severity
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.words import lasting
from llmgw_kit.ids import RouterId

#: A router applies a table within a beat of it.
APPLIED_S = 15.0
#: Clocks that differ by less are as good as one.
SKEW_S = 2.0


@dataclass(frozen=True)
class RoutesWord:
    """The leader's own table: its version, and since when each router is behind it (absent: it is not)."""

    version: int
    behind_since: Mapping[RouterId, float]


def of_routers(members: tuple[Member, ...], table: RoutesWord, now: float) -> Iterator[Disagreement]:
    for member in members:
        name = member.row.router_id
        if not member.watching:
            yield Disagreement(
                Severity.TROUBLE,
                "router_not_watching",
                name,
                (
                    Witness("database", "a member"),
                    Witness("controller", "no route stream of it is open"),
                ),
                None,
                "it serves on its last routes, and nobody can be called idle: start it again, or where it is "
                f"gone for good: llmgwctl router forget {name}",
            )
            continue
        since = table.behind_since.get(name)
        if since is None:
            continue
        late = now - since > APPLIED_S
        applied = "none" if member.applied_version is None else f"version {member.applied_version}"
        yield Disagreement(
            Severity.TROUBLE if late else Severity.NOTE,
            "router_behind",
            name,
            (
                Witness("controller", f"routes version {table.version}"),
                Witness(f"router {name}", f"all its workers have applied {applied}"),
            ),
            since,
            "every drain waits for it. When it reads again it gets all at once; if it hangs, restart it",
        )


def of_in_flight(snapshot: Snapshot, now: float) -> Iterator[Disagreement]:
    """What routers count against what the engines' own gauges say."""
    fresh = fresh_routers(snapshot)
    if snapshot.activity.map is None or any(name not in fresh for name in snapshot.stored.routers):
        return
    for row in snapshot.stored.sorted_replicas:
        if row.phase not in JUDGED:
            continue
        gauges = [
            report.running
            for shard in row.shards
            if listening(snapshot, shard.node_id, now) and (report := report_of(snapshot, shard)) is not None
        ]
        known = [one for one in gauges if one is not None]
        if not known or len(known) < len(row.shards):
            continue
        counted_there = sum(report.in_flight.get(row.replica_id, 0) for report in fresh.values())
        running = max(known)
        if bool(counted_there) == bool(running):
            continue
        direct = not counted_there
        yield Disagreement(
            Severity.NOTE,
            "direct_traffic" if direct else "in_flight_differs",
            row.replica_id,
            (
                Witness("routers", f"{counted_there} in flight"),
                Witness("engine", f"{running} running"),
            ),
            None,
            "the engine wins: it counts as busy; somebody asks it beside the routers"
            if direct
            else "the routers win: it counts as busy; a request on its way in or out looks so for a moment",
        )


def of_controllers(snapshot: Snapshot) -> Iterator[Disagreement]:
    hashes = {one.config_hash for one in snapshot.controllers}
    if len(hashes) < 2:
        return
    yield Disagreement(
        Severity.TROUBLE,
        "config_differs",
        "controllers",
        tuple(
            Witness(f"controller {one.name}", f"configuration {one.config_hash}, version {one.version}")
            for one in sorted(snapshot.controllers, key=lambda one: one.name)
        ),
        None,
        "whoever leads wins, so a change of leader changes what is decided: give all the same configuration",
    )


def of_clocks(
    snapshot: Snapshot, database_s: float | None, term_s: float, now: float
) -> Iterator[Disagreement]:
    if database_s is not None:
        skew = database_s - term_s
        if abs(skew) > SKEW_S:
            yield Disagreement(
                Severity.NOTE,
                "clock_differs",
                "database",
                (Witness("database", _skewed(skew)), Witness("controller", "the clock of its term")),
                None,
                "the lease is the database's own business; times in events are off until the next term",
            )
    if snapshot.activity.map is not None:
        skew = snapshot.activity.map.now - now
        if abs(skew) > SKEW_S:
            yield Disagreement(
                Severity.NOTE,
                "clock_differs",
                "redis",
                (Witness("redis", _skewed(skew)), Witness("controller", "the clock of its term")),
                None,
                "nothing follows: only ages cross from one clock to the other",
            )


def _skewed(skew: float) -> str:
    return f"{lasting(abs(skew))} {'ahead' if skew > 0 else 'behind'}"
