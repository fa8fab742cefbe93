"""The model's name in a JSON body too big to be decoded in one go: found in small steps (W43).

Decoding 20 MB takes 5 ms where most of it is one string and 30 ms where it is many small values, and
nothing else runs meanwhile. Here every step looks at a bounded piece, and the loop serves others between
two. The structure is followed, not judged: of a body that is valid JSON the same keys are found as by
any parser, and one that is not valid is refused by the engine.
"""

from collections.abc import Generator
from dataclasses import dataclass

import msgspec

from llmgw_router.core.body import BodyRefused
from llmgw_router.core.errors import BAD_MODEL, MALFORMED_JSON
from llmgw_router.core.json_words import (
    BLANK,
    COLON,
    DISGUISE,
    DISGUISE_BYTES,
    MODEL_KEY,
    STREAM_KEY,
    STRING,
    spells_model,
)

Bytes = bytes | bytearray

#: From here on a body is scanned. Decoding grows with the number of values, not of bytes: this much takes
#: 0.1 ms where it is text and a millisecond where it is nothing but brackets.
BIG_BYTES = 64 * 1024

#: Searched in one step, for two keys: about half a millisecond ...
_SEARCH_BYTES = 512 * 1024
#: ... and followed in one: a millisecond where it is all quotes and brackets.
_FOLLOW_BYTES = 64 * 1024
#: A model's name is shorter.
_NAME_BYTES = 4096

Steps = Generator[None, None, "Found"]

#: Where a key ends, and whether it is `model` rather than `stream`.
_Key = tuple[int, bool]
#: So many keys of one step are followed by a turn of the loop.
_KEYS_A_STEP = 1024


@dataclass(slots=True)
class _AtTop:
    """Where the keys at depth one end: the first two of `model`, and the last `stream`, which counts."""

    models: list[int]
    stream: int | None = None

    def add(self, key: _Key) -> None:
        end, is_model = key
        if not is_model:
            self.stream = end if self.stream is None else max(end, self.stream)
        elif len(self.models) < 2:
            self.models.append(end)


@dataclass(frozen=True, slots=True)
class Found:
    """The value of the top-level `model`, and where its string stands, quotes included. `stream`: the
    top-level `stream` is true."""

    name: str
    start: int
    end: int
    stream: bool = False


def scan(body: Bytes) -> Steps:
    """Find the model, a step at a time; the generator's value is what was found. Raises BodyRefused."""
    # Anything else is UTF-16 or 32 to parsers that guess, and means something else there.
    opening = BLANK.match(body, 0, _SEARCH_BYTES)
    assert opening is not None
    start = opening.end()
    if body[start : start + 1] != b"{" or b"\0" in body[:4]:
        raise BodyRefused(MALFORMED_JSON, "The request body must be a JSON object.")
    keys, disguised = yield from _keys(body)
    if disguised:
        at_top = yield from _top_level_spelled(body, start)
    else:
        at_top = yield from _top_level(body, start, keys)
    tops = at_top.models
    if not tops:
        raise BodyRefused(BAD_MODEL, "You must provide a model parameter.")
    if len(tops) > 1:
        raise BodyRefused(BAD_MODEL, "The model parameter is given more than once.")
    colon = COLON.match(body, tops[0])
    assert colon is not None
    value = STRING.match(body, colon.end(), colon.end() + _NAME_BYTES)
    if value is None:
        raise BodyRefused(BAD_MODEL, "The model parameter must be a string.")
    try:
        name = msgspec.json.decode(value.group(), type=str)
    except msgspec.DecodeError as error:
        raise BodyRefused(BAD_MODEL, "The model parameter must be a string of characters.") from error
    stream = False
    if at_top.stream is not None:
        colon = COLON.match(body, at_top.stream)
        assert colon is not None
        stream = body[colon.end() : colon.end() + 4] == b"true"
    return Found(name, value.start(), value.end(), stream)


def with_model(body: Bytes, found: Found, name: str) -> tuple[Bytes, Found]:
    """`body` with another name, and where that stands. A bytearray is changed where it lies, so that it is
    not copied."""
    value = msgspec.json.encode(name)
    there = Found(name, found.start, found.start + len(value), found.stream)
    if isinstance(body, bytearray):
        body[found.start : found.end] = value
        return body, there
    return body[: found.start] + value + body[found.end :], there


