"""What the agent must know of an engine, and nothing more."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from llmgw_agent.core.progress import Numbers
from llmgw_agent.core.spec import ShardSpec
from llmgw_kit.errors import InvalidRequest


@dataclass(frozen=True)
class Surroundings:
    """What this node adds to a spec."""

    #: Address the engine listens on.
    listen_host: str
    #: File or folder of the weights; None when the spec names none.
    model_path: str | None
    #: Python that has xllamacpp, and our runner's file.
    llamacpp_python: str
    llamacpp_runner: str
    #: Program names or paths.
    vllm_program: str = "vllm"
    sglang_python: str = "python3"


@dataclass(frozen=True)
class Launch:
    """A program to start. `env` is added to what the agent passes on."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """One tiny real inference."""

    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class VersionAsk:
    """A GET whose JSON object has the version under `key`."""

    path: str
    key: str


class Engine(Protocol):
    """Builds, never runs."""

    @property
    def name(self) -> str:
        """As in ShardSpec.engine."""
        ...

    @property
    def supports_credential(self) -> bool:
        """Requires `credential` of its clients when it is given one."""
        ...

    @property
    def gauge_series(self) -> tuple[str, ...]:
        """Prometheus series of /metrics whose sum is the number of requests it has, running and waiting."""
        ...

    @property
    def gauge_promised(self) -> bool:
        """True: it always has that gauge, and one that cannot be read is an unknown."""
        ...

    @property
    def work_series(self) -> tuple[str, ...]:
        """Counters of /metrics that grow while it works on requests, also within one long request."""
        ...

    @property
    def version_asks(self) -> tuple[VersionAsk, ...]:
        """Where it tells its version, tried in order."""
        ...

    def launch(self, spec: ShardSpec, around: Surroundings) -> Launch:
        """The command line. Raises InvalidRequest for a spec this engine cannot serve."""
        ...

    def ready_path(self, spec: ShardSpec) -> str | None:
        """Answers 200 once the model is loaded; None for a member without a server of its own."""
        ...


def probes(spec: ShardSpec) -> tuple[Probe, ...]:
    """Tried in order until one is answered: a base model has no chat template, an embedding model no chat."""
    name = spec.served_name
    return (
        Probe(
            "/v1/chat/completions",
            {"model": name, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]},
        ),
        Probe("/v1/completions", {"model": name, "max_tokens": 1, "prompt": "hi"}),
        Probe("/v1/embeddings", {"model": name, "input": "hi"}),
    )


def parse_numbers(text: str, running: Iterable[str], work: Iterable[str]) -> Numbers:
    """What a Prometheus text page says of requests and of work.

    Raises InvalidRequest when none of the `running` series is there: no series is unknown, not zero."""
    wanted = tuple(running)
    count = sum_of(text, wanted)
    if count is None:
        raise InvalidRequest(f"the metrics page has none of {', '.join(wanted)}")
    if not 0 <= count < 2**31:
        raise InvalidRequest(f"the gauge says {count}, which is no count")
    return Numbers(int(count), sum_of(text, tuple(work)))


def sum_of(text: str, series: tuple[str, ...]) -> float | None:
    """Of the named series over all their labels; None when none of them is there. Raises InvalidRequest."""
    total, found = 0.0, False
    for line in text.splitlines():
        if not series or not line.startswith(series):
            continue
        name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
        if name not in series:
            continue
        value = (rest.rpartition("}")[2] if "{" in line else rest).split()
        try:
            total += float(value[0])
        except (IndexError, ValueError):
            raise InvalidRequest(f"the metrics line {line[:100]!r} has no number") from None
        found = True
    return total if found else None


def required_model(spec: ShardSpec, around: Surroundings) -> str:
    """The path of the weights. Raises InvalidRequest when the spec names none."""
    if around.model_path is None:
        raise InvalidRequest(f"engine {spec.engine} needs weights, and shard {spec.shard_id} names none")
    return around.model_path


def required_port(spec: ShardSpec, name: str) -> int:
    """A leased port. Raises InvalidRequest when the controller leased none of that name."""
    if name not in spec.ports:
        raise InvalidRequest(
            f"engine {spec.engine} needs a port {name!r}, and shard {spec.shard_id} was leased "
            f"{', '.join(sorted(spec.ports)) or 'none'}"
        )
    return spec.ports[name]


def required_head(spec: ShardSpec) -> str:
    """Host of rank 0. Raises InvalidRequest when a shard of several does not know it."""
    if spec.head_address is None:
        raise InvalidRequest(
            f"shard {spec.shard_id} is rank {spec.rank} of {spec.world_size} without a head address"
        )
    return spec.head_address
