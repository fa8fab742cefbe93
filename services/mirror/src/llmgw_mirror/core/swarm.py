"""Nodes that fetch one version together: who is there with which pieces, and what the mirror sends next.

All of it may vanish: it is rebuilt by the nodes' next words, and a piece sent twice costs its bytes alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from llmgw_kit.errors import InvalidRequest
from llmgw_kit.pieces import bit_from

#: A node that has not spoken for so long is not named to others; nodes speak every `SPEAK_S`.
TTL_S, SPEAK_S = 20.0, 5.0
#: Neighbours named to one node. With each knowing so many at random, pieces reach all of thousands.
NAMED = 20
#: Bounds on what strangers can make us remember.
PEERS_MOST, SWARMS_MOST, URL_MAX_CHARS = 4000, 256, 300


@dataclass(frozen=True)
class Peer:
    """A node that serves pieces at `url`. `have`: the pieces it holds. `until`: when it is forgotten."""

    url: str
    have: int
    done: bool
    until: float


def check_peer_url(url: object) -> str:
    """http(s)://HOST:PORT and nothing behind. Raises InvalidRequest."""
    try:
        if not isinstance(url, str) or len(url) > URL_MAX_CHARS or not url.isascii() or not url.isprintable():
            raise ValueError
        split = urlsplit(url)
        fine = split.scheme in ("http", "https") and split.hostname and split.port
        if not fine or split.path or split.query or split.fragment or split.username is not None:
            raise ValueError
    except ValueError:
        raise InvalidRequest(
            f"a peer's url is http://HOST:PORT or https://HOST:PORT, not {url!r:.80}",
            next_steps=["see the agent's setting for its own address"],
        ) from None
    return url


class Swarm:
    """One version's. Times are monotonic seconds."""

    def __init__(self, count: int) -> None:
        self._peers: dict[str, Peer] = {}
        #: Set number n: the pieces sent n times.
        self._sent: list[int] = [(1 << count) - 1]
        self._count = count

    def announce(self, url: str, have: int, *, now: float) -> None:
        """A node says what it has. Raises InvalidRequest when there are too many already."""
        self._forget(now)
        if url not in self._peers and len(self._peers) >= PEERS_MOST:
            raise InvalidRequest(
                f"{PEERS_MOST} nodes share this version already; ask for pieces alone",
                next_steps=["ask for pieces alone, and announce yourself later"],
            )
        done = have.bit_count() == self._count
        self._peers[url] = Peer(url, have, done, now + TTL_S)

    def leave(self, url: str) -> None:
        """A node shares no more."""
        self._peers.pop(url, None)

    def others(self, url: str | None, *, now: float, chance: Callable[[], float]) -> tuple[Peer, ...]:
        """Some of the rest, at random, at most `NAMED`."""
        self._forget(now)
        rest = [peer for peer in self._peers.values() if peer.url != url]
        for place in range(min(NAMED, len(rest))):
            other = place + int(chance() * (len(rest) - place))
            rest[place], rest[other] = rest[other], rest[place]
        return tuple(rest[:NAMED])

    def fetching(self, url: str | None, *, now: float) -> int:
        """How many others have not all of it yet."""
        self._forget(now)
        return sum(not peer.done for peer in self._peers.values() if peer.url != url)

    def next(self, lacks: int, *, now: float, chance: Callable[[], float]) -> int | None:
        """The piece to send to a node that lacks these: one sent least often so far, and of those one that no
        node is known to hold; by chance among equals. Sent to one, it reaches the others from there.

        None when it lacks none."""
        self._forget(now)
        held = 0
        for peer in self._peers.values():
            held |= peer.have
        for times, pieces in enumerate(self._sent):
            if found := pieces & lacks:
                piece = bit_from(found & ~held or found, int(chance() * self._count))
                self._sent[times] &= ~(1 << piece)
                if times + 1 == len(self._sent):
                    self._sent.append(0)
                self._sent[times + 1] |= 1 << piece
                return piece
        return None

    def _forget(self, now: float) -> None:
        # Announcements come in order of time and each moves to the end: the stale ones stand in front.
        for url, peer in list(self._peers.items()):
            if peer.until <= now:
                del self._peers[url]