def _keys(body: Bytes) -> Generator[None, None, tuple[list[_Key], bool]]:
    """Each literal key that counts here, at any depth; and whether a model's may be spelled by escapes."""
    keys: list[_Key] = []
    disguised = False
    for at in range(0, len(body), _SEARCH_BYTES):
        end = min(len(body), at + _SEARCH_BYTES)
        here: list[_Key] = []
        for key in (MODEL_KEY, STREAM_KEY):
            found = body.find(key, at, end + len(key) - 1)
            while found >= 0:
                after = found + len(key)
                if not _escaped(body, found) and COLON.match(body, after):
                    here.append((after, key is MODEL_KEY))
                    if len(here) % _KEYS_A_STEP == 0:
                        yield
                found = body.find(key, after, end + len(key) - 1)
        keys += sorted(here)
        if not disguised and body.find(b"\\u006", at, end + DISGUISE_BYTES - 1) >= 0:
            disguised = DISGUISE.search(body, at, end + DISGUISE_BYTES - 1) is not None
        yield
    return keys, disguised


def _escaped(body: Bytes, at: int) -> bool:
    run = at
    while run and body[run - 1] == 0x5C:
        run -= 1
    return (at - run) % 2 == 1


def _top_level(body: Bytes, start: int, keys: list[_Key]) -> Generator[None, None, _AtTop]:
    """Those of `keys` that stand at depth one.

    What is opened before a key is closed after it, so the depth can be counted from either end: the
    longest stretch without a key is not looked at, which is where an image lies."""
    ends = [start, *(end for end, _ in keys[:_KEYS_A_STEP]), len(body)]
    skipped = len(keys)
    if skipped <= _KEYS_A_STEP:
        skipped = max(range(skipped + 1), key=lambda n: ends[n + 1] - ends[n])
    tops = _AtTop([])
    depth, at = 0, start
    for n in range(skipped):
        depth += yield from _net(body, at, keys[n][0])
        at = keys[n][0]
        if depth == 1:
            tops.add(keys[n])
    depth, at = 0, len(body)
    for n in range(len(keys) - 1, skipped - 1, -1):
        depth -= yield from _net(body, keys[n][0], at)
        at = keys[n][0]
        if depth == 1:
            tops.add(keys[n])
    return tops


def _net(body: Bytes, at: int, end: int) -> Generator[None, None, int]:
    """Brackets opened less brackets closed between two places outside of strings."""
    net = 0
    inside = False
    while at < end:
        stop = min(end, at + _FOLLOW_BYTES)
        piece = body[at:stop]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and stop < end:
            piece += body[stop : stop + 1]
            stop += 1
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        between = piece.split(b'"')
        # Every other one is within a string.
        plain = b"".join(between[1 if inside else 0 :: 2])
        net += plain.count(b"{") + plain.count(b"[") - plain.count(b"}") - plain.count(b"]")
        if len(between) % 2 == 0:
            inside = not inside
        at = stop
        yield
    return net


def _top_level_spelled(body: Bytes, start: int) -> Generator[None, None, _AtTop]:
    """The same with the escapes in `model` undone. String by string: rare."""
    tops = _AtTop([])
    depth, at, strings = 0, start, 0
    while True:
        quote = body.find(b'"', at)
        plain = body[at : len(body) if quote < 0 else quote]
        depth += plain.count(b"{") + plain.count(b"[") - plain.count(b"}") - plain.count(b"]")
        if quote < 0:
            return tops
        end = body.find(b'"', quote + 1)
        while end >= 0 and _escaped(body, end):
            end = body.find(b'"', end + 1)
            strings += 1
            if strings % 1024 == 0:
                yield
        if end < 0:
            return tops
        at = end + 1
        literal = bytes(body[quote:at]) if at - quote <= 32 else b""
        if depth == 1 and literal and COLON.match(body, at):
            if literal == STREAM_KEY:
                tops.add((at, False))
            elif literal == MODEL_KEY or spells_model(literal):
                tops.add((at, True))
        strings += 1
        if strings % 1024 == 0:
            yield
