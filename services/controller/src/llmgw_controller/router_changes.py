"""Forgetting a router that will not come back: an operator knows what no report says."""

import logging

from llmgw_controller.core.members import members, why_kept
from llmgw_controller.core.plan import DropRouter, PutEvent, RaiseIdleFloor, Severity
from llmgw_controller.reign import Reign
from llmgw_kit.errors import Conflict, NotFound
from llmgw_kit.ids import RouterId
from llmgw_kit.names import did_you_mean

log = logging.getLogger(__name__)


async def forget_router(reign: Reign, name: str, *, dry_run: bool) -> str:
    """Take a dead router out of the membership, or only say what would come of it.

    What it picked in its last tick died with it, so its death counts as an ask for every replica. Raises
    NotFound, and Conflict for a router that lives."""
    async with reign.ledger.writing() as stored:
        router_id, now = RouterId(name), reign.tenure.now()
        rows = members(reign.snapshot(stored), reign.board.watching, reign.applied(stored))
        member = next((one for one in rows if one.row.router_id == router_id), None)
        if member is None:
            raise NotFound(
                f"no router {name} is a member{did_you_mean(name, stored.routers)}",
                code="router_not_found",
                next_steps=["try: llmgwctl router list"],
            )
        kept = why_kept(member)
        if kept is not None:
            raise Conflict(
                f"router {name} lives: {kept}",
                code="router_lives",
                next_steps=["stop it; one that stops on purpose says goodbye and is forgotten by itself"],
            )
        left = len(rows) - 1
        text = (
            f"router {name} is a member no longer: idleness needs {_others(left)}, and every replica counts "
            "as asked for now"
        )
        if not dry_run:
            await reign.ledger.commit(
                [
                    DropRouter(router_id),
                    RaiseIdleFloor(now),
                    PutEvent(now, "router_forgotten", name, "forgotten by an operator", Severity.NOTE),
                ]
            )
            reign.board.forget(router_id)
            log.info("%s", text)
    if not dry_run:
        reign.hints()
    return text


def _others(left: int) -> str:
    if left == 0:
        return "no router's word"
    return "the word of the one left" if left == 1 else f"the word of the other {left}"
