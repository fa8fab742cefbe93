"""The router as a process, without a controller: listeners, cold routes, both ways to stop (M5, M8, M10)."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import openai
import psutil
import pytest

from llmgw_kit.testing.processes import Cage

from .process import (
    LOOPBACK,
    START_S,
    RouterProcess,
    ask,
    call,
    chat,
    engine,
    get,
    metric,
    metric_at_least,
    running,
    start_engine,
)
from .routing_bench import BOUND_S, until


@pytest.fixture(scope="module")
def served(cage: Cage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    """Two models, one with a slash in its name, behind one engine; for tests that only ask."""
    folder = tmp_path_factory.mktemp("served")
    engine, url = asyncio.run(start_engine(cage, folder, "m", "org/m"))
    flags = (*LOOPBACK, "--endpoint", f"a={url}=m,org/m", "--metrics-listen", "127.0.0.1:0")
    router = RouterProcess.spawn(cage, folder, *flags)
    asyncio.run(router.ready())
    yield router
    router.child.stop()
    engine.stop(grace_s=2.0)


async def test_router_only_mode_serves(served: RouterProcess) -> None:
    picks = 'llmgw_router_model_picks_total{model="m,org/m"}'
    before = await metric(served.admin_url, picks)
    assert before is not None
    answer = await ask(served, "m")
    assert answer.status == 200
    assert answer.json["choices"][0]["message"]["content"]
    assert (await ask(served, "nobody")).json["error"]["code"] == "model_not_found"
    await metric_at_least(served.metrics_url, 'llmgw_router_requests_total{code_class="2xx"}', 1)
    assert await metric(served.admin_url, picks) == before + 1
    assert await metric(served.admin_url, 'llmgw_router_in_flight{model="m,org/m"}') == 0
    assert await metric(served.admin_url, "llmgw_fleet_models_unplaceable") is None


async def test_models_are_listed_and_found_by_any_spelling_of_a_slash(served: RouterProcess) -> None:
    listed = (await get(f"{served.url}/v1/models")).json
    assert listed["object"] == "list"
    assert [(one["id"], one["status"]) for one in listed["data"]] == [("m", "ready"), ("org/m", "ready")]
    for path in ("org/m", "org%2Fm", "org%2fm"):
        found = await get(f"{served.url}/v1/models/{path}")
        assert (found.status, found.json["id"]) == (200, "org/m")
    missing = await get(f"{served.url}/v1/models/org/nobody")
    assert (missing.status, missing.json["error"]["code"]) == (404, "model_not_found")


REFUSED = {
    "unknown path": ("GET", "/v1/nothing", 404, "unknown_url"),
    "outside v1": ("GET", "/admin", 404, "unknown_url"),
    "root": ("GET", "/", 404, "unknown_url"),
    "wrong method": ("DELETE", "/v1/models", 405, "method_not_allowed"),
    "preflight without CORS": ("OPTIONS", "/v1/models", 405, "method_not_allowed"),
    "debugging is not on the client port": ("GET", "/debug/table", 404, "unknown_url"),
    "nor are metrics": ("GET", "/metrics", 404, "unknown_url"),
}


@pytest.mark.parametrize(("method", "path", "status", "code"), REFUSED.values(), ids=REFUSED.keys())
async def test_refusals_in_openai_shape(
    served: RouterProcess, method: str, path: str, status: int, code: str
) -> None:
    answer = await call(method, f"{served.url}{path}", headers={"x-request-id": "mine-1"})
    assert answer.status == status
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["x-request-id"] == "mine-1"
    error = answer.json["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, code)
    if status == 405:
        assert answer.headers["allow"] == "GET, HEAD"


async def test_head_of_what_can_be_got(served: RouterProcess) -> None:
    answer = await call("HEAD", f"{served.url}/v1/models")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["x-request-id"]


async def test_all_three_listeners_are_logged_and_healthcheck_asks_the_open_one(
    served: RouterProcess,
) -> None:
    assert served.ports.keys() == {"client API", "admin", "metrics"}
    for address, expected in ((served.ports["client API"], 0), (_free_port(), 1)):
        argv = [sys.executable, "-m", "llmgw_router.main", "healthcheck", "--listen", f"127.0.0.1:{address}"]
        done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=BOUND_S)
        assert done.returncode == expected, done.stdout
    for url in (served.url, served.metrics_url, served.admin_url):
        assert (await get(f"{url}/healthz")).status == 200
        assert (await get(f"{url}/readyz")).status == 200
    for path in ("/debug/table", "/debug/tasks", "/"):
        assert (await get(f"{served.metrics_url}{path}")).status == 404


async def test_the_admin_pages(served: RouterProcess) -> None:
    table = (await get(f"{served.admin_url}/debug/table")).json
    assert table["source"] == "static"
    assert [one["endpoint_id"] for one in table["endpoints"]] == ["a"]
    assert [one["serving"] for one in (await get(f"{served.admin_url}/debug/workers")).json] == [True]
    assert "metrics" in (await get(f"{served.admin_url}/debug/tasks")).body.decode()
    assert (await get(f"{served.admin_url}/debug/memory")).status == 200
    profile = await get(f"{served.admin_url}/debug/profile?seconds=0.2")
    assert "lifecycle.py:run" in profile.body.decode()
    for bad in ("0", "-1", "61", "x", "nan"):
        assert (await get(f"{served.admin_url}/debug/profile?seconds={bad}")).status == 400


async def test_an_absent_metrics_listener_is_told(cage: Cage, tmp_path: Path) -> None:
    async with running(cage, tmp_path, "--endpoint", "a=http://127.0.0.1:9=m") as router:
        assert "metrics: off (admin listener only)" in router.log


async def test_a_head_that_does_not_arrive_ends_its_connection_on_every_listener(
    cage: Cage, tmp_path: Path
) -> None:
    config = tmp_path / "router.yaml"
    config.write_text("request_head_s: 0.5\n")
    flags = (
        "--config",
        str(config),
        "--endpoint",
        "a=http://127.0.0.1:9=m",
        "--metrics-listen",
        "127.0.0.1:0",
    )
    async with running(cage, tmp_path, *flags) as router:
        for port in router.ports.values():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
            # Below the default: a listener that was not told would take 10 s.
            async with asyncio.timeout(9.0):
                rest = await reader.read()
            assert b"200" not in rest
            writer.close()


async def test_the_official_client_lists_and_finds_models(served: RouterProcess) -> None:
    def ask_openai() -> tuple[list[str], str, str | None]:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=BOUND_S)
        listed = [one.id for one in client.models.list()]
        found = client.models.retrieve("org/m").id
        try:
            client.models.retrieve("org/nobody")
        except openai.NotFoundError as e:
            return listed, found, e.code
        return listed, found, None

    assert await asyncio.to_thread(ask_openai) == (["m", "org/m"], "org/m", "model_not_found")


async def test_the_access_log_has_a_line_a_request_and_no_query(cage: Cage, tmp_path: Path) -> None:
    config = tmp_path / "router.yaml"
    config.write_text("access_log: true\n")
    flags = ("--config", str(config), "--endpoint", "a=http://127.0.0.1:9=m")
    async with running(cage, tmp_path, *flags) as router:
        await call("GET", f"{router.url}/v1/models?key=s3cret", headers={"x-request-id": "mine-2"})
        await until(lambda: '"request_id":"mine-2"' in router.log, "line of the access log")
        assert "s3cret" not in router.log


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.parametrize("shared", [False, True], ids=["plain", "SO_REUSEPORT"])
@pytest.mark.parametrize("flag", ["--listen", "--admin-listen", "--metrics-listen"])
async def test_a_taken_port_is_named_and_nothing_is_left_open(
    cage: Cage, tmp_path: Path, flag: str, shared: bool
) -> None:
    with socket.socket() as holder:
        if shared:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        flags = {
            "--listen": "127.0.0.1:0",
            "--admin-listen": "127.0.0.1:0",
            "--metrics-listen": "127.0.0.1:0",
        }
        flags[flag] = taken
        argv = [part for pair in flags.items() for part in pair]
        router = RouterProcess.spawn(cage, tmp_path, *argv, "--endpoint", "a=http://127.0.0.1:9=m")
        assert await router.child.wait(START_S) == 1
    assert taken in router.log
    assert "taken" in router.log
    assert flag in router.log
    assert "Traceback" not in router.log


async def test_a_stream_finishes_during_the_drain_and_readiness_goes_first(
    cage: Cage, tmp_path: Path
) -> None:
    flags = ("--tokens", "12", "--token-interval-s", "0.15")
    async with (
        engine(cage, tmp_path, "m", flags=flags) as url,
        running(cage, tmp_path, "--endpoint", f"a={url}=m", "--metrics-listen", "127.0.0.1:0") as router,
        aiohttp.ClientSession() as session,
    ):
        await router.ready()
        async with session.post(f"{router.url}/v1/chat/completions", json=chat("m", stream=True)) as answer:
            first = await answer.content.readany()
            router.child.send_signal(signal.SIGTERM)
            await until(lambda: "draining" in router.log, "drain")
            assert (await get(f"{router.metrics_url}/readyz")).json["why"] == "stopping"
            assert (await get(f"{router.admin_url}/healthz")).status == 200
            rest = await answer.content.read()
        assert (first + rest).rstrip().endswith(b"data: [DONE]")
        assert await router.child.wait(BOUND_S) == 0
    assert router.log.rstrip().endswith("stopped")
    assert "Traceback" not in router.log


async def test_what_outlives_the_drain_is_ended_in_band_and_the_exit_is_clean(
    cage: Cage, tmp_path: Path
) -> None:
    async with (
        engine(cage, tmp_path, "m", flags=("--tokens", "1000", "--token-interval-s", "0.1")) as url,
        running(cage, tmp_path, "--endpoint", f"a={url}=m", "--drain-s", "0.5") as router,
        aiohttp.ClientSession() as session,
    ):
        await router.ready()
        async with session.post(f"{router.url}/v1/chat/completions", json=chat("m", stream=True)) as answer:
            await answer.content.readany()
            router.child.send_signal(signal.SIGINT)
            async with asyncio.timeout(BOUND_S):
                try:
                    rest = await answer.content.read()
                except aiohttp.ClientError:
                    rest = b""
        assert b"[DONE]" not in rest
        assert await router.child.wait(BOUND_S) == 0


async def test_a_third_signal_exits_at_once_and_takes_the_workers_along(cage: Cage, tmp_path: Path) -> None:
    async with (
        engine(cage, tmp_path, "m", flags=("--tokens", "1000", "--token-interval-s", "0.1")) as url,
        running(cage, tmp_path, "--endpoint", f"a={url}=m") as router,
        aiohttp.ClientSession() as session,
    ):
        await router.ready()
        workers = psutil.Process(router.child.pid).children()
        assert len(workers) == 1
        async with session.post(f"{router.url}/v1/chat/completions", json=chat("m", stream=True)) as answer:
            await answer.content.readany()
            # A frozen worker keeps even a hurried drain waiting; there is always a way out.
            workers[0].suspend()
            router.child.send_signal(signal.SIGTERM)
            await until(lambda: "draining" in router.log, "drain")
            router.child.send_signal(signal.SIGTERM)
            await until(lambda: "stopping sooner" in router.log, "second signal")
            router.child.send_signal(signal.SIGTERM)
            assert await router.child.wait(START_S) == 128 + signal.SIGTERM
            await until(lambda: not any(_alive(worker) for worker in workers), "end of the workers")


def _alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


async def test_bad_settings_end_it_with_lines_and_no_traceback(cage: Cage, tmp_path: Path) -> None:
    router = RouterProcess.spawn(cage, tmp_path, *LOOPBACK, "--endpoint", "a=http://h:1")
    assert await router.child.wait(START_S) == 1
    assert router.log.startswith("error: --endpoint 'a=http://h:1'")
    assert "Traceback" not in router.log
