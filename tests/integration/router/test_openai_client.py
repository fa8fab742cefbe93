"""The official client through the router, end to end: the whole surface, and what it makes of our errors."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import openai
import pytest

from llmgw_router.core.config import RoutingProfile
from llmgw_router.relay.ipc import ModelRow

from .ends import dead_port
from .harness import Router, endpoint, router
from .openai_engine import SPOKEN, cold, cold_application, failing, openai_engine
from .upstream import SSE_HEAD, Connection, Upstream, chunk, json_answer

ASKED: list[Any] = [{"role": "user", "content": "hi"}]
ALIAS = "gpt-4o"


def client(r: Router, *, retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{r.port}/v1", api_key="sk-x", max_retries=retries, timeout=30
    )


@pytest.fixture
async def talking(tmp_path: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client whose requests an engine answers that speaks the whole API."""
    async with (
        Upstream(openai_engine) as up,
        cold_application(tmp_path / "cold.sock", ModelRow(name="m", aliases=(ALIAS,)), cold("org/big")),
        router(tmp_path) as r,
    ):
        await r.push([endpoint(0, up.port)], [ModelRow(name="m", aliases=(ALIAS,)), cold("org/big")])
        async with client(r) as made:
            yield made


async def test_chat_completions_and_embeddings(talking: openai.AsyncOpenAI) -> None:
    whole = await talking.chat.completions.create(model=ALIAS, messages=ASKED)
    assert whole.choices[0].message.content == "hello"
    # The engine's word stands in `model`, whatever name was asked for.
    assert whole.model == "m"
    text = ""
    async for part in await talking.chat.completions.create(model="m", messages=ASKED, stream=True):
        text += part.choices[0].delta.content or ""
    assert text == "hello"
    assert (await talking.completions.create(model="m", prompt="x")).choices[0].text == "hello"
    assert (await talking.embeddings.create(model="m", input="x", encoding_format="float")).data[
        0
    ].embedding == [0.5, 0.25]


async def test_responses_whole_streamed_and_by_id(talking: openai.AsyncOpenAI) -> None:
    made = await talking.responses.create(model="m", input="hi")
    assert made.output_text == "hello"
    seen = [event.type async for event in await talking.responses.create(model="m", input="hi", stream=True)]
    assert seen == ["response.created", "response.output_text.delta", "response.completed"]
    assert (await talking.responses.retrieve(made.id)).id == made.id
    assert (await talking.responses.cancel(made.id)).status == "cancelled"
    assert (await talking.responses.input_items.list(made.id)).data == []
    await talking.responses.delete(made.id)


async def test_audio_and_images(talking: openai.AsyncOpenAI) -> None:
    """W47, HO21: the client's own multipart."""
    heard = await talking.audio.transcriptions.create(
        model=ALIAS, file=("a.wav", b"RIFF" * 5000), language="en"
    )
    assert int(heard.text.split()[0]) > 20_000
    spoken = await talking.audio.speech.create(model="m", input="hi", voice="alloy")
    assert spoken.content == SPOKEN
    made = await talking.images.generate(model="m", prompt="x")
    assert made.data is not None
    assert base64.b64decode(made.data[0].b64_json or "") == b"hi"
    assert (await talking.images.edit(model="m", image=("a.png", b"\x89PNG"), prompt="x")).data
    assert (await talking.moderations.create(model="m", input="x")).results == []


async def test_models_with_slashes_and_cold_ones(talking: openai.AsyncOpenAI) -> None:
    """W59."""
    assert [one.id async for one in await talking.models.list()] == [ALIAS, "m", "org/big"]
    assert (await talking.models.retrieve("org/big")).id == "org/big"
    with pytest.raises(openai.NotFoundError) as refused:
        await talking.models.retrieve("org/none")
    assert refused.value.code == "model_not_found"


async def test_unknown_paths_are_not_found(talking: openai.AsyncOpenAI) -> None:
    """W06, HO30."""
    with pytest.raises(openai.NotFoundError) as refused:
        await talking.files.list()
    assert refused.value.code == "unknown_url"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (b"400 Bad Request", openai.BadRequestError),
        (b"404 Not Found", openai.NotFoundError),
        (b"409 Conflict", openai.ConflictError),
        (b"422 Unprocessable", openai.UnprocessableEntityError),
        (b"429 Too Many", openai.RateLimitError),
        (b"500 Oops", openai.InternalServerError),
        (b"503 Busy", openai.InternalServerError),
        # An engine that refuses us says nothing about the caller's key (W15).
        (b"401 Unauthorized", openai.InternalServerError),
        (b"403 Forbidden", openai.InternalServerError),
    ],
)
async def test_an_engines_error_is_the_right_exception(
    tmp_path: Path, status: bytes, kind: type[openai.APIStatusError]
) -> None:
    """W15, HO06, HO11: for a stream that was asked for as well."""
    error = json_answer(b'{"error":{"message":"no","type":"t","param":null,"code":null}}', status=status)
    async with Upstream(failing(error)) as up, router(tmp_path, up.port) as r, client(r) as one:
        for stream in (False, True):
            with pytest.raises(kind) as raised:
                await one.chat.completions.create(model="m", messages=ASKED, stream=stream)
            assert type(raised.value) is kind
            assert raised.value.request_id


