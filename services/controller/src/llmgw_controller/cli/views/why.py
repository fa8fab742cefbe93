"""`llmgwctl why MODEL` and `llmgwctl events`."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.page import WIDTH, Page, wrapped
from llmgw_controller.cli.text import count, joined, moment
from llmgw_controller.cli.views.common import age, first_line

EXIT = {pb.WHY_VERDICT_FITS_NOW: 0, pb.WHY_VERDICT_FITS_AFTER_EVICTION: 10, pb.WHY_VERDICT_NEVER_FITS: 11}

_SENTENCE = {
    pb.WHY_VERDICT_FITS_NOW: "fits now.",
    pb.WHY_VERDICT_FITS_AFTER_EVICTION: "does not fit now. It fits after an eviction.",
    pb.WHY_VERDICT_NEVER_FITS: "does not fit, whatever is evicted.",
}


def render(page: Page, answer: pb.WhyResponse) -> None:
    head = f"Another replica of {answer.model} {_SENTENCE.get(answer.verdict, 'was not judged.')}"
    page.line(head, (age(answer.info).rjust(max(2, WIDTH - len(head))), "dim"))
    if answer.now:
        page.line(("NOW     ", "bold"), answer.now)
    for profile in answer.profiles:
        page.blank()
        page.line(("NEEDS   ", "bold"), f"{profile.needs} (profile {profile.profile})")
        page.line(("CONSIDERED  ", "bold"), count(profile.nodes_considered, "node"))
        for lost in profile.filters:
            page.line(
                f"  {-lost.count:>4}  {lost.text or lost.reason:50}  ",
                (joined(list(lost.node_ids), most=4), "dim"),
            )
        page.line(
            f"  = {len(profile.fitting_nodes):>2}  {'fitting':50}  ",
            (joined(list(profile.fitting_nodes)), "dim"),
        )
        if profile.placement:
            places = "; ".join(f"{p.node_id} on {', '.join(p.device_ids)}" for p in profile.placement)
            page.line(("WOULD GO TO  ", "bold"), places)
        for miss in profile.near_misses:
            page.line(("NEAR MISS  ", "bold"), f"{miss.node_id}: {miss.text}")
        if profile.HasField("fix"):
            page.line(("CHEAPEST FIX  ", "bold"), profile.fix)


def render_events(page: Page, answer: pb.ListEventsResponse) -> None:
    first_line(
        page, answer.info, count(len(answer.events), "event") + (", newest first" if answer.events else "")
    )
    kind = max((len(event.kind) for event in answer.events), default=0)
    subject = min(32, max((len(event.subject) for event in answer.events), default=0))
    now = answer.info.at_unix_s
    times = [moment(event.at_unix_s, now=now, seconds=True) for event in answer.events]
    wide = max((len(time) for time in times), default=0)
    for event, time in zip(answer.events, times, strict=True):
        wrapped(
            page,
            [
                (f"{time:>{wide}} ", ""),
                words.mark(event.severity),
                (f" {event.kind:{kind}}  {event.subject:{subject}}  ", ""),
            ],
            event.text,
        )
