"""What the scripted engine does and says: its knobs, and its answers as OpenAI objects.

Pure: the same script and request give the same bytes, with no clock and no chance in them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

#: Stands in every `created`; an answer must not depend on when it was asked.
CREATED_UNIX_S = 1_700_000_000
EMBEDDING_SIZE = 8
WORDS = ("the", "lamp", "hums", "while", "tokens", "cross", "the", "wire", "one", "by", "one")


@dataclass(frozen=True)
class Script:
    """The knobs. Each is a command line flag, and a field of POST /ctl while the engine runs."""

    #: Seconds between listening and ready; meanwhile /health and requests answer 503 as llama.cpp does.
    load_s: float = 0.0
    #: Exit with this code when loading would have ended.
    exit_at_load: int | None = None
    #: Exit with `exit_code` so long after becoming ready.
    exit_after_s: float | None = None
    exit_code: int = 1
    #: So long after becoming ready, accept connections and answer nothing any more.
    hang_after_s: float | None = None
    #: Do not react to SIGTERM at all.
    ignore_sigterm: bool = False
    #: Take so long to leave after SIGTERM.
    leave_s: float = 0.0
    #: Tokens of every answer, unless the request's max_tokens is smaller.
    tokens: int = 8
    #: Before the first token, and between any two.
    first_token_s: float = 0.0
    token_interval_s: float = 0.0
    #: Break every stream off after so many tokens ...
    cut_after_tokens: int | None = None
    #: ... by an orderly close or by a reset.
    cut_by: Literal["fin", "rst"] = "rst"
    #: Answer every request with this status instead.
    refuse_status: int | None = None
    #: With a refusal: its Retry-After header.
    retry_after_s: int | None = None
    #: "error": /metrics answers 500. "absent": it has no running gauge.
    gauge: Literal["ok", "error", "absent"] = "ok"
    #: Requests the gauge shows besides the real ones: traffic that came past the router.
    direct_traffic: int = 0
    #: Take requests and get nowhere with them, while health and metrics answer: a deadlock of its ranks.
    stall: bool = False
    #: Bearer credential asked for, if any.
    require_key: str | None = None

    def changed(self, values: dict[str, Any]) -> Script:
        """With some fields replaced. Raises ValueError naming an unknown one."""
        known = {field.name for field in fields(self)}
        for name in values:
            if name not in known:
                raise ValueError(f"no knob {name!r}; there are {', '.join(sorted(known))}")
        return replace(self, **values)


def words(count: int) -> Iterator[str]:
    """The tokens of an answer: numbered, so that a lost or doubled one shows."""
    for i in range(count):
        yield f"{WORDS[i % len(WORDS)]}-{i} "


def wanted_tokens(script: Script, request: dict[str, Any]) -> int:
    """How many tokens this request is answered with."""
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    return script.tokens if limit is None else min(script.tokens, int(limit))


def finish_reason(script: Script, request: dict[str, Any]) -> str:
    """`length` when the request's own limit cut the answer."""
    return "length" if wanted_tokens(script, request) < script.tokens else "stop"


def prompt_tokens(request: dict[str, Any]) -> int:
    """Blank-separated words of the prompt."""
    texts = [str(message.get("content", "")) for message in request.get("messages", [])]
    for given in (request.get("prompt"), request.get("input")):
        texts += [
            str(text) for text in (given if isinstance(given, list) else [given] if given is not None else [])
        ]
    return sum(len(text.split()) for text in texts)


def usage(request: dict[str, Any], completion: int) -> dict[str, int]:
    """The usage object."""
    prompt = prompt_tokens(request)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def whole_answer(script: Script, request: dict[str, Any], number: int, *, chat: bool) -> dict[str, Any]:
    """An answer that is not streamed."""
    count = wanted_tokens(script, request)
    text = "".join(words(count)).rstrip()
    said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    choice = {"index": 0, "finish_reason": finish_reason(script, request), "logprobs": None, **said}
    head = _head("chat.completion" if chat else "text_completion", request, number, chat=chat)
    return head | {"choices": [choice], "usage": usage(request, count)}


def stream_chunks(
    script: Script, request: dict[str, Any], number: int, *, chat: bool
) -> Iterator[dict[str, Any]]:
    """The data of a streamed answer's events, without the closing [DONE]. One chunk a token."""
    head = _head("chat.completion.chunk" if chat else "text_completion", request, number, chat=chat)
    count = wanted_tokens(script, request)
    asked_for_usage = bool((request.get("stream_options") or {}).get("include_usage"))
    nothing_yet = {"usage": None} if asked_for_usage else {}
    for i, word in enumerate(words(count)):
        delta: dict[str, Any] = {"content": word}
        if i == 0:
            delta = {"role": "assistant", **delta}
        said: dict[str, Any] = {"delta": delta} if chat else {"text": word}
        yield head | {"choices": [{"index": 0, "finish_reason": None, **said}]} | nothing_yet
    last: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
    ended = {"index": 0, "finish_reason": finish_reason(script, request), **last}
    yield head | {"choices": [ended]} | nothing_yet
    if asked_for_usage:
        yield head | {"choices": [], "usage": usage(request, count)}


def embeddings(request: dict[str, Any]) -> dict[str, Any]:
    """One vector a text, made of its hash."""
    given = request.get("input", "")
    texts = given if isinstance(given, list) else [given]
    data = [
        {"object": "embedding", "index": i, "embedding": _vector(str(text))} for i, text in enumerate(texts)
    ]
    counted = {"prompt_tokens": prompt_tokens(request), "total_tokens": prompt_tokens(request)}
    return {"object": "list", "model": request.get("model"), "data": data, "usage": counted}


def metrics(script: Script, running: int, served: int, tokens: int) -> str:
    """Prometheus text under llama.cpp's names."""
    gauge = (
        ""
        if script.gauge == "absent"
        else (
            "# HELP llamacpp:requests_processing Number of requests processing.\n"
            "# TYPE llamacpp:requests_processing gauge\n"
            f"llamacpp:requests_processing {running + script.direct_traffic}\n"
            "# HELP llamacpp:requests_deferred Number of requests deferred.\n"
            "# TYPE llamacpp:requests_deferred gauge\n"
            "llamacpp:requests_deferred 0\n"
        )
    )
    work = f"# TYPE llamacpp:n_decode_total counter\nllamacpp:n_decode_total {tokens}\n"
    return gauge + work + f"# TYPE scripted:requests_total counter\nscripted:requests_total {served}\n"


def _head(kind: str, request: dict[str, Any], number: int, *, chat: bool) -> dict[str, Any]:
    prefix = "chatcmpl" if chat else "cmpl"
    return {
        "id": f"{prefix}-{number}",
        "object": kind,
        "created": CREATED_UNIX_S,
        "model": request.get("model"),
    }


def _vector(text: str) -> list[float]:
    digest = hashlib.sha256(text.encode()).digest()
    return [byte / 256 for byte in digest[:EMBEDDING_SIZE]]
