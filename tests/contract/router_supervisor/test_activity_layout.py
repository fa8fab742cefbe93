"""What a router writes to Redis is what the controller reads there: one layout, two services, one server."""

from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from llmgw_controller.adapters.activity_redis import RedisActivity as Reader
from llmgw_kit.ids import ReplicaId, RouterId
from llmgw_router.adapters.activity_redis import ACTIVITY_KEY, RedisActivity
from llmgw_router.core.activity import Report

R1, M1, M2 = RouterId("gw/1 ü"), ReplicaId("org/m/1"), ReplicaId("org/m/2")


@pytest.fixture
async def writer(redis_url: str) -> AsyncIterator[RedisActivity]:
    writer = RedisActivity(redis_url, router_id=R1, incarnation="inc", ttl_s=45)
    yield writer
    await writer.close()


@pytest.fixture
async def reader(redis_url: str) -> AsyncIterator[Reader]:
    reader = Reader(redis_url)
    yield reader
    await reader.close()


def report(*, whole: bool) -> Report:
    return Report(ages_ms={M1: 90_000}, in_flight={M1: 2, M2: 0}, whole=whole, told_ns={})


async def test_a_whole_report(writer: RedisActivity, reader: Reader) -> None:
    reply = await writer.send(report(whole=True), held={"cold": 3}, seq=1, epoch=None)
    found = (await reader.read()).map
    assert found is not None
    assert found.epoch == reply.epoch
    assert found.watching_since is not None
    assert 0 <= found.now - found.watching_since < 60
    assert found.touched.keys() == {M1}
    assert 90 <= found.now - found.touched[M1] < 150
    [seen] = found.routers.values()
    assert (seen.router_id, seen.incarnation, seen.epoch) == (R1, "inc", reply.epoch)
    assert (seen.in_flight, seen.held) == ({M1: 2, M2: 0}, {"cold": 3})
    assert 0 <= found.now - seen.at < 60


async def test_after_a_flush_a_report_is_of_no_epoch_until_the_whole_map_came(
    writer: RedisActivity, reader: Reader, redis_url: str
) -> None:
    first = await writer.send(report(whole=True), held={}, seq=1, epoch=None)
    client = redis.asyncio.Redis.from_url(redis_url)
    await client.flushall()
    await client.aclose()
    await writer.send(report(whole=False), held={}, seq=2, epoch=first.epoch)
    found = (await reader.read()).map
    assert found is not None
    assert found.routers[R1].epoch != found.epoch
    await writer.send(report(whole=True), held={}, seq=3, epoch=first.epoch)
    found = (await reader.read()).map
    assert found is not None
    assert found.routers[R1].epoch == found.epoch


async def test_marks_of_another_server_process_are_renewed_by_the_writer(
    writer: RedisActivity, reader: Reader, redis_url: str
) -> None:
    await writer.send(report(whole=True), held={}, seq=1, epoch=None)
    client = redis.asyncio.Redis.from_url(redis_url)
    await client.hset(ACTIVITY_KEY, "run_id", "of-the-dead-server")
    await client.aclose()
    found = (await reader.read()).map
    assert found is not None
    assert (found.watching_since, found.epoch) == (None, None)
    await writer.send(report(whole=True), held={}, seq=2, epoch=None)
    found = (await reader.read()).map
    assert found is not None
    assert found.epoch is not None


async def test_a_goodbye_leaves_times_and_takes_the_report(writer: RedisActivity, reader: Reader) -> None:
    await writer.send(report(whole=True), held={}, seq=1, epoch=None)
    await writer.goodbye()
    found = (await reader.read()).map
    assert found is not None
    assert found.routers == {}
    assert found.touched.keys() == {M1}
