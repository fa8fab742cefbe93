"""The call that compares what the database, the agents and the routers say."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller import wire_explained
from llmgw_controller.core.doctor import DatabaseWord
from llmgw_controller.core.rows import Stored
from llmgw_controller.operator.desk import Context, Desk
from llmgw_controller.reign import Reign
from llmgw_controller.whole_status import examined
from llmgw_kit.errors import Unavailable

#: While the leader writes, its copy and the database are read at two moments; once more then.
READS_MOST = 3


class Doctor(Desk):
    """Nothing is changed here."""

    async def Doctor(self, request: pb.DoctorRequest, context: Context) -> pb.DoctorResponse:
        """Who disagrees with whom."""
        reign, view = await self._view()
        found = await examined(reign, await _database(reign))
        return wire_explained.doctor(found, self._info(reign, view))


async def _database(reign: Reign) -> DatabaseWord:
    """The rows and the clock, read past the leader's copy; rows only of a moment at which the copy stood
    still, or every write under way would look like a difference."""
    rows: Stored | None = None
    clock_s: float | None = None
    try:
        for _ in range(READS_MOST):
            before = reign.ledger.stored
            read = await reign.world.store.load()
            if reign.ledger.stored == before:
                rows = read
                break
        asked = reign.tenure.now()
        clock_s = await reign.world.store.clock()
        return DatabaseWord(rows, clock_s, (asked + reign.tenure.now()) / 2)
    except Unavailable:
        return DatabaseWord(None, None, reign.tenure.now())
