"""One suite for the history, on the one in memory and on Postgres."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from llmgw_kit.postgres import connect_pool
from llmgw_mirror.adapters.history_memory import MemoryHistory
from llmgw_mirror.adapters.history_postgres import PostgresHistory
from llmgw_mirror.core.history import Entry, Kind
from llmgw_mirror.ports import History

T0 = 1_700_000_000.0


@dataclass
class Histories:
    """Of two stores."""

    one: History
    elsewhere: History


@pytest.fixture(params=["memory", "postgres"])
async def histories(request: pytest.FixtureRequest) -> AsyncIterator[Histories]:
    if request.param == "memory":
        yield Histories(MemoryHistory(), MemoryHistory())
        return
    pool = await connect_pool(request.getfixturevalue("migrated_dsn"), application="test", max_size=2)
    yield Histories(PostgresHistory(pool, store_id="s1"), PostgresHistory(pool, store_id="s2"))
    await pool.close()


async def note(history: History, *ages_s: float) -> None:
    for age in ages_s:
        await history.note(Entry(T0 - age, Kind.ASKED, "org/m", "v1", f"{age:g} s ago"))


async def texts(history: History) -> list[str]:
    return [entry.text for entry in await history.newest(model=None, version=None, since=None, limit=100)]


async def test_what_is_older_goes_the_oldest_first_and_so_many_at_once(histories: Histories) -> None:
    await note(histories.one, 50, 40, 30, 20, 10)
    await note(histories.elsewhere, 60)
    assert await histories.one.prune(before=T0 - 25, most=2) == 2
    assert await texts(histories.one) == ["10 s ago", "20 s ago", "30 s ago"]
    assert await histories.one.prune(before=T0 - 25, most=2) == 1
    assert await histories.one.prune(before=T0 - 25, most=2) == 0
    assert await texts(histories.one) == ["10 s ago", "20 s ago"]
    assert await texts(histories.elsewhere) == ["60 s ago"]


async def test_a_line_from_a_clock_that_was_ahead_holds_back_nothing_else(histories: Histories) -> None:
    await note(histories.one, -1_000, 50, 40, 10)
    assert await histories.one.prune(before=T0 - 25, most=3) == 2
    assert await texts(histories.one) == ["10 s ago", "-1000 s ago"]
