"""A plan in the making: each change also moves the draft's own copy of the rows, so that a later subject
of the same pass decides on what an earlier one has done.
"""

from dataclasses import replace

from llmgw_controller.core.activity import Verdicts
from llmgw_controller.core.apply import apply
from llmgw_controller.core.plan import (
    Change,
    Command,
    DeleteReplica,
    Plan,
    PutEvent,
    PutReplica,
    Release,
    Reserve,
    Severity,
)
from llmgw_controller.core.rows import ReplicaRow, Stored
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import ReplicaId


class Draft:
    """Of one pass over one snapshot at one time; the snapshot it was made from stays as it was."""

    def __init__(self, snapshot: Snapshot, now: float, verdicts: Verdicts) -> None:
        self.snapshot = snapshot
        #: The rows as the pass found them.
        self.found = snapshot.stored
        self.now = now
        self.verdicts = verdicts
        #: Grows with every change: a round that leaves it as it was has nothing more to decide.
        self.moves = 0
        #: Grows with every look at what stands in no row of the subject's own, such as the room there is.
        self.looks = 0
        self._resting: dict[str, tuple[object, ...]] = {}
        self._common_of: Stored | None = None
        self._common_now: tuple[object, ...] = ()
        #: None where a later write of the same row has made one pointless.
        self._changes: list[Change | None] = []
        #: Position of the newest change of each replica.
        self._newest: dict[ReplicaId, int] = {}
        self._events: set[PutEvent] = set()
        self._commands: dict[Command, None] = {}

    @property
    def stored(self) -> Stored:
        return self.snapshot.stored

    def replicas(self) -> list[ReplicaRow]:
        """By id: the order of every walk, so that equal inputs give equal plans."""
        return list(self.stored.sorted_replicas)

    def row(self, replica_id: ReplicaId) -> ReplicaRow:
        return self.stored.replicas[replica_id]

    def change(self, change: Change) -> None:
        self.snapshot = replace(self.snapshot, stored=apply(self.stored, (change,)))
        self.moves += 1
        replica_id = _replica_of(change)
        if replica_id is not None:
            self._note_newest(replica_id, change)
        self._changes.append(change)

    def event(self, kind: str, subject: str, text: str, severity: Severity = Severity.INFO) -> None:
        """Told once a pass: a round that comes to the same says nothing new."""
        event = PutEvent(self.now, kind, subject, text, severity)
        if event not in self._events:
            self._events.add(event)
            self._changes.append(event)

    def command(self, command: Command) -> None:
        self._commands[command] = None

    def moves_no_more(self, subject: str, *rows: object) -> bool:
        """A subject that found nothing to do in an earlier round of this pass, and all that it looks at is as
        it was then: its own `rows`, and what is not of replicas. What agents and routers say does not change
        within a pass."""
        before = self._resting.get(subject)
        return before is not None and _identical(before, (self._common(), *rows))

    def rests(self, subject: str, *rows: object) -> None:
        """It found nothing to do on these."""
        self._resting[subject] = (self._common(), *rows)

    def _common(self) -> tuple[object, ...]:
        """One and the same while nothing of it has moved."""
        stored = self.stored
        if self._common_of is not stored:
            found = (
                stored.nodes, stored.tombstones, stored.activations, stored.routers, stored.loads,
                stored.models, stored.deployments, stored.attempts, stored.evictions, stored.idle_floor,
            )  # fmt: skip
            if not _identical(found, self._common_now):
                self._common_now = found
            self._common_of = stored
        return self._common_now

    def plan(self) -> Plan:
        changes = tuple(change for change in self._changes if change is not None)
        return Plan(changes, tuple(self._commands))

    def _note_newest(self, replica_id: ReplicaId, change: Change) -> None:
        """Of two writes of one row with nothing of that replica between, the first says nothing."""
        position = self._newest.get(replica_id)
        if (
            position is not None
            and isinstance(change, PutReplica)
            and isinstance(self._changes[position], PutReplica)
        ):
            self._changes[position] = None
        self._newest[replica_id] = len(self._changes)


def _identical(before: tuple[object, ...], after: tuple[object, ...]) -> bool:
    return len(before) == len(after) and all(one is other for one, other in zip(before, after, strict=True))


def _replica_of(change: Change) -> ReplicaId | None:
    match change:
        case PutReplica(row) | Reserve(row):
            return row.replica_id
        case Release() | DeleteReplica():
            return change.replica_id
        case _:
            return None
