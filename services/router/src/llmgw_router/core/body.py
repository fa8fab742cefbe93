"""What routing reads of a request body: the model's name. The body itself travels as it came.

Nothing is ever decoded and encoded again: that loses duplicate keys, the digits of numbers and
lone surrogates (W44). An alias is replaced by splicing the bytes of one string.
"""

import json
import re

import msgspec

from llmgw_router.core.errors import BAD_MODEL, MALFORMED_JSON, Kind
from llmgw_router.core.json_words import COLON, DISGUISE, MODEL_KEY, TOKEN, spells_model


class _Named(msgspec.Struct):
    model: str


_decode = msgspec.json.Decoder(_Named).decode
_encode_str = msgspec.json.Encoder().encode

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
#: Longer ones are not followed key by key in one go: 1 MiB of brackets would hold up everybody for 0.1 s.
FOLLOWED_BYTES = 8 * 1024


class NeedsSteps(Exception):
    """Where the model's name stands can only be told by following a body that is too long for one go."""


class BodyRefused(Exception):
    """The body cannot be routed; `kind` and the message are the answer."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def model_of(body: bytes) -> str:
    """The value of the top-level `model`. Raises BodyRefused (W01, W02, W45), and NeedsSteps for a body
    above FOLLOWED_BYTES in which the key may stand twice or a lone surrogate (core/scan.py reads those)."""
    try:
        name = _decode(body).model
    except msgspec.ValidationError as error:
        if body.lstrip()[:1] != b"{":
            raise BodyRefused(MALFORMED_JSON, "The request body must be a JSON object.") from error
        if "missing" in str(error):
            raise BodyRefused(BAD_MODEL, "You must provide a model parameter.") from error
        raise BodyRefused(BAD_MODEL, "The model parameter must be a string.") from error
    except msgspec.DecodeError as error:
        if _SURROGATE.search(body):
            if len(body) > FOLLOWED_BYTES:
                raise NeedsSteps from error
            return _model_beside_lone_surrogates(body)
        raise BodyRefused(MALFORMED_JSON, f"The request body is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise BodyRefused(MALFORMED_JSON, "The request body is nested too deeply.") from error
    return sole_model(body, name)


def sole_model(body: bytes, name: str) -> str:
    """`name`, which a decoder has found in this body, if it can only mean that. Raises as model_of does."""
    if not body.isascii():
        # The decoder looks into the strings it keeps only.
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise BodyRefused(
                MALFORMED_JSON, f"The request body is not valid UTF-8 at byte {error.start}."
            ) from error
    if not _may_repeat(body):
        return name
    if len(body) > FOLLOWED_BYTES:
        raise NeedsSteps
    if len(_top_level_models(body)) > 1:
        # Router and engine may disagree on which of them counts: one would be authorised, the other run.
        raise BodyRefused(BAD_MODEL, "The model parameter is given more than once.")
    return name


def _model_beside_lone_surrogates(body: bytes) -> str:
    # The decoder refuses "\\ud800" wherever it stands. JSON's grammar allows it (RFC 8259 section 8.2),
    # engines may too, and the body is not ours to judge: the standard library reads it, slowly.
    def no_constant(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    try:
        pairs = json.loads(body.decode(), object_pairs_hook=_Pairs, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise BodyRefused(MALFORMED_JSON, f"The request body is not valid JSON: {error}.") from error
    if not isinstance(pairs, _Pairs):
        raise BodyRefused(MALFORMED_JSON, "The request body must be a JSON object.")
    values = [value for key, value in pairs if key == "model"]
    if len(values) > 1:
        raise BodyRefused(BAD_MODEL, "The model parameter is given more than once.")
    if not values:
        raise BodyRefused(BAD_MODEL, "You must provide a model parameter.")
    (name,) = values
    if not isinstance(name, str) or not name.isprintable():
        raise BodyRefused(BAD_MODEL, "The model parameter must be a string of characters.")
    return name


class _Pairs(list[tuple[str, object]]):
    """An object as its pairs, told from an array."""


def with_model(body: bytes, name: str) -> bytes:
    """`body`, which model_of has accepted, with the value of `model` replaced, and no other byte."""
    if not _may_repeat(body):
        key_end = body.index(MODEL_KEY) + len(MODEL_KEY)
    else:
        (key_end,) = _top_level_models(body)
    colon = COLON.match(body, key_end)
    assert colon is not None
    value = TOKEN.match(body, colon.end())
    assert value is not None
    return body[: value.start()] + _encode_str(name) + body[value.end() :]


def _may_repeat(body: bytes) -> bool:
    # One literal key and no disguised one, as nearly always: nothing to look closer at. From the end, since
    # a search from there goes by the quote, which text has few of: twice as fast.
    first = body.find(MODEL_KEY)
    return (
        first < 0
        or body.rfind(MODEL_KEY) != first
        or (body.find(b"\\") >= 0 and DISGUISE.search(body) is not None)
    )


def _top_level_models(body: bytes) -> list[int]:
    """Where each top-level key that means `model` ends. The body is known to be a valid JSON object."""
    found: list[int] = []
    depth = 0
    for token in TOKEN.finditer(body):
        first = body[token.start()]
        if first == 0x22:
            # A key is a string followed by a colon; a value never is.
            if (
                depth == 1
                and COLON.match(body, token.end())
                and (token.group() == MODEL_KEY or spells_model(token.group()))
            ):
                found.append(token.end())
        elif first in b"{[":
            depth += 1
        else:
            depth -= 1
    return found


class _Continuing(msgspec.Struct):
    previous_response_id: str | None = None


_decode_continuing = msgspec.json.Decoder(_Continuing).decode


def continued_response(body: bytes | bytearray) -> str | None:
    """The top-level `previous_response_id` of a body that model_of has accepted; None where it has none.

    Looked for in the first and the last 64 KiB only: a place where the router sends it is at stake, and not
    what is sent."""
    if (
        b'"previous_response_id"' not in body[:_NEAR_BYTES]
        and b'"previous_response_id"' not in body[-_NEAR_BYTES:]
    ):
        return None
    if len(body) > _NEAR_BYTES:
        found = _CONTINUED.search(body, 0, _NEAR_BYTES) or _CONTINUED.search(body, len(body) - _NEAR_BYTES)
        return None if found is None else found.group(1).decode("latin-1")
    try:
        return _decode_continuing(body).previous_response_id
    except (msgspec.DecodeError, RecursionError):
        return None


_NEAR_BYTES = 65536
_CONTINUED = re.compile(rb'"previous_response_id"\s*:\s*"([A-Za-z0-9_.-]{1,140})"')
