"""Failing: what failed starts say of a replica's nodes, and of a profile on its GPU class.

All of it is computed from the attempts in the store, so a new leader waits as the old one would have. A
node rests for one replica, which then prefers others; a profile rests for all replicas, also new ones; and
the same failure on several nodes is the profile's: no node is burnt on it any more.
"""

from collections import Counter
from dataclasses import dataclass

from llmgw_controller.core.apply import apply
from llmgw_controller.core.backoff import delay_s
from llmgw_controller.core.blame import Blame, blame_of
from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.plan import ForgetAttempts, PutAttempt
from llmgw_controller.core.rows import AttemptRow, Phase, ReplicaRow, Stored, Wish
from llmgw_controller.core.state import Intervals
from llmgw_kit.ids import ModelId, NodeId, ReplicaId

#: A node rests so many times longer than its replica waits: it must still rest when the wait is over, or the
#: replica would come back to where it failed.
NODE_RESTS = 4

#: How the reason of a replica begins that was given up for its profile's sake, not for failures of its own.
PROFILE_FAILING = "profile failing: "

#: How the reason of a replica begins that has room, and waits only until its profile may be started again.
PROFILE_RESTS = "other starts of profile "


@dataclass(frozen=True)
class Failing:
    """The same failure of one profile on several nodes."""

    model: ModelId
    profile: str
    gpu_class: str
    #: Stable word.
    reason: str
    node_ids: tuple[NodeId, ...]
    #: Of the newest one, for people.
    text: str
    since: float

    def told(self) -> str:
        """For a row: stable while nothing new is learnt."""
        return f"{self.profile} on {self.gpu_class}: {self.reason} on {', '.join(self.node_ids)}: {self.text}"


def failing(stored: Stored, model: Model, profile: Profile, intervals: Intervals) -> Failing | None:
    """None: further starts may be tried."""
    by_reason: dict[str, list[AttemptRow]] = {}
    for attempt in _of(stored, model, profile):
        by_reason.setdefault(attempt.reason, []).append(attempt)
    for reason, attempts in sorted(by_reason.items()):
        places = _places(attempts)
        if len(places) >= intervals.failing_nodes:
            nodes = tuple(sorted(node_id for place in places for node_id in place))
            newest = attempts[-1]
            return Failing(model.name, profile.name, profile.gpu_class, reason, nodes, newest.text, newest.at)
    return None


def profile_rests_until(stored: Stored, model: Model, profile: Profile, intervals: Intervals) -> float | None:
    """No start of it before, by whichever replica; None: none failed. As long as for its worst replica: many
    that fail together failed once, not many times."""
    attempts = _of(stored, model, profile)
    if not attempts:
        return None
    worst = max(Counter(attempt.replica_id for attempt in attempts).values())
    name = f"{model.name}/{profile.name}@{profile.gpu_class}"
    return max(attempt.at for attempt in attempts) + delay_s(name, worst, intervals)


def resting_nodes(
    stored: Stored, replica_id: ReplicaId, now: float, intervals: Intervals
) -> frozenset[NodeId]:
    """Nodes that this replica goes to only where nothing else is free."""
    mine: dict[NodeId, list[float]] = {}
    row = stored.replicas.get(replica_id)
    for attempt in stored.attempts_of.get(row.model, ()) if row is not None else stored.attempts:
        if attempt.replica_id == replica_id:
            for node_id in attempt.node_ids:
                mine.setdefault(node_id, []).append(attempt.at)
    return frozenset(
        node_id
        for node_id, times in mine.items()
        if now < max(times) + NODE_RESTS * delay_s(f"{replica_id}@{node_id}", len(times), intervals)
    )


def is_resting(row: ReplicaRow) -> bool:
    """It has room, by the last look of placing, and is not started before its profile may be."""
    return row.phase is Phase.UNPLACEABLE and (row.reason or "").startswith(PROFILE_RESTS)


def startable(stored: Stored, model: Model, intervals: Intervals) -> tuple[Profile, ...]:
    """Its profiles without those that fail, in order of preference."""
    if model.name not in stored.attempts_of:
        return model.profiles
    return tuple(one for one in model.profiles if failing(stored, model, one, intervals) is None)


def with_attempt(stored: Stored, attempt: AttemptRow) -> Stored:
    """The rows with one failed start more."""
    return apply(stored, (PutAttempt(attempt),))


def told_failing(stored: Stored, model: Model, intervals: Intervals) -> str:
    """Why none of its profiles is started."""
    found = (failing(stored, model, profile, intervals) for profile in model.profiles)
    return PROFILE_FAILING + "; ".join(one.told() for one in found if one is not None)


def forgive(draft: Draft) -> None:
    """Forget attempts that say nothing any more: a later start came up and stayed, or the spec is another."""
    groups: dict[tuple[ModelId, str], list[AttemptRow]] = {}
    for attempt in draft.stored.attempts:
        groups.setdefault((attempt.model, attempt.profile), []).append(attempt)
    for (name, profile_name), attempts in sorted(groups.items()):
        model = draft.snapshot.catalog.models.get(name)
        if model is None:
            # A stored model that the catalog does not show could not be read: that is no removal.
            outlived = name not in draft.stored.models
        else:
            current = model.spec_hashes.get(profile_name)
            outlived = all(attempt.spec_hash != current for attempt in attempts)
            outlived = outlived or _stayed(draft, model, profile_name, attempts)
        if outlived:
            draft.change(ForgetAttempts(name, profile_name))


def _stayed(draft: Draft, model: Model, profile_name: str, attempts: list[AttemptRow]) -> bool:
    profile = model.profile(profile_name)
    assert profile is not None
    newest = max(attempt.at for attempt in attempts)
    return any(
        row.phase is Phase.READY
        and row.wish is Wish.SERVE
        and row.profile == profile_name
        and row.spec_hash == model.spec_hashes[profile_name]
        and row.ready_since is not None
        and newest <= row.ready_since <= draft.now - profile.min_uptime_s
        for row in draft.stored.by_model.get(model.name, ())
    )


def _of(stored: Stored, model: Model, profile: Profile) -> list[AttemptRow]:
    """Those that count against the profile as it is now, oldest first."""
    current = model.spec_hashes.get(profile.name)
    return [
        one
        for one in stored.attempts_of.get(model.name, ())
        if one.profile == profile.name and one.spec_hash == current and blame_of(one.reason) is Blame.START
    ]


def _places(attempts: list[AttemptRow]) -> list[tuple[NodeId, ...]]:
    """As many attempts as share no node: one start of a gang that broke on two nodes is one place."""
    found: list[tuple[NodeId, ...]] = []
    seen: set[NodeId] = set()
    for attempt in attempts:
        if attempt.node_ids and not seen & set(attempt.node_ids):
            found.append(attempt.node_ids)
            seen |= set(attempt.node_ids)
    return found
