"""The call on demand: what was asked for that was not up."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.demand import DemandLine, demand, held_unknown
from llmgw_controller.operator.desk import Context, Desk
from llmgw_controller.wire_routing import AVAILABILITY_TO_WIRE


class Demand(Desk):
    """From the leader's own book of asks, and what routers say they hold."""

    async def Demand(self, request: pb.DemandRequest, context: Context) -> pb.DemandResponse:
        """Of all names, or of one: also of one that is no model."""
        reign, view = await self._view()
        snapshot = reign.snapshot(reign.ledger.stored)
        book = reign.activations.demand
        lines = demand(snapshot, book.asked, view.at)
        if request.HasField("model"):
            model = reign.ledger.catalog.resolve(request.model)
            name = request.model if model is None else model.name
            lines = tuple(line for line in lines if line.name == name)
            if model is None and not lines:
                raise self._no_model(reign, request.model)
        return pb.DemandResponse(
            info=self._info(reign, view),
            since_unix_s=book.since,
            rows=[_row(line) for line in lines],
            held_unknown=held_unknown(snapshot),
            forgotten=book.forgotten,
        )


def _row(line: DemandLine) -> pb.DemandRow:
    state, asked = line.state, line.asked
    row = pb.DemandRow(
        model=line.name,
        held=line.held,
        first_asked_unix_s=line.first_at,
        last_asked_unix_s=line.last_at,
    )
    if state is not None:
        row.availability = AVAILABILITY_TO_WIRE[state.availability]
        if state.eta_s is not None:
            row.eta_s = state.eta_s
        if state.reason is not None:
            row.reason = state.reason
    if asked is not None:
        row.waiting_routers, row.asks, row.served = asked.open, asked.asks, asked.served
        row.refused, row.given_up, row.most_waiting = asked.refused, asked.given_up, asked.most_waiting
        if asked.refusal is not None:
            row.refused_code = asked.refusal.code
            row.refused_text = asked.refusal.text
            row.refused_unix_s = asked.refusal.at
    return row
