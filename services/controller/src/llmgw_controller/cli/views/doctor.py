"""`llmgwctl doctor`: who disagrees with whom, since when, and who will win."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.page import Column, Page, table, wrapped
from llmgw_controller.cli.text import count, duration
from llmgw_controller.cli.views.common import age

if TYPE_CHECKING:
    from llmgw_controller.cli.doctor import Asked
    from llmgw_kit.errors import LlmgwError


def is_trouble(answer: pb.DoctorResponse) -> bool:
    """Some of it does not mend by itself, or not in time."""
    return any(one.severity == pb.TROUBLE_SEVERITY_TROUBLE for one in answer.disagreements)


def between(asked: Sequence[Asked]) -> list[str]:
    """What the controllers' own words on each other do not agree on."""
    words_ = [(one.address, one.word) for one in asked if one.word is not None]
    found = []
    leading = [f"{word.name} at {address}" for address, word in words_ if word.leading]
    if len(leading) > 1:
        found.append(f"{len(leading)} say that they lead: {', '.join(leading)}; the lease decides, ask again")
    hashes = {word.config_hash for _, word in words_}
    if len(hashes) > 1:
        told = ", ".join(f"{word.name} {word.config_hash}" for _, word in words_)
        found.append(f"their configurations differ: {told}")
    stores = {word.store for _, word in words_}
    if len(stores) > 1:
        found.append("one keeps its rows in memory: it is a fleet of its own")
    terms = {word.term for _, word in words_ if word.HasField("term")}
    if len(terms) > 1:
        found.append(
            f"they have seen different terms: {', '.join(map(str, sorted(terms)))}; the highest wins"
        )
    return found


def render(
    page: Page, asked: Sequence[Asked], answer: pb.DoctorResponse | None, error: LlmgwError | None
) -> None:
    if answer is not None:
        told = count(len(answer.disagreements), "disagreement") if answer.disagreements else "all agree"
        page.line(f"{age(answer.info)} · {told}")
    else:
        page.line(("!! ", "bold red"), "no leader answered: only the controllers themselves are compared")
    page.blank()
    _controllers(page, asked)
    for text in between(asked):
        wrapped(page, [("!! ", "bold red")], text)
    if answer is None:
        _without(page, error)
        return
    for one in answer.disagreements:
        page.blank()
        _disagreement(page, one, now=answer.info.at_unix_s)
    page.blank()
    page.line(("CHECKED", "bold"))
    for line in answer.checked:
        wrapped(page, [("  ", "")], line)
    page.blank()
    page.line(("Next: llmgwctl status · llmgwctl events --since 1h", "dim"))


def _controllers(page: Page, asked: Sequence[Asked]) -> None:
    rows = []
    for one in asked:
        if one.word is None:
            rows.append((str(one.address), "-", "no answer", one.error or ""))
            continue
        leader = f"{one.word.leader_name}, term {one.word.term}" if one.word.leader_name else "nobody"
        does = "leads" if one.word.leading else "stands by"
        rows.append((str(one.address), one.word.name, does, f"knows {leader}; {one.word.store}"))
    columns = [Column("CONTROLLERS"), Column("NAME", most=24), Column("DOES"), Column("SAYS")]
    table(page, columns, rows)


def _disagreement(page: Page, one: pb.Disagreement, *, now: float) -> None:
    since = f", for {duration(now - one.since_unix_s)}" if one.HasField("since_unix_s") else ""
    page.line(words.mark(one.severity), (f" {one.subject}", "bold"), f"  {one.kind.replace('_', ' ')}{since}")
    who = max(len(witness.who) for witness in one.witnesses)
    for witness in one.witnesses:
        wrapped(page, [(f"     {witness.who:{who}}  ", "")], witness.says)
    wrapped(page, [("     → " if not page.ascii_only else "     > ", "")], one.outcome)


def _without(page: Page, error: LlmgwError | None) -> None:
    page.blank()
    if error is not None:
        wrapped(page, [], error.text)
        for step in error.next_steps:
            page.line(f"  {step}")
    page.line("  on a node, what runs there: llmgw-agent ps")
