"""What operators' changes share: each is written together with its event, told in the log, and warned of
where nothing outlives this process."""

import logging

from llmgw_controller.core.plan import Change, PutEvent, Severity
from llmgw_controller.reign import Reign

log = logging.getLogger(__name__)

MEMORY_WARNING = "no database is configured: it is kept in memory, and gone when this controller stops"


def memory_warnings(reign: Reign) -> list[str]:
    """For the answer; none where a database keeps what is written."""
    return [MEMORY_WARNING] if reign.world.store.kind == "memory" else []


async def commit(
    reign: Reign, what: str, name: str, kind: str, why: str, *changes: Change, trouble: bool = False
) -> None:
    """Write the changes and an event of this kind on `name`, all or nothing; under `writing` only.

    `what` it is, as in "node" or "model", stands in the log alone. Raises what `Ledger.commit` raises."""
    severity = Severity.TROUBLE if trouble else Severity.INFO
    await reign.ledger.commit([*changes, PutEvent(reign.tenure.now(), kind, name, why, severity)])
    log.info("%s %s: %s %s", what, name, kind, why)
    for warning in memory_warnings(reign):
        log.warning("%s %s: %s", what, name, warning)
