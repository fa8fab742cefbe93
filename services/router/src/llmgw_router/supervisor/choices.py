"""What workers tell of their choices: whom they suspect, and why requests went where they went.

Pure: the pool feeds it. A worker repeats all of its suspicions when one changes, so that nothing is
suspected for ever by a worker that is gone.
"""

from collections import deque
from collections.abc import Iterable

from llmgw_router.core.choosing.decision import Decision


class Choices:
    """Suspicions by worker; the newest decisions of all."""

    def __init__(self, keep: int) -> None:
        self._suspects: dict[int, frozenset[str]] = {}
        self.decisions: deque[Decision] = deque(maxlen=keep)

    def keep(self, many: int) -> None:
        """Another number of decisions from now on."""
        if many != self.decisions.maxlen:
            self.decisions = deque(self.decisions, maxlen=many)

    def gone(self, worker: int) -> None:
        """Its process has ended, and its doubts with it."""
        self._suspects.pop(worker, None)

    def suspected(self, worker: int, endpoint_ids: Iterable[str]) -> None:
        """Everybody whom this worker suspects."""
        self._suspects[worker] = frozenset(endpoint_ids)

    def told(self, decisions: Iterable[Decision]) -> None:
        self.decisions.extend(decisions)

    @property
    def suspects(self) -> frozenset[str]:
        """Endpoints that some worker would have looked at."""
        return frozenset().union(*self._suspects.values())
