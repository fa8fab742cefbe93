"""Rules of the conversation with the controller: whose word counts, whom to call, how long to wait."""

from collections.abc import Iterable
from dataclasses import dataclass

#: Consecutive "ask that one instead" answers before we slow down: two standbys may name each other.
MOST_REDIRECTS = 4


@dataclass(frozen=True)
class TermGate:
    """The highest lease term this node has seen. It never goes back, also over restarts of the agent:
    a leader that lost its lease while thinking must not be obeyed, however fresh its connection."""

    highest: int | None = None

    def admits(self, term: int) -> bool:
        """Whether a message under `term` counts."""
        return self.highest is None or term >= self.highest

    def after(self, term: int) -> "TermGate":
        """The gate once `term` was heard."""
        return self if not self.admits(term) else TermGate(term)


@dataclass(frozen=True)
class DesiredGate:
    """Of one session: a Desired is obeyed once, and never an older one after a newer."""

    version: int | None = None

    def admits(self, version: int) -> bool:
        """Repeating the version at hand is harmless and level-triggered; going back is not."""
        return self.version is None or version >= self.version


class Rotation:
    """Which controller to call next: a hint first, then all known in turn.

    Configured addresses come first and are never dropped: what a leader told us may be stale."""

    def __init__(self, configured: Iterable[str]) -> None:
        self._configured = tuple(dict.fromkeys(configured))
        self._learned: tuple[str, ...] = ()
        self._named: tuple[str, ...] = ()
        self._next = 0
        self._hint: str | None = None
        self._redirects = 0

    @property
    def addresses(self) -> tuple[str, ...]:
        """All known, without doubles."""
        return tuple(dict.fromkeys((*self._configured, *self._learned, *self._named)))

    def learn(self, addresses: Iterable[str]) -> None:
        """What the leader's Welcome named."""
        self._learned = tuple(addresses)

    def redirect(self, address: str | None) -> bool:
        """A standby named the leader. True: call it at once; False: wait first, as after a failure."""
        self._redirects += 1
        if address is None or self._redirects > MOST_REDIRECTS:
            return False
        # Kept beyond this one call: a leader that is just taking over may not answer the first time.
        self._named = (*(one for one in self._named if one != address), address)[-MOST_REDIRECTS:]
        self._hint = address
        return True

    def welcomed(self) -> None:
        """A session stands."""
        self._redirects = 0

    def take(self) -> str:
        """The address to call now."""
        if self._hint is not None:
            hint, self._hint = self._hint, None
            return hint
        known = self.addresses
        address = known[self._next % len(known)]
        self._next = (self._next + 1) % len(known)
        return address


def backoff_s(failures: int, chance: float, *, base_s: float = 0.2, most_s: float = 2.0) -> float:
    """Seconds to wait after `failures` ≥ 1 in a row. `chance` in 0..1 spreads a fleet that lost its
    controller at one moment: half of the wait is fixed, half is drawn. The limit is what a fail-over
    may take longer for us than for the controllers; a refused call costs them next to nothing."""
    full = min(most_s, base_s * 2.0 ** min(failures - 1, 16))
    return full / 2 + full / 2 * chance
