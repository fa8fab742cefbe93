"""The activity script on a real Redis: its clock, its marks, and every way of losing them."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio

from llmgw_kit.errors import Unavailable
from llmgw_kit.testing.clock import FakeClock
from llmgw_kit.testing.embedded import EmbeddedRedis
from llmgw_kit.testing.processes import Cage
from llmgw_router.activity import ActivityLoop
from llmgw_router.adapters.activity_redis import ACTIVITY_KEY, RedisActivity, router_key
from llmgw_router.board import Board, Source
from llmgw_router.core.activity import Report
from llmgw_router.core.learned import Routes
from llmgw_router.core.table import EndpointRow
from llmgw_router.relay.ipc import ActivationRefused, StartPhase, TableUpdate
from llmgw_router.relay.slots import EndpointActivity

TTL_S = 45.0


def sent(ages: dict[str, int], *, whole: bool = False, in_flight: dict[str, int] | None = None) -> Report:
    return Report(ages_ms=ages, in_flight=in_flight or dict.fromkeys(ages, 0), whole=whole, told_ns={})


@pytest.fixture
async def server(cage: Cage, tmp_path: Path) -> AsyncIterator[EmbeddedRedis]:
    """One of its own: these tests break it."""
    async with EmbeddedRedis(cage, tmp_path / "redis") as server:
        yield server


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator["redis.asyncio.Redis"]:
    client = redis.asyncio.Redis.from_url(redis_url, decode_responses=True)
    yield client
    await client.aclose()


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisActivity]:
    store = RedisActivity(redis_url, router_id="r1", incarnation="abc", ttl_s=TTL_S)
    yield store
    await store.close()


async def now_ms(client: "redis.asyncio.Redis") -> int:
    seconds, micros = await client.time()
    return int(seconds) * 1000 + int(micros) // 1000


async def test_ages_become_times_of_redis_clock_and_only_newer_ones_are_kept(
    store: RedisActivity, client: "redis.asyncio.Redis"
) -> None:
    before = await now_ms(client)
    await store.send(sent({"m/1": 60_000, "m/2": 0}, whole=True), held={}, seq=1, epoch=None)
    after = await now_ms(client)
    found = await client.hgetall(ACTIVITY_KEY)
    assert before - 60_000 <= int(found["m/1"]) <= after - 60_000
    assert before <= int(found["m/2"]) <= after
    # Another router touched m/1 earlier, and m/2 much earlier: neither may go back.
    await store.send(sent({"m/1": 10_000, "m/2": 50_000}), held={}, seq=2, epoch=None)
    again = await client.hgetall(ACTIVITY_KEY)
    assert int(again["m/1"]) > int(found["m/1"])
    assert again["m/2"] == found["m/2"]


async def test_the_marks_are_set_once_and_stay(store: RedisActivity, client: "redis.asyncio.Redis") -> None:
    before = await now_ms(client)
    reply = await store.send(sent({}, whole=True), held={}, seq=1, epoch=None)
    marks = await client.hgetall(ACTIVITY_KEY)
    assert set(marks) == {"watching_since", "run_id", "epoch"}
    assert before <= int(marks["watching_since"]) <= await now_ms(client)
    assert marks["run_id"] == (await client.info("server"))["run_id"] == reply.run_id
    assert marks["epoch"] == reply.epoch
    await store.send(sent({}), held={}, seq=2, epoch=reply.epoch)
    assert await client.hgetall(ACTIVITY_KEY) == marks


async def test_the_report_is_a_hash_with_a_ttl(store: RedisActivity, client: "redis.asyncio.Redis") -> None:
    report = sent({"m/1": 5}, whole=True, in_flight={"m/1": 3, "m/2": 0})
    reply = await store.send(report, held={"cold": 2}, seq=7, epoch=None)
    found = await client.hgetall(router_key("r1"))
    assert json.loads(found.pop("in_flight")) == {"m/1": 3, "m/2": 0}
    assert json.loads(found.pop("held")) == {"cold": 2}
    assert found == {
        "at": str(reply.at_unix_ms),
        "incarnation": "abc",
        "seq": "7",
        "epoch": reply.epoch,
    }
    assert 0 < await client.pttl(router_key("r1")) <= TTL_S * 1000
    await store.goodbye()
    assert not await client.exists(router_key("r1"))
    assert (await client.hgetall(ACTIVITY_KEY)).keys() >= {"m/1"}


async def test_a_report_that_is_not_whole_claims_the_epoch_only_if_it_is_the_one_told_before(
    store: RedisActivity, client: "redis.asyncio.Redis"
) -> None:
    first = await store.send(sent({}, whole=True), held={}, seq=1, epoch=None)
    await store.send(sent({"m/1": 1}), held={}, seq=2, epoch=first.epoch)
    assert await client.hget(router_key("r1"), "epoch") == first.epoch
    # Another server process took over with the data: the report's own hash is still there.
    await client.hset(ACTIVITY_KEY, "run_id", "of-the-dead-server")
    second = await store.send(sent({"m/1": 1}), held={}, seq=3, epoch=first.epoch)
    assert second.epoch != first.epoch
    assert await client.hget(router_key("r1"), "epoch") is None


async def test_one_command_a_tick(store: RedisActivity, client: "redis.asyncio.Redis") -> None:
    await store.send(sent({}, whole=True), held={}, seq=1, epoch=None)
    before = (await client.info("commandstats"))["cmdstat_eval"]["calls"]
    await store.send(sent({f"m/{i}": i for i in range(400)}), held={}, seq=2, epoch=None)
    assert (await client.info("commandstats"))["cmdstat_eval"]["calls"] == before + 1
    assert await client.hlen(ACTIVITY_KEY) == 400 + 3


class Fleet:
    """Workers with replicas of which the test says what ran."""

    def __init__(self) -> None:
        self.uses: dict[str, tuple[int, int | None]] = {}
        self.held: dict[str, int] = {}

    def push_table(self, update: TableUpdate) -> None:
        """Workers of this test take no table."""

    def refuse(self, refusal: ActivationRefused) -> None:
        raise AssertionError("nothing is refused here")

    def tell_phase(self, phase: StartPhase) -> None: ...

    def activity(self) -> list[tuple[EndpointRow, EndpointActivity]]:
        return [(row(key), EndpointActivity(n, 1, at, 0, 0)) for key, (n, at) in self.uses.items()]


def row(replica_id: str) -> EndpointRow:
    return EndpointRow(
        endpoint_id=f"{replica_id}@1", replica_id=replica_id, group_epoch=1, model="m", host="h", port=1
    )


class Bench:
    """One router's activity loop over a Redis, with its clock in the test's hand."""

    def __init__(self, server: EmbeddedRedis, router_id: str) -> None:
        self.clock = FakeClock()
        self.fleet = Fleet()
        board = Board(self.fleet, self.clock)
        rows = {r.endpoint_id: r for r in (row("m/1"), row("m/2"))}
        board.publish(Routes(term=1, version=1, endpoints=rows), Source.CONTROLLER)
        self.store = RedisActivity(server.url, router_id=router_id, incarnation=router_id, ttl_s=TTL_S)
        self.loop = ActivityLoop(self.store, self.fleet, board, self.clock, tick_s=5.0)

    def touch(self, replica_id: str, *, in_flight: int = 0) -> None:
        self.fleet.uses[replica_id] = (in_flight, int(self.clock.monotonic_s() * 1e9))


@pytest.fixture
async def routers(server: EmbeddedRedis) -> AsyncIterator[tuple[Bench, Bench]]:
    one, two = Bench(server, "one"), Bench(server, "two")
    # Wall clocks an hour apart: nothing of them may reach Redis.
    one.clock.jump_unix(3600)
    yield one, two
    await one.store.close()
    await two.store.close()


async def fields(server: EmbeddedRedis, key: str) -> dict[str, str]:
    client = redis.asyncio.Redis.from_url(server.url, decode_responses=True)
    try:
        return {str(name): str(value) for name, value in (await client.hgetall(key)).items()}
    finally:
        await client.aclose()


async def test_after_a_flush_each_router_resends_its_whole_map_once(
    server: EmbeddedRedis, routers: tuple[Bench, Bench]
) -> None:
    one, two = routers
    one.touch("m/1")
    two.touch("m/2")
    for bench in routers:
        await bench.loop.tick()
    await asyncio.to_thread(server.command, "FLUSHALL")
    await one.loop.tick()
    found = await fields(server, ACTIVITY_KEY)
    assert "m/1" in found
    assert "m/2" not in found
    assert (await fields(server, router_key("one")))["epoch"] == found["epoch"]
    await two.loop.tick()
    again = await fields(server, ACTIVITY_KEY)
    assert "m/2" in again
    assert again["epoch"] == found["epoch"]
    assert (await fields(server, router_key("two")))["epoch"] == found["epoch"]
    # Told once: the next tick has nothing to say of either.
    await asyncio.to_thread(server.command, "HDEL", ACTIVITY_KEY, "m/1")
    await one.loop.tick()
    assert "m/1" not in await fields(server, ACTIVITY_KEY)


async def test_a_restarted_server_with_old_data_is_a_new_epoch(
    server: EmbeddedRedis, routers: tuple[Bench, Bench]
) -> None:
    one, _ = routers
    one.touch("m/1")
    await one.loop.tick()
    before = await fields(server, ACTIVITY_KEY)
    # What a restart from a snapshot looks like: the data are there, of another server process.
    await asyncio.to_thread(server.command, "HSET", ACTIVITY_KEY, "run_id", "of-the-dead-server")
    await one.loop.tick()
    after = await fields(server, ACTIVITY_KEY)
    assert after["epoch"] != before["epoch"]
    assert after["run_id"] == before["run_id"]
    assert int(after["watching_since"]) >= int(before["watching_since"])
    assert (await fields(server, router_key("one")))["epoch"] == after["epoch"]


async def test_redis_away_warns_once_and_everything_is_told_when_it_is_back(
    server: EmbeddedRedis, routers: tuple[Bench, Bench], caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = routers
    one.touch("m/1")
    await one.loop.tick()
    await asyncio.to_thread(server.kill)
    one.touch("m/2")
    for _ in range(3):
        await one.loop.tick()
    assert len([r for r in caplog.records if "Routing is untouched" in r.getMessage()]) == 1
    assert one.loop.failures == 3
    await asyncio.to_thread(server.restart_now)
    await one.loop.tick()
    found = await fields(server, ACTIVITY_KEY)
    assert found.keys() >= {"m/1", "m/2"}
    assert (await fields(server, router_key("one")))["epoch"] == found["epoch"]


async def test_a_frozen_redis_costs_a_tick_its_time_out_and_no_more(
    server: EmbeddedRedis, routers: tuple[Bench, Bench]
) -> None:
    one, _ = routers
    one.touch("m/1")
    await one.loop.tick()
    await asyncio.to_thread(server.command, "HDEL", ACTIVITY_KEY, "m/1")
    server.pause()
    try:
        async with asyncio.timeout(5):
            await one.loop.tick()
            with pytest.raises(Unavailable):
                await one.store.goodbye()
    finally:
        server.resume()
    assert one.loop.failures == 1
    # Nobody knows what arrived: everything is told again, what was told long before as well.
    await one.loop.tick()
    assert "m/1" in await fields(server, ACTIVITY_KEY)


async def test_ages_are_of_the_monotonic_clock(server: EmbeddedRedis, routers: tuple[Bench, Bench]) -> None:
    one, two = routers
    one.touch("m/1")
    two.touch("m/2")
    await one.clock.advance(3600)
    two.clock.jump_unix(-86400)
    for bench in routers:
        await bench.loop.tick()
    found = await fields(server, ACTIVITY_KEY)
    at = int((await fields(server, router_key("two")))["at"])
    assert at - 3_600_000 - 5000 <= int(found["m/1"]) <= at - 3_600_000
    assert at - 5000 <= int(found["m/2"]) <= at


class Counting:
    """The client of a Redis, with what it sends counted; everything still reaches the server."""

    def __init__(self, client: "redis.asyncio.Redis") -> None:
        self.sent: list[str] = []
        self._execute = client.execute_command
        client.execute_command = self.execute_command  # type: ignore[method-assign]

    async def execute_command(self, *words: object, **options: object) -> object:
        self.sent.append(str(words[0]))
        return await self._execute(*words, **options)


@pytest.mark.parametrize(("replicas", "requests"), [(4, 4), (4, 4000), (400, 400), (400, 40_000)])
async def test_a_tick_is_one_script_call_whatever_the_traffic(
    server: EmbeddedRedis, replicas: int, requests: int
) -> None:
    """W62: Rule 1 of idleness costs: nothing per request, nothing per replica."""
    bench = Bench(server, "one")
    board = bench.loop._board
    rows = {f"m/{number}@1": row(f"m/{number}") for number in range(replicas)}
    board.publish(Routes(term=1, version=2, endpoints=rows), Source.CONTROLLER)
    await bench.loop.tick()
    counting = Counting(bench.store._redis)
    for tick in range(3):
        await bench.clock.advance(5)
        for number in range(requests):
            bench.touch(f"m/{number % replicas}", in_flight=number % 3)
        await bench.loop.tick()
        assert counting.sent == ["EVAL"] * (tick + 1)
    await bench.clock.advance(5)
    await bench.loop.tick()
    assert counting.sent == ["EVAL"] * 4, "and one when nothing was asked: the heartbeat"
    found = await fields(server, ACTIVITY_KEY)
    assert len(found) == replicas + 3
    await bench.store.close()
