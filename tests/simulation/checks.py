"""What must hold whatever the mechanism: these know engines, devices, requests and the order of writes,
and nothing of leases, phases or plans.
"""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf

from llmgw_controller.core.rows import Stored, Wish
from llmgw_kit.ids import DeviceId, ModelId, NodeId, ReplicaId, RouterId, ShardId
from tests.simulation.engines import Habits
from tests.simulation.world import World

#: From silence to a table without the node's endpoints: unreachable after 15 s, or a new leader's learning
#: window of 30 s after a takeover, with a pass and the wire on top.
STALE_ROUTE_S = 60.0
#: Between a use and the word of it: a router's tick, with room for clocks that run apart.
SLACK_S = 6.0
#: A use so young may stand in no gauge that was read: a beat, a pass and the wire.
UNSEEN_S = 16.0
#: A node that is back needs so long at most until a leader has heard it: redial, beat, a leader that is busy.
REDIAL_S = 20.0


class Violation(AssertionError):
    """A checker's word; the runner adds seed and last events."""


@dataclass
class Engine:
    """One process on one node: what is really there, whoever believes what."""

    shard_id: ShardId
    replica_id: ReplicaId
    epoch: int
    node_id: NodeId
    device_ids: tuple[DeviceId, ...]
    ports: frozenset[int]
    started_at: float
    habits: Habits
    alive: bool = True
    serving_since: float | None = None
    ended_at: float | None = None
    #: TERM was sent.
    stopped: bool = False
    #: From here on it answers nothing, if it hangs at all.
    hangs_since: float = inf
    #: Clients come past the routers between these.
    direct_between: tuple[float, float] = (inf, inf)

    @property
    def endpoint_id(self) -> str:
        return f"{self.replica_id}@{self.epoch}"

    def serves(self, now: float) -> None:
        """It is up: its habits begin."""
        self.serving_since = now
        if self.habits.hangs_after_s is not None:
            self.hangs_since = now + self.habits.hangs_after_s
        if self.habits.direct_after_s is not None:
            first = now + self.habits.direct_after_s
            self.direct_between = (first, first + self.habits.direct_for_s)

    def hangs(self, now: float) -> bool:
        return self.alive and now >= self.hangs_since

    def direct(self, now: float) -> int:
        """Requests of clients that no router knows."""
        first, last = self.direct_between
        return int(self.alive and first <= now < last)


