"""The routers' map as one side writes it and the other reads it, on a real Redis (docs/redis.md)."""

import pytest

from llmgw_controller.adapters.activity_redis import RedisActivity as Reader
from llmgw_controller.adapters.activity_redis import activity_map
from llmgw_kit.ids import ReplicaId, RouterId
from llmgw_kit.testing.embedded import EmbeddedRedis
from llmgw_router.adapters.activity_redis import RedisActivity as Writer
from llmgw_router.core.activity import Report


def writer(url: str, name: str = "r1") -> Writer:
    return Writer(url, router_id=name, incarnation=f"{name}-life", ttl_s=45)


async def test_what_a_router_writes_is_what_is_read(redis_url: str) -> None:
    router, reader = writer(redis_url), Reader(redis_url)
    report = Report(whole=True, ages_ms={"m/1": 5000, "m/2": 0}, in_flight={"m/1": 0, "m/2": 3}, told_ns={})
    reply = await router.send(report, held={"cold": 2}, seq=1, epoch=None)
    found = (await reader.read()).map
    assert found is not None
    assert found.epoch == reply.epoch
    assert found.watching_since == pytest.approx(found.now, abs=5)
    assert found.touched.keys() == {"m/1", "m/2"}
    assert found.touched[ReplicaId("m/2")] - found.touched[ReplicaId("m/1")] == pytest.approx(5, abs=0.01)
    (one,) = found.routers.values()
    assert (one.router_id, one.incarnation, one.epoch) == ("r1", "r1-life", reply.epoch)
    assert (one.in_flight, one.held) == ({"m/1": 0, "m/2": 3}, {"cold": 2})
    await router.goodbye()
    assert (await reader.read()).map.routers == {}  # type: ignore[union-attr]
    await router.close()
    await reader.close()


async def test_an_empty_or_flushed_map_watches_nothing(redis_url: str, redis_server: EmbeddedRedis) -> None:
    router, reader = writer(redis_url), Reader(redis_url)
    for _ in range(2):
        found = (await reader.read()).map
        assert found is not None
        assert (found.watching_since, found.epoch, found.touched, found.routers) == (None, None, {}, {})
        report = Report(whole=True, ages_ms={"m/1": 1}, in_flight={"m/1": 0}, told_ns={})
        await router.send(report, held={}, seq=1, epoch=None)
        assert (await reader.read()).map.watching_since is not None  # type: ignore[union-attr]
        redis_server.command("FLUSHALL")
    await router.close()
    await reader.close()


async def test_a_dead_redis_is_told_and_not_raised(redis_url: str) -> None:
    reader = Reader("redis://127.0.0.1:1/0")
    found = await reader.read()
    assert (found.map, found.missing_reason) == (None, "redis_unreachable")
    await reader.forget([ReplicaId("m/1")])
    await reader.close()


async def test_times_of_replicas_that_are_gone_are_removed(redis_url: str) -> None:
    router, reader = writer(redis_url), Reader(redis_url)
    await router.send(
        Report(whole=True, ages_ms={"m/1": 1, "m/2": 1}, in_flight={}, told_ns={}), held={}, seq=1, epoch=None
    )
    await reader.forget([ReplicaId("m/1")])
    found = (await reader.read()).map
    assert found is not None
    assert found.touched.keys() == {"m/2"}
    assert found.watching_since is not None
    await router.close()
    await reader.close()


def test_marks_of_another_server_process_count_for_nothing() -> None:
    fields = {"watching_since": "1000", "run_id": "old", "epoch": "e", "m/1": "2000"}
    found = activity_map(now=9.0, run_id="new", fields=fields, routers={})
    assert (found.watching_since, found.epoch) == (None, None)


@pytest.mark.parametrize(
    "broken",
    [{"at": "x"}, {"in_flight": "{"}, {"in_flight": "[1]"}, {"held": '{"m": "many"}'}],
    ids=["time", "json", "shape", "count"],
)
def test_a_report_that_cannot_be_read_is_silence(broken: dict[str, str]) -> None:
    fine = {"at": "8000", "incarnation": "i", "seq": "1", "epoch": "e", "in_flight": "{}", "held": "{}"}
    routers = {"{llmgw}:router:a": fine, "{llmgw}:router:b": {**fine, **broken}}
    found = activity_map(now=9.0, run_id="r", fields={}, routers=routers)
    assert found.routers.keys() == {RouterId("a")}
