"""One streamed request to an engine of this node, timed."""

import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from llmgw_agent.core.load import Answer
from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import Clock
from llmgw_kit.errors import InvalidRequest, Unavailable

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
#: This path is not served there, or takes no such request: the other may.
_OTHER_KIND = frozenset({400, 404, 405, 422, 501})
#: Engines that can be told to go on after the model's own end: else a random answer length is measured.
_IGNORE_EOS = frozenset({"llamacpp", "vllm", "sglang"})


class EngineLoad:
    """Asks as a client does. Time-outs are the caller's, who cancels."""

    def __init__(self, session: aiohttp.ClientSession, clock: Clock) -> None:
        self._session, self._clock = session, clock

    async def path(self, at: HostPort, model: str, engine: str, credential: str | None) -> str:
        """Which of chat and text completions it answers, by one small request of each. Raises
        InvalidRequest for an engine that generates nothing, Unavailable."""
        said = ""
        for path in (CHAT, TEXT):
            try:
                await self.ask(at, path, model, engine, credential, "hello", 2)
            except InvalidRequest as e:
                said = e.text
            else:
                return path
        raise InvalidRequest(f"it answers neither chat nor text completions: {said}", code="not_generative")

    async def ask(
        self,
        at: HostPort,
        path: str,
        model: str,
        engine: str,
        credential: str | None,
        prompt: str,
        tokens: int,
    ) -> Answer:
        """One request to its end. Raises Unavailable for a broken one, InvalidRequest for a refused kind."""
        body: dict[str, Any] = {
            "model": model, "max_tokens": tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        if path == CHAT:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if engine in _IGNORE_EOS:
            body["ignore_eos"] = True
        # A connection for each: llama.cpp's server closes one after a stream without saying so, and the next
        # request on it would fail by no fault of the engine.
        headers = {"Connection": "close"}
        if credential is not None:
            headers["Authorization"] = f"Bearer {credential}"
        timing = _Timing(self._clock)
        try:
            async with self._session.post(
                f"http://{at}{path}", json=body, headers=headers, timeout=aiohttp.ClientTimeout(total=None)
            ) as answer:
                if answer.status != 200:
                    text = (await answer.content.read(300)).decode(errors="replace")
                    kind = InvalidRequest if answer.status in _OTHER_KIND else Unavailable
                    raise kind(f"{path} answers {answer.status}: {text}")
                async for line in answer.content:
                    timing.line(line)
        except (aiohttp.ClientError, OSError, ValueError) as e:
            raise Unavailable(f"{path}: {str(e) or type(e).__name__}") from None
        return timing.answer(path)


class _Timing:
    """When tokens came, from the events of one answer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic_s()
        self._first: float | None = None
        self._last = self._began
        self._chunks = 0
        self._counted: int | None = None
        self._prompt: int | None = None
        self._done = False

    def line(self, line: bytes) -> None:
        """One line of the event stream. Raises ValueError for data that is not JSON."""
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self._done = True
            return
        event = json.loads(data)
        if not isinstance(event, Mapping):
            raise ValueError("an event that is no object")
        if event.get("error"):
            raise ValueError(f"the engine said: {str(event['error'])[:200]}")
        usage = event.get("usage")
        if isinstance(usage, Mapping):
            self._counted = _count(usage.get("completion_tokens"), self._counted)
            self._prompt = _count(usage.get("prompt_tokens"), self._prompt)
        if any(_has_text(choice) for choice in event.get("choices") or ()):
            now = self._clock.monotonic_s()
            self._first = now if self._first is None else self._first
            self._last = now
            self._chunks += 1

    def answer(self, path: str) -> Answer:
        """Raises Unavailable for a stream that broke off."""
        if not self._done:
            raise Unavailable(f"{path}: the stream ended before its [DONE]")
        # Engines may put several tokens in a chunk, so their own count goes first. No text at all: the
        # whole answer came at its end.
        first = self._clock.monotonic_s() if self._first is None else self._first
        tokens = self._chunks if self._counted is None else self._counted
        return Answer(first - self._began, max(0.0, self._last - first), tokens, self._prompt)


def _count(told: Any, known: int | None) -> int | None:
    return told if isinstance(told, int) and told >= 0 else known


def _has_text(choice: Any) -> bool:
    if not isinstance(choice, Mapping):
        return False
    delta = choice.get("delta")
    if isinstance(delta, Mapping):
        return bool(delta.get("content") or delta.get("reasoning_content"))
    return bool(choice.get("text"))
