"""What waits to go down one stream."""

import asyncio

from llmgw_controller.outbox import NOTICES_MAX, Outbox


async def taken(outbox: Outbox[str]) -> list[str]:
    """All of an outbox that has ended."""
    return [message async for message in outbox.messages()]


async def test_a_newer_state_replaces_one_that_was_not_sent_and_goes_before_notices() -> None:
    outbox: Outbox[str] = Outbox("n1")
    outbox.state("old")
    outbox.notice("start")
    outbox.state("new")
    reader = outbox.messages()
    assert [await anext(reader), await anext(reader)] == ["new", "start"]


async def test_a_state_drops_the_waiting_notices_that_it_outdates() -> None:
    """A stream that is not read for long: a start that waits must not come after the list without it."""
    outbox: Outbox[str] = Outbox("n1")
    outbox.notice("start a shard given up since")
    outbox.notice("read a log")
    outbox.state("the whole list", outdates=lambda told: told.startswith("start"))
    outbox.notice("start another")
    reader = outbox.messages()
    assert [await anext(reader) for _ in range(3)] == ["the whole list", "read a log", "start another"]


async def test_the_reader_waits_and_wakes() -> None:
    outbox: Outbox[str] = Outbox("n1")
    reader = outbox.messages()
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    assert not waiting.done()
    outbox.notice("start")
    assert await waiting == "start"


async def test_the_last_word_is_the_last_and_the_first_end_decides() -> None:
    outbox: Outbox[str] = Outbox("n1")
    outbox.state("state")
    outbox.notice("notice")
    outbox.end("fenced")
    outbox.end("move on")
    outbox.state("late")
    outbox.notice("late")
    assert await taken(outbox) == ["fenced"]
    assert outbox.ended


async def test_an_end_without_a_word() -> None:
    outbox: Outbox[str] = Outbox("n1")
    outbox.end(None)
    assert await taken(outbox) == []


async def test_it_is_bounded_and_drops_the_oldest() -> None:
    outbox: Outbox[str] = Outbox("n1")
    for number in range(NOTICES_MAX + 5):
        outbox.notice(f"{number}")
    reader = outbox.messages()
    got = [await anext(reader) for _ in range(NOTICES_MAX)]
    assert got[0] == "5"
    assert got[-1] == f"{NOTICES_MAX + 4}"
