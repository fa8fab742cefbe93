"""Routing profiles: which there are, and which one a request gets.

Pure. The most particular word wins: the request's own header, then its key, then its model, then the
default. A key may be bound to some profiles; what it may not use does not exist for it, so that one
answer fits both (as with models, W04).
"""

from collections.abc import Mapping

from llmgw_router.core.config import INTERACTIVE, RoutingProfile, WorkerConfig
from llmgw_router.core.keys import KeyRow

BATCH = "batch"

#: What a router knows without being told: one for people who watch, one for work that nobody watches.
SHIPPED: Mapping[str, RoutingProfile] = {
    INTERACTIVE: RoutingProfile(),
    # Patient at every step, and last where requests wait for room.
    BATCH: RoutingProfile(
        name=BATCH,
        first_byte_s=3600.0,
        idle_s=600.0,
        write_stall_s=600.0,
        total_s=4 * 3600.0,
        queue_s=1800.0,
        hold_s=1800.0,
        priority=-10,
    ),
}


class ProfileRefused(Exception):
    """The header names a profile that this request cannot have; the message says which it can."""


def usable(config: WorkerConfig, key: KeyRow | None) -> tuple[str, ...]:
    """Names of the profiles that a header may ask for, in the key's order or by name."""
    if key is None or key.profiles is None:
        return tuple(sorted(config.profiles))
    return tuple(name for name in key.profiles if name in config.profiles)


def choose(
    config: WorkerConfig, *, model: str, key: KeyRow | None = None, asked: bytes | None = None
) -> RoutingProfile:
    """The profile of one request; `asked` is its header. Raises ProfileRefused."""
    allowed = usable(config, key)
    if asked is not None:
        name = asked.decode("latin-1").strip()
        if name in allowed:
            return config.profiles[name]
        raise ProfileRefused(
            f"The routing profile `{name[:64]}` is not there for you; "
            + (f"you may use: {', '.join(allowed)}." if allowed else "you may use none by name.")
        )
    if key is not None and key.profiles is not None and allowed:
        return config.profiles[allowed[0]]
    # A key whose profiles are all gone from the configuration is served as if it had none.
    return config.profiles[config.model_profiles.get(model, config.default_profile)]
