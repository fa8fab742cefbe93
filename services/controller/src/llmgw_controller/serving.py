"""From settings to a running controller, and back down in order."""

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from importlib.metadata import version

import grpc.aio
from aiohttp import web

from llmgw.v1 import agent_pb2_grpc, operator_pb2_grpc, routing_pb2_grpc
from llmgw_controller.adapters.activity_redis import NoActivity, RedisActivity
from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.adapters.lease_postgres import PostgresLease
from llmgw_controller.adapters.mirror_grpc import GrpcMirror, NoMirror
from llmgw_controller.adapters.roster import LonelyRoster, PostgresRoster
from llmgw_controller.adapters.store_memory import MemoryStore
from llmgw_controller.adapters.store_postgres import PostgresStore
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.state import ControllerSeen
from llmgw_controller.leadership import Tenure
from llmgw_controller.loops import RosterLoop
from llmgw_controller.metrics import ControllerMetrics
from llmgw_controller.office import Office
from llmgw_controller.ports import LeaseStore, Roster, Store
from llmgw_controller.reign import Reign, Rules, World
from llmgw_controller.servicer_agent import AgentServicer
from llmgw_controller.servicer_operator import OperatorServicer
from llmgw_controller.servicer_routing import RoutingServicer
from llmgw_controller.settings import ControllerSettings, config_hash
from llmgw_kit import listeners, rpc, telemetry
from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import Clock, SystemClock
from llmgw_kit.lifecycle import StopSignal, cancel_all, until_stopped
from llmgw_kit.postgres import connect_patiently, safe_dsn
from llmgw_kit.rpc_watch import PeerWatch
from llmgw_kit.tls_watch import refresh_at_hangup
from llmgw_schema.migrate import migrate_at

log = logging.getLogger(__name__)

#: A store that has been silent for so long keeps us from taking over: not ready.
STORE_SILENT_S = 10.0

#: Between two announcements to the other controllers.
ANNOUNCE_S = 5.0

SERVICES = ("llmgw.v1.AgentService", "llmgw.v1.RoutingService", "llmgw.v1.OperatorService")


async def serve(settings: ControllerSettings, models: list[Model]) -> int:
    """Until a signal. Raises StartupError for what keeps it from starting."""
    stop = StopSignal()
    refresh_at_hangup()  # until it is known which files there are
    async with AsyncExitStack() as opened:
        controller = Controller(settings, models, SystemClock(), opened)
        # A signal ends the waiting for Postgres too.
        starting = asyncio.create_task(controller.start(), name="start")
        waiting = asyncio.create_task(stop.wait(), name="signal")
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not starting.done():
            await cancel_all(starting)
            return 0
        leading = asyncio.create_task(starting.result().leadership.run(), name="leadership")
        try:
            await until_stopped(stop, leading)
        finally:
            await controller.stop(leading)
    return 0


