"""What the workers say one by one, summed into what is true of the router.

Pure: the pool feeds it and tells the outcome. A worker that is starting has not applied anything
yet, and until it has, nothing is true of *all* workers: it may still pick from an older table.
"""

from collections.abc import Callable, Iterable


class Tally:
    """Applied pushes and held requests by worker, drained endpoints by word already given."""

    def __init__(self) -> None:
        #: None: its process runs, and has not applied a table.
        self._applied: dict[int, int | None] = {}
        self._wants: dict[int, dict[str, int]] = {}
        self._queued: dict[int, dict[str, int]] = {}
        self._draining: frozenset[str] = frozenset()
        self._told_drained: set[str] = set()
        self._told_applied = 0

    def spawned(self, worker: int) -> None:
        self._applied[worker] = None

    def gone(self, worker: int) -> None:
        """No process: what it held is lost, and what it had applied does not matter any more."""
        self._applied.pop(worker, None)
        self._wants.pop(worker, None)
        self._queued.pop(worker, None)

    def applied(self, worker: int, seq: int) -> None:
        self._applied[worker] = seq

    def applied_by(self, worker: int) -> int | None:
        return self._applied.get(worker)

    @property
    def applied_by_all(self) -> int | None:
        """The push that every worker has applied, or a later one. None: not known of one, or no worker."""
        seqs = [seq for seq in self._applied.values() if seq is not None]
        return min(seqs) if seqs and len(seqs) == len(self._applied) else None

    def newly_applied(self, newest: int) -> bool:
        """Whether `newest` is now applied by all, and was not told before; told with this."""
        if self.applied_by_all != newest or newest <= self._told_applied:
            return False
        self._told_applied = newest
        return True

    def marked(self, draining: Iterable[str]) -> None:
        """The drain marks of the newest push. A mark that goes and comes back is told again."""
        self._draining = frozenset(draining)
        self._told_drained &= self._draining

    def newly_drained(self, newest: int, in_flight: Callable[[str], int]) -> frozenset[str]:
        """Marked, known by all workers, and empty; each is told once, with this."""
        if self.applied_by_all != newest:
            return frozenset()
        done = frozenset(
            endpoint_id for endpoint_id in self._draining - self._told_drained if in_flight(endpoint_id) == 0
        )
        self._told_drained |= done
        return done

    def wants(self, worker: int, model: str, waiting: int) -> None:
        """`waiting` requests of this worker are held for the model; 0: none any more."""
        _note(self._wants.setdefault(worker, {}), model, waiting)

    def queued(self, worker: int, model: str, waiting: int) -> None:
        """`waiting` requests of this worker wait for room at the model, which is up; 0: none any more."""
        _note(self._queued.setdefault(worker, {}), model, waiting)

    def wanted(self) -> dict[str, int]:
        """Requests held for models that are not up, over all workers; only models with any."""
        return _sums(self._wants)

    def held(self) -> dict[str, int]:
        """Requests that wait, for a model to come up or for room at it; only models with any."""
        return _sums(self._wants, self._queued)


def _note(of_worker: dict[str, int], model: str, waiting: int) -> None:
    if waiting:
        of_worker[model] = waiting
    else:
        of_worker.pop(model, None)


def _sums(*books: dict[int, dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for book in books:
        for of_worker in book.values():
            for model, waiting in of_worker.items():
                total[model] = total.get(model, 0) + waiting
    return total
