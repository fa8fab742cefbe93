"""One router's parts and its life: what feeds the workers, what they tell, and how it leaves.

Clients of gRPC, Redis, Postgres and HTTP are imported where they are used: a router without a controller and
a database starts a second sooner, and some 25 MB smaller; and no relay worker waits until all that is loaded.
"""

import asyncio
import importlib.metadata
import logging
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import Clock
from llmgw_kit.errors import StartupError
from llmgw_kit.lifecycle import StopSignal, cancel_all, until_stopped
from llmgw_router.activations import Activations
from llmgw_router.activity import ActivityLoop
from llmgw_router.adapters import keys_file
from llmgw_router.adapters.access_log import AccessLog
from llmgw_router.adapters.routes_file import RoutesFile, StateFolder
from llmgw_router.adapters.usage_file import FileUsage
from llmgw_router.adapters.usage_spool import SpoolFolder
from llmgw_router.board import Board, Source
from llmgw_router.core.endpoints import static_table
from llmgw_router.core.generations import Generations
from llmgw_router.core.learned import CatalogEntry, Routes
from llmgw_router.core.words import counted
from llmgw_router.keys import KeysLoop
from llmgw_router.leader import LeaderFollower
from llmgw_router.loops import keep_routes, use_kept_routes
from llmgw_router.ports import Identity, UsageSink
from llmgw_router.probing import keep_probing
from llmgw_router.relay.ipc import AccessRecord
from llmgw_router.settings import RouterSettings
from llmgw_router.settings_keys import KeyEntry
from llmgw_router.settings_telemetry import TracingEntry
from llmgw_router.supervisor.ports import PortTaken
from llmgw_router.supervisor.workers import PoolConfig, WorkerPool
from llmgw_router.usage import UsageLoop

if TYPE_CHECKING:
    from llmgw_kit.rpc_watch import PeerWatch
    from llmgw_router.adapters.probe import HttpProbe
    from llmgw_router.adapters.tracing import OtlpExporter

log = logging.getLogger(__name__)

#: Between two readings of the slots by the metrics when nobody scrapes.
READ_EVERY_S = 5.0
#: Access records kept for whoever asks what became of a request; some 2 MB.
KEPT_RECORDS = 4096
#: What runs may finish for so long after a second signal.
HURRY_S = 2.0


