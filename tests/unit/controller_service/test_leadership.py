"""Leadership on a clock that the test moves: when it begins, how it ends, and what is told meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.core.lease import LeaseTiming, may_act, validated
from llmgw_controller.leadership import Leadership, Tenure
from llmgw_controller.ports import Fenced, Lease, LeaseView
from llmgw_kit.errors import InvalidRequest, Unavailable
from llmgw_kit.lifecycle import cancel_all
from llmgw_kit.testing.clock import FakeClock

TIMING = LeaseTiming()


class FlakyLease(MemoryLease):
    """A lease whose store can stop answering."""

    silent = False
    #: The answer to the next acquiring is lost; what it did is remembered, as the store's token does.
    loses_answer = False
    kept: Lease | None = None

    async def acquire(self, *, holder: str, address: str, ttl_s: float, above: int = 0) -> Lease | None:
        if self.kept is not None:
            kept, self.kept = self.kept, None
            return await super().renew(kept)
        lease = await super().acquire(holder=holder, address=address, ttl_s=ttl_s, above=above)
        if self.loses_answer:
            self.loses_answer, self.kept = False, lease
            raise Unavailable("the answer was lost")
        return lease

    async def renew(self, lease: Lease) -> Lease | None:
        if self.silent:
            raise Unavailable("the store does not answer")
        return await super().renew(lease)

    async def read(self) -> LeaseView | None:
        if self.silent:
            raise Unavailable("the store does not answer")
        return await super().read()


@dataclass
class Scene:
    clock: FakeClock
    leases: FlakyLease
    reigns: list[tuple[str, str, int]] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    fence: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self, name: str) -> tuple[Leadership, asyncio.Task[None]]:
        async def reign(tenure: Tenure) -> None:
            self.reigns.append((name, "begins", tenure.term))
            try:
                await self.fence.wait()
                raise Fenced("the store refused")
            finally:
                self.reigns.append((name, "ends", tenure.term))

        leadership = Leadership(
            self.leases, self.clock, name=name, address=f"{name}:7070", timing=TIMING, reign=reign
        )
        task = asyncio.create_task(leadership.run())
        self.tasks.append(task)
        return leadership, task


def leads(leadership: Leadership) -> bool:
    """Asked anew each time: it changes with the clock."""
    return leadership.tenure is not None


@pytest.fixture
async def scene(fake_clock: FakeClock) -> AsyncIterator[Scene]:
    made = Scene(fake_clock, FlakyLease(fake_clock))
    yield made
    await cancel_all(*made.tasks)


async def test_one_leads_the_other_names_it(scene: Scene) -> None:
    a, _ = scene.start("a")
    await scene.clock.advance(1)
    b, _ = scene.start("b")
    await scene.clock.advance(60)
    assert leads(a)
    assert not leads(b)
    refusal = b.not_leading()
    assert refusal.leader_address == "a:7070"
    assert "a at a:7070 leads" in refusal.text
    assert [what for _, what, _ in scene.reigns] == ["begins"]


async def test_a_clean_stop_hands_over_at_once(scene: Scene) -> None:
    _, task = scene.start("a")
    await scene.clock.advance(1)
    b, _ = scene.start("b")
    await scene.clock.advance(1)
    await cancel_all(task)
    await scene.clock.advance(TIMING.retry_s + 0.1)
    assert leads(b)
    assert [(name, what) for name, what, _ in scene.reigns] == [
        ("a", "begins"),
        ("a", "ends"),
        ("b", "begins"),
    ]


async def test_a_dead_leader_is_followed_within_ttl_and_a_little(scene: Scene) -> None:
    # A lease held by somebody who never renews.
    await scene.leases.acquire(holder="dead", address="dead:1", ttl_s=TIMING.ttl_s)
    b, _ = scene.start("b")
    await scene.clock.advance(TIMING.ttl_s - 0.1)
    assert not leads(b)
    await scene.clock.advance(2.1)
    assert leads(b)


async def test_a_lease_whose_answer_was_lost_is_not_waited_out(scene: Scene) -> None:
    scene.leases.loses_answer = True
    a, _ = scene.start("a")
    await scene.clock.advance(0)
    assert not leads(a)
    await scene.clock.advance(TIMING.retry_s + 0.1)
    assert leads(a)
    assert a.tenure is not None
    assert a.tenure.term == 1


async def test_leading_ends_before_the_lease_does_when_the_store_is_silent(scene: Scene) -> None:
    a, _ = scene.start("a")
    await scene.clock.advance(1)
    tenure = a.tenure
    assert tenure is not None
    scene.leases.silent = True
    await scene.clock.advance(TIMING.ttl_s - TIMING.margin_s - TIMING.renew_s - 0.1)
    assert tenure.may_act()
    await scene.clock.advance(TIMING.renew_s + 0.2)
    assert not tenure.may_act()
    assert not leads(a)
    assert scene.reigns[-1][:2] == ("a", "ends")
    assert a.not_leading().leader_address is None
    scene.leases.silent = False
    await scene.clock.advance(TIMING.ttl_s)
    later = a.tenure
    assert later is not None
    assert later.term > tenure.term


async def test_a_lost_renewal_or_two_are_survived(scene: Scene) -> None:
    a, _ = scene.start("a")
    await scene.clock.advance(1)
    tenure = a.tenure
    scene.leases.silent = True
    await scene.clock.advance(TIMING.renew_s + 2 * TIMING.retry_s)
    scene.leases.silent = False
    await scene.clock.advance(60)
    assert a.tenure is tenure


async def test_a_process_woken_from_a_freeze_may_not_act_before_it_has_looked(scene: Scene) -> None:
    a, _ = scene.start("a")
    await scene.clock.advance(1)
    tenure = a.tenure
    assert tenure is not None
    scene.clock._monotonic_s += TIMING.ttl_s  # time passed, and nothing ran
    assert not leads(a)
    with pytest.raises(Fenced):
        tenure.require()


async def test_a_reign_that_meets_the_fence_ends_and_competes_again(scene: Scene) -> None:
    a, _ = scene.start("a")
    await scene.clock.advance(1)
    scene.fence.set()
    await scene.clock.advance(0.01)
    assert not leads(a)
    scene.fence.clear()
    await scene.clock.advance(TIMING.ttl_s + 1)
    assert leads(a)
    assert [what for _, what, _ in scene.reigns] == ["begins", "ends", "begins"]


async def test_a_bug_in_a_reign_gives_the_lease_up_and_is_raised(scene: Scene) -> None:
    async def reign(_: Tenure) -> None:
        raise ZeroDivisionError

    broken = Leadership(scene.leases, scene.clock, name="a", address="a:1", timing=TIMING, reign=reign)
    with pytest.raises(ZeroDivisionError):
        await broken.run()
    assert await scene.leases.acquire(holder="b", address="b:1", ttl_s=1) is not None


async def test_the_term_clock_is_the_stores_and_never_jumps(scene: Scene) -> None:
    a, _ = scene.start("a")
    await scene.clock.advance(1)
    tenure = a.tenure
    assert tenure is not None
    before = tenure.now()
    scene.clock.jump_unix(-3600)
    await scene.clock.advance(5)
    assert tenure.now() == pytest.approx(before + 5)


async def test_a_higher_term_that_somebody_saw_is_passed(scene: Scene) -> None:
    """The store was restored from a backup: agents refuse what it gives out now."""
    a, _ = scene.start("a")
    await scene.clock.advance(1)
    before = a.tenure
    assert before is not None
    a.seen(before.term)
    await scene.clock.advance(5)
    assert a.tenure is before
    a.seen(before.term + 700)
    assert not scene.fence.is_set()
    await scene.clock.advance(5)
    after = a.tenure
    assert after is not None
    assert after.term == before.term + 701
    a.seen(2**63)
    await scene.clock.advance(5)
    assert a.tenure is after


@pytest.mark.parametrize(
    ("timing", "told"),
    [
        (LeaseTiming(ttl_s=5), "renew 2 s + 2 x retry 1 s = 4 s, but ttl 5 s - margin 2 s = 3 s"),
        (LeaseTiming(renew_s=0), "lease renew_s is 0; it must be above 0"),
        (LeaseTiming(margin_s=-1), "lease margin_s is -1; it must be above 0"),
    ],
)
def test_timings_that_cannot_work_are_refused_with_the_numbers(timing: LeaseTiming, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        validated(timing)
    assert told in caught.value.text


def test_the_defaults_are_valid() -> None:
    assert validated(LeaseTiming()) == LeaseTiming(10, 2, 1, 2)


@pytest.mark.parametrize(("age_s", "allowed"), [(0.0, True), (7.9, True), (8.0, False), (11.0, False)])
def test_the_holder_stops_at_ttl_less_margin(age_s: float, allowed: bool) -> None:
    assert may_act(100.0, 100.0 + age_s, ttl_s=10, margin_s=2) is allowed
