"""A drill from beginning to end: rules tried one after the other, told as they go, and summed up."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from llmgw_router.drill import answers, requests, streams  # noqa: F401 (they fill RULES)
from llmgw_router.drill.rules import RULES, Rule
from llmgw_router.drill.wire import Broken, Misplaced, Router, Unreachable

SCHEMA = "llmgw.drill/v1"
#: No rule may hang a drill.
RULE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one rule. `why` None: it holds."""

    rule: Rule
    why: str | None
    took_ms: float


def chosen(only: Iterable[str]) -> list[Rule]:
    """Rules by their numbers, all for none. Raises KeyError with a number that no rule has."""
    wanted = {number.upper() for number in only}
    unknown = wanted - {rule.number for rule in RULES}
    if unknown:
        raise KeyError(min(unknown))
    rules = [rule for rule in RULES if not wanted or rule.number in wanted]
    return sorted(rules, key=lambda rule: (rule.disturbs, rule.number[0] != "W", rule.number))


async def drill(router: Router, rules: Iterable[Rule], told: Callable[[Outcome], None]) -> list[Outcome]:
    """Try each rule. Raises Unreachable or Misplaced when there is nothing to try them on."""
    await _look(router)
    outcomes: list[Outcome] = []
    for rule in rules:
        began = time.monotonic()
        why: str | None = None
        try:
            async with asyncio.timeout(RULE_S):
                await rule.attempt(router)
        except Broken as broken:
            why = str(broken)
        except TimeoutError:
            why = f"not decided within {RULE_S:g} s"
        except Unreachable as gone:
            why = f"the router went away: {gone}"
        outcome = Outcome(rule=rule, why=why, took_ms=(time.monotonic() - began) * 1000)
        outcomes.append(outcome)
        told(outcome)
    return outcomes


async def _look(router: Router) -> None:
    """One question before anything is judged: what is not there, or not ours to ask, breaks no rule."""
    try:
        answer = await router.ask(router.body({"echo": True}))
    except Broken as broken:
        raise Unreachable(f"{router.host}:{router.port} does not speak HTTP: {broken}") from None
    if answer.status == 401:
        raise Misplaced("this router asks for an API key", "give one that may use the model: --api-key KEY")
    if answer.status == 404:
        raise Misplaced(
            f"this router has no model {router.model}",
            "start `llmgw-router drill-engine` and give it to the router as an endpoint of that model, "
            "or name another: --model NAME",
        )
    if answer.status == 200 and b'"drill.echo"' not in answer.body:
        raise Misplaced(
            f"what serves {router.model} is no drill engine",
            "start `llmgw-router drill-engine`: it must be the model's only replica",
        )


def line(outcome: Outcome, *, colour: bool) -> str:
    """One line of the table; a broken rule has what was seen below it."""
    word = "pass" if outcome.why is None else "FAIL"
    if colour:
        word = f"\x1b[{32 if outcome.why is None else 31}m{word}\x1b[0m"
    text = f"{word}  {outcome.rule.number:5} {outcome.took_ms:7.0f} ms  {outcome.rule.title}"
    return text if outcome.why is None else f"{text}\n      {outcome.why}"


def summary(outcomes: list[Outcome]) -> str:
    """The last lines: how many hold, and what to do about the others."""
    broken = [outcome for outcome in outcomes if outcome.why is not None]
    if not broken:
        return "the one rule holds" if len(outcomes) == 1 else f"all {len(outcomes)} rules hold"
    again = " ".join(f"--rule {number}" for number in sorted({one.rule.number for one in broken}))
    return f"broken: {len(broken)} of {len(outcomes)} rules\nnext: try these again alone: {again}"


def as_json(router: Router, outcomes: list[Outcome]) -> dict[str, Any]:
    """All of it under stable names."""
    return {
        "schema": SCHEMA,
        "router": f"{router.host}:{router.port}",
        "model": router.model,
        "passed": sum(outcome.why is None for outcome in outcomes),
        "failed": sum(outcome.why is not None for outcome in outcomes),
        "rules": [
            {
                "rule": outcome.rule.number,
                "title": outcome.rule.title,
                "holds": outcome.why is None,
                "why": outcome.why,
                "took_ms": round(outcome.took_ms, 1),
            }
            for outcome in outcomes
        ],
    }
