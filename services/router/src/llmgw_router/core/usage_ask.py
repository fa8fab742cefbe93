"""Asking the engine for usage where the client did not: `stream_options`, spliced into the body's bytes.

Done only where the answer is the one that the client asked for but for one event, which is taken out again
(core/usage_stream.py). No other byte of the body changes, and nothing is decoded and encoded again (W44).
"""

import msgspec

#: Longer ones would be decoded once more for this, and are not: their events are counted.
LONGEST_BYTES = 256 * 1024

_OURS = b'"stream_options":{"include_usage":true}'


class _Asked(msgspec.Struct):
    stream: msgspec.Raw = msgspec.Raw(b"")
    stream_options: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Asked).decode
_decode_options = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode


def with_usage_asked(body: bytes) -> bytes | None:
    """`body`, a JSON object that has been accepted, asking for usage; None: it is left as it is, because it
    is no stream, asks by itself, or says something of its stream that is not understood here."""
    if b'"stream"' not in body:
        return None
    try:
        asked = _decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if bytes(asked.stream) != b"true":
        return None
    options = bytes(asked.stream_options)
    if not options:
        at = body.index(b"{") + 1
        # It holds `model` at least, so something follows the comma.
        return b"%b%b,%b" % (body[:at], _OURS, body[at:])
    return _with_options_replaced(body, options)


def _with_options_replaced(body: bytes, options: bytes) -> bytes | None:
    try:
        said = _decode_options(options)
    except msgspec.DecodeError:
        return None
    for name, value in (said or {}).items():
        if name != "include_usage" or bytes(value) not in (b"false", b"null"):
            # Asked for already, or something else that usage would switch on.
            return None
    key = b'"stream_options"'
    if body.count(key) != 1 or b"\\u" in body:
        # Which of them counts, or what an escape spells, is the engine's to say.
        return None
    at = body.index(key)
    colon = body.index(b":", at + len(key))
    start = body.index(options, colon)
    if body[colon + 1 : start].strip():
        return None
    return body[:at] + _OURS + body[start + len(options) :]
