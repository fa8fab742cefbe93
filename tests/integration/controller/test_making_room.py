"""An idle replica makes room for a model that waits: real Postgres, Redis, gRPC and a controller process."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from llmgw_router.adapters.activity_redis import RedisActivity
from llmgw_router.core.activity import Report

from .controller_bench import MODEL, Controller, Controllers, until
from .sim_peers import SimAgent, SimRouter
from .test_operator_commands import ctl

#: Both GPUs of a node.
WIDE = {**MODEL["profiles"][0], "gpus_per_node": 2, "tensor_parallel": 2, "drain_timeout_s": 120}
OLD = {"name": "old", "profiles": [WIDE], "replicas": 1, "idle_after_s": 1, "min_residency_s": 0}
NEW = {"name": "new", "profiles": [WIDE], "replicas": 0, "priority": 1}

CLAIMS = "SELECT device_id, shard_id FROM device_claims ORDER BY device_id"
#: Postgres notes with each row the transaction that wrote it last.
WRITTEN = """
SELECT (SELECT max(xmin::text) FROM device_claims), (SELECT min(xmin::text) FROM device_claims),
       (SELECT xmin::text FROM evictions)
"""


async def said(controller: Controller, *words: str) -> str:
    """What llmgwctl prints. A busy machine may be late once: asked again, as people do."""
    for _ in range(3):
        code, text, error = await ctl(controller, *words)
        if code != 2:
            break
    assert code == 0, error
    return text


@asynccontextmanager
async def reporting(router: SimRouter, redis_url: str, *names: str, age_ms: int) -> AsyncIterator[None]:
    """The router says again and again that nothing runs, and how long ago each was last asked for."""
    pen = RedisActivity(redis_url, router_id=router.router_id, incarnation=router.incarnation, ttl_s=600)
    began = time.monotonic()

    async def report() -> None:
        for number in itertools.count(1):
            ages = dict.fromkeys(names, age_ms + int(1000 * (time.monotonic() - began)))
            quiet = Report(ages_ms=ages, in_flight=dict.fromkeys(names, 0), whole=True, told_ns={})
            await pen.send(quiet, held={}, seq=number, epoch=None)
            await asyncio.sleep(0.2)

    task = asyncio.create_task(report())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pen.close()


async def test_the_room_goes_over_in_one_transaction_and_not_before_the_router_has_put_the_victim_aside(
    controllers: Controllers, migrated_dsn: str, redis_url: str
) -> None:
    controller = await controllers.start(
        dsn=migrated_dsn, redis_url=redis_url, activity_tick_s=0.2, learning_window_s=0.5, eviction="on",
        reconcile_interval_s=0.2, router_stale_s=60, models=[OLD, NEW],
    ).until_ready()  # fmt: skip
    database = await asyncpg.connect(migrated_dsn)
    async with (
        SimAgent("n1", [controller.address]) as agent,
        SimRouter([controller.address]) as router,
        reporting(router, redis_url, "old/1", age_ms=60_000),
    ):
        (endpoint,) = await router.until_endpoints(1)
        claims: set[tuple[str, ...]] = set()

        async def watch_claims() -> None:
            while not asking.done():
                claims.add(tuple(row["shard_id"] for row in await database.fetch(CLAIMS)))
                await asyncio.sleep(0.005)

        async def ask() -> None:
            """Refused while nobody may leave; told to come again, and does."""
            while not (await router.activate("new"))[-1].HasField("ready"):
                await asyncio.sleep(0.3)

        router.acknowledges = False
        asking = asyncio.create_task(ask())
        watching = asyncio.create_task(watch_claims())
        await until("it is marked", lambda: endpoint.endpoint_id in router.drains)
        text = await said(controller, "evictions")
        assert "being put aside" in text, text
        # The mark alone stops nothing: its engine was told nothing, and a router may still use it.
        await asyncio.sleep(1.0)
        assert [shard.replica_id for shard in agent.shards.values()] == ["old/1"]
        assert not asking.done()
        router.acknowledges = True
        router.acknowledge()
        await asyncio.wait([asking], timeout=60)
        assert asking.done(), await said(controller, "evictions")
        (now,) = await router.until_endpoints(1)
        assert now.replica_id == "new/1"
        await watching
        of_old, of_new = ("old/1.1.0",) * 2, ("new/1.1.0",) * 2
        assert claims == {of_old, of_new}, "both GPUs were of the one or of the other at every moment"
        assert len(set(await database.fetchrow(WRITTEN) or ())) == 1, (
            "one transaction wrote claims and receipt"
        )

        text = await said(controller, "evictions", "--output", "json")
        (receipt,) = json.loads(text)["evictions"]
        assert (receipt["victim"], receipt["for"], receipt["state"]) == ("old/1", "new/1", "done")
        assert receipt["real_free_seconds"] > 1.0
        assert any(line.startswith("router router-1: report") for line in receipt["evidence"])
        text = await said(controller, "reclaim", "--plan", "--output", "json")
        assert json.loads(text)["schema"] == "llmgw.reclaim/1"
    await database.close()


async def test_reclaim_lets_go_what_is_idle_beyond_doubt_and_says_why_the_rest_stays(
    controllers: Controllers, migrated_dsn: str, redis_url: str
) -> None:
    kept = {**OLD, "name": "kept"}
    loose = {**NEW, "name": "loose", "min_residency_s": 0}
    controller = await controllers.start(
        dsn=migrated_dsn,
        redis_url=redis_url,
        activity_tick_s=0.2,
        learning_window_s=0.5,
        router_stale_s=60,
        models=[kept, loose],
    ).until_ready()
    async with (
        SimAgent("n1", [controller.address]),
        SimAgent("n2", [controller.address]),
        SimRouter([controller.address]) as router,
    ):
        assert (await router.activate("loose"))[-1].HasField("ready")
        await router.until_endpoints(2)
        text = await said(controller, "reclaim", "--plan", "--output", "json")
        assert [(one["replica"], one["reason"]) for one in json.loads(text)["unknown"]] == [
            ("kept/1", "watch_restarted"), ("loose/1", "watch_restarted"),
        ]  # fmt: skip
        text = await said(controller, "reclaim", "--apply")
        assert "nothing was let go" in text

        async with reporting(router, redis_url, "loose/1", "kept/1", age_ms=0):
            plan = {}

            async def found() -> bool:
                told = await said(controller, "reclaim", "--plan", "--idle", "1s", "--output", "json")
                plan.update(json.loads(told))
                return bool(plan["gpus"])

            await until("something may go", found)
            assert {one["replica"]: one["kept_because"] for one in plan["holdings"]} == {
                "kept/1": "configured", "loose/1": None,
            }  # fmt: skip
            assert len(router.routable()) == 2, "a plan changes nothing"
            text = await said(controller, "reclaim", "--apply", "--idle", "1s")
            assert "loose/1 drains" in text, text
            await until(
                "its room is free", lambda: [row.replica_id for row in router.routable()] == ["kept/1"]
            )
