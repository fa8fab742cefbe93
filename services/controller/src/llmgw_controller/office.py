"""Who asks a controller for something meets its office first: leading, with a reign to act in, or standing
by."""

from collections.abc import Callable

from llmgw_controller.core.lease import LeaseTiming
from llmgw_controller.leadership import Leadership, Tenure
from llmgw_controller.ports import LeaseStore, LeaseView
from llmgw_controller.reign import Reign
from llmgw_kit.clock import Clock
from llmgw_kit.errors import NotLeader


class Office:
    """Holds the leadership and, while it leads, the reign."""

    def __init__(
        self,
        leases: LeaseStore,
        clock: Clock,
        *,
        name: str,
        address: str,
        timing: LeaseTiming,
        make: Callable[[Tenure], Reign],
    ) -> None:
        self.name = name
        self.address = address
        self.clock = clock
        self._make = make
        self._reign: Reign | None = None
        self._stopping = False
        self.leadership = Leadership(
            leases, clock, name=name, address=address, timing=timing, reign=self._run_reign
        )

    @property
    def reign(self) -> Reign | None:
        """The reign, if we may act under it now."""
        tenure = self.leadership.tenure
        reign = self._reign
        return reign if tenure is not None and reign is not None and reign.tenure is tenure else None

    def require(self) -> Reign:
        """Raises NotLeader with the leader's address, where one is known."""
        reign = self.reign
        if reign is None:
            raise self.not_leading()
        return reign

    def not_leading(self) -> NotLeader:
        """The refusal of a standby."""
        return self.leadership.not_leading()

    @property
    def leader(self) -> LeaseView | None:
        """Who leads, as last seen."""
        return self.leadership.leader

    async def _run_reign(self, tenure: Tenure) -> None:
        reign = self._make(tenure)
        self._reign = reign
        try:
            await reign.run()
        finally:
            self._reign = None
            reign.close(None, stopping=self._stopping)

    def stopping(self) -> None:
        """Streams that end from now on are told that it is on purpose."""
        self._stopping = True
