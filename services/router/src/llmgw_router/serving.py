"""The composition root: parts put together, started in one order and stopped in another (M8, M10)."""

import asyncio
import contextlib
import importlib
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
from llmgw_router.adapters.routes_file import RoutesFile
from llmgw_router.core.words import counted
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
        cold = _unix_listener(cold_socket)
        opened.callback(cold.close)
        router = Router(settings, clock, cold_socket)
        reloader = Reloader(settings, source, router.adopt, clock)

        def vanish() -> None:
            router.pool.kill()
            shutil.rmtree(folder, ignore_errors=True)

        stop = StopSignal(on_second=vanish, on_hurry=router.hurry)
        _reload_at_hangup(reloader)
        # After everything else: the admin pages read these counters to the end.
        opened.callback(router.pool.close)
        # In this order, so that they end in the other: client, cold, then admin last (M10).
        pages_end = await opened.enter_async_context(contextlib.AsyncExitStack())
        opened.push_async_callback(router.close)
        if settings.endpoints:
            router.serve_static()
        if settings.keys:
            router.serve_keys(settings.keys)
        client = await router.start_client()
        _tell_listeners(settings, client, admin, metrics)
        # Clients are served from here on; the rest is loaded beside that, for half a second or more.
        await asyncio.to_thread(_load, _clients(settings))
        if settings.guarded and settings.database_url is not None:
            router.follow_keys(settings.database_url.get_secret_value())
        _begin(router, client.port)
        await asyncio.to_thread(_load, ["llmgw_router.pages"])
        from llmgw_router.pages import Sockets, serve_pages

        sockets = Sockets(admin=admin, metrics=metrics, cold=cold)
        refresh = await serve_pages(router, reloader, sockets, first=opened, last=pages_end)
        await router.run(stop, reloader.watch(clock.sleep), refresh)
        await router.drain()
        await router.leave()
    log.info("stopped")
    return 0


def _clients(settings: RouterSettings) -> list[str]:
    """Modules without which routes and keys are not known."""
    names = []
    if settings.database_url is not None:
        names.append("llmgw_router.adapters.keys_postgres")
    if settings.mirror is not None:
        names.append("llmgw_kit.rpc_watch")
    if settings.controller:
        names += ["llmgw_router.adapters.controller", "llmgw_router.adapters.probe"]
    if settings.redis_url is not None:
        names.append("llmgw_router.adapters.activity_redis")
    return names


def _load(names: list[str]) -> None:
    # In a thread: the loop goes on telling workers and hearing them.
    for name in names:
        importlib.import_module(name)


def _reload_at_hangup(reloader: Reloader) -> None:
    running: set[asyncio.Task[Outcome]] = set()

    def hang_up() -> None:
        # Kept until it is done: the loop itself holds its tasks only weakly.
        task = asyncio.get_running_loop().create_task(reloader.reload("SIGHUP"))
        running.add(task)
        task.add_done_callback(running.discard)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up)


def _begin(router: Router, port: int) -> None:
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
    if settings.mirror_address is not None:
        router.watch_mirror(settings.mirror_address)
    if settings.redis_url is not None:
        router.note_activity(identity, settings.redis_url.get_secret_value())
    elif settings.controller:
        log.warning("no redis_url: the controller cannot know what is idle; every replica stays unknown")


def stop_note(settings: RouterSettings) -> str | None:
    """What whoever puts this router behind a balancer should know of its stop; None: it is seen to."""
    if settings.unready_s:
        return None
    return (
        "unready_s is 0: a stop closes the client port at once. Behind a balancer set it to longer than that "
        "looks at /readyz; Kubernetes wants 5, and terminationGracePeriodSeconds above unready_s + drain_s"
    )


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
    log.info("client API on http://%s, %s", client, counted(settings.worker_count, "relay worker"))
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
    if (note := stop_note(settings)) is not None:
        log.info("%s", note)
    if not settings.admin_address.loopback:
        log.warning("the admin listener %s shows the inside beyond loopback", settings.admin_listen)
