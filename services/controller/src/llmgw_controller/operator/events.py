"""What happened, and what happens."""

from collections.abc import AsyncIterator

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller import wire_operator
from llmgw_controller.operator.desk import Context, Desk, moment
from llmgw_controller.ports import EventRow, is_about
from llmgw_controller.reign import Reign
from llmgw_kit.errors import Unavailable

#: Events in one answer unless fewer are asked for.
EVENTS_MAX = 1000

#: In one message to a follower.
BATCH = 200
#: Streams at once; each costs one query for each commit that tells something.
FOLLOWERS_MAX = 50


class Events(Desk):
    """The log of events."""

    _followers = 0

    async def ListEvents(self, request: pb.ListEventsRequest, context: Context) -> pb.ListEventsResponse:
        """The log, newest first."""
        since = moment(request, "since_unix_s")
        reign, view = await self._view()
        rows = await reign.world.store.events(
            since=since,
            subject=request.subject if request.HasField("subject") else None,
            limit=min(request.limit or EVENTS_MAX, EVENTS_MAX),
        )
        events = [wire_operator.event(row) for row in rows]
        return pb.ListEventsResponse(info=self._info(reign, view), events=events)

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: Context
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        """Those asked for, oldest first, then each as it is committed, until the term ends. Raises NotLeader
        then: whoever follows goes on at the new leader after its last event."""
        moment(request, "since_unix_s")
        reign = await self._reign()
        if self._followers >= FOLLOWERS_MAX:
            raise Unavailable(
                f"{FOLLOWERS_MAX} streams of events are open already",
                code="too_many_followers",
                retry_after_s=10.0,
                next_steps=["close one, or ask now and then: llmgwctl events --since 5m"],
            )
        self._followers += 1
        try:
            async for rows in self._following(reign, request):
                events = [wire_operator.event(row) for row in rows]
                if request.HasField("subject"):
                    events = [one for one in events if is_about(one.subject, request.subject)]
                if events:
                    yield pb.WatchEventsResponse(events=events)
        finally:
            self._followers -= 1

    async def _following(self, reign: Reign, request: pb.WatchEventsRequest) -> AsyncIterator[list[EventRow]]:
        cursor = await self._cursor(reign, request)
        while True:
            told = reign.ledger.told()
            rows = await reign.world.store.events_after(cursor, subject=None, limit=BATCH)
            if rows:
                yield rows
                cursor = rows[-1].event_id
                continue
            if self._office.reign is not reign:
                raise self._office.not_leading()
            await told.wait()

    async def _cursor(self, reign: Reign, request: pb.WatchEventsRequest) -> int:
        """The event after which the stream begins; 0: with the first."""
        newest = await reign.world.store.events(since=None, subject=None, limit=1)
        last = newest[0].event_id if newest else 0
        if request.HasField("after_event_id"):
            # Beyond what there is: the log began anew meanwhile, as without a database it does.
            return request.after_event_id if request.after_event_id <= last else 0
        if not request.HasField("since_unix_s"):
            return last
        first = await reign.world.store.first_event(request.since_unix_s)
        return first - 1 if first is not None else last
