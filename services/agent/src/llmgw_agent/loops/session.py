"""One conversation with a leader: everything observed goes up, its words come down."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace

from llmgw_agent.core.devices import Device, Inventory, brief
from llmgw_agent.core.plan import Wanted, Wish
from llmgw_agent.core.session import DesiredGate
from llmgw_agent.core.shard import Shard
from llmgw_agent.core.weights import Held
from llmgw_agent.core.words import (
    Beat,
    CancelWord,
    DesiredList,
    DevicesReport,
    DrainWord,
    DriveWord,
    Heard,
    Hello,
    LeaderBeat,
    LogsWord,
    MoveOn,
    PrefetchWord,
    Rejected,
    RemoveWord,
    Result,
    Said,
    ShardsReport,
    StartWord,
    StopWord,
    Unreadable,
    WeightsReport,
    Welcome,
    Word,
)
from llmgw_agent.loops.commands import Commands
from llmgw_agent.loops.pulse import Pulse
from llmgw_agent.loops.view import View
from llmgw_agent.loops.waiting import within
from llmgw_agent.ports import ControllerStream
from llmgw_kit.clock import Clock
from llmgw_kit.errors import InvalidRequest, LlmgwError, Unavailable
from llmgw_kit.ids import ShardId

log = logging.getLogger(__name__)

#: Changes are gathered so long before they are sent: a launch is several in a row.
COALESCE_S = 0.05
#: Disk and temperatures drift all the time; they go up this often unless something else changed.
DRIFT_S = 30.0


class SessionOver(Exception):
    """The stream has ended; `leader` is who to ask instead, when told."""

    def __init__(self, text: str, *, code: str = "ended", leader: str | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.leader = leader


class Session:
    """After Welcome. `moved` is set when the controller asks us to leave for another."""

    def __init__(
        self, address: str, stream: ControllerStream, term: int, welcome: Welcome, hello: Hello, view: View,
        clock: Clock,
    ) -> None:  # fmt: skip
        self.address, self.stream, self.term, self.welcome = address, stream, term, welcome
        self.moved = asyncio.Event()
        self.pulse = Pulse(clock, welcome.beat_interval_s)
        self.move_to: str | None = None
        self._view, self._clock = view, clock
        self._desired = DesiredGate()
        #: The controller's word for each shard: a Desired replaces all of it, a command edits one entry.
        #: None until this session's first Desired.
        self._wishes: dict[ShardId, Wanted] | None = None
        self._sent = _Sent(hello)
        self._commands = Commands(view, self._say, clock)

    async def run(self) -> None:
        """Until it ends: always by raising SessionOver."""
        tasks = [
            asyncio.create_task(self._listen(), name="listen"),
            asyncio.create_task(self._report(), name="report"),
            asyncio.create_task(self._beat(), name="beat"),
            asyncio.create_task(self.pulse.run(), name="pulse"),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        except LlmgwError as e:
            leader = getattr(e, "leader_address", None)
            raise SessionOver(e.text, code=e.code, leader=leader) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._commands.close()
            await self.stream.close()

    async def _say(self, said: Said) -> None:
        await self.stream.say(self.welcome.session_epoch, said)

    # -- up ------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        sequence = 0
        while True:
            sequence += 1
            await self._say(Beat(sequence))
            await self._clock.sleep(self.welcome.beat_interval_s)

    async def _report(self) -> None:
        """Changes at once, everything each beat: a lost word must not be lost for long, also while
        something changes all the time."""
        beat_s = self.welcome.beat_interval_s
        seen = -1  # what changed between Hello and now goes first
        whole_at = self._clock.monotonic_s()
        while True:
            change = asyncio.ensure_future(self._view.changes.after(seen))
            try:
                if await within(change, self._clock, whole_at + beat_s - self._clock.monotonic_s()):
                    await self._clock.sleep(COALESCE_S)
            finally:
                change.cancel()
                await asyncio.gather(change, return_exceptions=True)
            seen, now = self._view.changes.count, self._clock.monotonic_s()
            everything = now >= whole_at + beat_s
            if everything:
                whole_at = now
            applied = self._desired.version
            for said in self._sent.news(self._view, now=now, everything=everything, applied=applied):
                await self._say(said)
            if everything and self._wishes is not None:
                # Level-triggered: what has exited since is let go, or replaced, without another word. Only
                # after a whole report, so that no exit is forgotten before it was told.
                self._view.node.apply(self._wishes.values())

    # -- down ----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while (heard := await self.stream.hear()) is not None:
            await self._obey(heard)
        raise SessionOver("the controller ended the stream")

    async def _obey(self, heard: Heard) -> None:
        self.pulse.note(is_beat=isinstance(heard.word, LeaderBeat))
        if heard.term < self.term:
            raise SessionOver(
                f"a message under term {heard.term} in a session of term {self.term}: refused",
                code="stale_term",
            )
        match heard.word:
            case DesiredList(version, shards):
                if not self._desired.admits(version):
                    log.warning("desired list %d after %s: dropped", version, self._desired.version)
                    return
                self._desired = DesiredGate(version)
                self._wishes = {one.spec.shard_id: one for one in shards}
                self._view.node.apply(shards)
            case Rejected(code, text, leader):
                raise SessionOver(text, code=code, leader=leader)
            case LeaderBeat():
                pass
            case MoveOn(leader):
                self.move_to = leader
                self.moved.set()
            case word:
                await self._command(word)

    async def _command(self, word: Word) -> None:
        match word:
            case StartWord() | DrainWord() | StopWord():
                await self._answer(word)
            case RemoveWord() | PrefetchWord() | LogsWord() | DriveWord():
                self._commands.begin(word)
            case CancelWord():
                self._commands.cancel(word)
            case Unreadable(text, command_id):
                log.error("the controller said something unreadable: %s", text)
                if command_id is not None:
                    await self._say(Result(command_id, False, text))
            case _:
                log.error("the controller sent %s in the middle of a session; ignored", type(word).__name__)

    async def _answer(self, word: StartWord | DrainWord | StopWord) -> None:
        try:
            result = Result(word.command_id, True, self._do(word))
        except LlmgwError as e:
            result = Result(word.command_id, False, e.text)
        with suppress(Unavailable):  # the stream has ended; who listens says why
            await self._say(result)

    def _do(self, word: StartWord | DrainWord | StopWord) -> str:
        """What was done, for people. Raises LlmgwError saying why it was not."""
        node = self._view.node
        match word:
            case StartWord():
                if word.refused is None:
                    said = node.start(word.spec)
                else:
                    said = node.refuse(word.spec, word.refused)
                if self._wishes is not None:
                    self._wishes[word.spec.shard_id] = Wanted(word.spec, Wish.RUN, word.refused)
                if word.refused is not None:
                    raise InvalidRequest(said)
                return said
            case DrainWord():
                self._wish(word.shard_id, Wish.DRAIN)
                return node.drain(word.shard_id)
            case StopWord():
                self._wish(word.shard_id, Wish.STOP)
                return node.stop(word.shard_id, word.reason)

    def _wish(self, shard_id: ShardId, wish: Wish) -> None:
        if self._wishes is not None and (wanted := self._wishes.get(shard_id)) is not None:
            self._wishes[shard_id] = replace(wanted, wish=wish)


class _Sent:
    """What the controller was told last, so that only news is sent."""

    def __init__(self, hello: Hello) -> None:
        self._shards: dict[ShardId, Shard] = {one.spec.shard_id: one for one in hello.shards}
        self._inventory = hello.inventory
        self._weights: tuple[Held, ...] = hello.weights
        self._drifted_at: float | None = None

    def news(self, view: View, *, now: float, everything: bool, applied: int | None) -> list[Said]:
        """Messages for what differs from what was sent; all shards with `everything`, also when there are
        none: that a shard of the list that was `applied` is missing says that it is not here."""
        said: list[Said] = []
        shards = view.shards()
        changed = [one for shard_id, one in shards.items() if everything or self._shards.get(shard_id) != one]
        complete_after = applied if everything else None
        if changed or complete_after is not None:
            said.append(ShardsReport(tuple(changed), complete_after))
        self._shards = shards
        drift = self._drifted_at is None or now - self._drifted_at >= DRIFT_S
        if drift:
            self._drifted_at = now
        said += self._inventory_news(view.inventory, drift=drift)
        if view.weights != self._weights:
            said.append(WeightsReport(view.weights, view.inventory.disk_free_bytes))
            self._weights = view.weights
        return said

    def _inventory_news(self, after: Inventory, *, drift: bool) -> list[Said]:
        before = self._inventory
        if _fixed(before) != _fixed(after) or (drift and before != after):
            self._inventory = after
            return [after]
        if brief(before.devices) != brief(after.devices):
            self._inventory = after
            return [DevicesReport(after.devices)]
        return []


def _fixed(inventory: Inventory) -> Inventory:
    """Without what drifts: the devices' names stay, their readings go."""
    bare = tuple(
        Device(d.device_id, d.index, d.gpu_class, d.vendor, d.memory_total_bytes) for d in inventory.devices
    )
    return replace(inventory, devices=bare, disk_free_bytes=None)
