"""Turns: where very many wait for a place, for whom this pass looks.

What is dear is not how many wait but how many different things they ask for: whoever asks for the same shares
one search. Past a number of those a pass looks for the first by rank, and goes round with the rest; each of
them comes to its turn, whatever the rhythm of the passes.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Generic, TypeVar

T = TypeVar("T")

#: Different asks that one pass looks for.
LOOKED_MOST = 32
#: Of these, so many are always the first by rank; the rest is in turn.
FIRST = 8

#: The golden ratio's part of 2**32. Steps of any number of seconds, times an irrational number, fall evenly
#: on a circle: a step that divides the circle would look at the same ones for ever.
_GOLDEN = 2654435769


@dataclass(frozen=True)
class Turn(Generic[T]):
    """Who is looked for now, in their order."""

    now: tuple[T, ...]
    #: Different asks of all who wait.
    asks: int

    @property
    def passes(self) -> int:
        """In about so many everybody was looked for; 1: each pass looks for all."""
        return 1 if self.asks <= LOOKED_MOST else ceil((self.asks - FIRST) / (LOOKED_MOST - FIRST))


def turn_of(waiting: Sequence[T], ask: Callable[[T], Hashable], now: float) -> Turn[T]:
    """`waiting`: by rank; those with an equal `ask` are looked for together."""
    asked = [ask(one) for one in waiting]
    asks = list(dict.fromkeys(asked))
    if len(asks) <= LOOKED_MOST:
        return Turn(tuple(waiting), len(asks))
    rest = asks[FIRST:]
    begin = start_of(len(rest), now)
    looked = {*asks[:FIRST], *(rest + rest)[begin : begin + LOOKED_MOST - FIRST]}
    return Turn(tuple(one for one, key in zip(waiting, asked, strict=True) if key in looked), len(asks))


def start_of(count: int, now: float) -> int:
    """Where on a circle of so many the pass of this second begins."""
    return (int(now) * _GOLDEN % 2**32) * count >> 32
