"""What who waits for a cold model is told, for how long it waits, and how many of one tenant may (M7)."""

from pathlib import Path

import msgspec
import pytest

from llmgw_router.core.config import RoutingProfile
from llmgw_router.core.keys import KeyRow, digest_of
from llmgw_router.relay.ipc import StartPhase

from .gated import ask, body, config, error, gone
from .harness import Client, Router, router
from .test_cold_models import cold


async def test_a_refusal_says_how_far_the_start_is_by_its_newest_word(tmp_path: Path) -> None:
    row = cold(hold_timeout_s=6.0, eta_s=12.3)
    async with router(tmp_path, models=[row], config=config()) as r:
        first = await ask(r)
        await r.until(lambda: r.pool.held == {"m": 1})
        second = await ask(r)
        await r.until(lambda: r.pool.held == {"m": 2})
        # What is told of a model that nobody waits for is of no use to anybody.
        r.pool.tell_phase(StartPhase(model="other", phase="loading", eta_s=1.0))
        r.pool.tell_phase(StartPhase(model="m", phase="fetching", progress=0.4, eta_s=70.2))
        for number, c in enumerate((first, second), 1):
            answer = await c.answer()
            assert (answer.status, error(answer)["code"]) == (503, "model_loading")
            # From the word's own time: what has passed since is gone.
            assert 60 <= int(answer.one(b"retry-after")) <= 70
            assert answer.one(b"x-llmgw-limit") == b"hold_timeout_s=6"
            message = error(answer)["message"]
            assert "fetching, ready in about 6" in message
            # Both came within the time of the first, also on a machine where that is much to do.
            assert "number 1 of 2" in message if number == 1 else "you were number" in message
            c.close()
        await gone(r)
        # The next start has a story of its own.
        third = await ask(r)
        answer = await third.answer()
        assert answer.one(b"retry-after") == b"13"
        assert "loading, ready in about 12 s" in error(answer)["message"]
        third.close()


async def test_a_worker_that_is_new_knows_how_far_the_start_is(tmp_path: Path) -> None:
    async with router(tmp_path, models=[cold(hold_timeout_s=5.0)], config=config(), workers=2) as r:
        asked = [await ask(r) for _ in range(12)]
        await r.until(lambda: r.pool.held == {"m": 12})
        r.pool.tell_phase(StartPhase(model="m", phase="loading", eta_s=500.0))
        seat = r.pool._seats[0]
        before = seat.process
        assert before is not None
        before.kill()
        await r.until(lambda: seat.process is not None and seat.process is not before)
        await r.until(lambda: all(worker.serving for worker in r.pool.workers))
        again = [await ask(r) for _ in range(12)]
        for c in again:
            answer = await c.answer()
            assert int(answer.one(b"retry-after")) > 400
        for c in (*asked, *again):
            c.close()


@pytest.mark.parametrize(
    ("hold_s", "total_s", "status", "limit"),
    [
        (0.2, 60.0, 503, b"hold_s=0.2; profile=interactive"),
        (None, 0.2, 504, b"total_s=0.2; profile=interactive"),
        (30.0, 0.2, 504, b"total_s=0.2; profile=interactive"),
    ],
)
async def test_the_shortest_of_the_limits_ends_the_wait_and_is_named(
    tmp_path: Path, hold_s: float | None, total_s: float, status: int, limit: bytes
) -> None:
    how = config(hold_s=hold_s, total_s=total_s)
    async with router(tmp_path, models=[cold(hold_timeout_s=20.0)], config=how) as r:
        c = await ask(r)
        answer = await c.answer()
        assert (answer.status, answer.one(b"x-llmgw-limit")) == (status, limit)
        assert "profile `interactive`" in error(answer)["message"]
        c.close()
        await gone(r)
        assert r.heard.unwants == ["m"]


async def test_a_patient_profile_waits_longer_than_the_model_asks_of_others(tmp_path: Path) -> None:
    profiles = (RoutingProfile(name="batch", hold_s=5.0),)
    async with router(tmp_path, models=[cold(hold_timeout_s=0.1)], config=config(profiles=profiles)) as r:
        patient = await ask(r, more=b"x-llmgw-profile: batch\r\n")
        await r.until(lambda: r.pool.held == {"m": 1})
        hasty = await ask(r)
        assert (await hasty.answer()).status == 503
        assert r.pool.held == {"m": 1}
        for c in (patient, hasty):
            c.close()
        await gone(r)


KEYS = {"sk-a": "acme/search", "sk-b": "acme/search", "sk-c": "other", "sk-d": None}


async def keyed(r: Router, key: str) -> Client:
    client = await r.client()
    client.post(body(), more=b"authorization: Bearer %b\r\n" % key.encode())
    return client


async def test_one_tenant_does_not_fill_the_room(tmp_path: Path) -> None:
    how = msgspec.structs.replace(config(), keys_required=True)
    row = cold(hold_timeout_s=20.0, max_held=10, max_held_per_tenant=2)
    async with router(tmp_path, models=[row], config=how) as r:
        rows = [
            KeyRow(digest=digest_of(key.encode()), key_id=key, tenant=tenant) for key, tenant in KEYS.items()
        ]
        r.pool.push_keys(rows, whole=True)
        waiting = [await keyed(r, "sk-a"), await keyed(r, "sk-b")]
        await r.until(lambda: r.pool.held == {"m": 2})
        # A third of the same tenant, under whichever key.
        third = await keyed(r, "sk-b")
        answer = await third.answer()
        assert (answer.status, error(answer)["code"]) == (503, "model_loading")
        assert answer.one(b"x-llmgw-limit") == b"max_held_per_tenant=2"
        assert answer.one(b"retry-after") == b"13"
        # Others wait beside them, and who belongs to nobody is nobody's.
        waiting += [await keyed(r, key) for key in ("sk-c", "sk-d", "sk-d", "sk-d")]
        await r.until(lambda: r.pool.held == {"m": 6})
        # Who leaves makes room for its tenant.
        waiting[0].close()
        await r.until(lambda: r.pool.held == {"m": 5})
        waiting.append(await keyed(r, "sk-a"))
        await r.until(lambda: r.pool.held == {"m": 6})
        for c in (*waiting, third):
            c.close()
        await gone(r)


async def test_a_tenants_share_may_be_none(tmp_path: Path) -> None:
    how = msgspec.structs.replace(config(), keys_required=True)
    async with router(tmp_path, models=[cold(max_held_per_tenant=0)], config=how) as r:
        rows = [KeyRow(digest=digest_of(b"sk-a"), key_id="a", tenant="acme")]
        r.pool.push_keys(rows, whole=True)
        c = await keyed(r, "sk-a")
        answer = await c.answer()
        assert (answer.status, answer.one(b"x-llmgw-limit")) == (503, b"max_held_per_tenant=0")
        assert r.heard.wants == []
        c.close()
