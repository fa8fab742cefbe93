"""Which models are counted together by all workers, and under which number.

A model keeps its number while it is in the table: one that was busy once is likely to be busy again. When
they are all given away, those of models that are gone are given again, once nobody counts under them; until
there is one, a further model is limited by even shares.
"""

import logging
from collections.abc import Callable, Container, Iterable

from llmgw_router.relay.slots import GATES

log = logging.getLogger(__name__)


class GateBook:
    """Give `give` what workers ask for; tell every worker, and each new one, `numbers`."""

    def __init__(self, most: int = GATES - 1) -> None:
        #: By model. Number 0 is the router's own gate.
        self.numbers: dict[str, int] = {}
        #: Models for which there was none left, in the order of asking.
        self.short: dict[str, None] = {}
        self._free = list(range(most, 0, -1))
        self._said = False

    def give(self, models: Iterable[str]) -> dict[str, int]:
        """Numbers of those that have one, or get one now; the others are `short`."""
        given = {}
        for model in tuple(models):
            number = self.numbers.get(model)
            if number is None and self._free:
                number = self.numbers[model] = self._free.pop()
            if number is None:
                self._fall_short(model)
            else:
                self.short.pop(model, None)
                given[model] = number
        return given

    def _fall_short(self, model: str) -> None:
        self.short[model] = None
        if not self._said:
            self._said = True
            log.warning(
                "%d models are counted by all workers together, and no more can be: limits of others, first "
                "of %s, are kept by even shares of the workers until some models are gone",
                len(self.numbers),
                model,
            )

    def release(self, known: Container[str], idle: Callable[[int], bool]) -> tuple[str, ...]:
        """Take back the numbers of models that are not `known` any more and at which nothing runs or waits;
        every worker is to be told of these before they are given again."""
        gone = tuple(name for name, number in self.numbers.items() if name not in known and idle(number))
        self._free += [self.numbers.pop(name) for name in gone]
        self.short = {name: None for name in self.short if name in known}
        return gone
