"""How many GPUs of a class hold a model, and how long a context then fits: figures to begin with, reckoned
from sizes, where only a start tells what is true.
"""

from dataclasses import dataclass

from llmgw_mirror.core.described import Described
from llmgw_mirror.core.warnings import GpuClass

#: Of a device, what an engine takes by its own default: vLLM 0.9 (--gpu-memory-utilization), SGLang about
#: as much; llama.cpp takes what it needs.
USABLE = {"vllm": 0.90, "sglang": 0.88, "llamacpp": 0.95}
#: Beside weights and cache, on each device: the driver's context, graphs and activations.
BESIDE_BYTES = {"vllm": 2_000_000_000, "sglang": 2_000_000_000, "llamacpp": 1_000_000_000}
#: Where the cache's cost is not known, and for buffers that grow with the weights.
WEIGHTS_FACTOR_KNOWN, WEIGHTS_FACTOR_UNKNOWN = 1.03, 1.2
#: Who has less is hardly of use; who has it is offered more where it fits.
CONTEXT_LEAST = 8192
#: Contexts below the model's own are whole multiples of this.
CONTEXT_STEP = 1024


@dataclass(frozen=True)
class Fit:
    """One way to run it. `claim_bytes`: of each device; `context_length` None: the engine's own."""

    gpu_class: str
    nodes: int
    gpus_per_node: int
    context_length: int | None
    claim_bytes: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


def fit(weights_bytes: int, model: Described, one: GpuClass, *, engine: str) -> Fit | None:
    """With the fewest GPUs that hold it and a context of use; None: not with all that one fabric has."""
    for way in _ways(one, model, engine):
        needs = _Needs(weights_bytes, model, way, engine)
        context = _context(needs, usable=int(one.memory_bytes * USABLE[engine]))
        if context is not None:
            return Fit(one.name, *way, context.told, needs.claim(context.tokens))
    return None


def at_most(weights_bytes: int, model: Described, one: GpuClass, *, engine: str) -> Fit:
    """All that the class offers, for a model that fits none: to be refused by name rather than forgotten."""
    way = _ways(one, model, engine)[-1]
    tokens = min(model.context_length or CONTEXT_LEAST, CONTEXT_LEAST)
    return Fit(one.name, *way, tokens, _Needs(weights_bytes, model, way, engine).claim(tokens))


@dataclass(frozen=True)
class _Context:
    tokens: int
    #: To be written down; None: unknown, so the engine decides.
    told: int | None


def _ways(one: GpuClass, model: Described, engine: str) -> list[tuple[int, int]]:
    """(nodes, GPUs on each), fewest first. Tensor parallelism shares heads out evenly, in powers of two; over
    nodes only whole ones are taken; llama.cpp splits layers, over any number on one node."""
    most = max(1, one.devices_per_node)
    if engine == "llamacpp":
        return [(1, gpus) for gpus in range(1, most + 1)]
    heads = model.cache.heads if model.cache is not None else None
    counts = [gpus for gpus in (1, 2, 4, 8, 16) if gpus <= most and (heads is None or heads % gpus == 0)]
    ways = [(1, gpus) for gpus in counts]
    # Over nodes only where most of one is taken: a few GPUs of each would be slow for nothing.
    nodes = 2
    while nodes <= one.nodes_per_fabric and 2 * counts[-1] > most:
        ways.append((nodes, counts[-1]))
        nodes *= 2
    return ways


@dataclass(frozen=True)
class _Needs:
    """Of each device, one way to run it. `way`: (nodes, GPUs on each)."""

    weights_bytes: int
    model: Described
    way: tuple[int, int]
    engine: str

    def claim(self, tokens: int) -> int:
        """Bytes, for one sequence of so many tokens."""
        nodes, gpus = self.way
        cache = self.model.cache
        factor = WEIGHTS_FACTOR_UNKNOWN if cache is None else WEIGHTS_FACTOR_KNOWN
        weights = self.weights_bytes * factor / (nodes * gpus)
        kept = 0.0 if cache is None else cache.bytes_per_token * tokens / self.shares
        return int(weights + kept) + BESIDE_BYTES[self.engine]

    @property
    def shares(self) -> int:
        """Into which the cache is divided: over layers between nodes, over heads between GPUs of one;
        llama.cpp divides layers there, too."""
        assert self.model.cache is not None
        nodes, gpus = self.way
        return nodes * (gpus if self.engine == "llamacpp" else min(gpus, self.model.cache.splits))


def _context(needs: _Needs, *, usable: int) -> _Context | None:
    """The longest that fits, up to the model's own. None: not even the least."""
    own, cache = needs.model.context_length, needs.model.cache
    least = min(own or CONTEXT_LEAST, CONTEXT_LEAST)
    if needs.claim(least) > usable:
        return None
    if own is None or cache is None:
        # Nothing to reckon with: the model's own, where it says one.
        return _Context(own or least, own)
    if needs.claim(own) <= usable:
        return _Context(own, own)
    fits = int((usable - needs.claim(0)) * needs.shares / cache.bytes_per_token)
    tokens = max(least, fits // CONTEXT_STEP * CONTEXT_STEP)
    return _Context(tokens, tokens)
