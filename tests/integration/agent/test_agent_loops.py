"""The loops on a clock that the test holds: back-off, welcome, reports, beats, moving on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from llmgw_agent.core.devices import Device, DeviceState, Inventory
from llmgw_agent.core.session import Rotation, TermGate
from llmgw_agent.core.shard import Shard, ShardState
from llmgw_agent.core.spec import ShardSpec
from llmgw_agent.core.words import (
    Beat,
    DevicesReport,
    Heard,
    Hello,
    LeaderBeat,
    MoveOn,
    Rejected,
    Said,
    ShardsReport,
    Welcome,
)
from llmgw_agent.loops.calling import FENCED_WAIT_S, PATIENCE_S, SPREAD_S
from llmgw_agent.loops.connection import WELCOME_S, Connection
from llmgw_agent.loops.pulse import SILENT_BEATS
from llmgw_agent.loops.session import COALESCE_S, DRIFT_S
from llmgw_agent.loops.view import SessionInfo
from llmgw_agent.loops.waiting import Changes
from llmgw_kit.errors import NotLeader, Unavailable
from llmgw_kit.ids import DeviceId, ReplicaId, ShardId
from llmgw_kit.lifecycle import cancel_all
from llmgw_kit.testing.clock import FakeClock

GPU = Device(DeviceId("gpu-0"), 0, "H100", "declared", memory_total_bytes=1)
HERE = Inventory("h", "10.0.0.1", (GPU,), (), None, (20000, 24999), ("command",), (), 100, 50)
BEAT_S = 5.0


def shard(name: str, state: ShardState = ShardState.SERVING) -> Shard:
    return Shard(ShardSpec(ShardId(name), ReplicaId("r"), 1, "h", "m", "command"), state=state)


@dataclass
class FakeView:
    """What the session reads of the agent."""

    changes: Changes = field(default_factory=Changes)
    held: dict[ShardId, Shard] = field(default_factory=dict)
    inventory: Inventory = HERE
    weights: tuple[()] = ()
    session: SessionInfo | None = None

    def shards(self) -> dict[ShardId, Shard]:
        return dict(self.held)

    def set_session(self, info: SessionInfo | None) -> None:
        self.session = info

    def put(self, one: Shard) -> None:
        self.held[one.spec.shard_id] = one
        self.changes.notify()


@dataclass(eq=False)
class FakeStream:
    """A controller held by hand."""

    address: str
    incoming: asyncio.Queue[Heard | Exception | None] = field(default_factory=asyncio.Queue)
    said: list[tuple[int | None, Said]] = field(default_factory=list)
    closed: bool = False

    async def say(self, epoch: int | None, said: Said) -> None:
        if self.closed:
            raise Unavailable("closed")
        self.said.append((epoch, said))

    async def hear(self) -> Heard | None:
        got = await self.incoming.get()
        if isinstance(got, Exception):
            raise got
        return got

    async def close(self) -> None:
        self.closed = True

    def welcome(self, *, term: int = 1, epoch: int = 1) -> None:
        self.incoming.put_nowait(Heard(term, Welcome(epoch, BEAT_S, self.address, ())))

    def of(self, kind: type) -> list[Said]:
        return [said for _, said in self.said if isinstance(said, kind)]


@dataclass(eq=False)
class Bench:
    """A connection over fake streams; `behave` decides what happens to each call."""

    clock: FakeClock
    view: FakeView = field(default_factory=FakeView)
    streams: list[FakeStream] = field(default_factory=list)
    behave: Callable[[FakeStream], None] = lambda stream: stream.welcome()
    terms: list[int] = field(default_factory=list)

    async def dial(self, address: str) -> FakeStream:
        stream = FakeStream(address)
        self.streams.append(stream)
        self.behave(stream)
        return stream

    def hello(self, highest: int | None) -> Hello:
        return Hello("n", "b", "i", "0", highest, self.view.inventory, tuple(self.view.held.values()), ())

    @property
    def calls(self) -> list[str]:
        return [stream.address for stream in self.streams]


@asynccontextmanager
async def connected(
    clock: FakeClock, behave: Callable[[FakeStream], None], *addresses: str, gate: int | None = None
) -> AsyncIterator[Bench]:
    bench = Bench(clock, behave=behave)
    connection = Connection(
        bench.dial, Rotation(addresses or ("a:1", "b:1")), TermGate(gate), bench.hello,
        bench.view,  # type: ignore[arg-type]  # a view with no node behind it
        clock, lambda: 1.0, bench.terms.append, lambda _: None,
    )  # fmt: skip
    task = asyncio.create_task(connection.run(), name="connection")
    for _ in range(3):  # a call that is led on is a long chain of tasks
        await clock.advance(0)
    try:
        yield bench
        assert not task.done(), "the connection never ends by itself"
    finally:
        await cancel_all(task)


def dead(stream: FakeStream) -> None:
    stream.incoming.put_nowait(Unavailable("nobody there"))


def lively(stream: FakeStream) -> None:
    stream.welcome()


async def test_dead_controllers_are_called_in_turn_ever_more_slowly(fake_clock: FakeClock) -> None:
    async with connected(fake_clock, dead) as bench:
        waits = [0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
        for number, wait_s in enumerate(waits, start=1):
            await fake_clock.advance(wait_s - 0.01)
            assert len(bench.calls) == number
            await fake_clock.advance(0.01)
            assert len(bench.calls) == number + 1
        assert bench.calls[:4] == ["a:1", "b:1", "a:1", "b:1"]
        bench.behave = lively
        await fake_clock.advance(2)
        assert bench.view.session is not None
        bench.streams[-1].incoming.put_nowait(None)
        await fake_clock.advance(SPREAD_S)
        assert len(bench.calls) == len(waits) + 3, "after a session the pauses are short again"


async def test_a_controller_that_takes_the_call_and_says_nothing_is_left(fake_clock: FakeClock) -> None:
    async with connected(fake_clock, lambda stream: None) as bench:
        # Another is called beside it; nobody is called twice at a time.
        await fake_clock.advance(PATIENCE_S)
        assert bench.calls == ["a:1", "b:1"]
        await fake_clock.advance(WELCOME_S - PATIENCE_S)
        assert bench.streams[0].closed
        assert not bench.streams[1].closed
        await fake_clock.advance(PATIENCE_S)
        assert bench.calls == ["a:1", "b:1", "a:1"]


async def test_of_two_that_were_called_the_first_welcome_counts(fake_clock: FakeClock) -> None:
    async with connected(fake_clock, lambda stream: None) as bench:
        await fake_clock.advance(PATIENCE_S)
        slow, other = bench.streams
        slow.welcome()
        await fake_clock.advance(0)
        assert bench.view.session is not None
        assert bench.view.session.address == "a:1"
        assert other.closed
        assert not slow.closed


async def test_the_leader_a_standby_names_is_called_at_once(fake_clock: FakeClock) -> None:
    def behave(stream: FakeStream) -> None:
        if stream.address == "a:1":
            stream.incoming.put_nowait(NotLeader("stands by", leader_address="c:1"))
        else:
            stream.welcome()

    async with connected(fake_clock, behave) as bench:
        assert bench.calls == ["a:1", "c:1"]
        assert bench.view.session is not None
        assert bench.view.session.address == "c:1"


async def test_standbys_that_name_each_other_do_not_make_it_spin(fake_clock: FakeClock) -> None:
    def behave(stream: FakeStream) -> None:
        other = "b:1" if stream.address == "a:1" else "a:1"
        stream.incoming.put_nowait(NotLeader("stands by", leader_address=other))

    async with connected(fake_clock, behave) as bench:
        assert len(bench.calls) <= 6
        before = len(bench.calls)
        await fake_clock.advance(0.2)
        assert len(bench.calls) > before


async def test_a_higher_term_is_remembered_once_and_a_lower_one_refused(fake_clock: FakeClock) -> None:
    async with connected(fake_clock, lambda stream: stream.welcome(term=5), gate=4) as bench:
        assert bench.terms == [5]
        assert bench.streams[0].of(Hello)[0].highest_term_seen == 4  # type: ignore[union-attr]
        bench.behave = lambda stream: stream.welcome(term=4)
        bench.streams[0].incoming.put_nowait(None)
        await fake_clock.advance(3)
        assert bench.view.session is None
        assert bench.terms == [5]
        assert all(stream.closed for stream in bench.streams)


async def test_a_fenced_agent_waits_long(fake_clock: FakeClock) -> None:
    async with connected(fake_clock, lively) as bench:
        bench.streams[0].incoming.put_nowait(Heard(1, Rejected("fenced", "another", None)))
        await fake_clock.advance(FENCED_WAIT_S - 1)
        assert len(bench.calls) == 1
        await fake_clock.advance(1)
        assert len(bench.calls) == 2


def frozen(term: int) -> Callable[[FakeStream], None]:
    """b:1 leads; a:1 takes calls and says nothing."""

    def behave(stream: FakeStream) -> None:
        if stream.address == "b:1":
            stream.welcome(term=term, epoch=2)

    return behave


async def test_a_leader_that_falls_silent_is_left_for_one_that_leads(fake_clock: FakeClock) -> None:
    async with connected(fake_clock, lively) as bench:
        (old,) = bench.streams
        for _ in range(3):
            await fake_clock.advance(BEAT_S)
            old.incoming.put_nowait(Heard(1, LeaderBeat()))
            await fake_clock.advance(0)
        bench.behave = frozen(term=2)
        await fake_clock.advance(SILENT_BEATS * BEAT_S - 0.1)
        assert bench.calls == ["a:1"]
        await fake_clock.advance(SPREAD_S + 0.2)
        await fake_clock.advance(COALESCE_S)
        assert bench.calls == ["a:1", "b:1"]
        assert bench.view.session is not None
        assert (bench.view.session.address, bench.view.session.term) == ("b:1", 2)
        assert old.closed


async def test_a_leader_that_is_only_late_is_kept(fake_clock: FakeClock) -> None:
    def behave(stream: FakeStream) -> None:
        stream.incoming.put_nowait(NotLeader("stands by", leader_address="a:1"))

    async with connected(fake_clock, lively) as bench:
        (old,) = bench.streams
        old.incoming.put_nowait(Heard(1, LeaderBeat()))
        bench.behave = behave
        await fake_clock.advance(SILENT_BEATS * BEAT_S + SPREAD_S + 0.1)
        assert bench.calls == ["a:1", "b:1"], "the silent one is not called, though it is named"
        await fake_clock.advance(0.9)
        asked = len(bench.calls)
        assert asked <= 4
        old.incoming.put_nowait(Heard(1, LeaderBeat()))
        await fake_clock.advance(BEAT_S)
        assert len(bench.calls) == asked, "nobody else is asked any more"
        assert bench.view.session is not None
        assert bench.view.session.address == "a:1"
        assert not old.closed
        assert len(old.of(Beat)) >= 3


async def test_the_silence_of_a_controller_that_never_beats_says_nothing(fake_clock: FakeClock) -> None:
    async with connected(fake_clock, lively) as bench:
        await fake_clock.advance(20 * BEAT_S)
        assert bench.calls == ["a:1"]


async def test_many_changes_in_a_moment_are_one_report_and_all_goes_up_each_beat(
    fake_clock: FakeClock,
) -> None:
    async with connected(fake_clock, lively) as bench:
        stream = bench.streams[0]
        await fake_clock.advance(COALESCE_S)
        for state in (ShardState.FETCHING, ShardState.VERIFYING, ShardState.LAUNCHING):
            bench.view.put(shard("s1", state))
            await fake_clock.advance(0)
        bench.view.put(shard("s2"))
        await fake_clock.advance(COALESCE_S)
        (report,) = stream.of(ShardsReport)
        assert isinstance(report, ShardsReport)
        assert [(one.spec.shard_id, one.state) for one in report.shards] == [
            ("s1", ShardState.LAUNCHING),
            ("s2", ShardState.SERVING),
        ]
        bench.view.put(replace(shard("s2"), running=4))
        await fake_clock.advance(COALESCE_S)
        changed = stream.of(ShardsReport)[-1]
        assert isinstance(changed, ShardsReport)
        assert [one.running for one in changed.shards] == [4], "only what changed"
        await fake_clock.advance(BEAT_S)
        whole = stream.of(ShardsReport)[-1]
        assert isinstance(whole, ShardsReport)
        assert len(whole.shards) == 2
        assert {epoch for epoch, said in stream.said if not isinstance(said, Hello)} == {1}


async def test_everything_goes_up_each_beat_also_while_something_changes_all_the_time(
    fake_clock: FakeClock,
) -> None:
    async with connected(fake_clock, lively) as bench:
        bench.view.put(shard("quiet"))
        await fake_clock.advance(1)
        for count in range(12):
            bench.view.put(replace(shard("busy"), running=count))
            await fake_clock.advance(1)
        told = [said.shards for said in bench.streams[0].of(ShardsReport) if isinstance(said, ShardsReport)]
        quiet = [shards for shards in told if any(one.spec.shard_id == "quiet" for one in shards)]
        assert len(quiet) == 3, "once as news, then with each beat"


async def test_beats_keep_their_pace_and_number(fake_clock: FakeClock) -> None:
    async with connected(fake_clock, lively) as bench:
        await fake_clock.advance(4 * BEAT_S)
        assert [said.sequence for said in bench.streams[0].of(Beat) if isinstance(said, Beat)] == [
            1,
            2,
            3,
            4,
            5,
        ]


async def test_health_goes_up_at_once_and_what_only_drifts_seldom(fake_clock: FakeClock) -> None:
    async with connected(fake_clock, lively) as bench:
        stream, view = bench.streams[0], bench.view
        await fake_clock.advance(1)
        view.inventory = replace(HERE, disk_free_bytes=49)
        view.changes.notify()
        await fake_clock.advance(1)
        assert not stream.of(Inventory)
        broken = replace(GPU, state=DeviceState.UNHEALTHY, reason="xid_79")
        view.inventory = replace(view.inventory, devices=(broken,))
        view.changes.notify()
        await fake_clock.advance(COALESCE_S)
        assert stream.of(DevicesReport) == [DevicesReport((broken,))]
        view.inventory = replace(view.inventory, disk_free_bytes=48)
        await fake_clock.advance(DRIFT_S + BEAT_S)
        assert [said.disk_free_bytes for said in stream.of(Inventory) if isinstance(said, Inventory)] == [48]


async def test_the_old_stream_reports_until_the_new_one_stands(fake_clock: FakeClock) -> None:
    async with connected(fake_clock, lively) as bench:
        old = bench.streams[0]
        bench.behave = dead
        old.incoming.put_nowait(Heard(1, MoveOn("c:1")))
        await fake_clock.advance(BEAT_S)
        assert bench.calls[1] == "c:1"
        assert old.closed is False
        beats = len(old.of(Beat))
        await fake_clock.advance(BEAT_S)
        assert len(old.of(Beat)) > beats
        bench.behave = lambda stream: stream.welcome(term=2, epoch=2)
        await fake_clock.advance(2)
        await fake_clock.advance(COALESCE_S)
        assert bool(old.closed)
        assert bench.streams[-1].of(Beat)
        assert {epoch for epoch, said in bench.streams[-1].said if isinstance(said, Beat)} == {2}
        assert bench.terms == [1, 2]


@pytest.mark.parametrize("ending", [None, Unavailable("reset")])
async def test_a_session_that_ends_is_begun_anew_with_everything_observed(
    fake_clock: FakeClock, ending: Exception | None
) -> None:
    async with connected(fake_clock, lively) as bench:
        bench.view.put(shard("s1"))
        bench.streams[0].incoming.put_nowait(ending)
        await fake_clock.advance(SPREAD_S)
        assert bench.streams[0].closed
        (hello,) = bench.streams[1].of(Hello)
        assert isinstance(hello, Hello)
        assert [one.spec.shard_id for one in hello.shards] == ["s1"]
