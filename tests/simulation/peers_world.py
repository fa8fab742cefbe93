"""Nodes that fetch one version in virtual time, with the real picker, judgments of sources, and tracker.

A copy takes `COPY_S` over one node's link, as 140 GB take 45 s at 25 Gb/s, so that the intervals at which
nodes learn of each other weigh what they weigh there. A link carries `SLOTS` pieces at a time each way, each
at an equal part of its rate; what is asked of a node waits in its line, and who can take no more now is
passed over.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from llmgw_agent.core import sources as judging
from llmgw_agent.core.pieces import Ask, Asked, Snapshot, Source, plan_next
from llmgw_agent.core.sources import Standing
from llmgw_mirror.core.swarm import SPEAK_S, Swarm

COPY_S = 45.0
#: A request's way; how often neighbours are asked what they have; and requests that a node has under way.
TRIP_S, POLL_S, AT_ONCE = 0.01, 0.5, 16
#: Few, since pieces are coarse here and only a whole one can be passed on.
SLOTS = 2
MIRROR = "mirror"
#: As in the agent.
NEIGHBOURS_MOST = 40

Planner = Callable[[Snapshot, float, Callable[[], float]], tuple[Ask, ...]]


@dataclass(eq=False)
class Giver:
    """Sends pieces, so many at a time. `line`: numbers of requests, and what they may be given."""

    name: str
    slots: int
    gone: bool = False
    sending: int = 0
    sent: int = 0
    line: dict[int, "Waiting"] = field(default_factory=dict)


@dataclass(eq=False)
class Node(Giver):
    have: int = 0
    asked: dict[int, Asked] = field(default_factory=dict)
    taking: int = 0
    neighbours: dict[str, int] = field(default_factory=dict)
    standing: dict[str, Standing] = field(default_factory=dict)
    wrong: int = 0
    done_at: float | None = None
    wakes_at: float | None = None
    corrupts: bool = False
    #: Its link is so many times slower than the others'.
    slowness: float = 1.0


@dataclass(frozen=True)
class Waiting:
    node: Node
    pieces: int


class World:
    """`bm`: the mirror's link in those of a node. `peers` off: a star."""

    def __init__(
        self, n: int, pieces: int, *, bm: float, peers: bool = True, seed: int = 1,
        planner: Planner = plan_next, checks_pieces: bool = True, poll_s: float = POLL_S,
    ) -> None:  # fmt: skip
        self.rng = random.Random(seed)
        self.now, self.pieces, self.peers = 0.0, pieces, peers
        self.all = (1 << pieces) - 1
        self.nodes = {f"n{i}": Node(f"n{i}", SLOTS) for i in range(n)}
        self.mirror = Giver(MIRROR, round(SLOTS * bm))
        self.swarm = Swarm(pieces)
        self.waste = 0
        self._planner, self._checks, self._poll_s = planner, checks_pieces, poll_s
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._asks = itertools.count(), itertools.count()
        self._landed = False
        for node in self.nodes.values():
            self.at(self.rng.random() * POLL_S, partial(self._join, node))

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay_s, next(self._order), action))

    def run(self, until_s: float, *, waiting_for: Callable[[Node], bool] = lambda _: True) -> None:
        """Until every node that is waited for has everything, or time is over."""
        pending = {name for name, node in self.nodes.items() if waiting_for(node)}
        while self._queue and self._queue[0][0] <= until_s:
            self.now, _, action = heapq.heappop(self._queue)
            action()
            if self._landed:
                self._landed = False
                pending = {name for name in pending if self.nodes[name].done_at is None}
                if not pending:
                    return

    def copies(self, names: Callable[[Node], bool] = lambda _: True) -> float:
        """When the last of these nodes had everything, in copies over one link."""
        return max(node.done_at or float("inf") for node in self.nodes.values() if names(node)) / COPY_S

    def unfinished(self) -> list[str]:
        return [node.name for node in self.nodes.values() if node.done_at is None and not node.gone]

    def leaves(self, giver: Giver) -> None:
        """Its link breaks: who waits learns of it at once, who gets a piece when that does not come."""
        giver.gone = True
        waiting, giver.line = giver.line, {}
        for number, one in waiting.items():
            self._failed(one.node, giver, number)

    # --- what nodes know

    def _join(self, node: Node) -> None:
        self._speak(node)
        self._poll(node)

    def _speak(self, node: Node) -> None:
        if node.gone:
            return
        self.at(SPEAK_S, lambda: self._speak(node))
        if not self.peers or self.mirror.gone:
            return
        self.swarm.announce(node.name, node.have, now=self.now)
        for peer in self.swarm.others(node.name, now=self.now, chance=self.rng.random):
            if peer.url in node.neighbours or len(node.neighbours) < NEIGHBOURS_MOST:
                node.neighbours[peer.url] = peer.have
        self.act(node)

    def _poll(self, node: Node) -> None:
        if node.gone or node.done_at is not None:
            return
        self.at(self._poll_s, lambda: self._poll(node))
        for name in node.neighbours:
            node.neighbours[name] = self.nodes[name].have
        self.act(node)

    # --- what nodes do

    def act(self, node: Node) -> None:
        if node.gone or node.done_at is not None or len(node.asked) >= AT_ONCE:
            return
        slow = judging.slow_ones(node.standing, self.now)

        def source(name: str, have: int) -> Source:
            standing = node.standing.get(name)
            fit = standing is None or (judging.usable(standing, self.now) and name not in slow)
            return Source(name, have, fit)

        snapshot = Snapshot(
            missing=self.all & ~node.have,
            asked=tuple(node.asked.values()),
            mirror=source(MIRROR, self.all),
            peers=tuple(source(name, have) for name, have in node.neighbours.items()),
            room=AT_ONCE - len(node.asked),
            late_s=judging.late_s(node.standing),
        )
        for ask in self._planner(snapshot, self.now, self.rng.random):
            self._ask(node, ask)

    def _ask(self, node: Node, ask: Ask) -> None:
        number = next(self._asks)
        giver = self.mirror if ask.source == MIRROR else self.nodes[ask.source]
        piece = None if giver is self.mirror else ask.pieces.bit_length() - 1
        assert piece is None or ask.pieces == 1 << piece, "a peer is asked for one piece"
        node.asked[number] = Asked(giver.name, piece, self.now)
        self.at(TRIP_S, lambda: self._come(node, giver, number, ask.pieces))

    def _come(self, node: Node, giver: Giver, number: int, pieces: int) -> None:
        if giver.gone:
            self._failed(node, giver, number)
        elif number in node.asked:
            giver.line[number] = Waiting(node, pieces)
            self._serve(giver)

    def _serve(self, giver: Giver) -> None:
        """First come, first served, but for those that take as much as they can."""
        for number, waiting in list(giver.line.items()):
            if giver.sending >= giver.slots or giver.gone:
                return
            node = waiting.node
            if node.gone or number not in node.asked:
                del giver.line[number]
            elif node.taking < SLOTS:
                del giver.line[number]
                self._send(node, giver, number, waiting.pieces)

    def _send(self, node: Node, giver: Giver, number: int, pieces: int) -> None:
        if giver is self.mirror:
            chosen = self.swarm.next(pieces, now=self.now, chance=self.rng.random)
            assert chosen is not None
            piece = chosen
        else:
            piece = pieces.bit_length() - 1
        asked = node.asked[number] = Asked(giver.name, piece, node.asked[number].since)
        giver.sending, giver.sent, node.taking = giver.sending + 1, giver.sent + 1, node.taking + 1
        slowness = max(node.slowness, giver.slowness if isinstance(giver, Node) else 1.0)
        sending_s = COPY_S * SLOTS / self.pieces * slowness
        self.at(sending_s, lambda: self._arrived(node, giver, number, asked, sending_s))

    def _arrived(self, node: Node, giver: Giver, number: int, asked: Asked, sending_s: float) -> None:
        giver.sending, node.taking = giver.sending - 1, node.taking - 1
        self._serve(giver)
        if node.gone or number not in node.asked:
            return  # it came from somebody else meanwhile
        assert asked.piece is not None
        if giver.gone:
            self._failed(node, giver, number)
            return
        if isinstance(giver, Node) and giver.corrupts and self._checks:
            node.wrong += 1
            self._judge(node, giver, lambda one, now: judging.lied(one, now, "a wrong piece"))
        else:
            took_s = self.now - asked.since
            self._judge(
                node, giver, lambda one, now: judging.gave(one, now, 1, sending_s=sending_s, took_s=took_s)
            )
            self.waste += node.have >> asked.piece & 1
            node.have |= 1 << asked.piece
            if node.have == self.all:
                node.done_at, self._landed = self.now, True
        self._over(node, number)

    def _failed(self, node: Node, giver: Giver, number: int) -> None:
        self._judge(node, giver, judging.failed)
        self._over(node, number)

    def _over(self, node: Node, number: int) -> None:
        asked = node.asked.pop(number, None)
        if asked is not None and asked.piece is not None and node.have >> asked.piece & 1:
            # Others that were asked for it are let go of, as the agent closes their connections.
            node.asked = {k: one for k, one in node.asked.items() if one.piece != asked.piece}
        self.act(node)
        for name in {one.source: None for one in node.asked.values()}:
            giver = self.mirror if name == MIRROR else self.nodes[name]
            if giver.sending < giver.slots:
                self._serve(giver)
        rests = [one.rests_until for one in node.standing.values() if one.rests_until > self.now]
        if rests and (node.wakes_at is None or not self.now < node.wakes_at <= min(rests)):
            node.wakes_at = min(rests)
            self.at(node.wakes_at - self.now + 1e-6, lambda: self.act(node))

    def _judge(self, node: Node, giver: Giver, how: Callable[[Standing, float], Standing]) -> None:
        before = node.standing.get(giver.name, Standing(mirror=giver is self.mirror))
        node.standing[giver.name] = how(before, self.now)
