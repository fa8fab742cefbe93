"""Endpoints of the choosing room as bare numbers, for its unit tests and its simulation."""

from zlib import crc32

from llmgw_router.core.choosing.standing import Standing


class Spot(Standing):
    """An endpoint whose load is whatever the test says."""

    def __init__(self, name: str, load: int = 0, *, weight: int = 1, tier: int = 0) -> None:
        super().__init__(weight)
        self.name = name
        self.load = load
        self.tier = tier
        self.salt = crc32(name.encode())

    def __repr__(self) -> str:
        return f"<{self.name} load {self.load}>"

    def outstanding(self) -> int:
        return self.load
