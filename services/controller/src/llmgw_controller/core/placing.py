"""Placing: find room for every replica that waits for it, large groups before small ones."""

from collections.abc import Hashable
from dataclasses import replace

from llmgw_controller.core.catalog import Model, Profile, spec_hash
from llmgw_controller.core.claims import Rooms, rooms, with_claim, with_promise
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.earmarks import keep_room, next_epoch, waits_for
from llmgw_controller.core.explain import Fit
from llmgw_controller.core.failing import (
    PROFILE_FAILING,
    PROFILE_RESTS,
    forgive,
    profile_rests_until,
    resting_nodes,
    startable,
    told_failing,
)
from llmgw_controller.core.finder import Finder
from llmgw_controller.core.hearing import is_learning
from llmgw_controller.core.idleness import idle_replicas
from llmgw_controller.core.overdue import deaf_nodes, exit_is_overdue
from llmgw_controller.core.placement import Placement, Refusal, explain, kept, memo_of, place, placed
from llmgw_controller.core.plan import FetchWeights, PutReplica, Reserve, Severity, Start
from llmgw_controller.core.replica import with_phase
from llmgw_controller.core.rows import Phase, ReplicaRow, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.strangers import holds_back
from llmgw_controller.core.turns import turn_of
from llmgw_controller.core.words import sized


def place_waiting(draft: Draft) -> Rooms | None:
    """Reserve for each that fits; say why for each that does not. The rooms as that leaves them; None: nobody
    waited.

    Large groups first within one pass: a small one leaves them no whole nodes, the reverse is harmless. Who
    is refused keeps the room that is coming free for it: nobody behind it takes the rest of that node. Where
    more wait than a pass looks for (`turns.py`), the others stay as they are until their turn."""
    forgive(draft)
    _revive(draft)
    waiting = waiting_for_place(draft.snapshot)
    if not waiting or holds_back(draft.snapshot, draft.now):
        return None
    table = _Table(draft)
    for row, model in table.turn(waiting):
        profiles = startable(draft.stored, model, draft.snapshot.intervals)
        if not profiles:
            _fail(draft, row, model)
            continue
        answer = table.place(row, model, profiles)
        if isinstance(answer, Refusal):
            _refuse(draft, row, answer)
            table.promise(model, profiles)
            table.spare(answer)
        elif (until := _rests_until(draft, model, answer)) is not None:
            _hold_back(draft, row, answer, until)
        else:
            _reserve(draft, row, model, answer, next_epoch(draft.stored, row))
            table.take(row, answer)
    return table.rooms


Waiting = tuple[ReplicaRow, Model]


class _Table:
    """The rooms as one pass fills them."""

    def __init__(self, draft: Draft) -> None:
        found = rooms(draft.snapshot, draft.now)
        #: With the places of those whose room was made and is free now: theirs already, in the rooms too.
        self.rooms, self._made = keep_room(draft.snapshot, found, draft.now)
        self._memo = memo_of(draft.snapshot, found)
        self._finder = Finder(self.rooms, self._memo)
        self._draft = draft
        self._idle = idle_replicas(draft.snapshot, draft.verdicts)
        # On their way out, or awaiting the exit of what failed: their devices come free by themselves.
        self._leaving = frozenset(
            row.replica_id
            for row in draft.replicas()
            if row.holds_devices
            and (row.wish is not Wish.SERVE or row.phase in (Phase.BACKOFF, Phase.FAILED))
            and not exit_is_overdue(draft.snapshot, row, draft.now)
        )
        #: Nodes that go last.
        self._spared = deaf_nodes(draft.snapshot, draft.now)

    def turn(self, waiting: list[Waiting]) -> list[Waiting]:
        """For whom this pass looks, in their order: of those whose room is free already all."""
        looked = {row.replica_id for row, _ in turn_of(waiting, self._ask, self._draft.now).now}
        return [one for one in waiting if one[0].replica_id in looked or one[0].replica_id in self._made]

    def _ask(self, waiting: Waiting) -> Hashable:
        return ask_key(self._draft.snapshot, waiting[1], self.rooms)

    def place(self, row: ReplicaRow, model: Model, profiles: tuple[Profile, ...]) -> Placement | Refusal:
        made = self._made.get(row.replica_id)
        if made is not None and made.profile in profiles:
            return made
        draft = self._draft
        epoch = next_epoch(draft.stored, row)
        resting = resting_nodes(draft.stored, row.replica_id, draft.now, draft.snapshot.intervals)
        resting |= self._spared
        for profile in profiles:
            nodes = self._finder.best(model, profile, resting)
            if nodes is not None:
                return placed(model, profile, self.rooms, nodes, replica_id=row.replica_id, group_epoch=epoch)
        return place(
            model,
            self.rooms,
            replica_id=row.replica_id,
            group_epoch=epoch,
            profiles=profiles,
            evictable=self._idle,
            memo=self._memo,
        )

    def take(self, row: ReplicaRow, answer: Placement) -> None:
        """Claim it in the rooms."""
        if answer is self._made.get(row.replica_id):
            return
        for shard in answer.shards:
            ports = tuple(port for _, port in shard.ports)
            self.rooms = with_claim(
                self.rooms, row.model, row.replica_id, shard.node_id, shard.device_ids, ports
            )
            self._finder.changed(self.rooms, shard.node_id)

    def spare(self, answer: Refusal) -> None:
        """Where it would fit if idle ones left, those placed after it go last: whether they leave is not
        decided here, but it should not be made useless in the same pass."""
        for told in answer.explanations:
            if told.fit is Fit.AFTER_EVICTION:
                self._spared |= frozenset(told.ceiling)
                return

    def promise(self, model: Model, profiles: tuple[Profile, ...]) -> None:
        """Keep for a refused replica what is free where it will fit once those that leave are gone."""
        if not self._leaving:
            return
        for profile in profiles:
            told = explain(model, profile, self.rooms, evictable=self._leaving, memo=self._memo)
            if told.fit is Fit.AFTER_EVICTION:
                for node_id, device_ids in kept(model, profile, self.rooms, told, self._leaving):
                    self.rooms = with_promise(self.rooms, node_id, device_ids)
                    self._finder.changed(self.rooms, node_id)
                return


