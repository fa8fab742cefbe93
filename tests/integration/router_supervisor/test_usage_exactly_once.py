"""Usage exactly once: workers, supervisor and Postgres are killed under load; each answer has its one row."""

import asyncio
import itertools
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import psutil
import pytest

from llmgw_kit.testing.embedded import EmbeddedPostgres
from llmgw_kit.testing.processes import Cage
from llmgw_router.core.keys import digest_of
from llmgw_schema.migrate import migrate
from tests.integration.router.upstream import Connection, Upstream, json_answer

from .process import RouterProcess, call, metric, metric_at_least
from .routing_bench import until

KEY = "sk-llmgw-exactly-once"
USED = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
CLIENTS = 8


async def engine(connection: Connection) -> None:
    while True:
        await connection.request()
        # Long enough that some are always running.
        await asyncio.sleep(0.005)
        await connection.send(json_answer(USED))


class Load:
    """Clients that ask without a pause, and remember which of their requests were answered whole."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.answered: list[str] = []
        self._numbers = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._client()) for _ in range(CLIENTS)]

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def answers(self, more: int) -> None:
        goal = len(self.answered) + more
        await until(lambda: len(self.answered) >= goal, f"{more} answers", within_s=60)

    async def _client(self) -> None:
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                name = f"load-{next(self._numbers)}"
                headers = {"authorization": f"Bearer {KEY}", "x-request-id": name}
                try:
                    async with session.post(
                        f"{self.url}/v1/chat/completions", json={"model": "m"}, headers=headers
                    ) as answer:
                        if await answer.read() == USED:
                            self.answered.append(name)
                except (aiohttp.ClientError, TimeoutError):
                    await asyncio.sleep(0.01)


async def rows(dsn: str) -> list[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetch("SELECT * FROM usage_records")
    finally:
        await connection.close()


def spawn(cage: Cage, folder: Path, dsn: str, port: int) -> RouterProcess:
    config = folder / "router.yaml"
    config.write_text(
        f"endpoints: ['e=http://127.0.0.1:{port}=m']\nlisten: 127.0.0.1:0\nadmin_listen: 127.0.0.1:0\n"
        f"workers: 2\nstate_dir: {folder / 'state'}\nrouter_id: r1\ndatabase_url: {dsn}\n"
    )
    return RouterProcess.spawn(cage, folder, "--config", str(config))


def relay_workers(router: RouterProcess) -> list[psutil.Process]:
    return [
        one
        for one in psutil.Process(router.child.pid).children()
        if "llmgw_router.relay.worker" in " ".join(one.cmdline())
    ]


async def let_in(router: RouterProcess) -> None:
    async with asyncio.timeout(30):
        while (
            await call("GET", f"{router.url}/v1/models", headers={"authorization": f"Bearer {KEY}"})
        ).status != 200:
            await asyncio.sleep(0.02)


@pytest.mark.timeout(240)
async def test_every_answer_has_its_one_row_whoever_dies(
    cage: Cage, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server = EmbeddedPostgres(cage, tmp_path_factory.mktemp("usage-postgres"))
    await asyncio.to_thread(server.start_now)
    dsn = server.dsn("postgres")
    connection = await asyncpg.connect(dsn)
    await migrate(connection)
    await connection.execute(
        "INSERT INTO api_keys (key_id, digest, prefix, name, created_at) VALUES ('k', $1, 'p', 'n', now())",
        digest_of(KEY.encode()),
    )
    await connection.close()
    load = Load()
    async with Upstream(engine) as upstream:
        router = await spawn(cage, tmp_path, dsn, upstream.port).ready()
        await let_in(router)
        load.url = router.url
        load.start()
        await load.answers(200)

        # A worker: what it had answered is in its file, what it had begun is owned up to.
        relay_workers(router)[0].kill()
        await load.answers(200)

        # Postgres: nothing can be written, and nothing is lost.
        await asyncio.to_thread(server.kill)
        await load.answers(300)
        await metric_at_least(router.admin_url, "llmgw_router_usage_sink_silent_seconds", 0.1)
        assert await metric(router.admin_url, "llmgw_router_api_keys") == 1
        await asyncio.to_thread(server.restart_now)
        await load.answers(100)

        # The supervisor: its workers finish what they have, its successor takes up their files.
        orphans = relay_workers(router)
        router.child.stop(signal.SIGKILL)
        router = await spawn(cage, tmp_path, dsn, upstream.port).ready()
        await let_in(router)
        load.url = router.url
        await load.answers(200)

        # All at once.
        await asyncio.to_thread(server.kill)
        for one in relay_workers(router):
            one.kill()
        router.child.stop(signal.SIGKILL)
        await asyncio.to_thread(server.restart_now)
        router = await spawn(cage, tmp_path, dsn, upstream.port).ready()
        await let_in(router)
        load.url = router.url
        await load.answers(100)
        await load.stop()
        await until(lambda: not any(one.is_running() for one in orphans), "the orphans' end", within_s=60)
        await asyncio.to_thread(router.child.stop, grace_s=20.0)

        found = await rows(dsn)
        told = Counter(row["request_id"] for row in found if row["source"] == "engine")
        missing = [name for name in load.answered if told[name] != 1]
        assert missing == [], f"{len(missing)} of {len(load.answered)} answers do not have one row"
        assert len({row["usage_id"] for row in found}) == len(found)
        lost = [row for row in found if row["status"] is None]
        assert lost, "what ran in a killed worker is owned up to"
        assert all(row["source"] == "unknown" and not row["complete"] for row in lost)
        assert not {row["request_id"] for row in lost} & set(load.answered)
        assert {row["key_id"] for row in found} == {"k"}
        assert list((tmp_path / "state" / "usage").iterdir()) == [], "nothing is left to be told"
    await asyncio.to_thread(server.stop_now)


@pytest.mark.timeout(120)
async def test_without_a_database_a_file_takes_them_once(cage: Cage, tmp_path: Path) -> None:
    config = tmp_path / "router.yaml"
    load = Load()
    async with Upstream(engine) as upstream:
        config.write_text(
            f"endpoints: ['e=http://127.0.0.1:{upstream.port}=m']\nlisten: 127.0.0.1:0\n"
            f"admin_listen: 127.0.0.1:0\nworkers: 1\nstate_dir: {tmp_path / 'state'}\n"
            f"usage_file: {tmp_path / 'usage.jsonl'}\nkeys: ['{KEY}']\n"
        )
        router = await RouterProcess.spawn(cage, tmp_path, "--config", str(config)).ready()
        load.url = router.url
        load.start()
        await load.answers(100)
        await until(lambda: (tmp_path / "usage.jsonl").exists(), "the first records", within_s=30)
        router.child.stop(signal.SIGKILL)
        router = await RouterProcess.spawn(cage, tmp_path, "--config", str(config)).ready()
        load.url = router.url
        await load.answers(100)
        await load.stop()
        for name in ('tokens_total{kind="output"}', 'usage_requests_total{source="engine"}'):
            await metric_at_least(router.admin_url, f"llmgw_router_{name}", 1)
        await metric_at_least(router.admin_url, 'llmgw_router_model_tokens_total{kind="prompt",model="m"}', 1)
        await until(
            lambda: len(list((tmp_path / "state" / "usage").iterdir())) <= 2, "the orphan's end", within_s=60
        )
        await asyncio.to_thread(router.child.stop, grace_s=20.0)
    text = (tmp_path / "usage.jsonl").read_text()
    counted = Counter(json.loads(line)["request_id"] for line in text.splitlines())
    assert [name for name in load.answered if counted[name] != 1] == []
    assert "in plain text" in router.log
