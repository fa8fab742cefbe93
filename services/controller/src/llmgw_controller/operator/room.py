"""The calls on room: what can be let go, and who has left for whom."""

import asyncio
import logging
import math

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller import wire_room
from llmgw_controller.core.holdings import Holdings, holdings, let_go_idle, may_reclaim
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.state import Snapshot
from llmgw_controller.operator.desk import Context, Desk, moment
from llmgw_controller.reign import Reign
from llmgw_kit.errors import InvalidRequest, Unavailable
from llmgw_kit.ids import ModelId

log = logging.getLogger(__name__)

#: Receipts in one answer.
RECEIPTS_MAX = 1000


class Room(Desk):
    """Reclaim by hand, and the receipts of what was done by itself."""

    async def Reclaim(self, request: pb.ReclaimRequest, context: Context) -> pb.ReclaimResponse:
        """What can be stopped; with `apply`, judged anew under the pen, all of it or nothing."""
        idle_s = request.idle_s if request.HasField("idle_s") else None
        if idle_s is not None and not (math.isfinite(idle_s) and idle_s > 0):
            raise InvalidRequest(
                f"idle_s is {idle_s:g}; expected a number of seconds above 0",
                next_steps=["try: llmgwctl reclaim --plan --idle 6h"],
            )
        reign, view = await self._view()
        model = self._model(reign, request.model).name if request.HasField("model") else None
        if not request.apply:
            snapshot = reign.snapshot(reign.ledger.stored)
            found = await asyncio.to_thread(_found, snapshot, view.at, idle_s, model)
            return wire_room.reclaim(found, (), self._info(reign, view))
        with self._changing():
            return await self._reclaim(reign, idle_s, model, self._info(reign, view))

    async def _reclaim(
        self, reign: Reign, idle_s: float | None, model: ModelId | None, about: pb.ViewInfo
    ) -> pb.ReclaimResponse:
        async with reign.ledger.writing() as stored:
            snapshot, now = reign.snapshot(stored), reign.tenure.now()
            refused = may_reclaim(snapshot, now)
            if refused is not None:
                raise Unavailable(f"nothing is let go: {refused}", code="learning", retry_after_s=5.0)
            # In a thread, as a pass decides: renewals must not wait for a large fleet.
            found = await asyncio.to_thread(_found, snapshot, now, idle_s, model)
            gone, changes = await asyncio.to_thread(let_go_idle, snapshot, found, now)
            await reign.ledger.commit(changes)
        for one in gone:
            log.info("reclaimed: %s", one.text)
        reign.hints()
        return wire_room.reclaim(found, gone, about)

    async def ListEvictions(
        self, request: pb.ListEvictionsRequest, context: Context
    ) -> pb.ListEvictionsResponse:
        """Receipts, newest first; also of models that have left the catalog."""
        since = moment(request, "since_unix_s")
        reign, view = await self._view()
        model: ModelId | None = None
        if request.HasField("model"):
            known = reign.ledger.catalog.resolve(request.model)
            model = known.name if known is not None else ModelId(request.model)
        rows = await reign.world.store.evictions(
            since=since,
            model=model,
            limit=RECEIPTS_MAX,
        )
        if model is not None and not rows and reign.ledger.catalog.resolve(model) is None:
            raise self._no_model(reign, request.model)
        receipts = [wire_room.receipt(row) for row in rows]
        return pb.ListEvictionsResponse(info=self._info(reign, view), evictions=receipts)


def _found(snapshot: Snapshot, now: float, idle_s: float | None, model: ModelId | None) -> Holdings:
    return holdings(snapshot, verdicts(snapshot, now), now, idle_s=idle_s, model=model)
