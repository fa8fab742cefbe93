"""`llmgwctl events`: what happened, and with --follow what happens."""

import asyncio
import json
import sys
import time
from typing import Any

import click

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import as_json, failure, loop
from llmgw_controller.cli.client import NoController, call_leader
from llmgw_controller.cli.page import Page
from llmgw_controller.cli.session import Session
from llmgw_controller.cli.terminal import say
from llmgw_controller.cli.text import moment
from llmgw_controller.cli.times import Span
from llmgw_controller.cli.views import events as view
from llmgw_kit.errors import LlmgwError, NotLeader, Unavailable

#: Between two attempts to find a leader while following.
RETRY_S = 1.0
RETRY_MOST_S = 10.0


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Print events as they come, until Ctrl-C.")
@click.option("--since", type=Span(), help="Only this far back: 90s, 15m, 3h, 7d.")
@click.option(
    "--subject",
    help="Only about this model and its replicas, node and its devices, replica or device.",
)
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.pass_obj
def events(session: Session, since: float | None, subject: str | None, limit: int, *, follow: bool) -> None:
    """What happened, newest first; --follow goes on.

    With --follow the oldest stands first."""
    request = pb.ListEventsRequest(subject=subject, limit=limit)
    if since is not None:
        request.since_unix_s = time.time() - since
    if follow:
        loop.run(_Follower(session, request).run())
        return

    def render(page: Page, answer: pb.ListEventsResponse) -> int:
        view.render(page, answer, since=request.since_unix_s if since is not None else None)
        return 0

    session.show(lambda stub: stub.ListEvents(request, timeout=10), render, as_json.events)


class _Follower:
    """Goes on at whoever leads, after the last event that was printed."""

    def __init__(self, session: Session, request: pb.ListEventsRequest) -> None:
        self._session = session
        self._request = request
        #: None: nothing was listed yet.
        self._last: int | None = None
        self._retry_s = RETRY_S
        self._told: str | None = None

    async def run(self) -> None:
        """Until Ctrl-C. Raises NoController when there is none to begin with."""
        while True:
            try:
                await call_leader(self._session.addresses, self._pump)
            except (NoController, NotLeader, Unavailable) as e:
                if self._last is None:
                    raise
                self._tell(e)
            await asyncio.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, RETRY_MOST_S)

    async def _pump(self, stub: Any) -> None:
        if self._last is None:
            listed = await stub.ListEvents(self._request, timeout=10)
            # Newest first on the wire; whoever follows reads downwards.
            for event in reversed(listed.events):
                self._print(event)
            self._last = listed.events[0].event_id if listed.events else await self._newest(stub)
        request = pb.WatchEventsRequest(after_event_id=self._last)
        if self._request.HasField("subject"):
            request.subject = self._request.subject
        async for message in stub.WatchEvents(request):
            self._retry_s, self._told = RETRY_S, None
            for event in message.events:
                self._print(event)
                self._last = event.event_id

    async def _newest(self, stub: Any) -> int:
        listed = await stub.ListEvents(pb.ListEventsRequest(limit=1), timeout=10)
        return listed.events[0].event_id if listed.events else 0

    def _print(self, event: pb.Event) -> None:
        if self._session.output == "json":
            click.echo(json.dumps({"schema": "llmgw.event/1"} | as_json.event(event), ensure_ascii=False))
        else:
            page = Page(ascii_only=self._session.ascii_only)
            view.line(page, event, moment(event.at_unix_s, now=time.time(), seconds=True))
            page.print()
        sys.stdout.flush()

    def _tell(self, error: LlmgwError) -> None:
        """Once for each story: a leader may be away for minutes."""
        if error.text != self._told and self._session.output == "json":
            say(json.dumps(failure.as_json(error)), err=True)
        elif error.text != self._told:
            say(f"(not connected: {error.text}; trying again)", err=True)
        self._told = error.text
