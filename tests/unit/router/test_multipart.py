"""Forms: the part that names the model, and every shape that two parsers could read differently."""

import email.parser
import email.policy
from email.message import Message

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.core import multipart
from llmgw_router.core.body import BodyRefused
from llmgw_router.core.multipart import boundary_of, is_form, model_of, scan, with_model

from .stepping import Looked, most_of_a_step

B = b"xYz-1"
TYPE = b"multipart/form-data; boundary=" + B


def part(content: bytes, name: bytes = b'"model"', more: bytes = b"") -> bytes:
    return b"--%b\r\nContent-Disposition: form-data; name=%b%b\r\n\r\n%b\r\n" % (B, name, more, content)


END = b"--" + B + b"--\r\n"
FILE = part(b"RIFF\r\n\0\r\n--xYz-\r\n\r\n", b'"file"', b'; filename="a.wav"\r\nContent-Type: audio/wav')


def test_the_model_is_found_wherever_its_part_stands() -> None:
    """W47, HO21: first, last, unquoted, in any case of letters, with a preamble and without a line end."""
    for body in (
        part(b"whisper-1") + FILE + END,
        FILE + part(b"whisper-1") + END,
        FILE + part(b"whisper-1", b"model") + END[:-2],
        b"preamble\r\n" + part(b"whisper-1") + END + b"epilogue",
        part(b"whisper-1").replace(b"Content-Disposition: form-data", b"content-disposition:FORM-DATA") + END,
        part(b"whisper-1", b'"model"', b"\r\nContent-Type: text/plain; charset=utf-8") + END,
    ):
        found = model_of(body, boundary_of(TYPE))
        assert found.name == "whisper-1"
        assert body[found.start : found.end] == b"whisper-1"


def test_an_alias_is_spliced_into_its_part_and_nothing_else_changes() -> None:
    """W47: a bytearray is changed where it lies, so that a big file is not copied."""
    body = FILE + part(b"alias") + part(b"json", b'"response_format"') + END
    expected = body.replace(b"\r\n\r\nalias\r\n", b"\r\n\r\nopenai/whisper\r\n")
    assert with_model(body, B, model_of(body, B), "openai/whisper") == expected
    own = bytearray(body)
    assert with_model(own, B, model_of(own, B), "openai/whisper") is own
    assert own == expected


def test_no_step_over_a_big_file_looks_at_much() -> None:
    """W43, W47: bytes of the longest step over 25 MB that look like boundaries now and then; how long that
    takes says tests/bench/relay_steps.py."""
    audio = (bytes(range(256)) + b"\r\n--xYz-0") * 95_000
    body = Looked(part(audio, b'"file"') + part(b"whisper-1") + END)
    found, most, many = most_of_a_step(scan(body, B), body)
    assert found == model_of(body, B)
    assert most < 2.1 * multipart._STEP_BYTES
    assert many >= len(body) // multipart._STEP_BYTES


