"""Rules of the conversation with the controller: whose word counts, whom to call, how long to wait."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

#: Consecutive "ask that one instead" answers before we slow down: two standbys may name each other.
MOST_REDIRECTS = 4
#: One that could not be reached, or whose stream broke, is passed over for so long: a standby goes on naming
#: a dead leader until its lease has run out. Long enough to ask the others a few times in between.
SHUN_S = 3.0


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
    """Which controller to call next: a hint first, then all known in turn, the silent ones last.

    Configured addresses come first and are never dropped: what a leader told us may be stale. Times are
    seconds of one monotonic clock."""

    def __init__(self, configured: Iterable[str]) -> None:
        self._configured = tuple(dict.fromkeys(configured))
        self._learned: tuple[str, ...] = ()
        self._named: tuple[str, ...] = ()
        self._next = 0
        self._hint: str | None = None
        self._redirects = 0
        self._shunned: dict[str, float] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """All known, without doubles."""
        return tuple(dict.fromkeys((*self._configured, *self._learned, *self._named)))

    def learn(self, addresses: Iterable[str]) -> None:
        """What the leader's Welcome named."""
        self._learned = tuple(addresses)

    def redirect(self, address: str | None, *, now: float) -> bool:
        """A standby named the leader. True: call it at once; False: wait first, as after a failure."""
        self._redirects += 1
        if address is None or self._redirects > MOST_REDIRECTS:
            return False
        # Kept beyond this one call: a leader that is just taking over may not answer the first time.
        self._named = (*(one for one in self._named if one != address), address)[-MOST_REDIRECTS:]
        if self._is_shunned(address, now):
            return False
        self._hint = address
        return True

    def failed(self, address: str, *, now: float) -> None:
        """It could not be reached, its stream broke, or it fell silent."""
        self._shunned[address] = now + SHUN_S

    def was_silent(self, address: str) -> bool:
        """It failed when it was last heard of: nothing is expected of a call, it is only made to see."""
        return address in self._shunned

    def has_better(self, *, now: float) -> bool:
        """Some other is not passed over now."""
        return any(not self._is_shunned(address, now) for address in self.addresses)

    def answered(self, address: str) -> None:
        """It lives, whatever it said."""
        self._shunned.pop(address, None)

    def welcomed(self) -> None:
        """A session stands."""
        self._redirects = 0

    def take(self, *, now: float, calling: Collection[str] = ()) -> str | None:
        """The address to call now, none of those being called; None when there is no other."""
        hint, self._hint = self._hint, None
        if hint is not None and hint not in calling:
            return hint
        known = self.addresses
        turn = [known[(self._next + step) % len(known)] for step in range(len(known))]
        free = [address for address in turn if address not in calling]
        if not free:
            return None
        address = next((one for one in free if not self._is_shunned(one, now)), free[0])
        self._next = (known.index(address) + 1) % len(known)
        return address

    def _is_shunned(self, address: str, now: float) -> bool:
        return now < self._shunned.get(address, now)


def backoff_s(failures: int, chance: float, *, base_s: float = 0.2, most_s: float = 1.0) -> float:
    """Seconds to wait after `failures` ≥ 1 in a row. `chance` in 0..1 spreads a fleet that lost its
    controller at one moment: half of the wait is fixed, half is drawn. The limit is what a fail-over
    may take longer for us than for the controllers; a refused call costs them next to nothing."""
    full = min(most_s, base_s * 2.0 ** min(failures - 1, 16))
    return full / 2 + full / 2 * chance
