"""A reign on memory and a clock that the test moves; no network."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmgw.v1 import agent_pb2 as pb
from llmgw_controller import wire_agent
from llmgw_controller.adapters.activity_redis import NoActivity
from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.adapters.store_memory import MemoryStore
from llmgw_controller.catalog_file import parse_models
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.lease import LeaseTiming
from llmgw_controller.core.state import Intervals
from llmgw_controller.leadership import Tenure
from llmgw_controller.reign import Reign, Rules, World
from llmgw_kit.testing.clock import FakeClock

KEPT = {
    "name": "tiny",
    "replicas": 1,
    "profiles": [{"engine": "command", "gpu_class": "L4", "command": ["engine", "{port}"]}],
}


@dataclass
class Mirror:
    """Notes what it is asked for."""

    asked: list[str] = field(default_factory=list)

    async def fetch(self, model: Model) -> None:
        self.asked.append(model.name)


@dataclass
class Outcomes:
    """What passes came to."""

    seen: list[str] = field(default_factory=list)

    def passed(self, outcome: str, seconds: float) -> None:
        self.seen.append(outcome)


async def reign_on(
    clock: FakeClock,
    store: MemoryStore | None = None,
    *,
    lease: MemoryLease | None = None,
    models: object = (KEPT,),
    adopts: bool = False,
) -> Reign:
    """A new term on `store`."""
    lease = lease or MemoryLease(clock)
    held = await lease.acquire(holder="c", address="c:1", ttl_s=3600)
    assert held is not None
    tenure = Tenure(held, clock, LeaseTiming(ttl_s=3600), asked_at=clock.monotonic_s())
    world = World(store or MemoryStore(lease), NoActivity(), Mirror(), clock, Outcomes(), lambda: ())
    rules = Rules(
        cluster="test", configured=parse_models(list(models), where="test"), intervals=Intervals(),  # type: ignore[call-overload]
        reconcile_interval_s=2.0, activity_tick_s=5.0, beat_interval_s=5.0, events_keep_s=3600.0, mirror_urls=("http://m:1",),
        adopts=adopts,
    )  # fmt: skip
    return Reign(tenure, world, rules, name="c")


def hello(node: str = "n1", *, instance: str = "i1", boot: str = "b1", **more: object) -> wire_agent.Hello:
    """An agent with two GPUs."""
    message = pb.Hello(
        node_id=node, boot_id=boot, agent_instance=instance, version="v",
        inventory=pb.Inventory(
            management_address="10.0.0.1", engines=["command"],
            engine_ports=pb.PortRange(first=20000, last=20009),
            devices=[
                pb.Device(device_id=f"{node}-{i}", index=i, gpu_class="L4", state=pb.DEVICE_STATE_HEALTHY)
                for i in range(2)
            ],
        ),
        **more,  # type: ignore[arg-type]
    )  # fmt: skip
    return wire_agent.hello(message)
