"""Keys follow the database: told of a change at once, asked for one each second, believed for a while."""

import logging
from dataclasses import dataclass

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Unavailable
from llmgw_router.ports import KeysSink, KeysStore

log = logging.getLogger(__name__)

#: A notification that got lost costs so much: revocation is in force within 2 s of its commit.
POLL_S = 1.0
#: For so long keys are believed that nobody confirms.
BELIEVED_S = 900.0
#: Silence of the database is repeated in the log this often.
REPEAT_S = 60.0


@dataclass(frozen=True)
class KeysView:
    """For metrics and admin pages."""

    keys: int
    version: int | None
    #: None: never read.
    confirmed_s_ago: float | None
    stale: bool


class KeysLoop:
    """Hands keys to the workers; a database that is silent changes nothing until BELIEVED_S are over."""

    def __init__(self, store: KeysStore, sink: KeysSink, clock: Clock) -> None:
        self._store = store
        self._sink = sink
        self._clock = clock
        self._version: int | None = None
        self._many = 0
        #: Monotonic; None: not once.
        self._confirmed_at: float | None = None
        self._stale = False
        self._silent_since: float | None = None
        self._said_at = 0.0

    @property
    def view(self) -> KeysView:
        at = self._confirmed_at
        ago = None if at is None else self._clock.monotonic_s() - at
        return KeysView(self._sink.keys_held, self._version, ago, self._stale)

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.step()
            # A database that does not answer sends no hints either.
            await self._store.hinted(POLL_S)

    async def step(self) -> None:
        """Ask once, and do what follows."""
        asked_at = self._clock.monotonic_s()
        try:
            change = await self._store.changed(self._version)
        except Unavailable as e:
            self._silence(e.text)
            return
        if change is not None:
            self._sink.push_keys(change.keys, change.gone, whole=change.whole)
            self._version = change.version
            many = f"{len(change.keys)} read" if change.whole else f"{len(change.keys)} changed"
            log.info("API keys: %s, %d revoked, version %d", many, len(change.gone), change.version)
        elif self._stale:
            self._sink.push_keys([], whole=False)
        if self._silent_since is not None:
            log.warning("API keys can be read again after %.0f s", asked_at - self._silent_since)
        # The moment of the question: what was committed after it may be missing in the answer.
        self._confirmed_at = asked_at
        self._silent_since, self._stale = None, False

    def _silence(self, why: str) -> None:
        now = self._clock.monotonic_s()
        if self._silent_since is None:
            self._silent_since = now
            self._said_at = now - REPEAT_S
        if now - self._said_at >= REPEAT_S:
            self._said_at = now
            log.error("%s; %s", why, self._what_follows(now))
        if self._confirmed_at is not None and not self._stale and now - self._confirmed_at >= BELIEVED_S:
            self._stale = True
            minutes = BELIEVED_S / 60
            self._sink.keys_are_stale(
                f"API keys cannot be checked: their database has not answered for {minutes:g} minutes. Yours "
                "may be good; ask again."
            )
            log.error("keys are not believed any more: every request is refused with 503 until they are read")

    def _what_follows(self, now: float) -> str:
        if self._confirmed_at is None:
            return "no key is known yet, and every request is refused with 503"
        left_s = BELIEVED_S - (now - self._confirmed_at)
        return (
            f"the keys that are known stay good for {left_s:.0f} s" if left_s > 0 else "requests are refused"
        )