async def test_our_own_refusals_are_the_right_exceptions(tmp_path: Path) -> None:
    """W02, W05, W11, W13: and each names its code and its request."""
    never = ModelRow(name="never")
    async with router(tmp_path) as r, client(r) as one:
        await r.push([endpoint(0, dead_port())], [never])
        for model, kind, code in (
            ("unknown", openai.NotFoundError, "model_not_found"),
            ("never", openai.InternalServerError, "no_replica_available"),
            ("m", openai.InternalServerError, "upstream_unreachable"),
            # What a client without types may send.
            (cast(str, 7), openai.BadRequestError, None),
        ):
            with pytest.raises(kind) as raised:
                await one.chat.completions.create(model=model, messages=ASKED)
            assert isinstance(raised.value, openai.APIStatusError)
            assert raised.value.code == code
            assert raised.value.request_id


async def test_a_busy_engine_is_asked_again_when_it_says(tmp_path: Path) -> None:
    """The client's own retries, by the header that reached it: 503 and 429, then an answer."""
    busy = json_answer(b'{"error":{"message":"busy"}}', status=b"503 Busy", more=b"retry-after-ms: 20\r\n")
    full = busy.replace(b"503", b"429")
    good = json_answer(json.dumps({"object": "list", "data": [], "model": "m"}).encode())
    async with (
        Upstream(failing(busy, full, good)) as up,
        router(tmp_path, up.port) as r,
        client(r, retries=2) as one,
    ):
        assert (await one.embeddings.create(model="m", input="x", encoding_format="float")).data == []
    assert len(up.seen) == 3


async def test_a_callers_mistake_is_not_repeated(tmp_path: Path) -> None:
    bad = json_answer(b'{"error":{"message":"no"}}', status=b"400 Bad Request")
    async with Upstream(failing(bad)) as up, router(tmp_path, up.port) as r, client(r, retries=3) as one:
        with pytest.raises(openai.BadRequestError):
            await one.chat.completions.create(model="m", messages=ASKED)
    assert len(up.seen) == 1


@pytest.mark.parametrize("path", ["chat", "responses"])
async def test_a_stream_that_breaks_is_no_whole_one(tmp_path: Path, path: str) -> None:
    """W24, HO01: in the dialect of its API, so that no client takes half an answer for a whole one."""

    async def dying(connection: Connection) -> None:
        await connection.request()
        event = {
            "type": "response.output_text.delta",
            "sequence_number": 4,
            "delta": "x",
            "id": "c",
            "choices": [],
        }
        await connection.send(SSE_HEAD + chunk(b"data: " + json.dumps(event).encode() + b"\n\n"))
        connection.reset()

    async with Upstream(dying) as up, router(tmp_path, up.port) as r, client(r) as one:
        stream: Any
        if path == "chat":
            stream = await one.chat.completions.create(model="m", messages=ASKED, stream=True)
        else:
            stream = await one.responses.create(model="m", input="hi", stream=True)
        if path == "responses":
            # This API tells an error as an event of its own, and the client hands it on.
            seen = [event async for event in stream]
            assert (seen[-1].type, seen[-1].code, seen[-1].sequence_number) == (
                "error",
                "stream_interrupted",
                5,
            )
            return
        with pytest.raises(openai.APIError) as raised:
            async for _ in stream:
                pass
        assert raised.value.code == "stream_interrupted"


async def test_an_error_as_first_event_is_an_exception_of_its_status(tmp_path: Path) -> None:
    """HO02."""
    event = SSE_HEAD + chunk(b'data: {"error":{"message":"too long","code":400}}\n\n') + b"0\r\n\r\n"
    async with Upstream(failing(event)) as up, router(tmp_path, up.port) as r, client(r) as one:
        with pytest.raises(openai.BadRequestError, match="too long"):
            await one.chat.completions.create(model="m", messages=ASKED, stream=True)


async def test_a_deadline_is_a_server_error_with_its_phase(tmp_path: Path) -> None:
    """W14, HO09, HO13."""

    async def silent(connection: Connection) -> None:
        await connection.request()
        await connection.closed_by_peer()

    profile = RoutingProfile(first_byte_s=0.1)
    async with Upstream(silent) as up, router(tmp_path, up.port, profile=profile) as r, client(r) as one:
        with pytest.raises(openai.InternalServerError) as raised:
            await one.chat.completions.create(model="m", messages=ASKED)
        assert (raised.value.status_code, raised.value.code) == (504, "upstream_timeout_first_byte")
