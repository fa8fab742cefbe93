"""`llmgwctl why MODEL`: what is in the way, and the cheapest thing to do about it."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.bars import BY_NAME, USE_PART
from llmgw_controller.cli.exits import EXIT_AFTER_EVICTION, EXIT_NEVER_FITS, EXIT_TROUBLE
from llmgw_controller.cli.page import Page, Piece, wrapped
from llmgw_controller.cli.text import ago, count, duration, joined, moment
from llmgw_controller.cli.views.common import age

_EXIT = {
    pb.WHY_VERDICT_FITS_NOW: 0,
    pb.WHY_VERDICT_FITS_AFTER_EVICTION: EXIT_AFTER_EVICTION,
    pb.WHY_VERDICT_NEVER_FITS: EXIT_NEVER_FITS,
}

#: Width of a reason in the list of nodes that fell away.
REASON = 50

#: Further ways told of one profile; idle replicas in its way.
WAYS = 4
IDLE = 6


def render(page: Page, answer: pb.WhyResponse) -> None:
    head = _sentence(answer)
    aged = age(answer.info)
    if len(head) + len(aged) + 2 <= page.width:
        page.line(head, (aged.rjust(page.width - len(head)), "dim"))
    else:
        wrapped(page, [], head)
        page.line((aged, "dim"))
    page.blank()
    if answer.now:
        wrapped(page, [("NOW     ", "bold")], answer.now)
    wrapped(page, [("ASKED   ", "bold")], _asked(answer))
    if answer.HasField("held_back"):
        wrapped(page, [("HELD    ", "bold")], f"there is room, but: {answer.held_back}")
    for profile in answer.profiles:
        _profile(page, answer, profile)
    _idle(page, answer)


def _sentence(answer: pb.WhyResponse) -> str:
    waits = answer.HasField("waiting_since_unix_s")
    more = "Another" if answer.replicas else "A"
    subject = answer.model if waits else f"{more} replica of {answer.model}"
    match answer.verdict:
        case pb.WHY_VERDICT_FITS_NOW:
            return f"{subject} fits now."
        case pb.WHY_VERDICT_FITS_AFTER_EVICTION:
            leaving = max((_evictions(p) for p in answer.profiles if p.HasField("cheapest")), default=0)
            what = (
                "one eviction" if leaving == 1 else "an eviction" if not leaving else f"{leaving} evictions"
            )
            return f"{subject} does not fit now. It fits after {what}."
        case pb.WHY_VERDICT_NEVER_FITS:
            return f"{subject} does not fit, whatever is evicted."
        case _:
            return f"{subject} was not judged."


def _evictions(profile: pb.WhyProfile) -> int:
    """Replicas that the cheapest fix drains; 0: it drains none."""
    _, drained, names = profile.cheapest.command.partition(" replica drain ")
    return len(names.partition(" --for ")[0].split()) if drained else 0


def _asked(answer: pb.WhyResponse) -> str:
    now = answer.info.at_unix_s
    parts = [f"{answer.held} held now" if answer.held else "nothing held now"]
    if answer.HasField("last_asked_unix_s"):
        parts.append(f"last asked {ago(answer.last_asked_unix_s, now=now)}")
    if answer.HasField("waiting_since_unix_s"):
        since = answer.waiting_since_unix_s
        parts.append(f"waiting for room since {moment(since, now=now)}, {duration(now - since)}")
    return ", ".join(parts)


def _profile(page: Page, answer: pb.WhyResponse, profile: pb.WhyProfile) -> None:
    page.blank()
    wrapped(page, [("NEEDS   ", "bold")], f"{profile.needs} (profile {profile.profile})")
    page.blank()
    page.line(("CONSIDERED  ", "bold"), count(profile.nodes_considered, "node"))
    for lost in profile.filters:
        _row(page, f"-{lost.count}", lost.text or lost.reason.replace("_", " "), list(lost.node_ids))
    _row(page, f"= {len(profile.fitting_nodes)}", "free and fitting", list(profile.fitting_nodes))
    if profile.placement:
        page.blank()
        places = "; ".join(f"{p.node_id} on {', '.join(p.device_ids)}" for p in profile.placement)
        wrapped(page, [("WOULD GO TO  ", "bold")], places)
    _near_misses(page, profile)
    if profile.HasField("cheapest"):
        _cheapest(page, answer, profile)
    elif profile.verdict == pb.WHY_VERDICT_FITS_AFTER_EVICTION:
        page.blank()
        text = "none: what could be drained would be started again first, in the same place"
        wrapped(page, [("CHEAPEST FIX  ", "bold")], text)
    _others(page, profile)


def _row(page: Page, number: str, text: str, node_ids: list[str]) -> None:
    wrapped(page, [(f"{number:>6}  {text:{REASON}}  ", "")], joined(sorted(node_ids), most=3))


def _near_misses(page: Page, profile: pb.WhyProfile) -> None:
    """By fabric, the nodes that have room beside those that would have it."""
    if not any(miss.evict_replica_ids for miss in profile.near_misses):
        return
    fabrics: dict[str, list[pb.WhyNearMiss]] = {}
    for miss in profile.near_misses:
        fabrics.setdefault(miss.fabric, []).append(miss)
    for fabric, misses in fabrics.items():
        if not any(miss.evict_replica_ids for miss in misses):
            continue
        page.blank()
        page.line(("NEAR MISS", "bold"), f"  fabric {fabric}" if fabric else "")
        name = max(len(miss.node_id) for miss in misses)
        for miss in misses:
            wrapped(page, [(f"   {miss.node_id:{name}}  ", ""), *_cells(page, miss), ("  ", "")], miss.text)


def _cells(page: Page, miss: pb.WhyNearMiss) -> list[Piece]:
    parts = [BY_NAME[USE_PART[use]] for use in miss.uses]
    return [(part.ascii if page.ascii_only else part.glyph, part.style) for part in parts]


def _cheapest(page: Page, answer: pb.WhyResponse, profile: pb.WhyProfile) -> None:
    fix = profile.cheapest
    page.blank()
    wrapped(page, [("CHEAPEST FIX  ", "bold")], fix.text)
    drains = _evictions(profile) > 0
    if drains or fix.HasField("frees_in_s"):
        page.line(f"   {_seconds(fix, 'frees_in_s'):14}", "until the room is free")
    page.line(f"   {_seconds(fix, 'ready_in_s'):14}", f"until {answer.model} serves")
    if drains or (fix.HasField("reload_s") and fix.reload_s):
        page.line(f"   {_seconds(fix, 'reload_s'):14}", "to bring back what leaves")
    page.blank()
    page.line("   ", (fix.command, "bold"))


def _seconds(fix: pb.WhyFix, field: str) -> str:
    if not fix.HasField(field):  # type: ignore[arg-type]
        return "not measured"
    seconds: float = getattr(fix, field)
    return f"~{duration(seconds)}" if seconds else "at once"


#: What the policy makes of those whom the rules let go.
_POLICY = {
    "on": "eviction is on: who may go leaves for it by itself, the cheapest first",
    "suggest": "eviction is suggest: nobody leaves for it by itself, and status says who could",
    "off": "eviction is off: nobody leaves for it by itself",
}


def _idle(page: Page, answer: pb.WhyResponse) -> None:
    """Who is idle and in the way, and why each is there all the same."""
    if not answer.idle:
        return
    page.blank()
    wrapped(page, [("IDLE IN ITS WAY  ", "bold")], _POLICY.get(answer.eviction, ""))
    name = max(len(one.replica_id) for one in answer.idle[:IDLE])
    for one in answer.idle[:IDLE]:
        idle = "never asked" if one.never_asked else f"idle {duration(one.idle_s)}"
        lead = f"   {one.replica_id:{name}}  {count(one.gpus, 'GPU'):>6}  {idle:<13}  "
        wrapped(page, [(lead, "")], f"stays: {one.kept_text}" if one.HasField("kept_text") else "may go")
    if len(answer.idle) > IDLE:
        page.line(f"   … {len(answer.idle) - IDLE} more: see --output json")


def _others(page: Page, profile: pb.WhyProfile) -> None:
    if not profile.other_ways:
        return
    page.blank()
    page.line(("OTHER WAYS", "bold"))
    for way in profile.other_ways[:WAYS]:
        price = []
        if way.HasField("ready_in_s"):
            price.append(f"serves in {_seconds(way, 'ready_in_s')}")
        if way.HasField("reload_s") and way.reload_s:
            price.append(f"{_seconds(way, 'reload_s')} to bring back")
        wrapped(page, [("   ", "")], "; ".join([way.text, *price]))
        if way.command:
            page.line("     ", (way.command, "dim"))
    if len(profile.other_ways) > WAYS:
        page.line(f"   … {len(profile.other_ways) - WAYS} more: see --output json")


def exit_code(answer: pb.WhyResponse) -> int:
    """0 fits now, 10 after an eviction, 11 never, 1 not judged."""
    return _EXIT.get(answer.verdict, EXIT_TROUBLE)