class Controller:
    """One controller process. What is opened is closed by `opened`, last opened first."""

    def __init__(
        self, settings: ControllerSettings, models: list[Model], clock: Clock, opened: AsyncExitStack
    ) -> None:
        self._settings = settings
        self._models = models
        self._clock = clock
        self._opened = opened
        self._metrics = ControllerMetrics()
        self._office: Office | None = None
        self._server: grpc.aio.Server | None = None
        self._health: rpc.Health | None = None
        self._roster: RosterLoop | None = None
        self._announcing: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> Office:
        """Bind, connect, compose, serve. Ports first: a taken one is told before anybody waits."""
        settings = self._settings
        await self._serve_http(settings.admin_address, flag="--admin-listen")
        if settings.metrics_address is not None:
            await self._serve_http(settings.metrics_address, flag="--metrics-listen")
        server = rpc.server()
        bound = rpc.listen(server, settings.listen_address, flag="--listen")
        self._opened.push_async_callback(server.stop, 0)
        advertised = settings.advertised(bound)
        leases, store, roster = await self._open_store()
        rules = Rules(
            cluster=settings.cluster,
            configured=self._models,
            intervals=settings.intervals(),
            reconcile_interval_s=settings.reconcile_interval_s,
            activity_tick_s=settings.activity_tick_s,
            beat_interval_s=settings.beat_interval_s,
            events_keep_s=settings.events_keep_s,
            mirror_urls=settings.mirror_urls,
            adopts=store.kind == "memory",
        )
        name = settings.named(advertised)
        digest = config_hash(settings, self._models)
        me = ControllerSeen(name, str(advertised), digest, version("llmgw-controller"))
        self._roster = RosterLoop(roster, me, self._clock, ANNOUNCE_S)
        self._announcing = asyncio.create_task(self._roster.run(), name="announcing")
        self._opened.push_async_callback(cancel_all, self._announcing)
        seen = self._roster
        world = World(
            store, self._open_activity(), self._open_mirror(), self._clock, self._metrics, lambda: seen.seen
        )

        def make(tenure: Tenure) -> Reign:
            return Reign(tenure, world, rules, name=name)

        office = Office(
            leases, self._clock, name=name, address=str(advertised), timing=settings.lease_timing(), make=make
        )
        agent_pb2_grpc.add_AgentServiceServicer_to_server(AgentServicer(office), server)
        routing_pb2_grpc.add_RoutingServiceServicer_to_server(RoutingServicer(office), server)
        operator_pb2_grpc.add_OperatorServiceServicer_to_server(
            OperatorServicer(office, store_kind=store.kind, config_hash=digest), server
        )
        self._health = rpc.Health(server, SERVICES)
        await server.start()
        await self._health.set_serving(True)
        self._office, self._server = office, server
        self._say_what_runs(name, bound, advertised, store, digest)
        return office

    async def _open_store(self) -> tuple[LeaseStore, Store, Roster]:
        settings = self._settings
        dsn = settings.dsn_text()
        if dsn is None:
            log.warning(
                "NO DATABASE: this is the only controller, it keeps everything in memory, and models applied "
                "at run time vanish with it. Set dsn to change that"
            )
            lease = MemoryLease(self._clock)
            return lease, MemoryStore(lease), LonelyRoster()
        postgres = await connect_patiently(
            dsn,
            application="llmgw-controller",
            max_size=settings.dsn_pool,
            clock=self._clock,
            give_up_after_s=settings.dsn_give_up_s,
            pooler=settings.pooler,
        )
        store = PostgresStore(postgres)
        self._opened.push_async_callback(store.close)
        direct = settings.lease_dsn.get_secret_value() if settings.lease_dsn is not None else dsn
        await migrate_at(
            direct,
            application="llmgw-controller",
            clock=self._clock,
            give_up_after_s=settings.dsn_give_up_s,
        )
        log.info("Postgres at %s", safe_dsn(dsn))
        postgres_lease = PostgresLease(direct)
        self._opened.push_async_callback(postgres_lease.close)
        return postgres_lease, store, PostgresRoster(postgres)

    def _open_activity(self) -> RedisActivity | NoActivity:
        url = self._settings.redis_url
        if url is None:
            log.warning("no redis_url: idleness stays unknown, and nothing is evicted or scaled to zero")
            return NoActivity()
        activity = RedisActivity(url.get_secret_value())
        self._opened.push_async_callback(activity.close)
        return activity

    def _open_mirror(self) -> GrpcMirror | NoMirror:
        address = self._settings.mirror_address
        if address is None:
            if any(model.weights is not None for model in self._models):
                log.warning("no mirror: only nodes that already hold a model's weights can start it")
            return NoMirror()
        tls, name = self._settings.mirror_tls(), self._settings.mirror_tls_name
        mirror = GrpcMirror(address, tls=tls, name=name)
        self._opened.push_async_callback(mirror.close)
        # A mirror that is away keeps nobody from starting: what runs needs none (M24).
        peer = PeerWatch(address, what="the mirror", clock=self._clock, tls=tls, name=name)
        self._metrics.mirror_reachable = lambda: peer.reachable
        watching = [asyncio.create_task(peer.run(), name="mirror")]
        if tls is not None:
            refresh_at_hangup(tls)
            watching.append(asyncio.create_task(tls.watch(self._clock.sleep), name="mirror_tls files"))
        self._opened.push_async_callback(cancel_all, *watching)
        return mirror

    async def _serve_http(self, address: HostPort, *, flag: str) -> None:
        app = web.Application()
        app.add_routes(telemetry.health_routes(self.ready))
        app.add_routes([telemetry.metrics_route(self._metrics.registry, before=self._look)])
        runner = await telemetry.serve_http(app, listeners.bind(address, flag=flag))
        self._opened.push_async_callback(runner.cleanup)

    def _look(self) -> None:
        if self._office is not None:
            self._metrics.look(self._office)

    async def ready(self) -> tuple[bool, str]:
        """Ready is who could lead. Who does is a metric: a standby is as ready as the leader."""
        if self._stopping:
            return False, "stopping"
        if self._office is None:
            return False, "starting: waiting for the store"
        silent_s = self._office.leadership.store_silent_s()
        if silent_s is None or silent_s > STORE_SILENT_S:
            return False, "the store of the lease does not answer"
        return True, "leading" if self._office.reign is not None else "standing by"

    def _say_what_runs(
        self, name: str, bound: HostPort, advertised: HostPort, store: Store, digest: str
    ) -> None:
        settings = self._settings
        log.info(
            "controller %s of cluster %s: gRPC on %s, advertised as %s",
            name,
            settings.cluster,
            bound,
            advertised,
        )
        log.info(
            "admin on %s; metrics on %s",
            settings.admin_address,
            settings.metrics_address or "off (admin listener only)",
        )
        log.info("%d models configured, configuration %s, store %s", len(self._models), digest, store.kind)
        if not bound.loopback:
            log.warning(
                "PLAINTEXT: agents, routers and operators on %s are neither authenticated nor encrypted; "
                "for a trusted network only", bound,
            )  # fmt: skip
        if bound.host in ("*", "0.0.0.0", "::") and settings.advertise is None:
            log.warning("advertise is not set: others are told to reach us at %s", advertised)

    async def stop(self, leading: "asyncio.Task[None]") -> None:
        """Readiness, streams, lease, calls; the listeners for health and metrics go last."""
        self._stopping = True
        assert self._office is not None
        assert self._server is not None
        assert self._health is not None
        assert self._roster is not None
        assert self._announcing is not None
        await self._health.set_serving(False)
        self._office.stopping()
        with suppress(asyncio.CancelledError):
            leading.cancel()
            await asyncio.wait({leading})
        await self._server.stop(self._settings.stop_s)
        await cancel_all(self._announcing)
        await self._roster.leave()
