"""The router as a process under a controller: cold starts, silence, restarts, goodbye (M1, M6, M7, M9)."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio

from llmgw.v1 import routing_pb2 as pb
from llmgw_kit.testing.processes import Cage
from llmgw_router.adapters.activity_redis import ACTIVITY_KEY, router_key

from .process import RouterProcess, ask, engine, get, metric, running
from .routing_bench import BOUND_S, RoutingBench, endpoint, model, until


@pytest.fixture
async def bench() -> AsyncIterator[RoutingBench]:
    """A leader with one cold model that may be started."""
    async with RoutingBench(term=3) as bench:
        bench.models["m"] = model(
            "m", pb.MODEL_AVAILABILITY_COLD, eta_s=12, created=1700000000, aliases=["chat"]
        )
        bench.fleet = pb.FleetSummary(
            classes=[pb.FleetClass(gpu_class="L4", total=8, free=3, unhealthy=1, claimed=4)],
            nodes_heard=2,
            fabrics=[pb.FleetFabric(fabric="ib-1", nodes=2, whole_free=1)],
            models=pb.FleetModels(ready=1, cold=1),
            replicas_ready=2,
            replicas_wanted=3,
            models_unplaceable=1,
        )
        yield bench


def flags(bench: RoutingBench, folder: Path, *more: str) -> list[str]:
    own = ["--router-id", "r1", "--state-dir", str(folder / "state")]
    return ["--controller", str(bench.address), *own, *more]


async def test_a_cold_model_is_started_once_and_everybody_who_waited_is_served(
    cage: Cage, tmp_path: Path, bench: RoutingBench
) -> None:
    async with (
        engine(cage, tmp_path, "m") as url,
        running(cage, tmp_path, *flags(bench, tmp_path)) as router,
    ):
        await router.ready()
        [alias, listed] = (await get(f"{router.url}/v1/models")).json["data"]
        assert (listed["id"], listed["status"], listed["created"]) == ("m", "cold", 1700000000)
        assert (alias["id"], alias["alias_of"]) == ("chat", "m")
        asking = [asyncio.create_task(ask(router, name)) for name in ("m", "m", "chat")]
        await until(lambda: len(bench.activations) == 1, "activation")
        assert bench.activations[0].request.model == "m"
        assert await metric(router.admin_url, 'llmgw_router_held{model="m"}') is not None
        bench.put(
            endpoint("m/1@1", "m", url), models=(model("m", pb.MODEL_AVAILABILITY_READY, aliases=["chat"]),)
        )
        answers = await asyncio.wait_for(asyncio.gather(*asking), BOUND_S)
        assert [answer.status for answer in answers] == [200, 200, 200]
        async with asyncio.timeout(BOUND_S):
            await bench.activations[0].ended.wait()
        assert len(bench.activations) == 1
        await until(lambda: bool(bench.acks) and bench.acks[-1].version == bench.version, "acknowledgement")
        assert await metric(router.admin_url, 'llmgw_fleet_gpus{gpu_class="L4",state="free"}') == 3
        assert await metric(router.admin_url, 'llmgw_fleet_gpus{gpu_class="L4",state="claimed"}') == 4
        assert await metric(router.admin_url, 'llmgw_fleet_nodes{state="heard"}') == 2
        assert await metric(router.admin_url, 'llmgw_fleet_models{state="cold"}') == 1
        assert await metric(router.admin_url, 'llmgw_fleet_whole_nodes_free{fabric="ib-1"}') == 1
        age = await metric(router.admin_url, "llmgw_fleet_snapshot_age_seconds")
        assert age is not None
        assert 0 <= age < BOUND_S
        assert await metric(router.admin_url, "llmgw_router_controller_followed") == 1


async def test_a_refused_start_is_an_honest_503(cage: Cage, tmp_path: Path, bench: RoutingBench) -> None:
    async with running(cage, tmp_path, *flags(bench, tmp_path)) as router:
        await router.ready()
        asking = asyncio.create_task(ask(router, "m"))
        await until(lambda: len(bench.activations) == 1, "activation")
        bench.activations[0].refuse(3, "no_room", "2 x L4 wanted, none free", 30)
        answer = await asyncio.wait_for(asking, BOUND_S)
        assert answer.status == 503
        assert answer.headers["retry-after"] == "30"
        assert "2 x L4 wanted" in answer.json["error"]["message"]
        # A request that comes later is a new wish.
        asking = asyncio.create_task(ask(router, "m"))
        await until(lambda: len(bench.activations) == 2, "second activation")
        asking.cancel()
        async with asyncio.timeout(BOUND_S):
            await bench.activations[1].ended.wait()


async def test_before_the_first_routes_nothing_is_said_of_models(cage: Cage, tmp_path: Path) -> None:
    away = RoutingBench()
    async with away:
        pass
    async with running(cage, tmp_path, *flags(away, tmp_path)) as router:
        for answer in (await ask(router, "m"), await get(f"{router.url}/v1/models")):
            assert (answer.status, answer.json["error"]["code"]) == (503, "router_starting")
            assert answer.headers["retry-after"] == "1"
        ready = await get(f"{router.url}/readyz")
        assert (ready.status, ready.json["status"]) == (503, "not ready")
        assert "no controller" in ready.json["why"]
        assert (await get(f"{router.url}/healthz")).status == 200
        assert await metric(router.admin_url, "llmgw_router_controller_followed") == 0
        assert "no leading controller" in router.log


async def test_requests_go_on_without_a_controller_and_after_a_restart_without_one(
    cage: Cage, tmp_path: Path, bench: RoutingBench
) -> None:
    async with engine(cage, tmp_path, "m") as url:
        bench.endpoints["m/1@1"] = endpoint("m/1@1", "m", url)
        bench.endpoints["m/2@1"] = endpoint("m/2@1", "m", "http://127.0.0.1:9")
        async with running(cage, tmp_path, *flags(bench, tmp_path)) as router:
            await router.ready()
            await until((tmp_path / "state" / "routes.json").exists, "kept routes")
            await bench.stop()
            await until(lambda: "no leading controller" in router.log, "notice of the loss")
            assert [(await ask(router, "m")).status for _ in range(3)] == [200, 200, 200]
            router.child.kill()
            await router.child.wait(BOUND_S)
        async with running(cage, tmp_path, *flags(bench, tmp_path)) as router:
            await router.ready()
            assert (await ask(router, "m")).status == 200
            table = (await get(f"{router.admin_url}/debug/table")).json
            assert table["source"] == "kept"
            assert [one["endpoint_id"] for one in table["endpoints"]] == ["m/1@1"]
            # What the fleet looked like is not kept as if it were news.
            assert await metric(router.admin_url, 'llmgw_fleet_gpus{gpu_class="L4",state="free"}') is None


async def test_a_drained_endpoint_is_acknowledged_when_its_last_request_is_over(
    cage: Cage, tmp_path: Path, bench: RoutingBench
) -> None:
    slow = ("--tokens", "10", "--token-interval-s", "0.15")
    async with (
        engine(cage, tmp_path, "m", flags=slow) as leaving,
        engine(cage, tmp_path, "m") as staying,
        running(cage, tmp_path, *flags(bench, tmp_path)) as router,
    ):
        await router.ready()
        bench.put(endpoint("m/1@1", "m", leaving), models=(model("m", pb.MODEL_AVAILABILITY_READY),))
        await until(lambda: bool(bench.acks) and bench.acks[-1].version == bench.version, "acknowledgement")
        asking = asyncio.create_task(ask(router, "m"))
        await in_flight(router, 1)
        bench.put(endpoint("m/1@1", "m", leaving, draining=True), endpoint("m/2@1", "m", staying))
        await until(lambda: bench.acks[-1].version == bench.version, "the mark applied")
        assert not asking.done()
        assert list(bench.acks[-1].drained_endpoint_ids) == []
        assert (await ask(router, "m")).status == 200
        await until(lambda: list(bench.acks[-1].drained_endpoint_ids) == ["m/1@1"], "drain seen through")
        assert (await asking).status == 200


async def test_activity_reaches_redis_and_a_clean_stop_says_goodbye(
    cage: Cage, tmp_path: Path, bench: RoutingBench, redis_url: str
) -> None:
    client = redis.asyncio.Redis.from_url(redis_url, decode_responses=True)
    config = tmp_path / "router.yaml"
    config.write_text(f"redis_url: {redis_url}\nactivity_tick_s: 0.2\n")
    async with (
        engine(cage, tmp_path, "m") as url,
        running(cage, tmp_path, *flags(bench, tmp_path, "--config", str(config))) as router,
    ):
        await router.ready()
        bench.put(endpoint("m/1@1", "m", url), models=(model("m", pb.MODEL_AVAILABILITY_READY),))
        await until(lambda: bool(bench.acks) and bench.acks[-1].version == bench.version, "acknowledgement")
        async with asyncio.timeout(BOUND_S):
            while '"m/1":0' not in (await client.hget(router_key("r1"), "in_flight") or ""):
                await asyncio.sleep(0.05)
        assert await client.hget(ACTIVITY_KEY, "m/1") is None
        assert (await ask(router, "m")).status == 200
        async with asyncio.timeout(BOUND_S):
            while await client.hget(ACTIVITY_KEY, "m/1") is None:
                await asyncio.sleep(0.05)
        # Used once more, and stopped before the next look: the last map is flushed.
        before = int(await client.hget(ACTIVITY_KEY, "m/1") or 0)
        assert (await ask(router, "m")).status == 200
        router.child.send_signal(signal.SIGTERM)
        assert await router.child.wait(BOUND_S) == 0
        assert int(await client.hget(ACTIVITY_KEY, "m/1") or 0) > before
        assert not await client.exists(router_key("r1"))
        assert [(one.router_id, bool(one.incarnation)) for one in bench.goodbyes] == [("r1", True)]
        assert not bench.goodbyes[0].activity_lost
    await client.aclose()


@pytest.mark.parametrize("redis_is", ["away", "not configured"])
async def test_a_goodbye_says_that_the_last_activity_reached_nobody(
    cage: Cage, tmp_path: Path, bench: RoutingBench, unused_tcp_port: int, redis_is: str
) -> None:
    more = ("--redis-url", f"redis://127.0.0.1:{unused_tcp_port}") if redis_is == "away" else ()
    async with running(cage, tmp_path, *flags(bench, tmp_path, *more)) as router:
        await router.ready()
        await until(lambda: bench.followers == 1, "stream")
        router.child.send_signal(signal.SIGTERM)
        assert await router.child.wait(BOUND_S) == 0
        assert [one.activity_lost for one in bench.goodbyes] == [True]


async def test_a_crashed_router_says_no_goodbye_and_its_report_has_a_ttl(
    cage: Cage, tmp_path: Path, bench: RoutingBench, redis_url: str
) -> None:
    client = redis.asyncio.Redis.from_url(redis_url, decode_responses=True)
    async with running(cage, tmp_path, *flags(bench, tmp_path, "--redis-url", redis_url)) as router:
        await router.ready()
        async with asyncio.timeout(BOUND_S):
            while not await client.exists(router_key("r1")):
                await asyncio.sleep(0.05)
        router.child.kill()
        await router.child.wait(BOUND_S)
        assert 0 < await client.ttl(router_key("r1")) <= 45
        assert bench.goodbyes == []
    await client.aclose()


async def test_a_worker_that_dies_takes_no_count_along(
    cage: Cage, tmp_path: Path, bench: RoutingBench
) -> None:
    slow = ("--tokens", "1000", "--token-interval-s", "0.1")
    async with (
        engine(cage, tmp_path, "m", flags=slow) as url,
        running(cage, tmp_path, *flags(bench, tmp_path)) as router,
    ):
        await router.ready()
        bench.put(endpoint("m/1@1", "m", url), models=(model("m", pb.MODEL_AVAILABILITY_READY),))
        await until(lambda: bool(bench.acks) and bench.acks[-1].version == bench.version, "acknowledgement")
        asking = asyncio.create_task(ask(router, "m"))
        await in_flight(router, 1)
        [worker] = (await get(f"{router.admin_url}/debug/workers")).json
        os.kill(worker["pid"], signal.SIGKILL)
        await asyncio.wait([asking], timeout=BOUND_S)
        assert asking.exception() is not None
        await in_flight(router, 0)
        assert await metric(router.admin_url, "llmgw_router_relay_worker_deaths_total") == 1
        async with asyncio.timeout(BOUND_S):
            while (await metric(router.admin_url, 'llmgw_router_relay_workers{state="serving"}')) != 1:
                await asyncio.sleep(0.05)


async def in_flight(router: RouterProcess, count: int) -> None:
    async with asyncio.timeout(BOUND_S):
        while await metric(router.admin_url, 'llmgw_router_in_flight{model="m"}') != count:
            await asyncio.sleep(0.02)
