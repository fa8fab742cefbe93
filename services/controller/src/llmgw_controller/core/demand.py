"""Demand: what was asked for that was not up. The mirror image of what nobody asks for.

Only what the leader itself sees: asks of routers, one for all requests that each of them holds for a model,
since its term began, and what routers say they hold now. What a router refuses by itself, of a model that
it knows to be unavailable, it counts in its own metrics; nobody tells a leader.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from llmgw_controller.core.activation import Decision, Pending, Ready, Refused
from llmgw_controller.core.availability import Availability, ModelState, model_state
from llmgw_controller.core.idleness import silent_members
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import ModelId


@dataclass(frozen=True)
class Refusal:
    code: str
    text: str
    at: float


@dataclass(frozen=True)
class Asked:
    """Of one name, in this term. `asks` = `served` + `refused` + `given_up` + those still open."""

    name: str
    first_at: float
    last_at: float
    asks: int = 0
    #: Asks that are open.
    open: int = 0
    served: int = 0
    refused: int = 0
    #: Nobody waited any more.
    given_up: int = 0
    #: Most requests that one ask stood for when it was made.
    most_waiting: int = 0
    #: The newest.
    refusal: Refusal | None = None


def begun(known: Asked | None, name: str, requests: int, now: float) -> Asked:
    """With one more ask."""
    one = known or Asked(name, now, now)
    return replace(
        one, last_at=now, asks=one.asks + 1, open=one.open + 1, most_waiting=max(one.most_waiting, requests)
    )


def ended(one: Asked, decision: Decision | None, now: float) -> Asked:
    """With one open ask less. None: whoever asked has gone."""
    one = replace(one, open=one.open - 1)
    match decision:
        case Ready():
            return replace(one, served=one.served + 1)
        case Refused(code, text, _):
            return replace(one, refused=one.refused + 1, refusal=Refusal(code, text, now))
        case Pending() | None:
            return replace(one, given_up=one.given_up + 1)


@dataclass(frozen=True)
class DemandLine:
    name: str
    #: None: the catalog has no such model.
    state: ModelState | None
    #: Requests that routers hold now; None: a member is not heard, so nobody knows.
    held: int | None
    #: None: no ask of it in this term; it is told for what is held, or for an ask of an earlier leader.
    asked: Asked | None
    #: Newest ask, also of an earlier leader where its row is still open; None: unknown.
    first_at: float | None
    last_at: float | None

    @property
    def unmet(self) -> bool:
        """Whoever asks now does not get it."""
        return self.state is None or self.state.availability is not Availability.READY


def demand(snapshot: Snapshot, asked: Iterable[Asked], now: float) -> tuple[DemandLine, ...]:
    """Unmet first, then the newest ask first."""
    known = {one.name: one for one in asked}
    names = {*known, *snapshot.stored.activations, *(name for name, held in snapshot.held.items() if held)}
    unknown = held_unknown(snapshot)
    lines = [_line(snapshot, name, known.get(name), now, unknown=unknown) for name in names]
    return tuple(sorted(lines, key=lambda one: (not one.unmet, -(one.last_at or 0.0), one.name)))


def held_unknown(snapshot: Snapshot) -> bool:
    """A member router is not heard: what it holds nobody knows."""
    return bool(snapshot.stored.routers) and (snapshot.activity.map is None or bool(silent_members(snapshot)))


def _line(snapshot: Snapshot, name: str, asked: Asked | None, now: float, *, unknown: bool) -> DemandLine:
    model = snapshot.catalog.models.get(ModelId(name))
    row = snapshot.stored.activations.get(ModelId(name))
    times: list[tuple[float, float]] = []
    if asked is not None:
        times.append((asked.first_at, asked.last_at))
    if row is not None:
        times.append((row.opened_at, row.asked_at))
    return DemandLine(
        name,
        model_state(snapshot, model, now) if model is not None else None,
        None if unknown else snapshot.held.get(ModelId(name), 0),
        asked,
        min((first for first, _ in times), default=None),
        max((last for _, last in times), default=None),
    )
