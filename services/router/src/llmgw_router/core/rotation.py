"""Which controller to ask next. Pure; one value follows another.

A standby names the leader, which may be an address this router was never told; when that one fails,
the configured list is gone through again.
"""

from dataclasses import dataclass, replace

from llmgw_kit.addresses import HostPort

#: Standbys may point at each other while nobody leads; after so many hints the list decides.
MOST_HINTS = 3


@dataclass(frozen=True, kw_only=True)
class Rotation:
    addresses: tuple[HostPort, ...]
    index: int = 0
    #: Where a standby sent us; asked before the list.
    hint: HostPort | None = None
    hints_followed: int = 0

    @property
    def current(self) -> HostPort:
        return self.hint or self.addresses[self.index]

    def leads(self) -> "Rotation":
        """The current one answered as leader: hints count anew."""
        return replace(self, hints_followed=0)

    def failed(self) -> "Rotation":
        """The current one is no leader and names none, or does not answer."""
        if self.hint is not None:
            return replace(self, hint=None)
        return replace(self, index=(self.index + 1) % len(self.addresses))

    def pointed(self, leader: HostPort | None) -> "Rotation":
        """The current one stands by, and names `leader`."""
        if leader is None or leader == self.current or self.hints_followed >= MOST_HINTS:
            return replace(self.failed(), hints_followed=0)
        if leader in self.addresses:
            return replace(
                self,
                index=self.addresses.index(leader),
                hint=None,
                hints_followed=self.hints_followed + 1,
            )
        return replace(self, hint=leader, hints_followed=self.hints_followed + 1)
