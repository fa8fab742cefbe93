"""Pieces of an engine's log."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chunk:
    """Some bytes. `gap`: others are missing before them."""

    data: bytes
    gap: bool = False
