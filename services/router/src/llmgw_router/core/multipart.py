"""`multipart/form-data`: where the part `model` stands in a body that is not copied (W47, HO21).

Nothing is decoded but that one value, and nothing is written anew: boundary, order and bytes of all
parts travel as they came. Where RFC 7578 and RFC 2046 leave two readings, the body is refused: router
and engine may not disagree on which model is asked for (W45).
"""

import re
from collections.abc import Generator
from dataclasses import dataclass

from llmgw_router.core.body import BodyRefused
from llmgw_router.core.errors import BAD_FORM, BAD_MODEL

Bytes = bytes | bytearray

#: RFC 2046 section 5.1.1: 1 to 70 of these, and not a blank at the end.
_BOUNDARY = re.compile(rb"[A-Za-z0-9'()+_,./:=? -]{0,69}[A-Za-z0-9'()+_,./:=?-]")
_PARAMETER = re.compile(rb';[ \t]*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s";,]*))[ \t]*')
_KIND = re.compile(rb"[ \t]*([A-Za-z0-9!#$&^_.+-]+(?:/[A-Za-z0-9!#$&^_.+-]+)?)[ \t]*")

#: Parts of one form, and bytes of one part's headers: what a form in earnest never has.
MOST_PARTS = 1000
MOST_HEAD_BYTES = 8192

#: Searched in one step: a millisecond of audio that looks like boundaries.
_STEP_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FormModel:
    """The value of the part `model`, and where it stands."""

    name: str
    start: int
    end: int


