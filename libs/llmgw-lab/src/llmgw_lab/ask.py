"""One streamed chat request, as a client makes it, printing the answer as it comes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from llmgw_kit.errors import LlmgwError, Unavailable

#: With its system message and temperature 0 the real 135M model answers in one true sentence. The tiny one
#: speaks nonsense, and to some questions none at all; not to this.
MESSAGES = {
    "smollm2": (
        {"role": "system", "content": "You are a helpful assistant. Answer in one short sentence."},
        {"role": "user", "content": "What is the capital of France?"},
    ),
    "tiny": ({"role": "user", "content": "hello there"},),
}
MAX_TOKENS = 64
#: All tries together: the first start fetches 93 MB and loads them.
ANSWER_TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Answer:
    """What came, and when, seconds from the question."""

    text: str
    tokens: int
    first_token_s: float
    whole_s: float


def question(model: str) -> dict[str, Any]:
    """The request's body."""
    return {
        "model": model,
        "messages": list(MESSAGES[model]),
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": True,
    }


async def ask(base_url: str, model: str, *, on_text: Callable[[str], Awaitable[None]]) -> Answer:
    """Ask, and ask again when told to come back later. Raises LlmgwError with the server's own words."""
    started = time.monotonic()
    first_token_s: float | None = None
    pieces: list[str] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)) as http:
        while True:
            try:
                async for text in _stream(http, f"{base_url}/v1/chat/completions", question(model)):
                    if first_token_s is None:
                        first_token_s = time.monotonic() - started
                    pieces.append(text)
                    await on_text(text)
                break
            except Unavailable as later:
                wait_s = later.retry_after_s
                if pieces or wait_s is None or time.monotonic() - started + wait_s > ANSWER_TIMEOUT_S:
                    raise
                await asyncio.sleep(wait_s)
    if first_token_s is None:
        raise LlmgwError(f"{model} ended its answer without a single token")
    return Answer("".join(pieces), len(pieces), first_token_s, time.monotonic() - started)


async def _stream(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> AsyncIterator[str]:
    try:
        async with http.post(url, json=body) as answer:
            if answer.status != 200:
                raise refusal(answer.status, answer.headers.get("Retry-After"), await answer.text())
            done = False
            async for line in answer.content:
                data = line.decode().strip().removeprefix("data:").strip()
                if not line.startswith(b"data:"):
                    continue
                if data == "[DONE]":
                    done = True
                    continue
                for text in texts_of(json.loads(data)):
                    yield text
    except (aiohttp.ClientError, TimeoutError) as problem:
        raise LlmgwError(f"{url}: {type(problem).__name__}: {problem}") from problem
    if not done:
        raise LlmgwError(f"{url}: the stream ended without [DONE]: the answer is not whole")


def texts_of(event: dict[str, Any]) -> list[str]:
    """The content in one event. Raises LlmgwError for an error event."""
    if "error" in event:
        raise LlmgwError(f"the stream broke off: {event['error'].get('message', event['error'])}")
    contents = [(choice.get("delta") or {}).get("content") for choice in event.get("choices", [])]
    return [content for content in contents if content]


def refusal(status: int, retry_after: str | None, body: str) -> LlmgwError:
    """A status other than 200 as an error; Unavailable when the server says when to come back."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = body.strip()[:500] or "no explanation"
    text = f"the router answered {status}: {message}"
    if status in (429, 503) and retry_after is not None and retry_after.isdigit():
        return Unavailable(text, retry_after_s=float(retry_after))
    return LlmgwError(text)
