"""Memory: what a replica claims on each of its devices, and where that number comes from.

Declared in the profile, else the most that a start of the same spec was seen to hold, else a formula from
the size of its weights, else unknown; an unknown claim fits any device, and the engine will tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from llmgw_controller.core.catalog import Engine, Model, Profile
from llmgw_controller.core.rows import LoadRecord

#: Spec hash, which names the GPU class too -> most bytes that any device was seen to hold.
Measured = Mapping[str, int]

#: Formula: weights of one device times this, for what grows with them (activations, KV cache of a short
#: context), plus the constant, for what does not (the driver's context, the engine's own buffers). A rough
#: lower bound on purpose: it is to refuse what cannot load, and who knows better declares `memory_bytes`.
FORMULA_FACTOR = 1.2
FORMULA_CONSTANT_BYTES = 512 * 1024**2

#: Engines whose weights end up on the devices. What a command does with them is its own affair.
_LOADS_WEIGHTS = frozenset({Engine.LLAMACPP, Engine.VLLM, Engine.SGLANG})


class MemorySource(Enum):
    DECLARED = "declared"
    MEASURED = "measured"
    FORMULA = "formula"


@dataclass(frozen=True)
class MemoryClaim:
    """On each device of a profile. Both None: unknown."""

    size_bytes: int | None
    source: MemorySource | None


UNKNOWN = MemoryClaim(None, None)


def memory_claim(model: Model, profile: Profile, measured: Measured) -> MemoryClaim:
    """Of each device that the profile takes."""
    if profile.memory_bytes is not None:
        return MemoryClaim(profile.memory_bytes, MemorySource.DECLARED)
    if measured and (seen := measured.get(model.spec_hashes.get(profile.name, ""))) is not None:
        return MemoryClaim(seen, MemorySource.MEASURED)
    weights = _weights_bytes(model)
    if weights is None or profile.engine not in _LOADS_WEIGHTS:
        return UNKNOWN
    # Tensor and pipeline parallelism share the weights out; each data-parallel copy has all of them.
    share = weights / (profile.tensor_parallel * profile.pipeline_parallel)
    return MemoryClaim(int(share * FORMULA_FACTOR) + FORMULA_CONSTANT_BYTES, MemorySource.FORMULA)


def measured_of(loads: tuple[LoadRecord, ...]) -> Measured:
    """The most of all starts on record; those from before it was measured say nothing."""
    found: dict[str, int] = {}
    for load in loads:
        if load.memory_bytes is not None and load.spec_hash is not None:
            found[load.spec_hash] = max(load.memory_bytes, found.get(load.spec_hash, 0))
    return found


def usable_bytes(total: int | None, used: int | None, foreign: int | None, own: int) -> int | None:
    """What may be claimed of a device: its total, or what is observed free together with our own use,
    whichever is less. None: its size is unknown.

    `own` is what engines of ours were seen to hold; it counts as free, for whoever asks comes after them, and
    readings of used memory may be half a minute older than their exit."""
    if total is None:
        return None
    if foreign is not None:
        return max(0, total - foreign)
    return max(0, total - max(0, (used or 0) - own))


def _weights_bytes(model: Model) -> int | None:
    if model.weights is None:
        return None
    sizes = [file.size_bytes for file in model.weights.files]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
