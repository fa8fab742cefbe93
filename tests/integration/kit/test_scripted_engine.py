"""The scripted engine: each knob does what it says, seen from outside the process."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from llmgw_kit.testing.ports import free_ports, is_listening
from llmgw_kit.testing.processes import Cage, Child

CHAT = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}
Start = Callable[..., "tuple[Child, str]"]


@pytest.fixture
def start(cage: Cage, tmp_path: Path) -> Start:
    def started(*flags: str) -> tuple[Child, str]:
        port = free_ports(1)[0]
        argv = [
            sys.executable,
            "-m",
            "llmgw_kit.testing.engine",
            "--port",
            str(port),
            "--served-name",
            "m",
            *flags,
        ]
        return cage.spawn("engine", argv, log=tmp_path / f"engine-{port}.log"), f"http://127.0.0.1:{port}"

    return started


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15)) as session:
        yield session


async def health(http: aiohttp.ClientSession, url: str) -> int | None:
    try:
        async with http.get(f"{url}/health") as answer:
            return answer.status
    except aiohttp.ClientError:
        return None


async def until(condition: Callable[[], Any], within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while not await condition():
        assert time.monotonic() < deadline, "did not come about in time"
        await asyncio.sleep(0.02)


async def ready(http: aiohttp.ClientSession, url: str) -> None:
    async def is_ready() -> bool:
        return await health(http, url) == 200

    await until(is_ready)


def events(body: str) -> list[str]:
    return [line.removeprefix("data: ") for line in body.split("\n\n") if line]


async def test_plain_and_streamed_answers_agree_and_repeat(start: Start, http: aiohttp.ClientSession) -> None:
    _, url = start("--tokens", "3")
    await ready(http, url)
    plain = await (await http.post(f"{url}/v1/chat/completions", json=CHAT)).json()
    assert plain["choices"][0]["message"]["content"] == "the-0 lamp-1 hums-2"
    assert plain["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    asked = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, done = events(await (await http.post(f"{url}/v1/chat/completions", json=asked)).text())
    assert done == "[DONE]"
    parsed = [json.loads(chunk) for chunk in chunks]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in parsed if c["choices"])
    assert text.strip() == plain["choices"][0]["message"]["content"]
    assert parsed[-1]["usage"] == plain["usage"]
    assert parsed[-2]["choices"][0]["finish_reason"] == "stop"
    short = await (
        await http.post(f"{url}/v1/completions", json={"model": "m", "prompt": "x", "max_tokens": 1})
    ).json()
    assert (short["choices"][0]["text"], short["choices"][0]["finish_reason"]) == ("the-0", "length")
    vectors = [
        await (await http.post(f"{url}/v1/embeddings", json={"model": "m", "input": ["a", "b"]})).json()
        for _ in "12"
    ]
    assert vectors[0] == vectors[1]
    assert len(vectors[0]["data"]) == 2
    listed = await (await http.get(f"{url}/v1/models")).json()
    assert [m["id"] for m in listed["data"]] == ["m"]
    assert (await http.post(f"{url}/v1/chat/completions", json=CHAT | {"model": "other"})).status == 404


async def test_loading_answers_503_and_then_turns_ready(start: Start, http: aiohttp.ClientSession) -> None:
    _, url = start("--load-s", "600")

    async def loading() -> bool:
        return await health(http, url) == 503

    await until(loading)
    assert (await http.post(f"{url}/v1/chat/completions", json=CHAT)).status == 503


async def test_exit_codes(start: Start) -> None:
    at_load, _ = start("--exit-at-load", "7")
    assert await at_load.wait(15) == 7
    later, _ = start("--exit-after-s", "0.05", "--exit-code", "9")
    assert await later.wait(15) == 9
    taken, _ = start("--bind-failure")
    assert await taken.wait(15) == 1
    assert "Address already in use" in taken.tail()


async def test_a_port_that_is_really_taken(
    start: Start, http: aiohttp.ClientSession, cage: Cage, tmp_path: Path
) -> None:
    _, url = start()
    await ready(http, url)
    port = url.rpartition(":")[2]
    argv = [sys.executable, "-m", "llmgw_kit.testing.engine", "--port", port, "--served-name", "m"]
    second = cage.spawn("second", argv, log=tmp_path / "second.log")
    assert await second.wait(15) == 1
    assert "address already in use" in second.tail().lower()


async def test_sigterm_ends_it_or_is_ignored(start: Start, http: aiohttp.ClientSession) -> None:
    polite, url = start()
    await ready(http, url)
    polite.send_signal(signal.SIGTERM)
    assert await polite.wait(15) == 0
    deaf, url = start("--ignore-sigterm")
    await ready(http, url)
    deaf.send_signal(signal.SIGTERM)

    async def heard() -> bool:
        return "ignored" in deaf.tail()

    await until(heard)
    assert await health(http, url) == 200
    deaf.kill()
    assert await deaf.wait(15) == -signal.SIGKILL


async def test_ready_then_hang_and_control_still_answers(start: Start, http: aiohttp.ClientSession) -> None:
    _, url = start()
    await ready(http, url)
    assert (await http.post(f"{url}/ctl", json={"hang_after_s": 0})).status == 200

    async def hanging() -> bool:
        try:
            await http.get(f"{url}/health", timeout=aiohttp.ClientTimeout(total=0.2))
        except TimeoutError:
            return True
        return False

    await until(hanging)
    assert (await http.post(f"{url}/ctl", json={"hang_after_s": None})).status == 200
    assert await health(http, url) == 200
    unknown = await http.post(f"{url}/ctl", json={"tokenz": 1})
    assert unknown.status == 400
    assert "no knob 'tokenz'" in await unknown.text()


@pytest.mark.parametrize(
    ("by", "error"), [("rst", ConnectionResetError), ("fin", asyncio.IncompleteReadError)]
)
async def test_a_stream_cut_in_the_middle(
    start: Start, http: aiohttp.ClientSession, by: str, error: type[Exception]
) -> None:
    _, url = start("--cut-after-tokens", "2", "--cut-by", by, "--token-interval-s", "0.05")
    await ready(http, url)
    body = json.dumps(CHAT | {"stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    got = b""
    with pytest.raises(error):
        while True:
            got += await asyncio.wait_for(reader.readuntil(b"\n\n"), 10)
    assert b"lamp-1" in got
    assert b"hums-2" not in got
    assert b"[DONE]" not in got
    writer.close()


async def test_gauge_direct_traffic_and_refusals(start: Start, http: aiohttp.ClientSession) -> None:
    _, url = start("--direct-traffic", "2")
    await ready(http, url)
    assert "\nllamacpp:requests_processing 2\n" in await (await http.get(f"{url}/metrics")).text()
    await http.post(f"{url}/ctl", json={"gauge": "absent"})
    assert "requests_processing" not in await (await http.get(f"{url}/metrics")).text()
    await http.post(f"{url}/ctl", json={"gauge": "error", "refuse_status": 503, "retry_after_s": 4})
    assert (await http.get(f"{url}/metrics")).status == 500
    refused = await http.post(f"{url}/v1/chat/completions", json=CHAT)
    assert (refused.status, refused.headers["Retry-After"]) == (503, "4")
    assert (await http.get(f"{url}/v1/models")).status == 200
    await http.post(f"{url}/ctl", json={"refuse_status": None, "require_key": "k"})
    assert (await http.post(f"{url}/v1/chat/completions", json=CHAT)).status == 401
    allowed = await http.post(f"{url}/v1/chat/completions", json=CHAT, headers={"Authorization": "Bearer k"})
    assert allowed.status == 200


async def test_a_client_that_leaves_a_stream_is_counted(start: Start, http: aiohttp.ClientSession) -> None:
    _, url = start("--tokens", "1000", "--token-interval-s", "0.01")
    await ready(http, url)
    answer = await http.post(f"{url}/v1/chat/completions", json=CHAT | {"stream": True})
    await answer.content.readuntil(b"\n\n")
    answer.close()

    async def aborted() -> bool:
        told = await (await http.get(f"{url}/ctl")).json()
        return bool(told["aborted"] == 1 and told["running"] == 0)

    await until(aborted)


async def test_wrong_port(start: Start) -> None:
    lost, url = start("--wrong-port")

    async def up() -> bool:
        return "model loaded" in lost.tail()

    await until(up)
    assert not is_listening(int(url.rpartition(":")[2]))
