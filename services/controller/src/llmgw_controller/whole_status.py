"""The whole status of now, made in one place: what is shown is what is recorded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller import wire_explained, wire_operator
from llmgw_controller.core.doctor import DatabaseWord, Examination, examine
from llmgw_controller.core.doctor_traffic import RoutesWord
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.members import members
from llmgw_controller.core.view import fleet_view

if TYPE_CHECKING:
    from llmgw_controller.core.risk import NodeLossRisk
    from llmgw_controller.core.state import Snapshot
    from llmgw_controller.core.view import FleetView
    from llmgw_controller.reign import Reign


async def whole_status(reign: Reign) -> pb.GetStatusResponse:
    """Of this moment; its rows are read at least once. What looks through the fleet does so in a thread: no
    renewal and no beat waits for it."""
    view = await viewed(reign)
    snapshot = reign.snapshot(reign.ledger.stored)
    risks = await reign.lookout.risks(snapshot, view.at)
    # While it learns what runs, nobody can disagree yet.
    found = None if view.learning else await examined(reign)
    return await asyncio.to_thread(_message, view, about(reign, view), risks, found, reign)


async def viewed(reign: Reign) -> FleetView:
    """One view of this moment."""
    snapshot, now = reign.snapshot(reign.ledger.stored), reign.tenure.now()
    return await asyncio.to_thread(_view, snapshot, now)


def about(reign: Reign, view: FleetView) -> pb.ViewInfo:
    """First on every view."""
    read_at = reign.ledger.read_at
    assert read_at is not None, "a view is made of rows that were read"
    return wire_operator.info(
        view,
        cluster=reign.rules.cluster,
        leader_name=reign.name,
        store=reign.world.store.kind,
        rows_age_s=max(0.0, view.at - read_at),
    )


async def examined(reign: Reign, database: DatabaseWord | None = None) -> Examination:
    """Who disagrees with whom now; without a word of the database its part is left out."""
    stored, now = reign.ledger.stored, reign.tenure.now()
    snapshot = reign.snapshot(stored)
    applied = reign.applied(stored)
    behind = {
        router_id: since
        for router_id in stored.routers
        if (since := reign.board.behind_since(applied.get(router_id))) is not None
    }
    return await asyncio.to_thread(
        examine,
        snapshot,
        members(snapshot, reign.board.watching, applied),
        RoutesWord(reign.board.version, behind),
        database or DatabaseWord(None, None, now),
        now,
    )


def _view(snapshot: Snapshot, now: float) -> FleetView:
    return fleet_view(snapshot, verdicts(snapshot, now), now)


def _message(
    view: FleetView,
    info: pb.ViewInfo,
    risks: tuple[NodeLossRisk, ...] | None,
    found: Examination | None,
    reign: Reign,
) -> pb.GetStatusResponse:
    message = wire_operator.status(view, info, risks, reign.told_shards)
    message.eviction = reign.rules.intervals.eviction.value
    if found is not None:
        wire_explained.add_disagreements(message, found)
    return message
