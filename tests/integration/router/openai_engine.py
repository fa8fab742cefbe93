"""An engine as OpenAI's clients expect one, for the whole API that is relayed; and the cold application."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from llmgw_router.cold.app import cold_app
from llmgw_router.core.learned import CatalogEntry, Routes
from llmgw_router.core.table import Availability, ModelRow

from .upstream import LAST, SSE_HEAD, Connection, Seen, chunk, json_answer

SPOKEN = b"ID3" + bytes(range(256)) * 20
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
RESPONSE: dict[str, Any] = {
    "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "error": None,
    "incomplete_details": None, "instructions": None, "metadata": {}, "parallel_tool_calls": True,
    "temperature": 1, "top_p": 1, "tool_choice": "auto", "tools": [],
    "output": [
        {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "hello", "annotations": []}]},
    ],
}  # fmt: skip


def _chat(delta: dict[str, Any] | None = None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": None if delta else "stop", "logprobs": None}
    choice |= {"delta": delta} if delta else {"message": {"role": "assistant", "content": "hello"}}
    kind = "chat.completion.chunk" if delta else "chat.completion"
    return {
        "id": "c1",
        "object": kind,
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": None if delta else USAGE,
    }


def _events(*events: dict[str, Any], done: bool = True, named: bool = False) -> bytes:
    lines = b""
    for event in events:
        name = b"event: %b\n" % event["type"].encode() if named else b""
        lines += chunk(name + b"data: " + json.dumps(event).encode() + b"\n\n")
    return SSE_HEAD + lines + (chunk(b"data: [DONE]\n\n") if done else b"") + LAST


def _stream_of_response() -> bytes:
    common = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return _events(
        {
            "type": "response.created",
            "sequence_number": 0,
            "response": {**RESPONSE, "output": [], "status": "in_progress"},
        },
        {
            "type": "response.output_text.delta",
            "sequence_number": 1,
            "delta": "hello",
            "logprobs": [],
            **common,
        },
        {"type": "response.completed", "sequence_number": 2, "response": RESPONSE},
        done=False,
        named=True,
    )


def _answer(seen: Seen) -> bytes:
    _, target, _ = seen.line.decode().split(" ")
    path = target.partition("?")[0]
    if path.startswith("/v1/audio/tr") or path in ("/v1/images/edits", "/v1/images/variations"):
        asked: dict[str, Any] = {}
    else:
        asked = json.loads(seen.body or b"{}")
    if path == "/v1/chat/completions" and asked.get("stream"):
        return _events(_chat({"role": "assistant", "content": "hel"}), _chat({"content": "lo"}))
    if path == "/v1/responses" and asked.get("stream"):
        return _stream_of_response()
    if path == "/v1/audio/speech":
        return json_answer(SPOKEN).replace(b"application/json", b"audio/mpeg")
    text = {"index": 0, "text": "hello", "finish_reason": "stop", "logprobs": None}
    told: dict[str, Any] = {
        "/v1/chat/completions": _chat(),
        "/v1/completions": {
            "id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [text],
        },
        "/v1/embeddings": {
            "object": "list", "model": "m", "usage": USAGE,
            "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}],
        },
        "/v1/responses": RESPONSE,
        "/v1/responses/resp_1": RESPONSE,
        "/v1/responses/resp_1/cancel": {**RESPONSE, "status": "cancelled"},
        "/v1/responses/resp_1/input_items": {"object": "list", "data": [], "has_more": False},
        "/v1/audio/transcriptions": {"text": f"{len(seen.body)} bytes"},
        "/v1/audio/translations": {"text": f"{len(seen.body)} bytes"},
        "/v1/images/generations": {"created": 1, "data": [{"b64_json": "aGk="}]},
        "/v1/images/edits": {"created": 1, "data": [{"b64_json": "aGk="}]},
        "/v1/images/variations": {"created": 1, "data": [{"b64_json": "aGk="}]},
        "/v1/moderations": {"id": "m", "model": "m", "results": []},
    }[path]  # fmt: skip
    return json_answer(json.dumps(told).encode())


async def openai_engine(connection: Connection) -> None:
    """The script."""
    while True:
        await connection.send(_answer(await connection.request()))


def failing(*answers: bytes) -> Callable[[Connection], Any]:
    """These in turn, on whichever connection; the last again and again."""
    left = list(answers)

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.send(left.pop(0) if len(left) > 1 else left[0])
            await asyncio.sleep(0)

    return script


@asynccontextmanager
async def cold_application(path: Path, *models: ModelRow) -> AsyncIterator[None]:
    """The real one, on the socket where the workers look for it."""
    routes = Routes(models={row.name: CatalogEntry(row=row) for row in models})

    async def ready() -> tuple[bool, str]:
        return True, "ready"

    runner = web.AppRunner(cold_app(lambda: routes, ready, first_seen=1))
    await runner.setup()
    try:
        await web.UnixSite(runner, str(path)).start()
        yield
    finally:
        await runner.cleanup()


def cold(name: str) -> ModelRow:
    return ModelRow(name=name, availability=Availability.COLD, activatable=True)
