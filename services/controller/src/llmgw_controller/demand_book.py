"""The leader's book of asks for what was not up: in memory, of one term, bounded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llmgw_controller.core.activation import Decision
from llmgw_controller.core.demand import Asked, begun, ended

#: Names kept; clients make names up.
NAMES_MOST = 1000
#: Characters of a name kept: more than any model's.
NAME_MOST = 253


class Asking:
    """One open ask. `decision` is set by whoever decides; left None, nobody waited for the end."""

    def __init__(self) -> None:
        self.decision: Decision | None = None


class DemandBook:
    """Of one term; times are of its clock."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.forgotten = 0
        self._asked: dict[str, Asked] = {}

    @property
    def asked(self) -> tuple[Asked, ...]:
        """By name."""
        return tuple(self._asked[name] for name in sorted(self._asked))

    @contextmanager
    def asking(self, name: str, requests: int, now: Callable[[], float]) -> Iterator[Asking]:
        """While the ask is open."""
        name = name[:NAME_MOST]
        self._asked[name] = begun(self._asked.get(name), name, requests, now())
        self._bound()
        asking = Asking()
        try:
            yield asking
        finally:
            if (one := self._asked.get(name)) is not None and one.open:
                self._asked[name] = ended(one, asking.decision, now())

    def _bound(self) -> None:
        """Forget whoever was asked for longest ago, but nobody who is waited for."""
        if len(self._asked) <= NAMES_MOST:
            return
        closed = [one for one in self._asked.values() if not one.open]
        if closed:
            oldest = min(closed, key=lambda one: (one.last_at, one.name))
            del self._asked[oldest.name]
            self.forgotten += 1
