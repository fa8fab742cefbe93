"""What happened."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller import wire_operator
from llmgw_controller.operator.desk import Context, Desk

#: Events in one answer unless fewer are asked for.
EVENTS_MAX = 1000


class Events(Desk):
    """The log of events."""

    async def ListEvents(self, request: pb.ListEventsRequest, context: Context) -> pb.ListEventsResponse:
        """The log, newest first."""
        reign, view = await self._view()
        rows = await reign.world.store.events(
            since=request.since_unix_s if request.HasField("since_unix_s") else None,
            subject=request.subject if request.HasField("subject") else None,
            limit=min(request.limit or EVENTS_MAX, EVENTS_MAX),
        )
        events = [wire_operator.event(row) for row in rows]
        return pb.ListEventsResponse(info=self._info(reign, view), events=events)
