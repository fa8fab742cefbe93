"""The composition root: parts put together, started in one order and stopped in another (M8, M10)."""

import asyncio
import contextlib
import importlib.metadata
import logging
import secrets
import shutil
import signal
import socket
import tempfile
from pathlib import Path

from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import SystemClock
from llmgw_kit.lifecycle import StopSignal
from llmgw_kit.listeners import bind, bound_address
from llmgw_kit.telemetry import registry, serve_http
from llmgw_router.adapters.admin import admin_app, metrics_app
from llmgw_router.adapters.routes_file import RoutesFile
from llmgw_router.cold.app import cold_app
from llmgw_router.operations import Operations
from llmgw_router.ports import Identity
from llmgw_router.reload import Outcome, Reloader, Source
from llmgw_router.router import Router
from llmgw_router.settings import RouterSettings

log = logging.getLogger(__name__)


async def serve(settings: RouterSettings, source: Source) -> int:
    """Run one router until a signal. Raises StartupError when it cannot start; nothing is left open then."""
    clock = SystemClock()
    async with contextlib.AsyncExitStack() as opened:
        # Sockets first: a taken port is told before anything else has begun.
        admin = _bind(opened, settings.admin_address, "--admin-listen")
        metrics_address = settings.metrics_address
        metrics = _bind(opened, metrics_address, "--metrics-listen") if metrics_address is not None else []
        # Readable by nobody else: who reaches the cold socket is taken for a relay worker.
        folder = Path(tempfile.mkdtemp(prefix="llmgw-router-"))
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        cold_socket = folder / "cold.sock"
        router = Router(settings, clock, cold_socket)
        reloader = Reloader(settings, source, router.adopt, clock)

        def vanish() -> None:
            router.pool.kill()
            shutil.rmtree(folder, ignore_errors=True)

        stop = StopSignal(on_second=vanish, on_hurry=router.hurry)
        router.metrics.reloader = reloader
        _reload_at_hangup(reloader)
        figures = registry()
        figures.register(router.metrics)
        # After everything else: the admin pages read these counters to the end.
        opened.callback(router.pool.close)
        # In this order, so that the stack ends them in the other: client, cold, then admin last (M10).
        admin_pages = await serve_http(
            admin_app(figures, Operations(router, reloader)),
            admin,
            head_timeout_s=settings.request_head_s,
        )
        opened.push_async_callback(admin_pages.cleanup)
        cold = await serve_http(
            cold_app(
                lambda: router.board.routes if router.board.source else None,
                router.ready,
                key=router.pool.key if settings.guarded else None,
                first_seen=int(clock.unix_s()),
            ),
            [_unix_listener(cold_socket)],
            handler_cancellation=True,
        )
        opened.push_async_callback(cold.cleanup)
        opened.push_async_callback(router.close)
        if settings.endpoints:
            router.serve_static()
        if settings.keys:
            router.serve_keys(settings.keys)
        elif settings.database_url is not None:
            router.follow_keys(settings.database_url.get_secret_value())
        client = await router.start_client()
        metrics_pages = await serve_http(
            metrics_app(figures, router.metrics.refresh, router.ready),
            metrics,
            head_timeout_s=settings.request_head_s,
        )
        opened.push_async_callback(metrics_pages.cleanup)
        _tell_listeners(settings, client, admin, metrics)
        _begin(router, opened, client.port)
        await router.run(stop, reloader.watch(clock.sleep))
        await router.drain()
        await router.leave()
    log.info("stopped")
    return 0


def _reload_at_hangup(reloader: Reloader) -> None:
    running: set[asyncio.Task[Outcome]] = set()

    def hang_up() -> None:
        # Kept until it is done: the loop itself holds its tasks only weakly.
        task = asyncio.get_running_loop().create_task(reloader.reload("SIGHUP"))
        running.add(task)
        task.add_done_callback(running.discard)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up)


def _begin(router: Router, opened: contextlib.AsyncExitStack, port: int) -> None:
    settings = router.settings
    identity = Identity(
        router_id=settings.named(port),
        incarnation=secrets.token_hex(8),
        version=importlib.metadata.version("llmgw-router"),
    )
    if settings.controller:
        folder = router.state_folder(port)
        router.follow(identity, RoutesFile(folder))
        log.info(
            "router %s follows controllers %s; routes are kept in %s",
            identity.router_id,
            settings.controller,
            folder,
        )
    else:
        log.info("router %s in router-only mode: %d endpoints", identity.router_id, len(settings.endpoints))
    if settings.records_usage:
        router.keep_usage(port)
    if settings.redis_url is not None:
        router.note_activity(identity, settings.redis_url.get_secret_value())
    elif settings.controller:
        log.warning("no redis_url: the controller cannot know what is idle; every replica stays unknown")


def _bind(opened: contextlib.AsyncExitStack, address: HostPort, flag: str) -> list[socket.socket]:
    sockets = bind(address, flag=flag)
    for sock in sockets:
        opened.callback(sock.close)
    return sockets


def _unix_listener(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen(512)
    sock.setblocking(False)
    return sock


def _tell_listeners(
    settings: RouterSettings,
    client: HostPort,
    admin: list[socket.socket],
    metrics: list[socket.socket],
) -> None:
    log.info("client API on http://%s, %d relay workers", client, settings.worker_count)
    log.info("admin on http://%s", bound_address(admin, settings.admin_address.host))
    if settings.metrics_address is not None:
        log.info("metrics on http://%s", bound_address(metrics, settings.metrics_address.host))
    else:
        log.info("metrics: off (admin listener only)")
    if settings.guarded:
        log.info("every request needs an API key")
    elif settings.listen is None and not settings.insecure:
        log.warning("the client API is on loopback only, since no API key guards it; --insecure opens it")
    elif not client.loopback:
        log.warning("INSECURE: no API key guards %s; whoever reaches it may use every model", client)
    if not settings.admin_address.loopback:
        log.warning("the admin listener %s shows the inside beyond loopback", settings.admin_listen)
