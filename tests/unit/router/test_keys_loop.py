"""Keys follow their store: changes at once, silence for fifteen minutes, then nobody is believed (4.7)."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from llmgw_kit.errors import Unavailable
from llmgw_kit.testing.clock import FakeClock
from llmgw_router.core.keys import KeyRow
from llmgw_router.keys import BELIEVED_S, POLL_S, KeysLoop
from llmgw_router.ports import KeysChange

ROW = KeyRow(digest=b"d" * 32, key_id="k1")


@dataclass
class Store:
    """Says what it is told to say."""

    answer: KeysChange | Unavailable | None = None
    asked: list[int | None] = field(default_factory=list)

    async def changed(self, since: int | None) -> KeysChange | None:
        self.asked.append(since)
        if isinstance(self.answer, Unavailable):
            raise self.answer
        return self.answer

    async def hinted(self, within_s: float) -> None: ...

    async def close(self) -> None: ...


@dataclass
class Sink:
    pushed: list[tuple[list[KeyRow], list[bytes], bool]] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    keys_held: int = 0

    def push_keys(self, rows: Iterable[KeyRow], gone: Iterable[bytes] = (), *, whole: bool) -> None:
        self.pushed.append((list(rows), list(gone), whole))

    def keys_are_stale(self, why: str) -> None:
        self.stale.append(why)


async def test_what_changed_is_passed_on_and_asked_for_from_there(fake_clock: FakeClock) -> None:
    store, sink = Store(KeysChange(7, whole=True, keys=[ROW], gone=[])), Sink()
    loop = KeysLoop(store, sink, fake_clock)
    await loop.step()
    store.answer = KeysChange(8, whole=False, keys=[], gone=[ROW.digest])
    await loop.step()
    store.answer = None
    await loop.step()
    assert store.asked == [None, 7, 8]
    assert sink.pushed == [([ROW], [], True), ([], [ROW.digest], False)]
    assert loop.view.version == 8


async def test_known_keys_are_good_for_fifteen_minutes_of_silence_and_good_again_after_it(
    fake_clock: FakeClock,
) -> None:
    store, sink = Store(KeysChange(7, whole=True, keys=[ROW], gone=[])), Sink()
    loop = KeysLoop(store, sink, fake_clock)
    await loop.step()
    store.answer = Unavailable("gone")
    await fake_clock.advance(BELIEVED_S - 1)
    await loop.step()
    assert sink.stale == []
    await fake_clock.advance(2)
    await loop.step()
    await loop.step()
    (why,) = sink.stale
    assert "15 minutes" in why
    assert loop.view.stale
    store.answer = None
    await loop.step()
    assert sink.pushed[-1] == ([], [], False), "nothing changed: all that is known is true again"
    assert not loop.view.stale


async def test_a_store_that_never_answered_makes_nobody_stale(fake_clock: FakeClock) -> None:
    store, sink = Store(Unavailable("not yet")), Sink()
    loop = KeysLoop(store, sink, fake_clock)
    await loop.step()
    await fake_clock.advance(BELIEVED_S * 2)
    await loop.step()
    assert (sink.pushed, sink.stale) == ([], [])
    assert loop.view.confirmed_s_ago is None


def test_a_lost_hint_costs_less_than_the_promise_of_two_seconds() -> None:
    assert POLL_S <= 1.0
