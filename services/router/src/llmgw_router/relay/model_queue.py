"""One model's gate, who waits at it, and what is said of that to who cannot be let in."""

from typing import TYPE_CHECKING, Final

from llmgw_router.core import errors
from llmgw_router.core.admission import Order, Pace, wait_s
from llmgw_router.relay.gates import Gate

if TYPE_CHECKING:
    from llmgw_router.relay.exchange import Exchange

#: What is said when no pace is known, and the most that is said.
_RETRY_S: Final = 5.0
_RETRY_MOST_S: Final = 600


class ModelQueue:
    """One model's gate, and who waits at it."""

    __slots__ = ("done", "gate", "line", "name", "pace", "patient_since", "told", "wanted")

    def __init__(self, name: str, gate: Gate, line: "Order[Exchange]") -> None:
        self.name = name
        self.gate = gate
        self.line = line
        #: Requests of this worker that have ended since the last sweep, and how fast they do.
        self.done = 0
        self.pace = Pace()
        #: Since when a free place is left to another worker; None: none is.
        self.patient_since: float | None = None
        self.told = 0
        self.wanted = False

    def left(self) -> bool:
        """Its number is taken back, since the model is gone; whether nobody is here who needs another."""
        self.gate.left()
        self.wanted = False
        return not self.gate.running and not len(self.line)

    def clear_s(self, now: float) -> float | None:
        """Until all who wait here are let in, at the pace of late; None: not known."""
        return wait_s(max(0, len(self.line) - 1), self.pace.per_s(now))

    def word(self, now: float) -> str:
        """How long the line is, for who waits in it: "in line, at most about 40 s"."""
        clear_s = self.clear_s(now)
        return "in line" if clear_s is None else f"in line, at most about {max(1.0, clear_s):.0f} s"

    def refuse(self, exchange: "Exchange", kind: errors.Kind, why: str, name: str, value: float) -> None:
        """It is not let in: the limit that says so, and when the line will have gone (W12)."""
        profile = exchange.profile.name if name == "queue_s" else None
        exchange.limit = errors.limit(name, value, profile)
        whose = name if profile is None else f"{name} of the profile `{profile}`"
        told_s = errors.retry_after(self.clear_s(exchange.hub.now), default_s=_RETRY_S)
        exchange.refuse(
            kind,
            f"All places at the model `{self.name}` are taken, {why} ({whose}).",
            retry_after_s=min(_RETRY_MOST_S, told_s),
        )
