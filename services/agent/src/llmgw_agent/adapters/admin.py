"""The agent's HTTP side: health, metrics, what it holds, and broken devices for labs."""

from collections.abc import Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llmgw_agent.adapters.declared import DeclaredDevices, parse_state
from llmgw_agent.core.devices import DeviceState
from llmgw_agent.core.shard import Shard, ShardState
from llmgw_agent.loops.node import by_state
from llmgw_agent.loops.view import View
from llmgw_kit.errors import InvalidRequest, LlmgwError, NotFound
from llmgw_kit.telemetry import health_routes, metrics_route


class AgentMetrics(Collector):
    """Read from the view at each scrape: a metric cannot disagree with what is reported."""

    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """llmgw_agent_*; unknown is an absent series."""
        view = self._view
        shards = GaugeMetricFamily("llmgw_agent_shards", "Shards by state.", labels=["state"])
        for state, count in by_state(view.shards()).items():
            shards.add_metric([state.value], count)
        yield shards
        devices = GaugeMetricFamily("llmgw_agent_devices", "Devices by state.", labels=["state"])
        for known in DeviceState:
            devices.add_metric([known.value], sum(one.state is known for one in view.devices))
        yield devices
        up = 0 if view.session is None else 1
        yield GaugeMetricFamily("llmgw_agent_session_up", "1 while a controller is heard.", value=up)
        if view.session is not None:
            yield GaugeMetricFamily(
                "llmgw_agent_term", "Lease term of that controller.", value=view.session.term
            )
        yield GaugeMetricFamily(
            "llmgw_agent_commands", "Logs read, benchmarks and removals under way.", value=view.commands
        )
        weights = sum(held.bytes for held in view.weights)
        yield GaugeMetricFamily("llmgw_agent_weights_bytes", "Bytes of weights on disk.", value=weights)
        if view.inventory.disk_free_bytes is not None:
            yield GaugeMetricFamily(
                "llmgw_agent_disk_free_bytes",
                "Free bytes of the data disk.",
                value=view.inventory.disk_free_bytes,
            )
        exits = CounterMetricFamily("llmgw_agent_exits", "Shards that ended, by reason.", labels=["reason"])
        for reason, count in sorted(view.node.exits.items()):
            exits.add_metric([reason], count)
        yield exits


def application(view: View, registry: CollectorRegistry, declared: DeclaredDevices | None) -> web.Application:
    """The admin pages; loopback by default, so they ask for no credential."""

    async def shards(_: web.Request) -> web.Response:
        return web.json_response({"shards": [plain_shard(one) for one in view.shards().values()]})

    async def set_device(request: web.Request) -> web.Response:
        assert declared is not None
        try:
            body = await request.json()
            if not isinstance(body, dict):
                raise InvalidRequest("expected an object with state and reason")
            reason = body.get("reason")
            declared.set_state(
                request.match_info["device"],
                parse_state(str(body.get("state"))),
                None if reason is None else str(reason),
            )
        except ValueError:
            return web.json_response({"error": "the body is not JSON"}, status=400)
        except LlmgwError as e:
            return web.json_response({"error": e.text}, status=404 if isinstance(e, NotFound) else 400)
        await view.refresh()
        return web.json_response({"device": request.match_info["device"], "state": body["state"]})

    app = web.Application(client_max_size=1 << 16)
    app.add_routes(health_routes(lambda: ready(view)))
    app.add_routes([metrics_route(registry), web.get("/shards", shards)])
    if declared is not None:
        app.add_routes([web.post("/devices/{device}", set_device)])
    return app


def metrics_application(view: View, registry: CollectorRegistry) -> web.Application:
    """What the metrics listener shows to everybody: no page that changes or names anything."""
    app = web.Application(client_max_size=1 << 16)
    app.add_routes(health_routes(lambda: ready(view)))
    app.add_routes([metrics_route(registry)])
    return app


async def ready(view: View) -> tuple[bool, str]:
    """Ready is: the node's shards are known and looked after. A silent controller is no fault of ours
    and no reason to be taken out: the engines run on."""
    if view.session is None:
        return True, f"no controller heard for {view.silent_s():.0f} s; engines go on"
    return True, f"session with {view.session.leader_name}, term {view.session.term}"


def plain_shard(shard: Shard) -> dict[str, object]:
    """As JSON types, for people and scripts. Without the credential."""
    spec = shard.spec
    return {
        "shard_id": spec.shard_id,
        "replica_id": spec.replica_id,
        "model": spec.model,
        "engine": spec.engine,
        "state": shard.state.value,
        "pid": shard.process.pid if shard.process and shard.state is not ShardState.EXITED else None,
        "pid_start_ticks": shard.process.start_ticks if shard.process else None,
        "ports": dict(spec.ports),
        "devices": list(spec.device_ids),
        "probed": shard.probed,
        "running_requests": shard.running,
        "running_unknown_reason": shard.running_unknown,
        "fetch_s": shard.fetch_s,
        "load_s": shard.load_s,
        "warm_up_s": shard.warm_up_s,
        "engine_version": shard.engine_version,
        "memory_used_bytes": dict(shard.memory_used),
        "probe_error": shard.probe_error,
        "stalled_s": shard.stalled_s,
        "adopted": shard.adopted,
        "progress": shard.progress,
        "exit": vars(shard.exit) if shard.exit else None,
        "log": shard.log_path,
        "story": list(shard.story),
    }
