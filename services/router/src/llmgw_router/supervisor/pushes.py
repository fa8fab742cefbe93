"""The table as last pushed: whole for a worker that begins, what differs for those that have the rest."""

from llmgw_router.relay import ipc
from llmgw_router.supervisor.slot_book import SlotBook


class Pushes:
    """Counts pushes and remembers what they add up to. Slots are assigned here."""

    def __init__(self, book: SlotBook) -> None:
        self._book = book
        #: As they were given, to be compared with; those without a slot are missing, and tried again.
        self._given: dict[str, ipc.EndpointRow] = {}
        #: With their slots, as workers have them.
        self._placed: dict[str, ipc.EndpointRow] = {}
        self._models: dict[str, ipc.ModelRow] = {}
        self._term: int | None = None
        self._version: int | None = None
        self.seq = 0
        #: Marked in the newest push.
        self.draining: set[str] = set()
        #: Of the newest push: endpoints for which no slot was left.
        self.homeless: list[ipc.EndpointRow] = []

    def push(self, update: ipc.TableUpdate) -> ipc.TableDelta:
        """Take a whole table over; returns what differs. A row that is the same object costs a glance."""
        self.seq += 1
        given = {row.endpoint_id: row for row in update.endpoints}
        models = {row.name: row for row in update.models}
        changed = [row for key, row in given.items() if _differs(self._given.get(key), row)]
        gone = tuple(self._given.keys() - given.keys())
        placed, self.homeless = self._book.assign(changed)
        self._book.retire(gone, seq=self.seq)
        for endpoint_id in gone:
            del self._given[endpoint_id], self._placed[endpoint_id]
        self.draining.difference_update(gone)
        for row in placed:
            self._given[row.endpoint_id] = given[row.endpoint_id]
            self._placed[row.endpoint_id] = row
            if row.draining:
                self.draining.add(row.endpoint_id)
            else:
                self.draining.discard(row.endpoint_id)
        delta = ipc.TableDelta(
            endpoints=tuple(placed),
            models=tuple(row for name, row in models.items() if _differs(self._models.get(name), row)),
            gone_endpoints=gone,
            gone_models=tuple(self._models.keys() - models.keys()),
            term=update.term,
            version=update.version,
            seq=self.seq,
        )
        self._models = models
        self._term, self._version = update.term, update.version
        return delta

    @property
    def models(self) -> set[str]:
        """Names of the newest push: of its rows, and of what its endpoints serve."""
        return self._models.keys() | {row.model for row in self._given.values()}

    def whole(self) -> ipc.TableUpdate:
        """Everything pushed so far, for a worker that has nothing."""
        return ipc.TableUpdate(
            endpoints=tuple(self._placed.values()),
            models=tuple(self._models.values()),
            term=self._term,
            version=self._version,
            seq=self.seq,
        )


def _differs(before: object, now: object) -> bool:
    return before is not now and before != now
