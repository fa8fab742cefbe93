"""What a request has used, in the engine's own words, found without parsing what is relayed (4.5).

An answer is searched for the key `usage`, and only the object behind it is decoded. A quote inside a JSON
string is always escaped, so `"usage":{` is never a piece of somebody's text. None is unknown, which is not 0.
"""

import re
from typing import Final

import msgspec

from llmgw_router.core.json_words import TOKEN
from llmgw_router.core.routes import Dialect

#: Of an answer that is no stream so much of its end is kept: engines say last what it has cost.
TAIL_BYTES = 16 * 1024

_KEY = b'"usage"'
_OBJECT = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*(?=\{)")
#: Longer ones are not usage, whatever they are called.
_OBJECT_BYTES = 8 * 1024
#: What Postgres can hold; what is above is nonsense.
_MOST = 2**62


# Who says what a request has used. Plain words, not an Enum: see core/heads.py.

ENGINE: Final = "engine"
#: The engine said nothing; events of a stream were counted to its end, and the prompt is a guess.
COUNTED: Final = "counted"
#: They were counted until it was cut.
ESTIMATED: Final = "estimated"
UNKNOWN: Final = "unknown"
SOURCES: Final = (ENGINE, COUNTED, ESTIMATED, UNKNOWN)


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """`prompt` includes what was cached of it."""

    prompt: int | None = None
    cached: int | None = None
    output: int | None = None


NOTHING = Tokens()


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Told(msgspec.Struct):
    """The object of any of the dialects; of one that is told in parts a later part replaces what it names."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


_decode = msgspec.json.Decoder(Told).decode


def told_at(data: bytes, brace: int) -> tuple[Told, int] | None:
    """The object that begins at `brace`, and where it ends; None for what cannot be read as usage."""
    end = data.find(b"}", brace, brace + _OBJECT_BYTES) + 1
    while data.count(b"{", brace, end) != data.count(b"}", brace, end):
        end = data.find(b"}", end, brace + _OBJECT_BYTES) + 1
        # It holds numbers; a brace in a string of it would only make it unreadable, and so unknown.
        if not end:
            return None
    try:
        return _decode(data[brace:end]), end
    except (msgspec.DecodeError, RecursionError):
        return None


def told_in_json(tail: bytes) -> Told | None:
    """The last top-level `usage` of a JSON object of which `tail` is the end."""
    key = len(tail)
    while True:
        key, brace = _object_before(tail, key)
        if key < 0:
            return None
        told = told_at(tail, brace)
        if told is not None and _is_top_level(tail, told[1]):
            return told[0]


def _object_before(data: bytes, end: int) -> tuple[int, int]:
    """Of the last key `usage` that ends before `end` and has an object: where it begins, and where that does.
    (-1, -1): there is none."""
    at = data.rfind(_KEY, 0, end)
    while at >= 0:
        colon = at + len(_KEY)
        if data[at - 1 : at] != b"\\":
            if data[colon : colon + 2] == b":{":
                return at, colon + 1
            found = _OBJECT.match(data, colon)
            if found is not None:
                return at, found.end()
        at = data.rfind(_KEY, 0, at)
    return -1, -1


def _is_top_level(data: bytes, after: int) -> bool:
    # Of what is open there exactly one thing must be closed by what follows: the answer itself.
    rest = data[after:]
    if rest == b"}":
        return True
    depth = 0
    for token in TOKEN.finditer(rest):
        first = rest[token.start()]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
    return depth == -1


def told_last(data: bytes) -> Told | None:
    """The last usage object anywhere in whole events."""
    _, brace = _object_before(data, len(data))
    told = told_at(data, brace) if brace >= 0 else None
    return None if told is None else told[0]


def told_each(data: bytes) -> list[Told]:
    """Every usage object in whole events, in their order."""
    found: list[Told] = []
    key, brace = _object_before(data, len(data))
    while key >= 0:
        told = told_at(data, brace)
        if told is not None:
            found.append(told[0])
        key, brace = _object_before(data, key)
    return found[::-1]


def has_usage(data: bytes) -> bool:
    """Whether there is one at all; `"usage":null`, as some engines say with each event, is none."""
    return _object_before(data, len(data))[0] >= 0


def merged(before: Told | None, later: Told) -> Told:
    """Field by field, the later word wins."""
    if before is None:
        return later
    changes = {name: value for name, value in msgspec.structs.asdict(later).items() if value is not None}
    return msgspec.structs.replace(before, **changes)


def tokens_of(told: Told, dialect: Dialect) -> Tokens:
    """In one meaning for all dialects: Anthropic counts what it read from its cache beside the input."""
    if dialect is Dialect.MESSAGES:
        cached = _sane(told.cache_read_input_tokens)
        prompt = _sane(told.input_tokens)
        if prompt is not None:
            prompt += (cached or 0) + (_sane(told.cache_creation_input_tokens) or 0)
        return Tokens(prompt, cached, _sane(told.output_tokens))
    prompt = _sane(told.prompt_tokens if told.prompt_tokens is not None else told.input_tokens)
    output = _sane(told.completion_tokens if told.completion_tokens is not None else told.output_tokens)
    total = _sane(told.total_tokens)
    if total is not None and output is None:
        # Embeddings and rankings have no output to speak of.
        prompt, output = (total, 0) if prompt is None else (prompt, max(0, total - prompt))
    details = told.prompt_tokens_details or told.input_tokens_details
    return Tokens(prompt, None if details is None else _sane(details.cached_tokens), output)


def _sane(value: int | None) -> int | None:
    return value if value is not None and 0 <= value < _MOST else None


#: Bytes of a request body for each token of a prompt, where nobody tells: English text in JSON.
_BYTES_A_TOKEN = 4
#: In longer ones are images and sounds, of which no size says what they cost.
LONGEST_TEXT_BYTES = 256 * 1024


def guessed_prompt(body_bytes: int) -> int | None:
    """A prompt's tokens from the size of a JSON request; marked as a guess wherever it goes, and in no sum.
    None: not even a guess."""
    return body_bytes // _BYTES_A_TOKEN if body_bytes <= LONGEST_TEXT_BYTES else None
