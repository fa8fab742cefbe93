"""Which models are counted together by all workers, and under which number.

A number is kept for the router's life: a model that was busy once is likely to be busy again, and a number
that changed hands while a worker still counted under it would count for another model. When they are all
given away, further models are limited by even shares.
"""

from llmgw_router.relay.slots import GATES


class GateBook:
    """Give `number` what a worker asks for; tell every worker, and each new one, `numbers`."""

    def __init__(self) -> None:
        #: By model. Number 0 is the router's own gate.
        self.numbers: dict[str, int] = {}

    def number(self, model: str) -> int | None:
        """The model's; None: there is none left."""
        found = self.numbers.get(model)
        if found is None and len(self.numbers) + 1 < GATES:
            found = self.numbers[model] = len(self.numbers) + 1
        return found
