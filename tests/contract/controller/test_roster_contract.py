"""Who could lead: each controller's own word, and who else said so lately."""

from dataclasses import replace
from typing import TYPE_CHECKING

import asyncpg

from llmgw_controller.core.state import ControllerSeen

if TYPE_CHECKING:
    from tests.contract.controller.conftest import World

A = ControllerSeen("a", "a:7070", "hash-1", "0.1.0")
B = ControllerSeen("b", "b:7070", "hash-2", "0.1.0")


async def test_who_announces_itself_is_seen(world: "World") -> None:
    assert await world.roster.announce(A) == (A,)
    changed = replace(A, config_hash="hash-3")
    assert await world.roster.announce(changed) == (changed,)
    await world.roster.leave(A)


async def test_others_are_seen_until_they_leave_or_fall_silent(world: "World") -> None:
    if world.dsn is None:
        return  # Without a store there are no others.
    assert await world.roster.announce(B) == (B,)
    assert await world.roster.announce(A) == (A, B)
    await world.roster.leave(B)
    assert await world.roster.announce(A) == (A,)
    await world.roster.announce(B)
    connection = await asyncpg.connect(world.dsn)
    await connection.execute("UPDATE controllers SET seen_at = seen_at - interval '16 s' WHERE name = 'b'")
    await connection.close()
    assert await world.roster.announce(A) == (A,)
