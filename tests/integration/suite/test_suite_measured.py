"""The real engine measured, its weights brought and kept, its log read: through the mirror and both nodes."""

import json
from typing import Any

import pytest

from llmgw_lab.suite import Suite
from tests.integration.controller.controller_bench import until

pytestmark = pytest.mark.timeout(300)


async def asked(suite: Suite, *words: str, code: int = 0, timeout_s: float = 90) -> str:
    found, text = await suite.ctl(*words, timeout_s=timeout_s)
    assert found == code, text
    return text


async def listed(suite: Suite) -> list[dict[str, Any]]:
    text = await asked(suite, "--output", "json", "weights", "list", "--model", "tiny")
    return list(json.loads(text)["weights"])


async def test_weights_come_to_both_nodes_before_anything_starts(shared_suite: Suite) -> None:
    text = await asked(shared_suite, "weights", "prefetch", "tiny")
    assert text.count("asked") == 2

    async def complete() -> bool:
        return sum(one["complete"] for one in await listed(shared_suite)) == 2

    await until("both nodes hold it", complete)
    assert {one["wanted"] for one in await listed(shared_suite)} == {True}
    assert not any(one["used_by"] for one in await listed(shared_suite))


async def test_llama_cpp_is_driven_measured_and_answers_for_capacity(shared_suite: Suite) -> None:
    await asked(shared_suite, "bench", "run", "tiny", code=1)  # nothing runs: the way out is told
    text = await asked(shared_suite, "capacity", "tiny", code=2)
    assert "was never measured: llmgwctl bench run tiny" in text
    await asked(shared_suite, "model", "activate", "tiny")

    async def ready() -> bool:
        models = json.loads(await asked(shared_suite, "--output", "json", "models"))["models"]
        return next(one["ready"] for one in models if one["id"] == "tiny") == 1

    await until("the engine is ready", ready, most_s=90)
    drive = ("--concurrency", "1,2", "--requests", "4", "--prompt-tokens", "24", "--output-tokens", "16")
    text = await asked(shared_suite, "--output", "json", "bench", "run", "tiny", *drive, timeout_s=150)
    *points, run = [json.loads(line) for line in text.splitlines()]
    assert [one["concurrency"] for one in points] == [1, 2], points
    for one in points:
        # The engine's own count: it went on after the model's end of turn, so all answers are as long.
        assert round(one["output_tokens_per_s"] * one["seconds"]) == 4 * 16
        assert one["failed"] == 0
        assert 0 < one["ttft_seconds"]["p50"] <= one["ttft_seconds"]["p95"]
        assert one["inter_token_seconds"]["p50"] > 0
    assert (run["engine"], run["stale_because"]) == ("llamacpp", None)
    text = await asked(shared_suite, "--output", "json", "capacity", "tiny", "--ttft-p95", "600s")
    (line,) = json.loads(text)["lines"]
    assert (line["concurrent_per_replica"], line["replicas_running"]) == (2, 1)
    assert line["concurrent_now"] == 2


async def test_what_the_engine_maps_is_kept_and_its_log_can_be_read(shared_suite: Suite) -> None:
    used = next(one for one in await listed(shared_suite) if one["used_by"])
    assert used["used_by"] == ["tiny/1"]
    text = await asked(shared_suite, "weights", "remove", "tiny", used["version"], code=1)
    assert f"is in use on {used['node']} by tiny/1; nothing was removed" in text
    spare = next(one["node"] for one in await listed(shared_suite) if one["node"] != used["node"])
    text = await asked(
        shared_suite, "--output", "json", "weights", "remove", "tiny", used["version"], "--node", spare
    )
    assert json.loads(text)["freed_bytes"] == used["bytes"]
    text = await asked(shared_suite, "replica", "logs", "tiny/1", "--tail", "20")
    assert text.strip()
