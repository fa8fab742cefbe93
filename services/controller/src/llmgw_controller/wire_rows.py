"""Rows to messages, one by one: a row that no message carries is named, and hides none of the others."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

log = logging.getLogger(__name__)

R = TypeVar("R")
M = TypeVar("M")


@dataclass(frozen=True)
class Untold:
    """A row that cannot be told, such as one with a port that is no port; only a bug, or a hand at the
    database, makes one."""

    #: "replica m/1", "model m", ...
    subject: str
    text: str


def each(
    rows: Iterable[R], make: Callable[[R], M], name: Callable[[R], str]
) -> tuple[list[M], tuple[Untold, ...]]:
    """The messages, and the rows that make none."""
    told: list[M] = []
    untold: list[Untold] = []
    for row in rows:
        try:
            told.append(make(row))
        except (ValueError, TypeError, OverflowError) as e:
            # What protobuf raises for a value that a field does not hold.
            untold.append(Untold(name(row), f"{name(row)} is left out, for no message carries its row: {e}"))
            log.error("%s", untold[-1].text)
    return told, tuple(untold)
