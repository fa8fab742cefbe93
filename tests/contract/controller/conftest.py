"""Both worlds a controller may stand on, behind one face: what a suite runs on twice."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg
import pytest

from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.adapters.lease_postgres import PostgresLease
from llmgw_controller.adapters.roster import LonelyRoster, PostgresRoster
from llmgw_controller.adapters.store_memory import MemoryStore
from llmgw_controller.adapters.store_postgres import PostgresStore
from llmgw_controller.ports import LeaseStore, Roster, Store
from llmgw_kit.postgres import connect_pool
from llmgw_kit.testing.clock import FakeClock


@dataclass
class World:
    """One store with its lease, and the means to let the lease run out without waiting."""

    lease: LeaseStore
    store: Store
    #: A second participant's view of the same lease.
    other: LeaseStore
    roster: Roster
    clock: FakeClock
    dsn: str | None

    async def let_the_lease_run_out(self) -> None:
        """As if nobody had renewed."""
        if self.dsn is None:
            await self.clock.advance(3600)
            return
        connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(self.dsn)
        await connection.execute(
            "UPDATE controller_lease SET expires_at = clock_timestamp() - interval '1 ms'"
        )
        await connection.close()


@pytest.fixture(params=["memory", "postgres"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """One world of each kind."""
    clock = FakeClock()
    if request.param == "memory":
        memory = MemoryLease(clock)
        yield World(memory, MemoryStore(memory), memory, LonelyRoster(), clock, None)
        return
    dsn = request.getfixturevalue("migrated_dsn")
    lease, other = PostgresLease(dsn), PostgresLease(dsn)
    pool = await connect_pool(dsn, application="test", max_size=3)
    store = PostgresStore(pool)
    yield World(lease, store, other, PostgresRoster(pool), clock, dsn)
    await store.close()
    await lease.close()
    await other.close()
