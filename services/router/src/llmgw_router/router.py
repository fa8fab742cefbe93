"""One router's parts and its life: what feeds the workers, what they tell, and how it leaves."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import Clock
from llmgw_kit.errors import StartupError
from llmgw_kit.lifecycle import StopSignal, cancel_all, until_stopped
from llmgw_router.activations import Activations
from llmgw_router.activity import ActivityLoop
from llmgw_router.adapters import keys_file
from llmgw_router.adapters.activity_redis import RedisActivity
from llmgw_router.adapters.controller import GrpcControllers, Identity
from llmgw_router.adapters.keys_postgres import PostgresKeys
from llmgw_router.adapters.metrics import RouterMetrics
from llmgw_router.adapters.probe import HttpProbe
from llmgw_router.adapters.routes_file import RoutesFile
from llmgw_router.board import Board, Source
from llmgw_router.core.endpoints import static_table
from llmgw_router.core.learned import CatalogEntry, Routes
from llmgw_router.keys import KeysLoop
from llmgw_router.leader import LeaderFollower
from llmgw_router.loops import keep_routes, use_kept_routes
from llmgw_router.probing import keep_probing
from llmgw_router.relay.ipc import AccessRecord
from llmgw_router.settings import RouterSettings
from llmgw_router.settings_keys import KeyEntry
from llmgw_router.supervisor.ports import PortTaken
from llmgw_router.supervisor.workers import PoolConfig, WorkerPool

log = logging.getLogger(__name__)
access_log = logging.getLogger("llmgw_router.access")

#: Between two readings of the slots by the metrics when nobody scrapes.
READ_EVERY_S = 5.0


class Router:
    """One running router. Is what the pool tells its events to."""

    def __init__(self, settings: RouterSettings, clock: Clock, cold_socket: Path) -> None:
        address = settings.client_address
        self.settings = settings
        self.clock = clock
        self.stopping = False
        self.pool = WorkerPool(
            PoolConfig(
                workers=settings.worker_count,
                host=address.host,
                port=address.port,
                cold_socket=str(cold_socket),
                config=settings.worker_config(),
            ),
            self,
        )
        self.board = Board(self.pool, clock)
        self.metrics = RouterMetrics(self.pool, self.board, clock.monotonic_s)
        self.follower: LeaderFollower | None = None
        self.activations: Activations | None = None
        self.activity: ActivityLoop | None = None
        self.keys: KeysLoop | None = None
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
        for one in records:
            access_log.info(
                "%s %s %s %d code=%s model=%s endpoint=%s in=%d out=%d ttft_ms=%s ms=%.1f retries=%d",
                one.request_id,
                one.method,
                one.path,
                one.status,
                one.code or "-",
                one.model or "-",
                one.endpoint_id or "-",
                one.bytes_in,
                one.bytes_out,
                "-" if one.ttft_ms is None else f"{one.ttft_ms:.1f}",
                one.duration_ms,
                one.retries,
            )

    async def ready(self) -> tuple[bool, str]:
        """Whether a request sent now would find its way, and why not."""
        if self.stopping:
            return False, "stopping"
        if self.board.source is None:
            return False, "no routes yet: no controller was heard, and none are kept"
        if not any(worker.serving for worker in self.pool.workers):
            return False, "no relay worker serves"
        routes, source = self.board.routes, self.board.source.value
        return True, f"{len(routes.endpoints)} endpoints, {len(routes.models)} models, {source}"

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
        rows, models = static_table(self.settings.static_endpoints())
        self.board.publish(
            Routes(
                endpoints={row.endpoint_id: row for row in rows},
                models={row.name: CatalogEntry(row=row) for row in models},
            ),
            Source.STATIC,
        )

    def serve_keys(self, entries: Sequence[KeyEntry]) -> None:
        """Put the keys of the file in force; also again, when it has changed."""
        keys_file.put_in_force(entries, self.pool)

    def follow_keys(self, dsn: str) -> None:
        """Learn keys from the database, and what becomes of them."""
        store = PostgresKeys(dsn)
        self.keys = KeysLoop(store, self.pool, self.clock)

        async def learn() -> None:
            assert self.keys is not None
            try:
                await self.keys.run()
            finally:
                await store.close()

        self._spawn(learn(), "keys")

    def follow(self, identity: Identity, store: RoutesFile) -> None:
        """Learn routes from the controllers, from kept ones until those are heard."""
        follower = LeaderFollower(
            GrpcControllers(identity), self.settings.controllers, self.board, self.clock
        )
        self.follower = self.metrics.follower = follower
        self.activations = Activations(follower, self.pool, self.clock)
        kept = store.load()
        if kept is not None:
            follower.recall(kept)

        async def learn() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(follower.run())
                if kept is not None:
                    group.create_task(use_kept_routes(kept, self.board, HttpProbe(), self.clock))

        self._spawn(learn(), "routes")
        self._spawn(keep_routes(self.board, store, self.clock), "keep routes")

    def note_activity(self, identity: Identity, url: str) -> None:
        """Tell Redis what was in use, once a tick."""
        store = RedisActivity(
            url,
            router_id=identity.router_id,
            incarnation=identity.incarnation,
            ttl_s=self.settings.activity_ttl_s,
        )
        self.activity = self.metrics.activity = ActivityLoop(
            store, self.pool, self.board, self.clock, tick_s=self.settings.activity_tick_s
        )
        self._spawn(self.activity.run(), "activity")

    async def run(self, stop: StopSignal) -> None:
        """Until the signal; a part that ends by itself is a fault and is raised."""
        self._spawn(self._read_metrics(), "metrics")
        self._spawn(keep_probing(self.pool, self.board, HttpProbe(), self.clock), "health checks")
        await until_stopped(stop, *self._tasks)

    async def drain(self) -> None:
        """Readiness first, then what runs may finish."""
        self.stopping = True
        if self.settings.unready_s:
            await self.clock.sleep(self.settings.unready_s)
        log.info("draining: what runs has up to %g s", self.settings.drain_s)
        await self.pool.drain(self.settings.drain_s)

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

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _read_metrics(self) -> None:
        while True:
            self.metrics.refresh()
            await self.clock.sleep(READ_EVERY_S)
