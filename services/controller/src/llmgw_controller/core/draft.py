"""A plan in the making: each change also moves the draft's own copy of the rows, so that a later subject
of the same pass decides on what an earlier one has done.
"""

from dataclasses import replace

from llmgw_controller.core.activity import Verdicts
from llmgw_controller.core.apply import apply
from llmgw_controller.core.plan import Change, Command, Plan, PutEvent, PutReplica, Severity
from llmgw_controller.core.state import ReplicaRow, Snapshot, Stored
from llmgw_kit.ids import ReplicaId


class Draft:
    """Of one pass over one snapshot at one time; the snapshot it was made from stays as it was."""

    def __init__(self, snapshot: Snapshot, now: float, verdicts: Verdicts) -> None:
        self.snapshot = snapshot
        self.now = now
        self.verdicts = verdicts
        #: Grows with every change: a round that leaves it as it was has nothing more to decide.
        self.moves = 0
        self._changes: list[Change] = []
        self._commands: dict[Command, None] = {}

    @property
    def stored(self) -> Stored:
        return self.snapshot.stored

    def replicas(self) -> list[ReplicaRow]:
        """By id: the order of every walk, so that equal inputs give equal plans."""
        return [self.stored.replicas[key] for key in sorted(self.stored.replicas)]

    def row(self, replica_id: ReplicaId) -> ReplicaRow:
        return self.stored.replicas[replica_id]

    def change(self, change: Change) -> None:
        self.snapshot = replace(self.snapshot, stored=apply(self.stored, (change,)))
        self.moves += 1
        if isinstance(change, PutReplica):
            self._drop_overwritten(change.replica.replica_id)
        self._changes.append(change)

    def event(self, kind: str, subject: str, text: str, severity: Severity = Severity.INFO) -> None:
        self._changes.append(PutEvent(self.now, kind, subject, text, severity))

    def command(self, command: Command) -> None:
        self._commands[command] = None

    def plan(self) -> Plan:
        return Plan(tuple(self._changes), tuple(self._commands))

    def _drop_overwritten(self, replica_id: ReplicaId) -> None:
        """Of two writes of one row with nothing of that replica between, the first says nothing."""
        for position in range(len(self._changes) - 1, -1, -1):
            earlier = self._changes[position]
            if isinstance(earlier, PutReplica) and earlier.replica.replica_id == replica_id:
                del self._changes[position]
                return
            if getattr(earlier, "replica_id", None) == replica_id:
                return
            if getattr(getattr(earlier, "replica", None), "replica_id", None) == replica_id:
                return
