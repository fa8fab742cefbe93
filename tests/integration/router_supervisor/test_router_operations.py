"""Operating a running router: settings under load, drains by hand, what is shown, and the steps of a stop."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest
import yaml

from llmgw_kit.testing.processes import Cage
from tests.integration.router.authority import Authority, TlsUpstream
from tests.integration.router.upstream import answering, json_answer

from .process import RouterProcess, ask, call, chat, engine, get, metric, metric_at_least, running
from .routing_bench import BOUND_S, until

#: A streaming engine that takes its time.
SLOW = ("--tokens", "1000", "--token-interval-s", "0.1")


def write(path: Path, **settings: object) -> None:
    other = path.with_suffix(".new")
    other.write_text(yaml.safe_dump(settings))
    other.rename(path)


async def last_reload(router: RouterProcess) -> dict[str, object] | None:
    found: dict[str, object] | None = (await get(f"{router.admin_url}/admin/config")).json["last_reload"]
    return found


async def reloads(router: RouterProcess, many: int) -> dict[str, object]:
    async with asyncio.timeout(BOUND_S):
        while True:
            config = (await get(f"{router.admin_url}/admin/config")).json
            if sum(config["reloads"].values()) >= many:
                assert config["last_reload"] is not None
                return dict(config["last_reload"])
            await asyncio.sleep(0.05)


class Load:
    """Callers that never stop asking; every answer that is not 200 is kept."""

    def __init__(self, router: RouterProcess, model: str, callers: int) -> None:
        self.answered = 0
        self.wrong: list[str] = []
        self._router, self._model, self._callers = router, model, callers

    @asynccontextmanager
    async def going(self) -> AsyncIterator["Load"]:
        tasks = [asyncio.create_task(self._call()) for _ in range(self._callers)]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=BOUND_S)) as session:
            while True:
                try:
                    async with session.post(
                        f"{self._router.url}/v1/chat/completions", json=chat(self._model)
                    ) as answer:
                        text = await answer.text()
                        if answer.status == 200:
                            self.answered += 1
                        else:
                            self.wrong.append(f"{answer.status} {text}")
                except aiohttp.ClientError as e:
                    self.wrong.append(repr(e))

    async def more(self, many: int = 30) -> None:
        until_here = self.answered + many
        await until(lambda: self.answered >= until_here or bool(self.wrong), "more answers")
        assert self.wrong == []


async def test_reloads_under_load_lose_nothing_and_keep_what_they_do_not_touch(
    cage: Cage, tmp_path: Path
) -> None:
    """HO12: unchanged settings, one endpoint more, a bad file, one endpoint less, while requests run."""
    config = tmp_path / "router.yaml"
    async with (
        engine(cage, tmp_path, "m") as a,
        engine(cage, tmp_path, "m") as b,
        engine(cage, tmp_path, "slow", flags=SLOW) as slow,
    ):
        one, two, other = f"a={a}=m", f"b={b}=m", f"s={slow}=slow"
        write(config, endpoints=[one, other], idle_s=60)
        async with (
            running(cage, tmp_path, "--config", str(config)) as router,
            aiohttp.ClientSession() as session,
        ):
            await router.ready()
            stream = await session.post(f"{router.url}/v1/chat/completions", json=chat("slow", stream=True))
            first = await stream.content.readany()
            async with Load(router, "m", 6).going() as load:
                await load.more()
                router.child.send_signal(signal.SIGHUP)
                assert (await reloads(router, 1))["fields"] == []
                picks = await _picks(router, "a")
                write(config, endpoints=[one, two, other], idle_s=50)
                assert (await reloads(router, 2))["fine"] is True
                await load.more(60)
                assert await _picks(router, "b") > 0
                # Unchanged: the same endpoint, with all that is known of it.
                assert await _picks(router, "a") > picks
                write(config, endpoints=[one, "b=nonsense"])
                refused = await reloads(router, 3)
                assert refused["fine"] is False
                assert "b=nonsense" in json.dumps(refused["why"]) or "no model" in json.dumps(refused["why"])
                await load.more()
                assert await metric(router.admin_url, "llmgw_router_config_refused") == 1
                page = (await get(f"{router.admin_url}/")).body.decode()
                assert "could not be used" in page
                write(config, endpoints=[two, other])
                await reloads(router, 4)
                await load.more()
                assert await metric(router.admin_url, "llmgw_router_config_refused") == 0
                assert [one["endpoint_id"] for one in await _endpoints(router)] == ["b", "s"]
            # What ran over all of that still runs.
            assert first + await stream.content.readany()
            stream.close()
            assert load.answered > 100
            # A broken endpoint is still found out after reloads: asked in vain, and not the last one used.
            write(config, endpoints=[two, "c=http://127.0.0.1:9=m", other])
            await reloads(router, 5)
            for _ in range(6):
                assert (await ask(router, "m")).status == 200
            assert [w["deaths"] for w in (await get(f"{router.admin_url}/admin/workers")).json] == [0]


async def _endpoints(router: RouterProcess) -> list[dict[str, object]]:
    found: list[dict[str, object]] = (await get(f"{router.admin_url}/admin/routes")).json["endpoints"]
    return found


async def _picks(router: RouterProcess, name: str) -> int:
    (found,) = [one["picks"] for one in await _endpoints(router) if one["endpoint_id"] == name]
    assert isinstance(found, int)
    return found


async def test_what_needs_a_restart_is_named_and_nothing_of_that_file_is_used(
    cage: Cage, tmp_path: Path
) -> None:
    config = tmp_path / "router.yaml"
    write(config, endpoints=["a=http://127.0.0.1:9=m"])
    async with running(cage, tmp_path, "--config", str(config)) as router:
        write(config, endpoints=["a=http://127.0.0.1:9=m", "b=http://127.0.0.1:9=m"], router_id="other")
        answer = await call("POST", f"{router.admin_url}/admin/reload")
        assert answer.status == 409
        assert answer.json["fields"] == ["router_id"]
        assert "restart" in " ".join(answer.json["why"])
        assert [one["endpoint_id"] for one in await _endpoints(router)] == ["a"]
        # A changed address under an old name is another endpoint.
        write(config, endpoints=["a=http://127.0.0.1:10=m"], log_level="debug")
        assert (await call("POST", f"{router.admin_url}/admin/reload")).status == 200
        assert [(e["endpoint_id"], e["replica_id"]) for e in await _endpoints(router)] == [("a~2", "a")]


async def test_draining_by_hand(cage: Cage, tmp_path: Path) -> None:
    async with (
        engine(cage, tmp_path, "m") as a,
        engine(cage, tmp_path, "m") as b,
        running(cage, tmp_path, "--endpoint", f"a={a}=m", "--endpoint", f"b={b}=m") as router,
    ):
        await router.ready()
        drain = f"{router.admin_url}/admin/drain"
        done = (await call("POST", f"{drain}?endpoint=a")).json
        assert (done["endpoints"], done["without_endpoint"]) == (["a"], [])
        before = await _picks(router, "a")
        for _ in range(6):
            assert (await ask(router, "m")).status == 200
        assert await _picks(router, "a") == before
        shown = (await get(f"{router.admin_url}/admin/routes")).json
        assert shown["drained_here"] == {"endpoints": ["a"], "replicas": []}
        assert [one["drained_here"] for one in shown["endpoints"]] == [True, False]
        # The last one: done as told, and what it means is said.
        assert (await call("POST", f"{drain}?replica=b")).json["without_endpoint"] == ["m"]
        assert (await ask(router, "m")).json["error"]["code"] == "no_replica_available"
        assert (await call("POST", f"{drain}?replica=b&undo")).status == 200
        assert (await ask(router, "m")).status == 200
        for query, status in (
            ("endpoint=c", 404),
            ("replica=c", 404),
            ("endpoint=b&undo", 400),
            ("endpoint=a&replica=a", 400),
            ("endpiont=a", 400),
        ):
            refused = await call("POST", f"{drain}?{query}")
            assert (refused.status, bool(refused.json["error"])) == (status, True)
        # A page in a browser on this machine is no operator, also where its name was made to resolve here.
        rebound = {"origin": "http://evil.example:9090", "host": "evil.example:9090"}
        for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, rebound):
            assert (await call("POST", drain, headers=headers)).status == 403
        assert (await get(f"{router.url}/readyz")).status == 200
        await call("POST", drain)
        assert (await get(f"{router.url}/readyz")).json["why"] == "drained by an operator"
        assert (await ask(router, "m")).status == 200
        await call("POST", f"{drain}?undo")
        assert (await get(f"{router.url}/readyz")).status == 200


async def test_what_runs_and_what_became_of_it_can_be_asked(cage: Cage, tmp_path: Path) -> None:
    config = tmp_path / "router.yaml"
    lines = tmp_path / "access.jsonl"
    async with engine(cage, tmp_path, "m", flags=SLOW) as url:
        choosing = {"keep_decisions": 100}
        write(
            config,
            endpoints=[f"a={url}=m"],
            access_log=True,
            access_log_file=str(lines),
            choosing=choosing,
        )
        async with (
            running(cage, tmp_path, "--config", str(config)) as router,
            aiohttp.ClientSession() as session,
        ):
            await router.ready()
            headers = {"x-request-id": "mine-7"}
            async with session.post(
                f"{router.url}/v1/chat/completions?key=s3cret", json=chat("m", stream=True), headers=headers
            ) as stream:
                await stream.content.readany()
                now = (await get(f"{router.admin_url}/admin/requests")).json
                [one] = [row for row in now["requests"] if row["request_id"] == "mine-7"]
                assert (one["model"], one["endpoint_id"], one["phase"]) == ("m", "a", "relaying")
                assert one["age_s"] > 0
                assert (await get(f"{router.admin_url}/admin/explain/nobody-7")).status == 404
                stream.close()
            await until(lambda: lines.exists() and "mine-7" in lines.read_text(), "line of the access log")
            [record] = [json.loads(one) for one in lines.read_text().splitlines() if "mine-7" in one]
            assert (record["status"], record["model"], record["endpoint_id"]) == (499, "m", "a")
            assert record["chunks"] >= 1
            assert record["profile"] == "interactive"
            assert record["connect_ms"] > 0
            assert "s3cret" not in lines.read_text()
            told = (await get(f"{router.admin_url}/admin/explain/mine-7")).json
            assert [one["status"] for one in told["requests"]] == [499]
            assert [one["endpoint_id"] for one in told["choices"]] == ["a"]
            # It was left in mid-answer, and its engine was stopped.
            await metric_at_least(router.admin_url, 'llmgw_router_aborts_total{phase="answer"}', 1)
            await metric_at_least(router.admin_url, "llmgw_router_engine_aborts_total", 1)
            await metric_at_least(
                router.admin_url, 'llmgw_router_model_requests_total{code_class="client_gone",model="m"}', 1
            )
            # Moved away, as by logrotate: the next lines go into a new file.
            lines.rename(tmp_path / "access.1")
            await get(f"{router.url}/v1/models")
            await until(lambda: lines.exists() and "/v1/models" in lines.read_text(), "a new file")


async def test_while_it_is_not_ready_any_more_it_serves_and_then_closes(cage: Cage, tmp_path: Path) -> None:
    """M10: readiness first; new requests are served for unready_s; then the port closes, and it exits 0."""
    config = tmp_path / "router.yaml"
    async with engine(cage, tmp_path, "m") as url:
        write(config, endpoints=[f"a={url}=m"], unready_s=3.0)
        async with running(cage, tmp_path, "--config", str(config)) as router:
            await router.ready()
            router.child.send_signal(signal.SIGTERM)
            async with asyncio.timeout(BOUND_S):
                while (await get(f"{router.url}/readyz")).status == 200:
                    await asyncio.sleep(0.02)
            for _ in range(5):
                assert (await ask(router, "m")).status == 200
            assert "draining" not in router.log
            assert await router.child.wait(BOUND_S) == 0
        assert router.log.rstrip().endswith("stopped")


@pytest.mark.parametrize("unready_s", [0.0, 600.0], ids=["while draining", "while not ready yet"])
async def test_a_second_signal_cuts_what_runs_in_band_and_exits_in_order(
    cage: Cage, tmp_path: Path, unready_s: float
) -> None:
    config = tmp_path / "router.yaml"
    async with engine(cage, tmp_path, "m", flags=SLOW) as url:
        write(config, endpoints=[f"a={url}=m"], unready_s=unready_s, drain_s=600.0)
        async with (
            running(cage, tmp_path, "--config", str(config)) as router,
            aiohttp.ClientSession() as session,
        ):
            await router.ready()
            async with session.post(
                f"{router.url}/v1/chat/completions", json=chat("m", stream=True)
            ) as answer:
                await answer.content.readany()
                router.child.send_signal(signal.SIGTERM)
                await until(lambda: "a second one makes it quicker" in router.log, "first signal")
                router.child.send_signal(signal.SIGINT)
                rest = await asyncio.wait_for(answer.content.read(), BOUND_S)
            assert b'"code":"router_stopping"' in rest
            assert b"[DONE]" not in rest
            assert await router.child.wait(BOUND_S) == 0
        assert router.log.rstrip().endswith("stopped")


async def test_a_frozen_worker_is_replaced_with_its_stacks_in_the_log(cage: Cage, tmp_path: Path) -> None:
    config = tmp_path / "router.yaml"
    async with engine(cage, tmp_path, "m") as url:
        write(config, endpoints=[f"a={url}=m"], worker_hang_s=2.0)
        async with running(cage, tmp_path, "--config", str(config)) as router:
            await router.ready()
            [worker] = psutil.Process(router.child.pid).children()
            worker.suspend()
            # Asked while nobody serves: it waits in the queue, and the successor answers.
            assert (await ask(router, "m")).status == 200
            assert "has not turned its loop for 2 s" in router.log
            assert await metric(router.admin_url, "llmgw_router_relay_worker_hangs_total") == 1
            assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def _check(path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "llmgw_router.main", "check-config", "--config", str(path), *flags]
    return subprocess.run(argv, capture_output=True, text=True, timeout=BOUND_S, check=False)


def test_a_file_is_checked_without_being_served(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text("endpoints: ['a=http://h:1=m']\n")
    fine = _check(path)
    assert (fine.returncode, fine.stderr) == (0, "")
    assert "1 endpoint, 1 model" in fine.stdout
    told = json.loads(_check(path, "--output", "json").stdout)
    assert (told["schema"], told["fine"], told["why"]) == ("llmgw.router.check-config/1", True, [])
    path.write_text("endpoints: ['a=http://h:1=m']\nidle: 3\n")
    bad = _check(path)
    assert bad.returncode == 1
    assert "unknown key 'idle'" in bad.stderr
    assert json.loads(_check(path, "--output", "json").stdout)["fine"] is False


async def test_a_replaced_file_of_authorities_is_read_at_hangup_although_no_setting_differs(
    cage: Cage, tmp_path: Path
) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    config, ca = tmp_path / "router.yaml", tmp_path / "ca.pem"
    ca.write_bytes(old.cert.read_bytes())
    up = TlsUpstream(answering(json_answer()))
    up.pair = new.sign("engine", names="IP:127.0.0.1")
    async with up:
        write(config, endpoints=[f"a=https://127.0.0.1:{up.port}=m"], upstream_ca=str(ca))
        async with running(cage, tmp_path, "--config", str(config)) as router:
            assert (await ask(router, "m")).status == 502
            ca.write_bytes(new.cert.read_bytes())
            router.child.send_signal(signal.SIGHUP)
            assert (await reloads(router, 1))["fields"] == []
            async with asyncio.timeout(BOUND_S):
                # Its rest after the failure comes to an end first.
                while (await ask(router, "m")).status != 200:
                    await asyncio.sleep(0.02)


async def test_what_the_admin_listener_has_not_is_answered_with_what_it_has(
    cage: Cage, tmp_path: Path
) -> None:
    async with running(cage, tmp_path, "--endpoint", "a=http://127.0.0.1:9=m") as router:
        for path in ("/admin/nope", "/debug/"):
            answer = await get(f"{router.admin_url}{path}")
            assert answer.status == 404
            assert path in answer.json["error"]
            assert "/admin/routes" in answer.json["next"][0]
        answer = await get(f"{router.admin_url}/admin/drain")
        assert (answer.status, answer.json["next"]) == (405, ["use POST"])
