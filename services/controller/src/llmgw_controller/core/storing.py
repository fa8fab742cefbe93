"""The last guard before a store: whatever text reached a row, the store takes it.

Texts are cleaned where they come in (`wire_agent.py`). But a leader whose plan the store refuses can only
end, and the next one would make the same plan of the same words: so no text may be a reason for that.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar, cast

from llmgw_kit.text import storable

T = TypeVar("T")


def as_storable(value: T) -> T:
    """The same value, with what no store takes (NUL, halves of characters) replaced in all its texts.

    What needs no change is returned itself, so that equal stays identical."""
    return cast(T, _cleaned(value))


def _cleaned(value: Any) -> Any:
    match value:
        case Enum():
            return value
        case str():
            clean = storable(value)
            return value if clean == value else clean
        case tuple():
            parts = tuple(_cleaned(part) for part in value)
            return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
        case Mapping():
            pairs = {_cleaned(name): _cleaned(part) for name, part in value.items()}
            return value if pairs == value else pairs
        case _ if is_dataclass(value) and not isinstance(value, type):
            found = {one.name: getattr(value, one.name) for one in fields(value) if one.init}
            changed = {name: new for name, old in found.items() if (new := _cleaned(old)) is not old}
            return replace(value, **changed) if changed else value
    return value
