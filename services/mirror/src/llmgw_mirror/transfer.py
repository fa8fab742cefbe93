"""The bytes of one file, from upstream into its part: attempts, pauses, stalls."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from llmgw_kit.clock import Clock
from llmgw_mirror.adapters.parts import Part
from llmgw_mirror.adapters.room import Room
from llmgw_mirror.core.refusals import ASK_ANEW, FETCH_AGAIN, FETCH_RETRY
from llmgw_mirror.core.transfer import (
    Append,
    AskAgain,
    AskFrom,
    Complete,
    Refuse,
    StartOver,
    Want,
    backoff_s,
    body_end,
    next_request,
    on_answer,
)
from llmgw_mirror.core.versions import Source
from llmgw_mirror.flight import FetchFailed, Flight, Sink
from llmgw_mirror.manners import Pace, Pauses, Slot
from llmgw_mirror.ports import Interrupted, Refused, Upstream
from llmgw_mirror.throttle import Held, Throttle

log = logging.getLogger(__name__)

Upstreams = Mapping[str, Upstream]
Outcome = Complete | StartOver | Refuse | AskAgain
#: Of a body that does not say its length, so much is claimed ahead of what came: as much again, but little
#: for a small file on a disk that is nearly full, and no more than leaves room for others.
AHEAD_LEAST_BYTES, AHEAD_MOST_BYTES = 1 << 20, 64 << 20


@dataclass
class Tally:
    """What the transfers of this process amounted to; read by the metrics page."""

    received_bytes: int = 0
    requests: dict[str, int] = field(default_factory=dict)

    def asked(self, outcome: str) -> None:
        self.requests[outcome] = self.requests.get(outcome, 0) + 1


class Transfer:
    """`chance` gives numbers from 0 to 1 and spreads the attempts of many files."""

    def __init__(self, *, upstreams: Upstreams, room: Room, clock: Clock, pace: Pace,
                 throttle: Throttle, chance: Callable[[], float]) -> None:  # fmt: skip
        self._upstreams = upstreams
        self._room = room
        self._clock = clock
        self._pace = pace
        self._throttle = throttle
        self._chance = chance
        self._pauses = Pauses(clock)
        self.tally = Tally()

    async def receive(self, part: Part, source: Source, want: Want, flight: Flight, slot: Slot) -> None:
        """Until as many bytes are here as there should be. Raises FetchFailed, NoRoom, OSError."""
        attempts, furthest = 0, part.length
        while True:
            ask = next_request(part.seen, want)
            if isinstance(ask, Complete):
                return
            if isinstance(ask, StartOver):
                log.info("%s starts over: %s", source.path, ask.why)
                await part.restart()
                flight.at(0)
                continue
            if self._pauses.holds(source.url) or self._throttle.holds:
                slot.give()
                await self._pauses.wait(source.url)
                await self._throttle.wait_open()
                await slot.take()
                # Another's answer may have called for a pause meanwhile.
                continue
            try:
                outcome = await self._attempt(part, ask, source, want, flight)
            except Held:
                log.info("%s waits at %d bytes: the schedule lets nothing through", source.path, part.length)
                continue
            self.tally.asked(type(outcome).__name__.lower())
            if isinstance(outcome, Complete):
                return
            if isinstance(outcome, Refuse):
                if outcome.spoiled:
                    await part.discard()
                raise FetchFailed(outcome.error, next_steps=outcome.next_steps or [FETCH_AGAIN, ASK_ANEW])
            if isinstance(outcome, StartOver):
                await part.restart()
                flight.at(0)
            # Bytes gained count as success: a bad link may break off a hundred times in a large file.
            if part.length > furthest:
                attempts, furthest = 0, part.length
            attempts += 1
            await self._before_next(attempts, outcome, part, source, slot)

    async def _before_next(
        self, attempts: int, outcome: StartOver | AskAgain, part: Part, source: Source, slot: Slot
    ) -> None:
        if attempts >= self._pace.attempts:
            kept = f"; {part.length} bytes are kept, fetching again goes on from there" if part.length else ""
            raise FetchFailed(
                f"{outcome.why}; gave up after {attempts} attempts without progress{kept}",
                next_steps=["see whether upstream can be reached from here", FETCH_AGAIN],
            )
        after_s = outcome.after_s if isinstance(outcome, AskAgain) else None
        if after_s is not None:
            if after_s > self._pace.pause_most_s:
                raise FetchFailed(
                    f"{outcome.why}; it asks to wait {after_s:.0f} s", next_steps=[f"then: {FETCH_RETRY}"]
                )
            self._pauses.note(source.url, after_s)
        wait_s = backoff_s(attempts, base_s=self._pace.backoff_base_s, most_s=self._pace.backoff_most_s)
        wait_s *= 0.5 + self._chance() / 2
        log.warning("%s: %s; again in %.1f s", source.path, outcome.why, max(wait_s, after_s or 0.0))
        slot.give()
        await self._clock.sleep(wait_s)
        await slot.take()

    async def _attempt(self, part: Part, ask: AskFrom, source: Source, want: Want, flight: Flight) -> Outcome:
        """One request and its body, watched for silence."""
        sink = Sink(part, flight)
        reading = asyncio.create_task(self._read(sink, part, ask, source, want, flight), name="transfer")
        watching = asyncio.create_task(self._watch(sink), name="stall watch")
        try:
            await asyncio.wait({reading, watching}, return_when=asyncio.FIRST_COMPLETED)
            stalled = None if reading.done() else watching.result()
        finally:
            reading.cancel()
            watching.cancel()
            await asyncio.wait({reading, watching})
            # However it ended: what came is what need not come again.
            await sink.flush()
        if stalled is not None:
            return AskAgain(stalled, None)
        read = reading.result()
        if isinstance(read, _Ended):
            return body_end(read.total_bytes, part.length, want, broke_off=read.broke_off)
        return read

    async def _read(
        self, sink: Sink, part: Part, ask: AskFrom, source: Source, want: Want, flight: Flight
    ) -> "Outcome | _Ended":
        upstream = self._upstreams[urlsplit(source.url).scheme]
        total: int | None = None
        begun = False
        try:
            async with upstream.open(source.url, offset=ask.offset, validator=ask.validator) as answer:
                if (exhausted_s := answer.head.exhausted_s) is not None:
                    self._pauses.note(source.url, min(exhausted_s, self._pace.pause_most_s))
                step = on_answer(part.seen, want, ask, answer.head)
                if not isinstance(step, Append):
                    return step
                total = want.size_bytes if want.size_bytes is not None else step.total_bytes
                # Room may have to be made first, by reading and removing much; upstream waits for that.
                with sink.held_up():
                    if step.offset == 0 and part.length:
                        log.info("%s starts over: %s", source.path, step.dropped)
                        await part.restart()
                        sink.received = 0
                        flight.at(0)
                    flight.total_bytes = total
                    promised = sink.received + AHEAD_LEAST_BYTES if total is None else total

                    def left() -> int:
                        # By what is written, as the disk counts: what waits for it is still to come.
                        return max(0, promised - part.length)

                    await self._room.claim(flight.key, left)
                    await part.begin(validator=step.validator, total_bytes=step.total_bytes)
                begun = True
                async for piece in answer.body():
                    self.tally.received_bytes += len(piece)
                    if total is not None and sink.received + len(piece) > total:
                        return Refuse(
                            f"upstream sends more than the expected {total} bytes; removed", spoiled=True
                        )
                    if sink.received + len(piece) > promised:
                        promised = _further(sink.received + len(piece))
                        with sink.held_up():
                            await self._room.claim(flight.key, left)
                    await sink.add(piece)
                    if upstream.remote:
                        with sink.held_up():
                            await self._throttle.take(len(piece))
            return _Ended(total, None)
        except Interrupted as e:
            return _Ended(total, e.text) if begun else AskAgain(e.text, e.retry_after_s)
        except Refused as e:
            return Refuse(e.text, next_steps=e.next_steps)

    async def _watch(self, sink: Sink) -> str:
        """Judge by bytes gained in a window, not by the clock since the last packet (H13, H14)."""
        window_s = self._pace.stall_window_s
        while True:
            before, held_s, left_s = sink.received, sink.held_s, window_s
            while left_s > 0:
                await self._clock.sleep(left_s)
                # All of the window is upstream's: for as long as we held it up, it gets more.
                held_s, left_s = sink.held_s, sink.held_s - held_s
            gained = sink.received - before
            if gained < self._pace.stall_bytes:
                return f"upstream stalled: {max(0, gained)} bytes in {window_s:g} s"


def _further(come_bytes: int) -> int:
    """So much room is claimed once so many bytes came of a body that does not say its length."""
    return come_bytes + min(AHEAD_MOST_BYTES, max(AHEAD_LEAST_BYTES, come_bytes))


@dataclass(frozen=True)
class _Ended:
    """A body ended: cleanly (`broke_off` None), or not."""

    total_bytes: int | None
    broke_off: str | None
