"""Three witnesses compared: what the database says, what agents run, what routers do.

A healthy fleet disagrees with itself all the time for seconds. Each difference is told with who says what,
since when, and which side will win; trouble is only what lasts longer than the way there takes, or what
nobody repairs by himself.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from llmgw_controller.core.disagreement import Disagreement, Witness
from llmgw_controller.core.doctor_nodes import of_nodes
from llmgw_controller.core.doctor_traffic import (
    RoutesWord,
    of_clocks,
    of_controllers,
    of_in_flight,
    of_routers,
)
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.members import Member
from llmgw_controller.core.plan import Severity
from llmgw_controller.core.rows import ReplicaRow, Stored
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.words import counted


@dataclass(frozen=True)
class DatabaseWord:
    """Read anew, past the leader's copy. None: there is no database, or it did not answer just now."""

    rows: Stored | None
    #: Its clock, unix seconds, beside the term clock at the same moment.
    clock_s: float | None
    term_clock_s: float


@dataclass(frozen=True)
class Examination:
    disagreements: tuple[Disagreement, ...]
    #: What was compared, each in a line.
    checked: tuple[str, ...]


def examine(
    snapshot: Snapshot,
    members: tuple[Member, ...],
    table: RoutesWord,
    database: DatabaseWord,
    now: float,
) -> Examination:
    """Trouble before notes, oldest first within each."""
    found = [
        *_copy(snapshot, database),
        *of_nodes(snapshot, now),
        *of_routers(members, table, now),
        *of_in_flight(snapshot, now),
        *of_controllers(snapshot),
        *of_clocks(snapshot, database.clock_s, database.term_clock_s, now),
    ]
    found.sort(
        key=lambda one: (
            one.severity is not Severity.TROUBLE,
            one.since if one.since is not None else now,
            one.kind,
            one.subject,
        )
    )
    return Examination(tuple(found), tuple(_checked(snapshot, members, database)))


def _copy(snapshot: Snapshot, database: DatabaseWord) -> Iterator[Disagreement]:
    """The leader decides on its copy of the rows; each pass reads them anew."""
    if database.rows is None:
        return
    copy, rows = snapshot.stored, database.rows
    for name, mine, theirs in (
        ("replica", copy.replicas, rows.replicas),
        ("node", copy.nodes, rows.nodes),
        ("model", copy.models, rows.models),
        ("router", copy.routers, rows.routers),
    ):
        for key in sorted({str(one) for one in (*mine, *theirs)}):
            one, other = mine.get(key), theirs.get(key)  # type: ignore[call-overload]
            if one != other:
                yield Disagreement(
                    Severity.TROUBLE,
                    "row_differs",
                    key,
                    (
                        Witness("database", f"{name}: {_short(other)}"),
                        Witness("controller", f"{name}: {_short(one)}"),
                    ),
                    None,
                    "the database wins with the next pass; somebody writes rows beside the leader",
                )


def _short(row: object) -> str:
    if row is None:
        return "no such row"
    if isinstance(row, ReplicaRow):
        return f"{row.wish.value}, {row.phase.value}, epoch {row.group_epoch}"
    return "another row"


def _checked(snapshot: Snapshot, members: tuple[Member, ...], database: DatabaseWord) -> Iterator[str]:
    shards = sum(not shard.released for row in snapshot.stored.sorted_replicas for shard in row.shards)
    engines = sum(
        report.state is not ShardState.EXITED
        for heard in snapshot.heard.values()
        for report in heard.shards.values()
    )
    devices = sum(len(node.devices) for node in snapshot.stored.nodes.values())
    inventories = f"{len(snapshot.heard)} {'inventory' if len(snapshot.heard) == 1 else 'inventories'}"
    if database.rows is not None:
        yield "the leader's copy of the rows against the database"
    else:
        yield "the leader's copy of the rows: not compared, there is no database or it did not answer"
    yield f"{counted(shards, 'claimed shard')} against what {counted(len(snapshot.heard), 'agent')} said"
    yield f"{counted(engines, 'running engine')} against the rows, with devices and ports"
    yield f"{counted(devices, 'GPU')} of the rows against {inventories}"
    yield f"{counted(len(members), 'router')}: routes applied, membership, in flight against gauges"
    yield f"configuration of {counted(len(snapshot.controllers), 'controller')}"
    yield "clocks of the database and Redis against the term's"
