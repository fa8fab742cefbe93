"""Letting go of leases."""

import logging

from llmgw_kit.errors import Unavailable
from llmgw_mirror.ports import Lease, Ledger

log = logging.getLogger(__name__)


async def let_go(ledger: Ledger, lease: Lease) -> None:
    """At once, or when it has run out: nobody is kept from ending by a ledger that is away."""
    try:
        await ledger.release(lease)
    except Unavailable as e:
        log.info("the lease on %s runs out by itself: %s", lease.key, e.text)
