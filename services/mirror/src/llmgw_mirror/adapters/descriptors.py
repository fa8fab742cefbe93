"""File descriptors: as many as this process may have, shared so that no kind of use takes them all."""

import logging
import resource

log = logging.getLogger(__name__)

#: One in so many is for connections of nodes: each may read a file besides, and the store needs some.
CONNECTIONS_SHARE = 3


def raise_limit() -> int:
    """The limit of open files, raised as far as this process may; a container often starts with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as e:
        log.warning("at most %s files can be open, %s would be allowed: %s", soft, hard, e)
        return soft
    return hard


def connections_most(limit: int) -> int | None:
    """How many connections the listener of nodes takes. None: there is no limit."""
    return None if limit == resource.RLIM_INFINITY else max(1, limit // CONNECTIONS_SHARE)
