"""The text that an engine will compute from a request: what two requests have in common in its cache. Pure.

Not the bytes of the body: the order of keys, escapes, temperature and the like differ between requests
whose prompts begin alike. The text is an approximation of what chat templates make of it, in the same
order: tools, system, messages. It decides nothing but a preference.
"""

import re

import msgspec

from llmgw_router.core.choosing.affinity import MOST_BYTES

#: Paths whose engines keep what they have computed of a prompt.
PATHS = frozenset((b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/messages"))

#: Longer bodies are not decoded: nobody else is served meanwhile, and 2 MiB of `{}` took 0.3 s.
DECODED_BYTES = 64 * 1024
#: Nor are those with more objects and arrays than this, where a value costs more than its bytes.
_DECODED_VALUES = 2048
#: Looked at in the first part of such a body; a prompt's own bytes, escapes included.
_LOOKED_BYTES = MOST_BYTES
#: Strings of them that are taken.
_LOOKED_STRINGS = 512
#: A quote inside a string is escaped, so none of these keys is a piece of somebody's text.
_SAID = re.compile(rb'"(?:role|content|text|system|instructions|input|prompt|arguments|output)"\s*:\s*"')
_INSIDE = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_BACKSLASH = 0x5C
_NAMED = re.compile(rb'"(prompt_cache_key|user)"\s*:\s*("[^"\\]{0,512}")')
#: At either end of a long body.
_NAMED_BYTES = 16 * 1024
#: A cut string ends within two escapes of six bytes at most, or within a character.
_CUT_BYTES = 12


class _Part(msgspec.Struct):
    text: str | None = None
    image_url: msgspec.Raw = msgspec.Raw()
    source: msgspec.Raw = msgspec.Raw()


class _Message(msgspec.Struct):
    role: str | None = None
    content: str | list[_Part] | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()
    #: Items of the responses API that are no messages.
    arguments: str | None = None
    output: str | list[_Part] | None = None


class Said(msgspec.Struct):
    """A body decoded as far as it matters here."""

    model: str | None = None
    messages: list[_Message] | None = None
    system: str | list[_Part] | None = None
    instructions: str | None = None
    input: str | list[_Message] | None = None
    prompt: str | list[str | int | list[int]] | None = None
    tools: msgspec.Raw = msgspec.Raw()
    prompt_cache_key: str | None = None
    user: str | None = None


class _Names(msgspec.Struct):
    prompt_cache_key: str | None = None
    user: str | None = None


_said = msgspec.json.Decoder(Said).decode
_names = msgspec.json.Decoder(_Names).decode
_numbers = msgspec.json.Encoder().encode


class Prompt(msgspec.Struct):
    """`text` is canonical and at most about MOST_BYTES long."""

    text: bytes
    prompt_cache_key: str | None = None
    user: str | None = None


def read(body: bytes | bytearray) -> Prompt | None:
    """What the body of one of PATHS says; None: nothing that can be read so (HO21).

    A body that engines will refuse is not refused here. Of a long one only the first part is looked at."""
    if _is_long(body):
        return _look(body)
    said = opened(body)
    return None if said is None else prompt_of(said)


def opened(body: bytes | bytearray) -> Said | None:
    """The body itself; None: it is long, or not such a one."""
    if _is_long(body):
        return None
    try:
        return _said(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _is_long(body: bytes | bytearray) -> bool:
    return len(body) > _DECODED_VALUES and (
        len(body) > DECODED_BYTES or body.count(b"{") + body.count(b"[") > _DECODED_VALUES
    )


def prompt_of(said: Said) -> Prompt:
    """Its text and names."""
    pieces: list[str] = []
    if said.system is not None:
        _content(pieces, said.system)
    if said.instructions is not None:
        pieces.append(said.instructions)
    messages = said.messages
    if messages is not None:
        _messages(pieces, messages)
    elif isinstance(said.input, str):
        pieces.append(said.input)
    elif said.input is not None:
        _messages(pieces, said.input)
    elif isinstance(said.prompt, str):
        pieces.append(said.prompt)
    elif said.prompt:
        _prompts(pieces, said.prompt)
    # A lone surrogate cannot come out of this decoder, so this cannot fail.
    text = "\x1e".join(pieces).encode()
    if said.tools:
        text = bytes(said.tools)[:MOST_BYTES] + b"\x1e" + text
    return Prompt(text, said.prompt_cache_key, said.user)


def names(body: bytes | bytearray) -> Prompt | None:
    """The same without the text, which costs most."""
    if len(body) > DECODED_BYTES:
        return _named(body, b"")
    try:
        said = _names(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return Prompt(b"", said.prompt_cache_key, said.user)


def _look(body: bytes | bytearray) -> Prompt:
    """What the first part of a body says, in its own order; the same text as `read` makes of plain chats."""
    first = bytes(body[:_LOOKED_BYTES])
    pieces: list[str] = []
    said = _SAID.search(first)
    while said is not None and len(pieces) < _LOOKED_STRINGS:
        begin = said.end()
        end = _end_of_string(first, begin)
        piece = _text(first[begin:end], cut=end == len(first))
        if piece is not None:
            pieces.append(piece)
        said = _SAID.search(first, end)
    return _named(body, "\x1e".join(pieces).encode())


def _end_of_string(data: bytes, at: int) -> int:
    """Where the string that `at` is in ends: at its quote, or where the data does, within an escape maybe."""
    end = data.find(b'"', at)
    if end > at and data[end - 1] != _BACKSLASH:
        # As long texts are mostly: a search for one byte takes a tenth of a walk over them.
        return end
    walked = _INSIDE.match(data, at)
    assert walked is not None
    return walked.end()


def _text(literal: bytes, *, cut: bool) -> str | None:
    """What a string's bytes mean, as far as they are there. None: it means nothing, or cannot be told."""
    for less in range(_CUT_BYTES + 1 if cut else 1):
        try:
            return msgspec.json.decode(b'"%b"' % literal[: len(literal) - less], type=str)
        except msgspec.DecodeError:
            continue
    return None


def _named(body: bytes | bytearray, text: bytes) -> Prompt:
    """The names at either end of a long body, where clients write them; deeper ones are taken for them."""
    named = dict(_NAMED.findall(body[-_NAMED_BYTES:]) + _NAMED.findall(body[:_NAMED_BYTES]))
    key, user = named.get(b"prompt_cache_key"), named.get(b"user")
    return Prompt(
        text,
        None if key is None else _text(key[1:-1], cut=False),
        None if user is None else _text(user[1:-1], cut=False),
    )


def _messages(pieces: list[str], messages: list[_Message]) -> None:
    length = 0
    for message in messages:
        pieces.append(message.role or "")
        content = message.content
        if isinstance(content, str):
            pieces.append(content)
            length += len(content)
        elif content is not None:
            length += _content(pieces, content)
        if message.tool_calls:
            pieces.append(_raw(message.tool_calls))
        if message.arguments is not None:
            pieces.append(message.arguments)
        if message.output is not None:
            length += _content(pieces, message.output)
        if length > MOST_BYTES:
            return


def _content(pieces: list[str], content: str | list[_Part]) -> int:
    if isinstance(content, str):
        pieces.append(content)
        return len(content)
    length = 0
    for part in content:
        if part.text is not None:
            pieces.append(part.text)
            length += len(part.text)
        for picture in (part.image_url, part.source):
            if picture:
                pieces.append(_raw(picture))
    return length


def _raw(value: msgspec.Raw) -> str:
    return bytes(value)[:MOST_BYTES].decode("utf-8", "replace")


def _prompts(pieces: list[str], prompts: list[str | int | list[int]]) -> None:
    first = prompts[0]
    if isinstance(first, str):
        pieces.append(first)
        return
    # Token ids: as digits they are a text like any other.
    tokens = first if isinstance(first, list) else prompts
    pieces.append(_numbers(tokens[: MOST_BYTES // 4]).decode())
