"""The model's name in a JSON body too big to be decoded in one go: found in small steps (W43).

Decoding 20 MB takes 5 ms where most of it is one string and 30 ms where it is many small values, and
nothing else runs meanwhile. Here every step looks at a bounded piece, and the loop serves others between
two. The structure is followed, not judged: of a body that is valid JSON the same keys are found as by
any parser, and one that is not valid is refused by the engine.
"""

import re
from collections.abc import Generator
from dataclasses import dataclass

import msgspec

from llmgw_router.core.body import BodyRefused
from llmgw_router.core.errors import BAD_MODEL, MALFORMED_JSON

Bytes = bytes | bytearray

#: From here on a body is scanned; decoding this much takes 2 ms at worst.
BIG_BYTES = 1024 * 1024

#: Searched in one step: about half a millisecond ...
_SEARCH_BYTES = 1024 * 1024
#: ... and followed in one: a millisecond where it is all quotes and brackets.
_FOLLOW_BYTES = 64 * 1024
#: A model's name is shorter.
_NAME_BYTES = 4096

_KEY = b'"model"'
#: An escape that could spell a letter of `model`.
_DISGUISE = re.compile(rb"\\u006[4-9a-fA-F]")
_DISGUISE_BYTES = 6
_BLANK = re.compile(rb"[ \t\r\n]*")
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)

Steps = Generator[None, None, "Found"]


@dataclass(frozen=True, slots=True)
class Found:
    """The value of the top-level `model`, and where its string stands, quotes included."""

    name: str
    start: int
    end: int


def scan(body: Bytes) -> Steps:
    """Find the model, a step at a time; the generator's value is what was found. Raises BodyRefused."""
    # Anything else is UTF-16 or 32 to parsers that guess, and means something else there.
    opening = _BLANK.match(body, 0, _SEARCH_BYTES)
    assert opening is not None
    start = opening.end()
    if body[start : start + 1] != b"{" or b"\0" in body[:4]:
        raise BodyRefused(MALFORMED_JSON, "The request body must be a JSON object.")
    keys, disguised = yield from _keys(body)
    if disguised:
        tops = yield from _top_level_spelled(body, start)
    else:
        tops = yield from _top_level(body, start, keys)
    if not tops:
        raise BodyRefused(BAD_MODEL, "You must provide a model parameter.")
    if len(tops) > 1:
        raise BodyRefused(BAD_MODEL, "The model parameter is given more than once.")
    colon = _COLON.match(body, tops[0])
    assert colon is not None
    value = _STRING.match(body, colon.end(), colon.end() + _NAME_BYTES)
    if value is None:
        raise BodyRefused(BAD_MODEL, "The model parameter must be a string.")
    try:
        name = msgspec.json.decode(value.group(), type=str)
    except msgspec.DecodeError as error:
        raise BodyRefused(BAD_MODEL, "The model parameter must be a string of characters.") from error
    return Found(name, value.start(), value.end())


def with_model(body: Bytes, found: Found, name: str) -> Bytes:
    """`body` with another name. A bytearray is changed where it lies, so that it is not copied."""
    value = msgspec.json.encode(name)
    if isinstance(body, bytearray):
        body[found.start : found.end] = value
        return body
    return body[: found.start] + value + body[found.end :]


def _keys(body: Bytes) -> Generator[None, None, tuple[list[int], bool]]:
    """Where each literal key `"model"` ends, at any depth; and whether one may be spelled by escapes."""
    keys: list[int] = []
    disguised = False
    for at in range(0, len(body), _SEARCH_BYTES):
        end = min(len(body), at + _SEARCH_BYTES)
        found = body.find(_KEY, at, end + len(_KEY) - 1)
        while found >= 0:
            after = found + len(_KEY)
            if not _escaped(body, found) and _COLON.match(body, after):
                keys.append(after)
            found = body.find(_KEY, after, end + len(_KEY) - 1)
        if not disguised and body.find(b"\\u006", at, end + _DISGUISE_BYTES - 1) >= 0:
            disguised = _DISGUISE.search(body, at, end + _DISGUISE_BYTES - 1) is not None
        yield
    return keys, disguised


def _escaped(body: Bytes, at: int) -> bool:
    run = at
    while run and body[run - 1] == 0x5C:
        run -= 1
    return (at - run) % 2 == 1


def _top_level(body: Bytes, start: int, keys: list[int]) -> Generator[None, None, list[int]]:
    """Those of `keys` that stand at depth one."""
    if len(keys) == 1 and len(body) - keys[0] < keys[0]:
        # What is opened before a key is closed after it: the shorter side tells.
        depth = yield from _net(body, keys[0], len(body))
        return keys if depth == -1 else []
    tops: list[int] = []
    depth, at = 0, start
    for key in keys:
        depth += yield from _net(body, at, key)
        at = key
        if depth == 1:
            tops.append(key)
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


def _top_level_spelled(body: Bytes, start: int) -> Generator[None, None, list[int]]:
    """Where each key at depth one ends that means `model`, escapes undone. String by string: rare."""
    tops: list[int] = []
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
        if depth == 1 and _COLON.match(body, at) and (literal == _KEY or _spells_model(literal)):
            tops.append(at)
        strings += 1
        if strings % 1024 == 0:
            yield


def _spells_model(literal: bytes) -> bool:
    if b"\\" not in literal:
        return False
    try:
        return bool(msgspec.json.decode(literal) == "model")
    except msgspec.DecodeError:
        return False
