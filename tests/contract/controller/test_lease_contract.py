"""The lease: one holder at a time, terms that only grow, and a database's word on when it is over."""

from typing import TYPE_CHECKING

from llmgw_controller.ports import Lease

if TYPE_CHECKING:
    from tests.contract.controller.conftest import World


async def take(world: "World", holder: str = "a") -> Lease:
    lease = await world.lease.acquire(holder=holder, address=f"{holder}:7070", ttl_s=10)
    assert lease is not None
    return lease


async def test_nobody_holds_a_fresh_lease(world: "World") -> None:
    assert await world.lease.read() is None


async def test_the_second_one_waits(world: "World") -> None:
    lease = await take(world)
    assert await world.other.acquire(holder="b", address="b:7070", ttl_s=10) is None
    view = await world.other.read()
    assert view is not None
    assert (view.holder, view.address, view.term) == ("a", "a:7070", lease.term)
    assert 0 < view.expires_in_s <= 10


async def test_an_earlier_life_of_the_same_holder_waits_too(world: "World") -> None:
    await take(world)
    assert await world.other.acquire(holder="a", address="a:7070", ttl_s=10) is None


async def test_terms_only_grow(world: "World") -> None:
    terms = []
    for holder in ("a", "b", "a"):
        lease = await take(world, holder)
        terms.append(lease.term)
        await world.let_the_lease_run_out()
    assert terms == sorted(set(terms))


async def test_a_lease_that_ran_out_is_not_renewed(world: "World") -> None:
    lease = await take(world)
    await world.let_the_lease_run_out()
    assert await world.lease.renew(lease) is None


async def test_an_old_term_is_not_renewed_under_the_same_name(world: "World") -> None:
    old = await take(world)
    await world.let_the_lease_run_out()
    new = await take(world)
    assert await world.lease.renew(old) is None
    assert await world.lease.renew(new) is not None


async def test_renewing_keeps_the_term(world: "World") -> None:
    lease = await take(world)
    renewed = await world.lease.renew(lease)
    assert renewed is not None
    assert renewed.term == lease.term
    assert renewed.db_now >= lease.db_now


async def test_a_released_lease_is_free_at_once(world: "World") -> None:
    lease = await take(world)
    await world.lease.release(lease)
    after = await world.other.acquire(holder="b", address="b:7070", ttl_s=10)
    assert after is not None
    assert after.term > lease.term


async def test_releasing_an_old_term_takes_nothing_from_the_new_holder(world: "World") -> None:
    old = await take(world)
    await world.let_the_lease_run_out()
    new = await take(world, "b")
    await world.lease.release(old)
    assert await world.other.renew(new) is not None


async def test_a_term_can_be_asked_for_above_one_that_was_seen(world: "World") -> None:
    first = await world.lease.acquire(holder="a", address="a:1", ttl_s=10, above=41)
    assert first is not None
    assert first.term == 42
    await world.lease.release(first)
    second = await world.lease.acquire(holder="a", address="a:1", ttl_s=10, above=7)
    assert second is not None
    assert second.term == 43
