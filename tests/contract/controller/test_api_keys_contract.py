"""API keys in the store: written under the term, found by their beginnings, of the routers' form."""

from dataclasses import replace
from typing import TYPE_CHECKING

import asyncpg
import pytest

from llmgw_controller.core import keys as controllers
from llmgw_controller.core.keys import ApiKey, UsageSum, digest_of, id_of, state_of
from llmgw_controller.core.plan import PutEvent, Severity
from llmgw_controller.ports import Fenced
from llmgw_kit.ids import LeaseTerm
from llmgw_router.core import keys as routers

if TYPE_CHECKING:
    from tests.contract.controller.conftest import World

T = 1_900_000_000.0
SECRET = controllers.key_of(bytes(32))
KEY = ApiKey(
    key_id=id_of(digest_of(SECRET)), digest=digest_of(SECRET), prefix=controllers.shown(SECRET), name="ci",
    tenant="acme/x", models=("m",), profiles=("batch",), explain=True, created_at=T, expires_at=T + 1e8,
)  # fmt: skip
EVENT = PutEvent(T, "key_created", KEY.key_id, "ci", Severity.INFO)


def test_controller_and_router_mean_the_same_by_a_key() -> None:
    chance = bytes(range(32))
    assert controllers.key_of(chance) == routers.key_of(chance)
    assert digest_of(SECRET) == routers.digest_of(SECRET.encode())
    assert controllers.SHOWN_CHARACTERS == routers.SHOWN_CHARACTERS


async def term(world: "World") -> LeaseTerm:
    lease = await world.lease.acquire(holder="a", address="a:1", ttl_s=60)
    assert lease is not None
    return lease.term


async def test_a_store_that_no_router_reads_keeps_no_keys(world: "World") -> None:
    assert (world.store.keys is None) == (world.store.kind == "memory")


async def test_a_key_is_kept_found_and_revoked_with_its_events(world: "World") -> None:
    keys = world.store.keys
    if keys is None:
        return
    held = await term(world)
    plain = replace(
        KEY, key_id="key-ff", digest=b"x" * 32, prefix="sk-llmgw-zzzzzz", tenant=None, models=None,
        profiles=None, explain=False, expires_at=None, created_at=T + 1,
    )  # fmt: skip
    await keys.put(held, KEY, EVENT)
    await keys.put(held, plain, replace(EVENT, subject=plain.key_id))
    assert await keys.newest(10, also_gone=False) == [plain, KEY]
    assert await keys.find(KEY.key_id[:8], 5) == [KEY]
    assert await keys.find(plain.prefix, 5) == [plain]
    assert len(await keys.find("key-", 5)) == 2
    await keys.revoke(held, KEY.key_id, T + 5, replace(EVENT, kind="key_revoked"))
    await keys.revoke(held, KEY.key_id, T + 9, replace(EVENT, kind="key_revoked"))
    assert await keys.newest(10, also_gone=False) == [plain]
    assert await keys.newest(10, also_gone=True) == [plain, replace(KEY, revoked_at=T + 5)]
    kinds = [one.kind for one in await world.store.events(since=None, subject=KEY.key_id, limit=9)]
    assert kinds == ["key_revoked", "key_revoked", "key_created"]


async def test_who_lost_the_lease_makes_and_revokes_nothing(world: "World") -> None:
    keys = world.store.keys
    if keys is None:
        return
    held = await term(world)
    await keys.put(held, KEY, EVENT)
    stale = LeaseTerm(held + 1)
    with pytest.raises(Fenced):
        await keys.put(stale, replace(KEY, key_id="key-2", digest=b"y" * 32), EVENT)
    with pytest.raises(Fenced):
        await keys.revoke(stale, KEY.key_id, T, EVENT)
    assert await keys.newest(10, also_gone=False) == [KEY]


async def test_usage_is_summed_by_what_is_asked_for(world: "World") -> None:
    keys = world.store.keys
    if keys is None:
        return
    connection = await asyncpg.connect(world.dsn)
    put = (
        "INSERT INTO usage_records (usage_id, request_id, router_id, path, key_id, model, began_at, source, "
        "complete, prompt_tokens, output_tokens) "
        "VALUES ($1, 'r', 'r1', '/v1', $2, $3, to_timestamp($4), $5, $6, $7, $8)"
    )
    await connection.execute(put, "1", "k", "m", T, "engine", True, 10, 5)
    await connection.execute(put, "2", "k", "n", T, "estimated", False, 2, 1)
    await connection.execute(put, "3", None, "n", T, "unknown", False, None, None)
    await connection.execute(put, "4", "k", "m", T - 100, "engine", True, 1000, 1000)
    await connection.close()
    assert await keys.usage("key", T - 1, 9) == [
        UsageSum("k", 2, 1, 0, 12, 0, 6, 3),
        UsageSum(None, 1, 1, 1, 0, 0, 0, 0),
    ]
    assert [(one.name, one.requests) for one in await keys.usage("model", T - 1, 9)] == [("m", 1), ("n", 2)]
    assert [one.name for one in await keys.usage("tenant", 0.0, 9)] == [None]
    assert len(await keys.usage("router", 0.0, 1)) == 1


def test_states_of_a_key() -> None:
    assert state_of(KEY, T) == "good"
    assert state_of(KEY, T + 1e8) == "expired"
    assert state_of(replace(KEY, revoked_at=T), T + 1e9) == "revoked"