def waiting_for_place(snapshot: Snapshot) -> list[Waiting]:
    """Those that are wanted and have no place, in the order in which they are placed."""
    found = [
        (row, model)
        for row in snapshot.stored.sorted_replicas
        if row.wish is Wish.SERVE and row.phase in (Phase.WANTED, Phase.UNPLACEABLE)
        if (model := snapshot.catalog.models.get(row.model)) is not None
    ]
    return sorted(found, key=_order)


def ask_key(snapshot: Snapshot, model: Model, found: Rooms) -> Hashable:
    """Equal for models that one search answers."""
    memo = memo_of(snapshot, found)
    return tuple((memo.ask(model, profile, found)[1], profile.nodes) for profile in model.profiles)


def rank(model: Model) -> tuple[int, int, int]:
    """Whose replicas are placed first; the smaller, the sooner."""
    nodes = max(profile.nodes for profile in model.profiles)
    gpus = max(profile.gpus for profile in model.profiles)
    return -model.priority, -nodes, -gpus


def _order(waiting: Waiting) -> tuple[int, int, int, float, str]:
    row, model = waiting
    return *rank(model), row.created_at, row.replica_id


def _reserve(draft: Draft, row: ReplicaRow, model: Model, answer: Placement, epoch: int) -> None:
    nodes = ", ".join(shard.node_id for shard in answer.shards)
    placed = replace(
        with_phase(row, Phase.RESERVED, now=draft.now, because=f"placed on {nodes}"),
        profile=answer.profile.name,
        spec_hash=spec_hash(model, answer.profile),
        group_epoch=epoch,
        credential=None,  # of the generation before; decisions know no chance, so the pass draws the next
        shards=answer.shards,
    )
    draft.change(Reserve(placed))
    claim = ""
    if answer.memory.size_bytes is not None and answer.memory.source is not None:
        claim = f", {sized(answer.memory.size_bytes)} on each GPU ({answer.memory.source.value})"
    draft.event("placed", row.replica_id, f"on {nodes}, profile {answer.profile.name}{claim}")
    if model.weights is not None:
        draft.command(FetchWeights(model.name))
    for shard in answer.shards:
        draft.command(Start(shard.node_id, row.replica_id, shard.shard_id))


def _rests_until(draft: Draft, model: Model, answer: Placement) -> float | None:
    """Until when nobody starts this profile; None: it may be started now. A less preferred one is not taken
    meanwhile: it would stay for long, and this wait is short."""
    until = profile_rests_until(draft.stored, model, answer.profile, draft.snapshot.intervals)
    return until if until is not None and until > draft.now else None


def _hold_back(draft: Draft, row: ReplicaRow, answer: Placement, until: float) -> None:
    reason = f"{PROFILE_RESTS}{answer.profile.name} failed just now"
    if row.phase is Phase.UNPLACEABLE:  # Looked at again by every pass.
        if row.reason != reason:
            draft.change(PutReplica(replace(row, reason=reason)))
        return
    draft.change(
        PutReplica(with_phase(row, Phase.BACKOFF, now=draft.now, because=reason, reason=reason, until=until))
    )


def _fail(draft: Draft, row: ReplicaRow, model: Model) -> None:
    """No profile is left that may be started: nothing is burnt on it any more."""
    reason = told_failing(draft.stored, model, draft.snapshot.intervals)
    draft.change(PutReplica(with_phase(row, Phase.FAILED, now=draft.now, because=reason, reason=reason)))
    draft.event("failed", row.replica_id, f"not started: {reason}", Severity.TROUBLE)


def _revive(draft: Draft) -> None:
    """What was given up only because its profile failed starts again when it no longer does. Given up for
    failures of its own, it waits for an operator or a new spec."""
    intervals = draft.snapshot.intervals
    for row in draft.replicas():
        if row.phase is not Phase.FAILED or row.wish is not Wish.SERVE or row.holds_devices:
            continue
        model = draft.snapshot.catalog.models.get(row.model)
        if model is None or not (row.reason or "").startswith(PROFILE_FAILING):
            continue
        if startable(draft.stored, model, intervals):
            because = "its profile may be started again"
            draft.change(PutReplica(with_phase(row, Phase.WANTED, now=draft.now, because=because)))


def _refuse(draft: Draft, row: ReplicaRow, answer: Refusal) -> None:
    reason = waits_for(draft.stored, row.replica_id) or answer.reason()
    if row.phase is Phase.UNPLACEABLE:
        if row.reason != reason:
            draft.change(PutReplica(replace(row, reason=reason)))
        return
    if is_learning(draft.snapshot, draft.now):
        return  # Nodes not heard yet may have the room: no verdict before they had their time.
    draft.change(
        PutReplica(with_phase(row, Phase.UNPLACEABLE, now=draft.now, because="no room", reason=reason))
    )
    draft.event("unplaceable", row.replica_id, reason, Severity.TROUBLE)
