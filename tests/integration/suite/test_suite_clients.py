"""The official OpenAI client against the whole suite: cold starts, streams, embeddings, wrong names."""

import json
from collections import Counter
from typing import Any

import openai
import pytest

from llmgw_lab.suite import Suite

pytestmark = pytest.mark.timeout(240)
ASKED: list[Any] = [{"role": "user", "content": "hello there"}]


@pytest.fixture
def client(shared_suite: Suite) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{shared_suite.layout.router_url}/v1", api_key="none", max_retries=0, timeout=120
    )


async def status(suite: Suite, view: str) -> Any:
    code, text = await suite.ctl("--output", "json", view)
    assert code in (0, 1), text
    return json.loads(text)


def test_cold_models_are_listed(client: openai.OpenAI) -> None:
    assert {"tiny", "tiny-embed", "quick", "slow"} <= {model.id for model in client.models.list()}


def test_a_cold_real_engine_answers_a_streamed_request(client: openai.OpenAI) -> None:
    text, reasons = "", []
    # Temperature 0: the tiny model's first token may else be the end of its turn.
    asked: dict[str, Any] = {"model": "tiny", "messages": ASKED, "temperature": 0, "max_tokens": 12}
    with client.chat.completions.create(**asked, stream=True) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasons.append(choice.finish_reason)
    assert text.strip()
    assert reasons[-1] in ("stop", "length")


def test_plain_chat_by_alias(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "Tiny/Llama-Random", "messages": ASKED, "temperature": 0}
    answer = client.chat.completions.create(**asked, max_tokens=8)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 8


def test_completions_and_embeddings(client: openai.OpenAI) -> None:
    text = client.completions.create(model="quick", prompt="x", max_tokens=2).choices[0].text
    assert text == "the-0 lamp-1"
    vectors = client.embeddings.create(model="tiny-embed", input=["one", "two"]).data
    assert [vector.index for vector in vectors] == [0, 1]
    assert vectors[0].embedding != vectors[1].embedding


def test_a_wrong_model_is_a_404_with_its_code(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="no-such-model", messages=ASKED)
    assert refused.value.code == "model_not_found"
    assert "no-such-model" in refused.value.message


def phases(rows: Any) -> set[tuple[str, str]]:
    return {(row["id"], row["phase"]) for row in rows}


async def three_views_of_one_state(suite: Suite) -> tuple[Any, Any, Any]:
    """status, replicas and gpus with nothing having changed meanwhile: they are three calls."""
    for _ in range(10):
        before = await status(suite, "status")
        replicas, gpus = await status(suite, "replicas"), await status(suite, "gpus")
        after = await status(suite, "status")
        if (
            phases(before["replicas"]) == phases(after["replicas"])
            and before["capacity"] == after["capacity"]
        ):
            return before, replicas["replicas"], gpus["gpus"]
    raise AssertionError("the fleet did not stand still for the length of four calls")


async def test_the_views_agree(shared_suite: Suite, client: openai.OpenAI) -> None:
    client.chat.completions.create(model="quick", messages=ASKED)
    whole, replicas, gpus = await three_views_of_one_state(shared_suite)
    assert phases(whole["replicas"]) == phases(replicas)
    counted = Counter((gpu["class"], gpu["use"]) for gpu in gpus)
    told = {(row["class"], part): n for row in whole["capacity"] for part, n in row["parts"].items() if n}
    assert told == dict(counted)
    assert sum(row["total"] for row in whole["capacity"]) == len(gpus) == 4
    claimed = Counter(gpu["replica"] for gpu in gpus if gpu["replica"])
    assert claimed == {row["id"]: row["gpus"] for row in replicas if row["shards"]}


# The last of the module: from here on a replica fails and is tried again, and nothing stands still.
def test_a_model_that_cannot_start_is_answered_honestly(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(model="broken", messages=ASKED)
    assert refused.value.status_code == 503
    assert refused.value.code == "model_loading"
    assert "`broken`" in refused.value.message
    assert int(refused.value.response.headers["retry-after"]) >= 1