def is_form(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == b"multipart/form-data"


def boundary_of(content_type: bytes) -> bytes:
    """The boundary that a content type names. Raises BodyRefused."""
    if not is_form(content_type):
        raise _bad("the content type is not multipart/form-data")
    try:
        parameters = _parameters(content_type)
    except ValueError as error:
        raise _bad(f"its content type cannot be read: {error}") from error
    boundary = parameters.get(b"boundary")
    if boundary is None:
        raise _bad("its content type names no boundary")
    if _BOUNDARY.fullmatch(boundary) is None:
        raise _bad("its boundary is not 1 to 70 of the characters that RFC 2046 allows")
    return boundary


Steps = Generator[None, None, FormModel]


def model_of(body: Bytes, boundary: bytes) -> FormModel:
    """Find the part `model`, in one go. Raises BodyRefused."""
    steps = scan(body, boundary)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: FormModel = done.value
            return found


def scan(body: Bytes, boundary: bytes) -> Steps:
    """Find the part `model`, a step at a time (W43); the generator's value is what was found. The whole body
    is walked, part by part. Raises BodyRefused."""
    found: FormModel | None = None
    parts = yield from _parts(body, boundary)
    for head_start, start, end in parts:
        name = _name(bytes(body[head_start : start - 4]))
        if name != b"model":
            continue
        if found is not None:
            raise BodyRefused(BAD_MODEL, "The form has more than one part named model.")
        try:
            value = bytes(body[start:end]).decode()
        except UnicodeDecodeError as error:
            raise BodyRefused(BAD_MODEL, "The part named model is not UTF-8.") from error
        if not value or not value.isprintable():
            raise BodyRefused(BAD_MODEL, "The part named model must be a name.")
        found = FormModel(value, start, end)
    if found is None:
        raise BodyRefused(BAD_MODEL, "You must provide a model parameter: the form has no part named model.")
    return found


def with_model(body: Bytes, boundary: bytes, found: FormModel, name: str) -> Bytes:
    """`body` with the value replaced. A bytearray is changed where it lies: its file is not copied."""
    value = name.encode()
    if b"--" + boundary in value:
        raise _bad("its boundary stands in the model's name")
    if isinstance(body, bytearray):
        body[found.start : found.end] = value
        return body
    return body[: found.start] + value + body[found.end :]


def _find(body: Bytes, what: bytes, at: int) -> Generator[None, None, int]:
    for start in range(at, len(body), _STEP_BYTES):
        found = body.find(what, start, start + _STEP_BYTES + len(what) - 1)
        if found >= 0:
            return found
        yield
    return -1


def _parts(body: Bytes, boundary: bytes) -> Generator[None, None, list[tuple[int, int, int]]]:
    """(where the head begins, where the content begins, where it ends) of each part."""
    dash = b"--" + boundary
    if body.startswith(dash):
        at = len(dash)
    else:
        # A preamble, which nobody reads (RFC 2046 section 5.1.1).
        first = yield from _find(body, b"\r\n" + dash, 0)
        if first < 0:
            raise _bad("its boundary never occurs in it")
        if (yield from _find(body, dash, 0)) < first:
            raise _bad("its boundary stands in the middle of a line")
        at = first + 2 + len(dash)
    delimiter = b"\r\n" + dash
    parts: list[tuple[int, int, int]] = []
    while True:
        ending = bytes(body[at : at + 2])
        if ending == b"--":
            if (yield from _find(body, dash, at)) >= 0:
                raise _bad("something follows its last boundary")
            return parts
        if ending != b"\r\n":
            raise _bad("a boundary is followed by neither a line end nor the closing dashes")
        if len(parts) >= MOST_PARTS:
            raise _bad(f"it has more than {MOST_PARTS} parts")
        head = at + 2
        blank = body.find(b"\r\n\r\n", at, head + MOST_HEAD_BYTES)
        if blank < 0:
            raise _bad(f"a part's headers do not end within {MOST_HEAD_BYTES} bytes")
        if blank == at:
            raise _bad("a part has no headers")
        start = blank + 4
        # The blank line may be the line end of an empty part's delimiter.
        end = yield from _find(body, delimiter, blank + 2)
        if end < 0:
            raise _bad("it does not end with its closing boundary")
        if end < start:
            raise _bad("a part ends within its headers")
        if body.find(dash, head, start) >= 0:
            raise _bad("its boundary stands in a part's headers")
        parts.append((head, start, end))
        at = end + len(delimiter)


def _name(head: bytes) -> bytes:
    """What a part is called. Raises BodyRefused where that is not plain."""
    disposition: bytes | None = None
    for line in head.split(b"\r\n"):
        if line[:1] in (b" ", b"\t") or b"\n" in line or b"\r" in line or b"\0" in line:
            raise _bad("a part has a folded header line, or control characters in it")
        name, colon, value = line.partition(b":")
        if not colon or name != name.strip() or not name:
            raise _bad("a part has a header line without a name and a colon")
        low = name.lower()
        if low == b"content-disposition":
            if disposition is not None:
                raise _bad("a part has two Content-Disposition headers")
            disposition = value
        elif low == b"content-transfer-encoding" and value.strip().lower() not in (
            b"7bit",
            b"8bit",
            b"binary",
        ):
            raise _bad("a part has a Content-Transfer-Encoding, which RFC 7578 has done away with")
    if disposition is None:
        raise _bad("a part has no Content-Disposition header")
    try:
        kind = _KIND.match(disposition)
        if kind is None or kind.group(1).lower() != b"form-data":
            raise ValueError("it is not form-data")
        parameters = _parameters(disposition)
    except ValueError as error:
        raise _bad(f"a part's Content-Disposition cannot be read: {error}") from error
    if b"name*" in parameters or b"name" not in parameters:
        raise _bad("a part has no plain name")
    return parameters[b"name"]


def _parameters(value: bytes) -> dict[bytes, bytes]:
    """`;name=value` pairs by lower-case name. Raises ValueError for anything else, and for a name twice."""
    kind = _KIND.match(value)
    if kind is None:
        raise ValueError("it has no kind")
    at = kind.end()
    found: dict[bytes, bytes] = {}
    while at < len(value):
        match = _PARAMETER.match(value, at)
        if match is None:
            raise ValueError("a parameter is neither a token nor a quoted string")
        name, quoted, token = match.groups()
        low = name.lower()
        if low in found:
            raise ValueError(f"it gives {low.decode()} twice")
        found[low] = token if quoted is None else _unquoted(low, quoted)
        at = match.end()
    return found


def _unquoted(name: bytes, quoted: bytes) -> bytes:
    if b"\\" not in quoted:
        return quoted
    if name == b"filename":
        # Browsers of old put paths there; it is not ours to read.
        return quoted
    # Some engines undo the escape and some do not.
    raise ValueError(f"there is a backslash in its {name.decode()}")


def _bad(what: str) -> BodyRefused:
    return BodyRefused(BAD_FORM, f"The form cannot be read: {what}.")
