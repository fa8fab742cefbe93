"""The words of JSON's grammar, as bytes: what is looked for where a body is not decoded. Pure."""

import re

import msgspec

MODEL_KEY = b'"model"'
STREAM_KEY = b'"stream"'
#: Any escape that could spell one of the letters of `model`; so many bytes long.
DISGUISE = re.compile(rb"\\u006[4-9a-fA-F]")
DISGUISE_BYTES = 6
BLANK = re.compile(rb"[ \t\r\n]*")
COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
#: A string or a bracket: what is needed to know how deep something stands.
TOKEN = re.compile(STRING.pattern + rb"|[{}\[\]]", re.DOTALL)


def spells_model(literal: bytes) -> bool:
    """Whether a string, quotes included, means `model` by escapes."""
    # Six escapes of six bytes at most: longer ones cannot spell it.
    if b"\\" not in literal or len(literal) > 32:
        return False
    try:
        return bool(msgspec.json.decode(literal) == "model")
    except msgspec.DecodeError:
        return False
