"""Who could lead: as rows of Postgres, or alone in memory."""

from llmgw_controller.adapters.postgres_errors import told
from llmgw_controller.core.state import ControllerSeen
from llmgw_kit.postgres import Postgres

#: Three announcements: who missed them all is not counted.
FRESH_S = 15.0

_ANNOUNCE = """
INSERT INTO controllers (address, name, config_hash, version, seen_at)
VALUES ($1, $2, $3, $4, clock_timestamp())
ON CONFLICT (address) DO UPDATE
   SET name = excluded.name, config_hash = excluded.config_hash, version = excluded.version,
       seen_at = excluded.seen_at
"""
_FRESH = """
SELECT name, address, config_hash, version FROM controllers
 WHERE seen_at > clock_timestamp() - $1 * interval '1 second' ORDER BY address
"""


class PostgresRoster:
    """Roster on the pool."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def announce(self, me: ControllerSeen) -> tuple[ControllerSeen, ...]:
        """As in the port."""
        with told("take our announcement"):
            async with self._postgres.connection() as connection:
                await connection.execute(_ANNOUNCE, me.address, me.name, me.config_hash, me.version)
                rows = await connection.fetch(_FRESH, FRESH_S)
        return tuple(ControllerSeen(**row) for row in rows)

    async def leave(self, me: ControllerSeen) -> None:
        """As in the port. Long gone rows go along."""
        with told("take our goodbye"):
            async with self._postgres.connection() as connection:
                await connection.execute(
                    "DELETE FROM controllers WHERE address = $1 "
                    "OR seen_at < clock_timestamp() - interval '1 day'",
                    me.address,
                )


class LonelyRoster:
    """Roster without a store: there is nobody else."""

    async def announce(self, me: ControllerSeen) -> tuple[ControllerSeen, ...]:
        """As in the port."""
        return (me,)

    async def leave(self, me: ControllerSeen) -> None:
        """As in the port."""