class Router:
    """One running router. Is what the pool tells its events to."""

    def __init__(self, settings: RouterSettings, clock: Clock, cold_socket: Path) -> None:
        address = settings.client_address
        self.settings = settings
        self.clock = clock
        self.stopping = False
        #: By an operator, until taken back: not ready, and serving all the same.
        self.set_aside = False
        self._hurried = asyncio.Event()
        #: Another object after each reload: what its files hold may have changed.
        self._trusted = settings.upstream_tls()
        self._generations = Generations()
        #: The newest finished exchanges of which there are records.
        self.recent: deque[AccessRecord] = deque(maxlen=KEPT_RECORDS)
        self.access_log = AccessLog(settings.access_log_file, clock.monotonic_s)
        self.spans: OtlpExporter | None = None
        self.pool = WorkerPool(
            PoolConfig(
                workers=settings.worker_count,
                host=address.host,
                port=address.port,
                cold_socket=str(cold_socket),
                config=settings.worker_config(),
                usage_folder=self._usage_folder if settings.records_usage else None,
            ),
            self,
        )
        self.board = Board(self.pool, clock)
        self.follower: LeaderFollower | None = None
        self.activations: Activations | None = None
        self.activity: ActivityLoop | None = None
        self.keys: KeysLoop | None = None
        self.usage: UsageLoop | None = None
        self.mirror: PeerWatch | None = None
        self._state: StateFolder | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    # --- what the pool tells

    def want(self, model: str, waiting: int) -> None:
        if self.activations is not None:
            self.activations.want(model, waiting)

    def unwant(self, model: str) -> None:
        if self.activations is not None:
            self.activations.unwant(model)

    def applied(self, seq: int) -> None:
        self.board.applied()

    def drained(self, endpoint_ids: frozenset[str]) -> None:
        self.board.drained(endpoint_ids)

    def access(self, records: Sequence[AccessRecord]) -> None:
        self.recent.extend(records)
        if self.settings.access_log:
            self.access_log.offer(records)
        if self.spans is not None:
            self.spans.offer(records)

    async def ready(self) -> tuple[bool, str]:
        """Whether a request sent now would find its way, and why not."""
        if self.stopping:
            return False, "stopping"
        if self.set_aside:
            return False, "drained by an operator"
        if self.board.source is None:
            return False, "no routes yet: no controller was heard, and none are kept"
        if not any(worker.serving for worker in self.pool.workers):
            return False, "no relay worker serves"
        routes, source = self.board.routes, self.board.source.value
        return (
            True,
            f"{counted(len(routes.endpoints), 'endpoint')}, {counted(len(routes.models), 'model')}, {source}",
        )

    # --- its life

    async def start_client(self) -> HostPort:
        """Open the client port; returns where it is. Raises StartupError."""
        address = self.settings.client_address
        steps = ["choose another with --listen HOST:PORT, or stop what listens there"]
        try:
            await self.pool.start()
        except PortTaken as e:
            raise StartupError(f"cannot listen on {address}: {e}", next_steps=steps) from None
        except TimeoutError as e:
            raise StartupError(str(e)) from None
        except OSError as e:
            raise StartupError(f"cannot listen on {address}: {e.strerror or e}", next_steps=steps) from None
        return HostPort(address.host, self.pool.addresses[0].port)

    def serve_static(self) -> None:
        """Put the configured endpoints in force."""
        self.board.publish(self._static_routes(self.settings), Source.STATIC)

    def _static_routes(self, settings: RouterSettings) -> Routes:
        plain, models = static_table(settings.static_endpoints())
        rows = self._generations.named(plain)
        return Routes(
            endpoints={row.endpoint_id: row for row in rows},
            models={row.name: CatalogEntry(row=row) for row in models},
        )

    def serve_keys(self, entries: Sequence[KeyEntry]) -> None:
        """Put the keys of the file in force."""
        keys_file.put_in_force(keys_file.rows(entries), self.pool)

    def follow_keys(self, dsn: str) -> None:
        """Learn keys from the database, and what becomes of them."""
        from llmgw_router.adapters.keys_postgres import PostgresKeys

        store = PostgresKeys(dsn)
        self.keys = KeysLoop(store, self.pool, self.clock)

        async def learn() -> None:
            assert self.keys is not None
            try:
                await self.keys.run()
            finally:
                await store.close()

        self._spawn(learn(), "keys")

    def state_folder(self, port: int) -> Path:
        """This router's own, once the port is known; raises StartupError when it cannot be had."""
        if self._state is None:
            self._state = StateFolder(self.settings.state_folder(port))
        return self._state.path

    def _usage_folder(self, port: int) -> Path:
        folder = self.state_folder(port) / "usage"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def keep_usage(self, port: int) -> None:
        """Take what the workers spool to where it belongs."""
        settings = self.settings
        sink: UsageSink
        if settings.database_url is not None:
            from llmgw_router.adapters.usage_postgres import PostgresUsage

            sink = PostgresUsage(settings.database_url.get_secret_value())
        else:
            assert settings.usage_file is not None
            sink = FileUsage(settings.usage_file)
        folder = SpoolFolder(self._usage_folder(port), settings.named(port))
        self.usage = UsageLoop(folder, sink, self.clock)
        self._spawn(self.usage.run(), "usage")

    def follow(self, identity: Identity, store: RoutesFile) -> None:
        """Learn routes from the controllers, from kept ones until those are heard."""
        from llmgw_router.adapters.controller import GrpcControllers

        follower = LeaderFollower(
            GrpcControllers(identity), self.settings.controllers, self.board, self.clock
        )
        self.follower = follower
        self.activations = Activations(follower, self.pool, self.clock)
        kept = store.load()
        if kept is not None:
            follower.recall(kept)

        async def learn() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(follower.run())
                if kept is not None:
                    group.create_task(use_kept_routes(kept, self.board, self._probe(), self.clock))

        self._spawn(learn(), "routes")
        self._spawn(keep_routes(self.board, store, self.clock), "keep routes")

    def note_activity(self, identity: Identity, url: str) -> None:
        """Tell Redis what was in use, once a tick."""
        from llmgw_router.adapters.activity_redis import RedisActivity

        store = RedisActivity(
            url,
            router_id=identity.router_id,
            incarnation=identity.incarnation,
            ttl_s=self.settings.activity_ttl_s,
        )
        self.activity = ActivityLoop(
            store, self.pool, self.board, self.clock, tick_s=self.settings.activity_tick_s
        )
        self._spawn(self.activity.run(), "activity")

    def watch_mirror(self, address: HostPort) -> None:
        """Tell when the mirror cannot be reached, and when it can be again. No request waits for it."""
        from llmgw_kit.rpc_watch import PeerWatch

        tls, name = self.settings.mirror_tls(), self.settings.mirror_tls_name
        self.mirror = PeerWatch(address, what="the mirror", clock=self.clock, tls=tls, name=name)
        self._spawn(self.mirror.run(), "mirror")
        if tls is not None:
            self._spawn(tls.watch(self.clock.sleep), "mirror_tls files")

    def adopt(self, settings: RouterSettings) -> None:
        """Put other settings in force, as far as they can change (reload.AT_START cannot).

        Whatever may go wrong is done before the first of it counts: it raises, and the old ones stay."""
        before = self.settings
        config, trusted = settings.worker_config(), settings.upstream_tls()
        routes = self._static_routes(settings) if settings.endpoints != before.endpoints else None
        keys = keys_file.rows(settings.keys) if settings.keys != before.keys else None
        spans = self._exporter(settings.tracing)
        self.settings = settings
        logging.getLogger().setLevel(settings.log_level.upper())
        self.access_log.to(settings.access_log_file)
        # Also where nothing in it differs: a file that it names may be another, with the same name.
        self.pool.reconfigure(config)
        self._trusted = trusted
        if routes is not None:
            self.board.publish(routes, Source.STATIC)
        if keys is not None:
            keys_file.put_in_force(keys, self.pool)
        self._trace_by(spans, settings.tracing)

    def _exporter(self, entry: TracingEntry) -> "OtlpExporter | None":
        """The one there is; a new one, which does nothing yet; None while none is needed."""
        if self.spans is not None or entry.traces_url is None:
            return self.spans
        from llmgw_router.adapters.tracing import OtlpExporter

        return OtlpExporter(
            entry, instance=socket.gethostname(), version=importlib.metadata.version("llmgw-router")
        )

    def _trace_by(self, spans: "OtlpExporter | None", entry: TracingEntry) -> None:
        """Export spans there from now on; sampling is the workers' matter."""
        if spans is not None:
            spans.reconfigure(entry)
            if self.spans is None:
                self._spawn(spans.run(), "spans")
            self.spans = spans

    async def run(
        self, stop: StopSignal, reloading: Coroutine[Any, Any, None], refresh: Callable[[], None]
    ) -> None:
        """Until the signal; a part that ends by itself is a fault and is raised. `refresh` reads metrics."""
        self._spawn(reloading, "reload")
        self._spawn(self._read_metrics(refresh), "metrics")
        self._spawn(self.access_log.run(), "access log")
        self._spawn(self.pool.watch(hang_s=self.settings.worker_hang_s, sleep=self.clock.sleep), "watch")
        self._trace_by(self._exporter(self.settings.tracing), self.settings.tracing)
        self._spawn(keep_probing(self.pool, self.board, self._probe(), self.clock), "health checks")
        await until_stopped(stop, *self._tasks)

    async def drain(self) -> None:
        """Readiness first, then what runs may finish."""
        self.stopping = True
        if self.settings.unready_s:
            await self._served_on(self.settings.unready_s)
        drain_s = min(HURRY_S, self.settings.drain_s) if self._hurried.is_set() else self.settings.drain_s
        log.info("draining: what runs has up to %g s", drain_s)
        await self.pool.drain(drain_s)

    def hurry(self) -> None:
        """The second signal: no more waiting for balancers, and what runs is cut soon."""
        self._hurried.set()
        self.pool.hasten(HURRY_S)

    async def _served_on(self, seconds: float) -> None:
        waits = [
            asyncio.ensure_future(self.clock.sleep(seconds)),
            asyncio.ensure_future(self._hurried.wait()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def leave(self) -> None:
        """Last activity, goodbye to the controller, then take the report away, in this order: between any
        two of them idleness may be unknown, but never wrong."""
        activity = self.activity
        await cancel_all(*self._tasks)
        # Without a map in Redis nobody else knows what this router used last.
        told = activity is not None and await activity.flush()
        if self.follower is not None:
            await self.follower.goodbye(activity_lost=not told)
        if activity is not None:
            await activity.goodbye()

    async def close(self) -> None:
        """End whatever still runs; safe after any part of the start."""
        await cancel_all(*self._tasks)
        if self.activations is not None:
            await self.activations.close()
        await self.pool.stop()
        if self.usage is not None:
            # The workers are gone: all that they will ever say is there.
            await self.usage.flush()
            await self.usage.close()
        if self._state is not None:
            self._state.close()
        if self.activity is not None:
            await self.activity.close()
        # What the workers said last.
        await self.access_log.close()
        if self.spans is not None:
            await self.spans.close()

    def _probe(self) -> "HttpProbe":
        from llmgw_router.adapters.probe import HttpProbe

        return HttpProbe(lambda: self._trusted)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _read_metrics(self, refresh: Callable[[], None]) -> None:
        while True:
            refresh()
            await self.clock.sleep(READ_EVERY_S)
