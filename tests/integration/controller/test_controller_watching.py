"""What a controller shows of itself and of idleness: metrics, health, Redis, and stored models it cannot
read."""

import asyncio
import http.client
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
from grpc_health.v1 import health_pb2, health_pb2_grpc

from llmgw.v1 import operator_pb2
from llmgw_kit import rpc
from llmgw_kit.testing.embedded import EmbeddedRedis
from llmgw_kit.testing.processes import Cage
from llmgw_router.adapters.activity_redis import RedisActivity
from llmgw_router.core.activity import Report
from tests import metrics_page

from .controller_bench import MODEL, Controller, Controllers, until
from .sim_peers import SimAgent, SimRouter

KEPT = {**MODEL, "replicas": 1}


def scrape(controller: Controller) -> str:
    connection = http.client.HTTPConnection(controller.admin.host, controller.admin.port, timeout=5)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


async def metrics(controller: Controller) -> dict[str, float]:
    """Our own series by name and labels."""
    lines = (await asyncio.to_thread(scrape, controller)).splitlines()
    series = (line.rsplit(" ", 1) for line in lines if line.startswith("llmgw_"))
    return {name: float(value) for name, value in series}


async def test_only_the_leader_tells_of_the_fleet_and_both_are_healthy(
    controllers: Controllers, migrated_dsn: str
) -> None:
    leader = await controllers.start(dsn=migrated_dsn, models=[KEPT]).until_ready()
    await leader.until_leading()
    standby = await controllers.start(dsn=migrated_dsn, models=[KEPT]).until_ready()
    async with SimAgent("n1", [leader.address]), SimRouter([leader.address]) as router:
        await router.until_endpoints(1)
        seen, other = await metrics(leader), await metrics(standby)
        assert (seen["llmgw_controller_leader"], other["llmgw_controller_leader"]) == (1, 0)
        assert seen["llmgw_controller_term"] == other["llmgw_controller_term"] == router.term
        assert seen["llmgw_controller_agents_connected"] == 1
        assert seen["llmgw_controller_routers_watching"] == 1
        assert seen['llmgw_fleet_devices{gpu_class="L4",part="free"}'] == 1
        assert seen['llmgw_fleet_model_replicas{model="tiny",phase="ready"}'] == 1
        assert seen['llmgw_fleet_nodes{state="heard"}'] == 1
        assert seen['llmgw_fleet_replicas{state="ready"}'] == 1
        assert seen['llmgw_fleet_replicas{state="wanted"}'] == 1
        assert seen['llmgw_fleet_models{state="ready"}'] == 1
        assert seen['llmgw_fleet_held_requests{model="tiny"}'] == 0
        assert 0 <= seen["llmgw_fleet_data_age_seconds"] < 30
        assert seen["llmgw_fleet_evictions_total"] == 0
        # Without Redis nobody counts what is in flight: absent, not 0.
        assert not [name for name in seen if name.startswith("llmgw_fleet_in_flight_requests")]
        assert not [name for name in other if name.startswith("llmgw_fleet_")]
        # Said only with a mirror.
        page = metrics_page.scraped(await asyncio.to_thread(scrape, leader))
        assert metrics_page.written("controller") - page == {"llmgw_controller_mirror_reachable"}
        assert page <= metrics_page.written("controller")
    for controller in (leader, standby):
        channel = rpc.channel(controller.address)
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        await channel.close()


async def test_a_stored_model_that_cannot_be_read_is_told_and_the_rest_serves(
    controllers: Controllers, migrated_dsn: str
) -> None:
    connection = await asyncpg.connect(migrated_dsn)
    await connection.execute(
        """INSERT INTO models (name, spec) VALUES ('odd', '{"name": "odd", "shape": "round"}')"""
    )
    await connection.close()
    controller = await controllers.start(dsn=migrated_dsn, models=[KEPT]).until_ready()
    async with SimAgent("n1", [controller.address]), SimRouter([controller.address]) as router:
        await router.until_endpoints(1)
        assert router.models.keys() == {"tiny"}
        trouble = [one for one in (await controller.status()).trouble if one.kind == "model_unreadable"]
        assert [one.subject for one in trouble] == ["odd"]
        assert "model_not_understood" in [event.kind for event in await controller.events()]
        async with controller.operator() as operator:
            await operator.RemoveModel(operator_pb2.RemoveModelRequest(model="odd"), timeout=5)

        async def mended() -> bool:
            return not [one for one in (await controller.status()).trouble if one.kind == "model_unreadable"]

        await until("no trouble left", mended)


