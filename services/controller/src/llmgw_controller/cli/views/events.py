"""`llmgwctl events`: what happened, newest first; with --follow as it happens."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.page import Page, wrapped
from llmgw_controller.cli.text import count, moment
from llmgw_controller.cli.views.common import first_line

#: Columns of a followed line: they cannot be as wide as the widest still to come.
KIND = 16
SUBJECT = 20


def render(page: Page, answer: pb.ListEventsResponse, *, since: float | None = None) -> None:
    """A page of them."""
    now = answer.info.at_unix_s
    told = count(len(answer.events), "event")
    if since is not None:
        told += f" since {moment(since, now=now)}"
    first_line(page, answer.info, told + (", newest first" if answer.events else ""))
    if not answer.events:
        page.line("nothing happened that is on record; further back: llmgwctl events --since 7d")
        return
    kind = max(len(event.kind) for event in answer.events)
    subject = min(32, max(len(event.subject) for event in answer.events))
    times = [moment(event.at_unix_s, now=now, seconds=True) for event in answer.events]
    wide = max(len(time) for time in times)
    for event, time in zip(answer.events, times, strict=True):
        line(page, event, f"{time:>{wide}}", kind, subject)


def line(page: Page, event: pb.Event, time: str, kind: int = KIND, subject: int = SUBJECT) -> None:
    """One event; its text goes on beneath itself."""
    lead = [
        (f"{time} ", ""),
        words.mark(event.severity),
        (f" {event.kind:{kind}}  {event.subject:{subject}}  ", ""),
    ]
    wrapped(page, lead, event.text)
