"""Port bands: which ports a shard needs on its node, and the lowest free ones that serve.

Engines open more than the port they are told of. What they need is leased too, or two engines of one node
meet: a rendezvous for the ranks, and a band of consecutive ports from which an engine takes what it wants.
"""

from collections.abc import Set
from dataclasses import dataclass

from llmgw_controller.core.catalog import Engine, Profile

#: vLLM counts upwards from VLLM_PORT while a port is taken; it opens a handful per process group.
VLLM_BAND = 8

#: Where Linux begins to hand out ports to clients unless told otherwise (ip_local_port_range).
EPHEMERAL = (32768, 60999)


@dataclass(frozen=True)
class Band:
    """`width` consecutive ports; the first goes by `name`, further ones by "name+1", ..."""

    name: str
    width: int = 1


def bands(profile: Profile) -> tuple[Band, ...]:
    """By name. What the profile lists, and what its engine needs whether listed or not: nobody has to know
    that ranks of one replica meet at a port."""
    found = {name: Band(name) for name in ("http", *profile.extra_ports)}
    if profile.engine in (Engine.VLLM, Engine.SGLANG) and profile.nodes > 1:
        found["rendezvous"] = Band("rendezvous")
    if profile.engine is Engine.VLLM:
        found["internal"] = Band("internal", VLLM_BAND)
    elif profile.engine is Engine.SGLANG:
        found["internal"] = Band("internal")
    return tuple(found[name] for name in sorted(found))


def overlaps_ephemeral(engine_ports: tuple[int, int]) -> bool:
    """A client of this machine, the agent included, may sit on one of them."""
    return engine_ports[0] <= EPHEMERAL[1] and EPHEMERAL[0] <= engine_ports[1]


def ports_needed(needed: tuple[Band, ...]) -> int:
    """Of one shard."""
    return sum(band.width for band in needed)


def lease(
    engine_ports: tuple[int, int] | None, taken: Set[int], needed: tuple[Band, ...]
) -> tuple[tuple[str, int], ...] | None:
    """Sorted (name, port), each band at the lowest place it has room; None: the range is used up, or the
    agent named none. Bands wider than one go first, for they need what single ports would break up."""
    if engine_ports is None:
        return None
    used = set(taken)
    found: dict[str, int] = {}
    for band in sorted(needed, key=lambda one: (-one.width, one.name)):
        base = _lowest(engine_ports, used, band.width)
        if base is None:
            return None
        for offset in range(band.width):
            found[f"{band.name}+{offset}" if offset else band.name] = base + offset
            used.add(base + offset)
    return tuple(sorted(found.items()))


def _lowest(engine_ports: tuple[int, int], used: Set[int], width: int) -> int | None:
    first, last = engine_ports
    base = first
    while base + width - 1 <= last:
        blocked = next((base + k for k in reversed(range(width)) if base + k in used), None)
        if blocked is None:
            return base
        base = blocked + 1
    return None