@dataclass
class Checks:
    world: World
    #: Model -> how long nobody must have used what leaves for nothing but that.
    idle_after_s: Mapping[ModelId, float]
    lost_after_s: float = 300.0
    drain_timeout_s: float = 120.0
    #: A leader reads what routers said so long after they said it, at most.
    read_s: float = 0.0
    engines: dict[ShardId, list[Engine]] = field(default_factory=dict)
    #: (router, endpoint) -> requests really running.
    in_flight: dict[tuple[str, str], int] = field(default_factory=dict)
    #: When anybody really used a replica, newest last: picks and releases.
    used_at: dict[ReplicaId, deque[tuple[float, str]]] = field(default_factory=dict)
    #: Router -> when its word last arrived where the leader reads it; a flush forgets them.
    words: dict[RouterId, float] = field(default_factory=dict)
    _words_before: dict[RouterId, float] = field(default_factory=dict)
    _flushed_at: float = -inf
    #: Routers that have said goodbye and have not joined again.
    gone: set[RouterId] = field(default_factory=set)
    #: When one left and said that what it used last reached nobody.
    _left_unheard: list[float] = field(default_factory=list)
    #: Node -> the newest session that was ever accepted.
    _sessions: dict[NodeId, int] = field(default_factory=dict)
    #: Node -> since when its link or its agent is away, and when it was last back (None: still away).
    away: dict[NodeId, tuple[float, float | None]] = field(default_factory=dict)
    #: Node -> when it was last back from an absence so long that it was called lost.
    _back_from_loss: dict[NodeId, float] = field(default_factory=dict)
    #: Node -> reasons for which it is away now.
    _why_away: dict[NodeId, set[str]] = field(default_factory=dict)
    #: Endpoint -> when routers were first told to send it nothing new.
    closed_at: dict[str, float] = field(default_factory=dict)
    #: Router -> until when it heard nothing, the last time.
    deaf_until: dict[str, float] = field(default_factory=dict)
    #: Endpoint -> since when somebody uses it without a break.
    _busy_since: dict[str, float] = field(default_factory=dict)
    last_term: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def fail(self, text: str) -> None:
        raise Violation(f"t={self.world.now:.1f}s {text}")

    def goes_away(self, node_id: NodeId, why: str) -> None:
        since, back = self.away.get(node_id, (self.world.now, -1e9))
        # Two absences with no time to be heard between them are one.
        if back is not None and self.world.now - back > REDIAL_S:
            since = self.world.now
        self.away[node_id] = (since, None)
        self._why_away.setdefault(node_id, set()).add(why)

    def comes_back(self, node_id: NodeId, why: str) -> None:
        reasons = self._why_away.setdefault(node_id, set())
        reasons.discard(why)
        if not reasons and node_id in self.away:
            since = self.away[node_id][0]
            self.away[node_id] = (since, self.world.now)
            if self.world.now - since >= self.lost_after_s - REDIAL_S:
                self._back_from_loss[node_id] = self.world.now

    def may_be_silent(self, node_id: NodeId) -> bool:
        """Away, or back so recently that nobody could have heard it."""
        _, back = self.away.get(node_id, (0.0, -1e9))
        return back is None or self.world.now - back < REDIAL_S

    def long_away(self, node_id: NodeId) -> bool:
        """Away for as long as it takes to be called lost, and not back for long enough to be told what
        became of its work."""
        since, back = self.away.get(node_id, (self.world.now, -1e9))
        end = self.world.now if back is None else back
        lost = end - since >= self.lost_after_s - REDIAL_S
        return lost and (back is None or self.world.now - back < STALE_ROUTE_S)

    def away_lately(self, node_id: NodeId, seconds: float) -> bool:
        _, back = self.away.get(node_id, (0.0, -1e9))
        return back is None or self.world.now - back < seconds

    def landed(self, term: int) -> None:
        """History does not go backwards."""
        if term < self.last_term:
            self.fail(f"a write of term {term} landed after one of term {self.last_term}")
        self.last_term = term

    def engine_started(self, engine: Engine) -> None:
        for other in self.living():
            both = {*other.device_ids, *other.ports} & {*engine.device_ids, *engine.ports}
            if other.node_id == engine.node_id and both:
                things = sorted(map(str, both))
                self.fail(f"{engine.shard_id} and {other.shard_id} share {things} of {engine.node_id}")
            if other.replica_id == engine.replica_id and other.epoch != engine.epoch:
                self._replaced(other, engine)
        self.engines.setdefault(engine.shard_id, []).append(engine)
        self.count("engines started")

    def engine_stopped(self, engine: Engine, reason: str) -> None:
        """TERM reached it. Whoever stops what is in use waits for it first, or for its time to be over; a
        group that is broken, or hangs, or was given up with its node, has nothing to wait for."""
        if engine.serving_since is None or "operator" in reason:
            return
        running = {
            key: count for key, count in self.in_flight.items() if key[1] == engine.endpoint_id and count
        }
        group = [lives[-1] for lives in self.engines.values() if lives[-1].endpoint_id == engine.endpoint_id]
        broken = any(
            not one.alive or one.hangs(self.world.now) or (one is not engine and one.stopped) for one in group
        )
        engine.stopped = True
        if not running or broken or any(self.long_away(one.node_id) for one in group):
            return
        waited_s = self.world.now - self.closed_at.get(engine.endpoint_id, self.world.now)
        # A router that heard nothing may send something new between two gauges that both said zero: the stop
        # is wanted and goes on by the engine's word, which is all that can be had.
        used_s = self.world.now - (self.busy_since(engine.endpoint_id) or self.world.now)
        closed_at = self.closed_at.get(engine.endpoint_id, self.world.now)
        deaf = all(self.deaf_until.get(router, -1.0) >= closed_at for router, _ in running)
        if deaf and used_s < UNSEEN_S:
            return
        if waited_s < self.drain_timeout_s - SLACK_S:
            when = f"{waited_s:.0f} s after it was closed"
            self.fail(f"{engine.shard_id} stopped as {reason} {when}, {running} requests running")

    def uses(self, key: tuple[str, str], change: int) -> None:
        """One request more or less of a router at an endpoint."""
        self.in_flight[key] = self.in_flight.get(key, 0) + change
        if any(count for (_, endpoint), count in self.in_flight.items() if endpoint == key[1]):
            self._busy_since.setdefault(key[1], self.world.now)
        else:
            self._busy_since.pop(key[1], None)

    def forgets(self, router: str) -> None:
        """It crashed: its requests are cut."""
        for key in [key for key in self.in_flight if key[0] == router]:
            self.uses(key, -self.in_flight[key])
            del self.in_flight[key]

    def busy_since(self, endpoint_id: str) -> float | None:
        return self._busy_since.get(endpoint_id)

    def closed(self, endpoint_id: str) -> None:
        """Routers are told to send nothing new there."""
        self.closed_at.setdefault(endpoint_id, self.world.now)

    def reopened(self, endpoint_id: str) -> None:
        self.closed_at.pop(endpoint_id, None)

    def flushed(self) -> None:
        """What routers had said is gone."""
        self._words_before, self.words, self._flushed_at = self.words, {}, self.world.now

    def word_of(self, router: RouterId) -> float:
        """When it last said what it uses, as far as a leader can know: it reads once a tick."""
        lately = self.world.now - self._flushed_at < SLACK_S
        before = self._words_before.get(router, -inf) if lately else -inf
        return self.words.get(router, before)

    def used(self, replica_id: ReplicaId, router: str) -> None:
        self.used_at.setdefault(replica_id, deque(maxlen=200)).append((self.world.now, router))

    def committed(self, before: Stored, after: Stored, decided_at: float) -> None:
        """No eviction without evidence: what really happened must bear the claim "idle" out. A use within
        the routers' last tick cannot be known yet; that is what draining is for."""
        for node_id, node in after.nodes.items():
            if before.nodes.get(node_id) is not node:
                self._sessions[node_id] = node.session_epoch
        self.gone -= after.routers.keys() - before.routers.keys()
        for replica_id, row in after.replicas.items():
            old = before.replicas.get(replica_id)
            if row.reason != "idle" or old is None or old.wish is not Wish.SERVE or row.wish is Wish.SERVE:
                continue
            self.count("evictions")
            used_s = self.known_use_s(replica_id, self.idle_after_s[row.model], decided_at)
            if used_s is not None:
                self.fail(f"{replica_id} evicted as idle, used {used_s:.1f} s before")
            self.nothing_is_known(replica_id, "evicted as idle", self.idle_after_s[row.model], decided_at)

    def known_use_s(self, replica_id: ReplicaId, within_s: float, decided_at: float) -> float | None:
        """How long before the decision it was last used, as far as that could be known. None: not within."""
        first = decided_at - within_s + SLACK_S
        # A use of which its router never came to speak, for it crashed, is no evidence against it.
        known = [
            at
            for at, router in self.used_at.get(replica_id, ())
            if first < at < decided_at - self.read_s - SLACK_S and at <= self.word_of(RouterId(router))
        ]
        return decided_at - known[-1] if known else None

    def left(self, router: str, *, lost: bool) -> None:
        """It has said goodbye; `lost`: and that what it used last reached nobody."""
        self.gone.add(RouterId(router))
        self.count("goodbyes, activity lost" if lost else "goodbyes")
        if lost:
            self._left_unheard.append(self.world.now)

    def nothing_is_known(self, replica_id: ReplicaId, how: str, within_s: float, decided_at: float) -> None:
        """Whatever that router used then may have been this: of the time before nobody knows."""
        lately = [at for at in self._left_unheard if decided_at - within_s + SLACK_S < at <= decided_at]
        if lately:
            ago_s = decided_at - lately[-1]
            self.fail(f"{replica_id} {how}, {ago_s:.0f} s after a router left with its activity lost")

    def listens(self, node_id: NodeId, session: int, term: int) -> None:
        """A word of a node is taken for true: only of its newest session, as far as this leader can know."""
        if term >= self.last_term and session < self._sessions.get(node_id, 0):
            self.fail(f"{node_id} is listened to in session {session}, {self._sessions[node_id]} is open")

    def published(self, endpoint_id: str, shard_ids: tuple[ShardId, ...], *, learning: bool) -> None:
        """Routers are told only of what serves, or served until so recently that nobody could know. A leader
        that still learns may carry over what it found, if that ever served."""
        for shard_id in shard_ids:
            lives = self.engines.get(shard_id, [])
            served = [one for one in lives if one.serving_since is not None]
            if not served:
                self.fail(f"{endpoint_id} told to routers, {shard_id} never served")
            ended = served[-1].ended_at
            if not learning and ended is not None and self.world.now - ended > STALE_ROUTE_S:
                self.fail(f"{endpoint_id} told to routers, dead for {self.world.now - ended:.0f} s")

    def withdrawn(self, endpoint_id: str, shard_ids: tuple[ShardId, ...], *, wanted: bool) -> None:
        """A replica that serves, on nodes in reach, is not taken from routers while it is wanted."""
        if not wanted or not shard_ids or self.hangs_since(endpoint_id) is not None:
            return
        for shard_id in shard_ids:
            lives = self.engines.get(shard_id, [])
            if not lives or not lives[-1].alive or lives[-1].serving_since is None:
                return
            node_id = lives[-1].node_id
            if self.may_be_silent(node_id):
                return
        self.fail(f"{endpoint_id} withdrawn though it serves and its nodes are in reach")

    def hangs_since(self, endpoint_id: str) -> float | None:
        """Since when a request there is not answered: of a group one rank is enough. None: it answers."""
        since = [one.hangs_since for one in self.living() if one.endpoint_id == endpoint_id]
        return min(since) if since and min(since) <= self.world.now else None

    def lives(self, endpoint_id: str) -> bool:
        return any(one.endpoint_id == endpoint_id for one in self.living())

    def living(self) -> list[Engine]:
        return [lives[-1] for lives in self.engines.values() if lives[-1].alive]

    def _replaced(self, old: Engine, new: Engine) -> None:
        """A second group of one replica beside a living first: only when the first's node was cut off for
        as long as it takes to call it lost."""
        if self.long_away(old.node_id):
            return  # Lost, or just back from it and being told.
        if old.started_at < self._back_from_loss.get(old.node_id, -inf):
            return  # It was given up with its node, whose agent does not end it.
        self.fail(f"{new.shard_id} started while {old.shard_id} lives on {old.node_id}, which was not lost")


def served_models(
    checks: Checks, wanted: Mapping[ModelId, int], deaf: Mapping[NodeId, Collection[str]]
) -> dict[ModelId, int]:
    """Living, serving replicas of each wanted model, counted by first shards. Of a node that ends nothing
    only the endpoints count that are told to routers."""
    found = dict.fromkeys(wanted, 0)
    for engine in checks.living():
        model = ModelId(engine.replica_id.rpartition("/")[0])
        if checks.may_be_silent(engine.node_id):
            continue
        if engine.endpoint_id not in deaf.get(engine.node_id, (engine.endpoint_id,)):
            continue
        if engine.serving_since is not None and engine.shard_id.endswith(".0") and model in found:
            found[model] += 1
    return found
