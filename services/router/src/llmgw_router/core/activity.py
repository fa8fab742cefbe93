"""Which replicas were in use, and what a tick has to tell of it (M1, M2).

Pure. Times are CLOCK_MONOTONIC nanoseconds of this machine; what leaves is an *age*, because only
Redis's clock is common to all routers. A touch is the newest pick or release of a replica.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

#: Fields of the activity hash that are no replicas; no replica may bear such a name.
RESERVED_FIELDS = frozenset({"watching_since", "run_id", "epoch"})


@dataclass(frozen=True, slots=True)
class Use:
    """What is known of one replica at this router."""

    in_flight: int
    #: None: this router has never picked it.
    touched_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One tick's words."""

    #: Replica id -> milliseconds since it was last in use.
    ages_ms: Mapping[str, int]
    #: Every known replica, zeros included: absence would read as "not watched".
    in_flight: Mapping[str, int]
    #: True: the map holds everything this router knows, not only what is new.
    whole: bool
    #: What is told once this report has arrived.
    told_ns: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a router remembers of its replicas, from tick to tick; all of it dies with the process."""

    uses: Mapping[str, Use] = field(default_factory=dict)
    #: Newest touch that Redis is known to have.
    told_ns: Mapping[str, int] = field(default_factory=dict)


def observe(memory: Memory, seen: Iterable[tuple[str, Use]], *, known: frozenset[str]) -> Memory:
    """Take in what the slots hold now. `known` are the replicas of the table; what is neither known
    nor seen is forgotten.

    One replica may appear several times (an endpoint of each group epoch, or one per model): counts add
    up and the newest touch stays, even after the endpoint that had it is gone."""
    in_flight: dict[str, int] = dict.fromkeys(known, 0)
    touched: dict[str, int] = {}
    for replica_id, use in seen:
        in_flight[replica_id] = in_flight.get(replica_id, 0) + use.in_flight
        if use.touched_ns is not None:
            touched[replica_id] = max(touched.get(replica_id, use.touched_ns), use.touched_ns)
    for replica_id, use in memory.uses.items():
        if replica_id in in_flight and use.touched_ns is not None:
            touched[replica_id] = max(touched.get(replica_id, use.touched_ns), use.touched_ns)
    return Memory(
        uses={key: Use(count, touched.get(key)) for key, count in sorted(in_flight.items())},
        told_ns={key: at for key, at in memory.told_ns.items() if key in in_flight},
    )


def report(memory: Memory, *, now_ns: int, whole: bool) -> Report:
    """What to send. A replica in use right now is told as used right now (age 0): a stream that has run
    for an hour is no hour of idleness."""
    ages: dict[str, int] = {}
    told = dict(memory.told_ns)
    for replica_id, use in memory.uses.items():
        if use.in_flight > 0:
            touched = now_ns
        elif use.touched_ns is None:
            continue
        else:
            touched = use.touched_ns
        if whole or touched > told.get(replica_id, -1):
            ages[replica_id] = max(0, now_ns - touched) // 1_000_000
            told[replica_id] = touched
    return Report(
        ages_ms=ages,
        in_flight={key: use.in_flight for key, use in memory.uses.items()},
        whole=whole,
        told_ns=told,
    )


def told(memory: Memory, sent: Report) -> Memory:
    """The memory after `sent` has arrived."""
    return Memory(uses=memory.uses, told_ns=sent.told_ns)