@asynccontextmanager
async def idle_fleet(
    controllers: Controllers, dsn: str, redis_url: str, **model: Any
) -> AsyncIterator[tuple[Controller, SimAgent, SimRouter, RedisActivity]]:
    """One ready replica, one router, and that router's pen in Redis."""
    controller = await controllers.start(
        dsn=dsn, redis_url=redis_url, models=[{**KEPT, **model}], activity_tick_s=0.2
    ).until_ready()
    async with SimAgent("n1", [controller.address]) as agent, SimRouter([controller.address]) as router:
        await router.until_endpoints(1)
        pen = RedisActivity(redis_url, router_id=router.router_id, incarnation=router.incarnation, ttl_s=45)
        try:
            yield controller, agent, router, pen
        finally:
            await pen.close()


async def idleness(controller: Controller) -> tuple[int, str]:
    """Kind, and why unknown."""
    (row,) = (await controller.status()).replicas
    return row.idleness.kind, row.idleness.unknown_reason


def report(*, running: int, age_ms: int) -> Report:
    return Report(ages_ms={"tiny/1": age_ms}, in_flight={"tiny/1": running}, whole=True, told_ns={})


async def seen(controller: Controller, kind: int, reason: str = "") -> None:
    async def look() -> bool:
        return await idleness(controller) == (kind, reason)

    await until(f"idleness {kind} {reason}", look)


async def test_idleness_follows_the_routers_map(
    controllers: Controllers, migrated_dsn: str, cage: Cage, tmp_path: Path
) -> None:
    async with (
        EmbeddedRedis(cage, tmp_path / "redis") as redis,
        idle_fleet(controllers, migrated_dsn, redis.url) as (controller, _, router, pen),
    ):
        # Nobody has written anything: that says nothing.
        await seen(controller, operator_pb2.IDLENESS_KIND_UNKNOWN, "watch_restarted")
        await pen.send(report(running=0, age_ms=60_000), held={}, seq=1, epoch=None)
        await seen(controller, operator_pb2.IDLENESS_KIND_IDLE)
        await pen.send(report(running=2, age_ms=0), held={"tiny": 3}, seq=2, epoch=None)
        await seen(controller, operator_pb2.IDLENESS_KIND_BUSY)
        status = await controller.status()
        assert (status.replicas[0].in_flight, status.models[0].held) == (2, 3)
        await pen.send(report(running=0, age_ms=0), held={}, seq=3, epoch=None)
        await seen(controller, operator_pb2.IDLENESS_KIND_IDLE)
        # A member that is not heard may know better.
        async with SimRouter([controller.address], router_id="router-2", incarnation="x") as second:
            await until("it watches", lambda: second.version)
            await seen(controller, operator_pb2.IDLENESS_KIND_UNKNOWN, "router_silent")
            await second.goodbye()
        await seen(controller, operator_pb2.IDLENESS_KIND_IDLE)
        await asyncio.to_thread(redis.kill)
        await seen(controller, operator_pb2.IDLENESS_KIND_UNKNOWN, "redis_unreachable")
        # Nothing of this touched the routes.
        assert len(router.routable()) == 1


async def test_an_activated_replica_that_is_idle_long_enough_goes_and_comes_back(
    controllers: Controllers, migrated_dsn: str, redis_url: str
) -> None:
    controller = await controllers.start(
        dsn=migrated_dsn, redis_url=redis_url, activity_tick_s=0.2, learning_window_s=0.5,
        models=[{**MODEL, "idle_after_s": 1, "min_residency_s": 0}],
    ).until_ready()  # fmt: skip
    async with SimAgent("n1", [controller.address]) as agent, SimRouter([controller.address]) as router:
        pen = RedisActivity(redis_url, router_id=router.router_id, incarnation=router.incarnation, ttl_s=45)
        assert (await router.activate("tiny"))[-1].HasField("ready")
        await router.until_endpoints(1)
        # Without a word from the router it stays, for however long.
        await asyncio.sleep(2.5)
        assert len(router.routable()) == 1
        await pen.send(report(running=0, age_ms=0), held={}, seq=1, epoch=None)
        await until("it is gone", lambda: not router.endpoints and not agent.shards)
        # 0 to 1 right after 1 to 0.
        assert (await router.activate("tiny"))[-1].HasField("ready")
        await router.until_endpoints(1)
        assert len(agent.starts) == 2
        await pen.close()
