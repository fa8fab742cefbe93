"""What the fleet is asked to serve."""

from llmgw_controller.core.catalog import Engine, Model, Profile, Source
from llmgw_controller.core.state import EvictionPolicy
from llmgw_kit.ids import ModelId
from tests.simulation.world import World

IDLE_AFTER_S = 60.0
DRAIN_TIMEOUT_S = 120.0
#: A group that runs requests and gives no token for so long hangs.
STALL_S = 60.0


def _model(
    name: str,
    replicas: int,
    *,
    nodes: int = 1,
    gpus: int = 1,
    priority: int = 0,
    idle_after_s: float = IDLE_AFTER_S,
    max_replicas: int | None = None,
    concurrency: int | None = None,
) -> Model:
    profile = Profile(
        name="p",
        engine=Engine.LLAMACPP,
        gpu_class="L4",
        nodes=nodes,
        gpus_per_node=gpus,
        tensor_parallel=gpus * nodes,
        pipeline_parallel=1,
        data_parallel=1,
        memory_bytes=None,
        context_length=None,
        args=(),
        env=(),
        command=(),
        extra_ports=("rendezvous",) if nodes > 1 else (),
        ready_path=None,
        ready_timeout_s=600.0,
        drain_timeout_s=DRAIN_TIMEOUT_S,
        stop_grace_s=20.0,
        stop_after_silence_s=None,
        min_uptime_s=60.0,
        pool=None,
        node_ids=(),
        stall_timeout_s=STALL_S,
        concurrency=concurrency,
    )
    return Model(
        name=ModelId(name),
        aliases=(),
        weights=None,
        profiles=(profile,),
        replicas=replicas,
        activate_on_demand=True,
        hold_timeout_s=120.0,
        max_held=100,
        idle_after_s=idle_after_s,
        min_residency_s=30.0,
        pinned=False,
        priority=priority,
        source=Source.CONFIGURATION,
        max_replicas=max_replicas,
    )


#: Asked for by many at once now and then, and little in between.
GROWING = ModelId("grow")
KEPT = (
    _model("kept", 2),
    _model("gang", 1, nodes=2, gpus=2),
    _model(GROWING, 1, max_replicas=3, concurrency=2),
)
COLD = (_model("cold", 0), _model("cool", 0), _model("wide", 0, gpus=3))
#: Asked for now and then, and never let go before somebody needs their devices.
LINGERING = frozenset({ModelId("lull"), ModelId("lapse"), ModelId("low")})


def models(world: World, eviction: EvictionPolicy) -> tuple[Model, ...]:
    """Where room is made there are some more, which hold most of it: those asked for once stay for an hour or
    two, and what configuration wants with the least priority stays for ever."""
    if eviction is not EvictionPolicy.ON:
        return KEPT + COLD
    hours = [world.between(2400.0, 7200.0) for _ in range(2)]
    return (
        *KEPT,
        *COLD,
        _model("lull", 0, gpus=3, idle_after_s=hours[0]),
        _model("lapse", 0, gpus=3, idle_after_s=hours[1]),
        _model("low", 2, priority=-1),
    )
