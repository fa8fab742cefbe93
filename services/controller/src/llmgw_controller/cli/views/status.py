"""`llmgwctl status`: trouble first, then what can be placed, then what can be stopped."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.exits import EXIT_NO_DATA, EXIT_TROUBLE
from llmgw_controller.cli.page import Page, wrapped
from llmgw_controller.cli.text import count, duration, iso, moment
from llmgw_controller.cli.views import capacity, fabrics, holdings
from llmgw_controller.cli.views.common import age

#: At most so many steps in the last line.
STEPS = 2
#: Rows are read every two seconds, and a beat comes every five.
STALE_S = 60.0

_AVAILABILITY = (("ready", "serving"), ("starting", "starting"), ("cold", "cold"), ("unavailable", "down"))


def render(page: Page, status: pb.GetStatusResponse) -> None:
    _head(page, status)
    _trouble(page, status)
    capacity.render(page, status)
    fabrics.render_section(page, status)
    page.blank()
    _models(page, status)
    page.blank()
    holdings.render(page, status)
    _suggestions(page, status)
    _since(page, status)
    _next(page, status)


def exit_code(status: pb.GetStatusResponse) -> int:
    """0 fine, 1 trouble, 2 no fresh data."""
    if is_stale(status):
        return EXIT_NO_DATA
    return EXIT_TROUBLE if any(t.severity == pb.TROUBLE_SEVERITY_TROUBLE for t in status.trouble) else 0


def is_stale(status: pb.GetStatusResponse) -> bool:
    """It is shown as it is now, and is not: the leader has not read the rows for long."""
    return status.info.age_s > STALE_S and not status.HasField("recorded_unix_s")


def _head(page: Page, status: pb.GetStatusResponse) -> None:
    info, nodes, routers = status.info, status.nodes, status.routers
    if status.HasField("recorded_unix_s"):
        asked = status.asked_unix_s if status.HasField("asked_unix_s") else status.recorded_unix_s
        before = asked - status.recorded_unix_s
        page.line(
            (f"AS IT WAS at {iso(asked)}", "bold"), f": recorded {duration(before)} before, nothing of it now"
        )
    if is_stale(status):
        text = f"no fresh data: what follows is {duration(info.age_s)} old, and nobody may say it is so now"
        wrapped(page, [("!! ", "bold red")], text)
    lead = [
        info.cluster,
        f"leader {info.leader_name}, term {info.term}",
        age(info),
        f"routers {routers.heard} of {routers.members} heard",
        f"brake {'ON' if status.brake else 'off'}",
    ]
    if info.store == "memory":
        lead.append("in memory: nothing survives a restart")
    if info.learning:
        lead.append("learning")
    _joined(page, lead)
    wanted = sum(m.wanted for m in status.models)
    ready = sum(m.ready for m in status.models)
    _joined(
        page,
        [
            f"nodes {nodes.heard} heard, {nodes.silent} silent, {nodes.lost} lost",
            f"replicas {ready} of {wanted} ready",
            f"in flight {in_flight(status)}, held {sum(m.held for m in status.models)}",
        ],
    )
    page.blank()


def _joined(page: Page, parts: list[str]) -> None:
    """One line, or more where the parts are long; broken between parts."""
    line = ""
    for part in parts:
        longer = f"{line} · {part}" if line else part
        if line and len(longer) > page.width:
            page.line(line)
            longer = part
        line = longer
    page.line(line)


def in_flight(status: pb.GetStatusResponse) -> str:
    """Of all models; `-` when one that serves does not tell: a sum without it would only be a lower bound."""
    flying = [m.in_flight for m in status.models if m.HasField("in_flight")]
    silent = any(not m.HasField("in_flight") and (m.ready or m.gpus) for m in status.models)
    return "-" if silent else str(sum(flying))


def _trouble(page: Page, status: pb.GetStatusResponse) -> None:
    if not status.trouble:
        page.line("No trouble.")
        page.blank()
        return
    bad = sum(t.severity == pb.TROUBLE_SEVERITY_TROUBLE for t in status.trouble)
    page.line(("TROUBLE", "bold"), f"  {bad}" if bad else "  none; to know:")
    width = min(24, max(len(t.subject) for t in status.trouble))
    for t in status.trouble:
        first, *rest = t.text.split("\n")
        # A duration in the text says the same.
        told = " for " in first or not t.HasField("since_unix_s")
        since = "" if told else f" · since {moment(t.since_unix_s, now=status.info.at_unix_s)}"
        wrapped(
            page,
            [words.mark(t.severity), (f" {t.subject:{width}}  ", "")],
            "\n".join([first + since, *rest]),
        )
        if t.HasField("fix"):
            page.line(" " * (width + 5), (t.fix, "dim"))
    page.blank()


def _models(page: Page, status: pb.GetStatusResponse) -> None:
    parts = []
    for word, shown in _AVAILABILITY:
        mine = [m for m in status.models if words.availability(m.availability) == word]
        if not mine:
            continue
        told = f"{len(mine)} {shown}"
        if word == "starting":
            told += f" ({', '.join(_starting(m) for m in mine[:2])}{', …' if len(mine) > 2 else ''})"
        parts.append(told)
    line = f"{len(status.models)}: {', '.join(parts)}" if parts else "none in the catalog"
    wrapped(page, [("MODELS  ", "bold")], line)


def _starting(model: pb.ModelRow) -> str:
    return f"{model.model}, about {duration(model.eta_s)}" if model.HasField("eta_s") else model.model


def _suggestions(page: Page, status: pb.GetStatusResponse) -> None:
    if not status.suggestions:
        return
    page.blank()
    page.line(("COULD MAKE ROOM", "bold"), (f"  eviction is {status.eviction or 'off'}", "dim"))
    for one in status.suggestions:
        price = [
            f"room in ~{duration(one.frees_in_s)}" if one.HasField("frees_in_s") else "",
            f"to bring back: {duration(one.reload_s)}" if one.HasField("reload_s") else "",
        ]
        told = "; ".join([one.text, *(text for text in price if text)])
        wrapped(page, [(f"  {one.beneficiary_model}  ", "")], told)
        victims = " ".join(one.victim_replica_ids)
        page.line("    ", (f"llmgwctl replica drain {victims} --for {one.beneficiary_model}", "dim"))


def _since(page: Page, status: pb.GetStatusResponse) -> None:
    """Of a recorded status: what has happened between the record and the time asked for."""
    if not status.HasField("recorded_unix_s"):
        return
    page.blank()
    if not status.events_since:
        page.line(("THEN", "bold"), "  nothing happened up to the time asked for")
        return
    page.line(("THEN", "bold"), f"  {count(len(status.events_since), 'event')} up to the time asked for")
    for event in status.events_since:
        at = moment(event.at_unix_s, now=status.info.at_unix_s, seconds=True)
        lead = [(f"  {at} ", ""), words.mark(event.severity), (f" {event.kind}  {event.subject}  ", "")]
        wrapped(page, lead, event.text)


def _next(page: Page, status: pb.GetStatusResponse) -> None:
    if status.HasField("recorded_unix_s"):
        steps = ["llmgwctl status", "llmgwctl events"]
    else:
        steps = [t.fix for t in status.trouble if t.HasField("fix") and t.fix.startswith("llmgwctl ")]
    if any(not one.HasField("kept_because") for one in holdings.holdings(status)) and steps:
        steps = [steps[0], "llmgwctl reclaim --plan"]
    elif status.nobody_asked and not steps:
        steps = ["llmgwctl reclaim --plan"]
    cold = [m.model for m in status.models if words.availability(m.availability) == "cold"]
    if not steps and cold:
        steps = [f"llmgwctl why {cold[0]}", "llmgwctl models"]
    if not steps and not (status.nodes.heard or status.nodes.silent or status.nodes.lost):
        # How an agent is started, and what there is to serve, stands there.
        steps = ["llmgwctl nodes", "llmgwctl model shipped"]
    steps = list(dict.fromkeys(steps))[:STEPS] or ["llmgwctl replicas", "llmgwctl models"]
    line = f"Next: {' · '.join(steps)}"
    page.blank()
    page.line((line if len(line) <= page.width else f"Next: {steps[0]}", "dim"))