@pytest.mark.parametrize("step", [1, 3, 7])
def test_steps_of_any_size_find_the_same(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    body = FILE + part(b"whisper-1") + part(b"json", b'"response_format"') + END
    whole = model_of(body, B)
    monkeypatch.setattr(multipart, "_STEP_BYTES", step)
    assert model_of(body, B) == whole
    assert model_of(b"before\r\n" + body + b"after", B).name == whole.name


REFUSED = {
    "no part of that name": (FILE + END, "no part named model"),
    "two of them": (part(b"a") + part(b"b") + END, "more than one"),
    "empty": (part(b"") + END, "must be a name"),
    "control characters": (part(b"a\nb") + END, "must be a name"),
    "not UTF-8": (part(b"\xff") + END, "UTF-8"),
    "no end": (part(b"a"), "closing boundary"),
    "cut in a part": (part(b"a") + b"--" + B + b"\r\nContent-Disp", "do not end"),
    "another boundary": (part(b"a").replace(B, b"other") + b"--other--\r\n", "never occurs"),
    "a longer boundary": (part(b"a").replace(B, B + b"2", 1) + END, "neither a line end"),
    "a second form behind the end": (part(b"a") + END + part(b"b") + END, "follows its last"),
    "bare line feeds": (part(b"a").replace(b"\r\n", b"\n") + END, "cannot be read"),
    "two names": (part(b"a", b'"x"', b'; name="model"') + END, "twice"),
    "an extended name": (part(b"a", b'"x"', b"; name*=UTF-8''model") + END, "no plain name"),
    "only an extended name": (part(b"a").replace(b"name=", b"name*=") + END, "no plain name"),
    "an escaped name": (part(b"a", b'"mod\\el"') + END, "backslash"),
    "no name": (part(b"a").replace(b'; name="model"', b"") + END, "no plain name"),
    "no disposition": (b"--" + B + b"\r\nX: 1\r\n\r\na\r\n" + END, "no Content-Disposition"),
    "no headers": (b"--" + B + b"\r\n\r\na\r\n" + END, "no headers"),
    "two dispositions": (
        part(b"a", b'"x"', b'\r\nContent-Disposition: form-data; name="model"') + END,
        "two Content-Disposition",
    ),
    "folded": (part(b"a", b'"x"', b';\r\n name="model"') + END, "folded"),
    "encoded": (part(b"YQ==", b'"model"', b"\r\nContent-Transfer-Encoding: base64") + END, "RFC 7578"),
    "an attachment": (part(b"a").replace(b"form-data", b"attachment") + END, "not form-data"),
    "blank before the colon": (part(b"a").replace(b"Disposition:", b"Disposition :") + END, "without a name"),
    "a boundary in the headers": (part(b"a", b'"x--' + B + b'"') + END, "cannot be read"),
    "headers without end": (part(b"a", b'"x' + b"y" * 9000 + b'"') + END, "do not end"),
    "too many parts": (part(b"a", b'"x"') * 1001 + END, "more than 1000"),
    "nothing": (b"", "never occurs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_two_parsers_could_read_differently_is_refused(name: str) -> None:
    """W45, W47: router and engine may not disagree on the model of a form."""
    body, why = REFUSED[name]
    with pytest.raises(BodyRefused, match=why):
        model_of(body, B)


@pytest.mark.parametrize(
    ("content_type", "why"),
    [
        (b"application/json", "not multipart"),
        (b"", "not multipart"),
        (b"multipart/form-data", "no boundary"),
        (b'multipart/form-data; boundary=""', "1 to 70"),
        (b"multipart/form-data; boundary=" + b"x" * 71, "1 to 70"),
        (b'multipart/form-data; boundary="a "', "1 to 70"),
        (b"multipart/form-data; boundary=a; boundary=b", "twice"),
        (b"multipart/form-data; boundary=a b", "neither a token"),
        (b'multipart/form-data; boundary="a\\"b"', "backslash"),
    ],
)
def test_content_types_without_one_boundary(content_type: bytes, why: str) -> None:
    with pytest.raises(BodyRefused, match=why):
        boundary_of(content_type)


def test_boundaries_that_are_fine() -> None:
    for value, found in (
        (b"a", b"a"),
        (b'"a b:c"', b"a b:c"),
        (b"----WebKitFormBoundaryX1", b"----WebKitFormBoundaryX1"),
    ):
        assert boundary_of(b"Multipart/Form-Data; charset=utf-8; boundary=" + value) == found
    assert is_form(TYPE)
    assert not is_form(b"multipart/mixed; boundary=a")


def stdlib_parts(body: bytes, boundary: bytes) -> list[Message]:
    head = b"Content-Type: multipart/form-data; boundary=" + boundary + b"\r\n\r\n"
    parsed = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    payload = parsed.get_payload()
    return [one for one in payload if isinstance(one, Message)] if isinstance(payload, list) else []


def stdlib_models(body: bytes, boundary: bytes) -> list[bytes]:
    found = []
    for one in stdlib_parts(body, boundary):
        if one.get_param("name", header="content-disposition") == "model":
            payload = one.get_payload(decode=True)
            assert isinstance(payload, bytes)
            found.append(payload)
    return found


pieces = st.one_of(
    st.sampled_from(
        [part(b"m1"), part(b"m2"), FILE, END, b"--" + B, b"\r\n", b"\n", b"--", B, b"Content-Disposition: "]
    ),
    st.sampled_from(
        [b'form-data; name="model"', b"form-data; name=x", b"; name=model", b"\r\n\r\n", b"model", b'"']
    ),
    st.binary(max_size=6),
)


@given(st.lists(pieces, max_size=12).map(b"".join))
def test_whatever_is_accepted_the_standard_library_reads_alike(body: bytes) -> None:
    """W45: differential against email.parser, over bodies put together from the pieces of forms."""
    try:
        found = model_of(body, B)
    except BodyRefused:
        return
    assert stdlib_models(body, B) == [found.name.encode()]


@given(
    st.lists(
        st.tuples(st.sampled_from([b"file", b"language", b"prompt"]), st.binary(max_size=40)), max_size=4
    ),
    st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12),
    st.integers(0, 4),
    st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12),
)
def test_sound_forms_are_read_and_respelled(
    others: list[tuple[bytes, bytes]], model: str, place: int, other_name: str
) -> None:
    """W47: whatever is in the files, and wherever the model stands."""
    parts = [part(content, b'"' + name + b'"') for name, content in others]
    parts.insert(place, part(model.encode()))
    body = b"".join(parts) + END
    if any(b"--" + B in content for _, content in others):
        return
    found = model_of(body, B)
    assert found.name == model
    changed = bytes(with_model(bytearray(body), B, found, other_name))
    assert changed == body[: found.start] + other_name.encode() + body[found.end :]
    assert model_of(changed, B).name == other_name
