"""The text that an engine will compute from a request: what two requests have in common in its cache. Pure.

Not the bytes of the body: the order of keys, escapes, temperature and the like differ between requests
whose prompts begin alike. The text is an approximation of what chat templates make of it, in the same
order: tools, system, messages. It decides nothing but a preference.
"""

import msgspec

from llmgw_router.core.choosing.affinity import MOST_BYTES

#: Paths whose engines keep what they have computed of a prompt.
PATHS = frozenset((b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/messages"))


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


class _Body(msgspec.Struct):
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


_body = msgspec.json.Decoder(_Body).decode
_names = msgspec.json.Decoder(_Names).decode
_numbers = msgspec.json.Encoder().encode


class Prompt(msgspec.Struct):
    """`text` is canonical and at most about MOST_BYTES long."""

    text: bytes
    prompt_cache_key: str | None = None
    user: str | None = None


def read(body: bytes | bytearray) -> Prompt | None:
    """What the body of one of PATHS says; None: nothing that can be read so (HO21).

    A body that engines will refuse is not refused here."""
    try:
        said = _body(body)
    except (msgspec.DecodeError, RecursionError):
        return None
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
    try:
        said = _names(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return Prompt(b"", said.prompt_cache_key, said.user)


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
