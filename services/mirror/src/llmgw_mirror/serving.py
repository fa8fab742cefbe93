"""`serve`: listeners first, then the store, then work; stopped in the opposite order."""

import asyncio
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc.aio
from aiohttp import web

from llmgw.v1 import mirror_pb2_grpc
from llmgw_kit import rpc, telemetry
from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import Clock, SystemClock
from llmgw_kit.lifecycle import StopSignal, cancel_all, until_stopped
from llmgw_kit.listeners import bind, bound_address
from llmgw_kit.tls_watch import WatchedTls, refresh_at_hangup
from llmgw_mirror.adapters.descriptors import connections_most, raise_limit
from llmgw_mirror.adapters.disk import write_atomically
from llmgw_mirror.adapters.grpc_server import SERVICE, MirrorServicer
from llmgw_mirror.adapters.http_server import error_edge
from llmgw_mirror.composition import Built, build
from llmgw_mirror.composition_serving import Offer, build_offer, metrics_of
from llmgw_mirror.loops import for_ever
from llmgw_mirror.settings import MirrorSettings
from llmgw_mirror.tls_edges import exposed, open_tls

log = logging.getLogger(__name__)

#: For calls under way at a stop; none of ours lasts.
GRPC_GRACE_S = 3.0


async def serve(settings: MirrorSettings) -> int:
    """Until SIGINT or SIGTERM. Raises StartupError."""
    stop = StopSignal()
    tls = open_tls(settings)
    refresh_at_hangup(*(() if tls is None else (tls,)))
    async with AsyncExitStack() as stack:
        listen = _bind_all(settings, tls, stack)
        built = await stack.enter_async_context(build(settings, SystemClock()))
        await _serve_on(settings, built, listen, tls, stop, stack)
    log.info("stopped")
    return 0


@dataclass(frozen=True)
class Listeners:
    """Bound, and not served yet. `grpc`: where `server` will answer."""

    server: grpc.aio.Server
    grpc: HostPort
    sockets: dict[str, list[socket.socket]]


def _bind_all(settings: MirrorSettings, tls: WatchedTls | None, stack: AsyncExitStack) -> Listeners:
    """One that cannot be bound closes those before it."""
    wanted = {
        "http": (settings.http_address, "--http-listen"),
        "admin": (settings.admin_address, "--admin-listen"),
    }
    if settings.metrics_address is not None:
        wanted["metrics"] = (settings.metrics_address, "--metrics-listen")
    sockets: dict[str, list[socket.socket]] = {}
    for name, (address, flag) in wanted.items():
        sockets[name] = bind(address, flag=flag)
        for sock in sockets[name]:
            stack.callback(sock.close)
    server = rpc.server()
    address = rpc.listen(server, settings.grpc_address, flag="--listen", tls=tls)
    stack.push_async_callback(server.stop, None)
    return Listeners(server, address, sockets)


async def _serve_on(
    settings: MirrorSettings, built: Built, listen: Listeners, tls: WatchedTls | None, stop: StopSignal,
    stack: AsyncExitStack,
) -> None:  # fmt: skip
    """Everything that is begun here is ended by `stack`, also when a later step fails."""
    clock, serving = SystemClock(), Serving(built)
    record = built.store.root / "run" / f"{socket.gethostname()}.json"
    stack.callback(_forget, record)
    offer = build_offer(settings, built, clock)
    stack.push_async_callback(offer.close)
    built.upkeep.beside.append(offer.hashes.sweep)
    mirror_pb2_grpc.add_MirrorServiceServicer_to_server(MirrorServicer(built, offer.finders), listen.server)
    grpc_health = rpc.Health(listen.server, [SERVICE])
    # Before the first answer: what a restart interrupted is on its way again.
    await built.upkeep.begin()
    health = telemetry.health_routes(serving.ready)
    metrics = telemetry.metrics_route(metrics_of(built, offer, tls, clock))
    await _http(stack, [*health, metrics], listen.sockets["admin"])
    await _http(
        stack, [*health, *offer.routes()], listen.sockets["http"], drain_s=settings.drain_s, tls=tls,
        connections_most=connections_most(raise_limit()),
    )  # fmt: skip
    if "metrics" in listen.sockets:
        await _http(stack, [*health, metrics], listen.sockets["metrics"])
    stack.push_async_callback(listen.server.stop, GRPC_GRACE_S)
    # Flights stop at once, they resume; readers may finish.
    stack.push_async_callback(built.flights.stop)
    await listen.server.start()
    await grpc_health.set_serving(True)
    addresses = _addresses(settings, listen)
    _note(record, addresses)
    _tell(settings, addresses)
    tasks = _begin(settings, built, offer, tls, clock)
    stack.push_async_callback(cancel_all, *tasks)
    try:
        await until_stopped(stop, *tasks)
    finally:
        serving.ended = True
        await grpc_health.set_serving(False)


class Serving:
    """Whether this mirror wants to be asked."""

    def __init__(self, built: Built) -> None:
        self._mirror, self.ended = built.mirror, False

    async def ready(self) -> tuple[bool, str]:
        """For health checks."""
        return (False, "stopping") if self.ended else self._mirror.ready()


def _begin(
    settings: MirrorSettings, built: Built, offer: Offer, tls: WatchedTls | None, clock: Clock
) -> list["asyncio.Task[None]"]:
    """What goes on beside answers."""
    passes: dict[str, Callable[[], Awaitable[None]]] = {
        "passes": built.upkeep.run,
        "pieces": partial(offer.hashes.watch, settings.pass_interval_s),
        "suspects": built.keepers.suspects.run,
    }
    if built.keepers.scrub is not None:
        passes["scrub"] = built.keepers.scrub.run
    if tls is not None:
        passes["tls files"] = partial(tls.watch, clock.sleep)
    return [asyncio.create_task(for_ever(name, run, clock), name=name) for name, run in passes.items()]


def _addresses(settings: MirrorSettings, listen: Listeners) -> dict[str, HostPort]:
    """Where this mirror really listens."""
    return {"grpc": listen.grpc} | {
        name: bound_address(bound, getattr(settings, f"{name}_address").host)
        for name, bound in listen.sockets.items()
    }


def _tell(settings: MirrorSettings, addresses: dict[str, HostPort]) -> None:
    for name in ("grpc", "http", "admin", "metrics"):
        log.info("%s: %s", name, addresses.get(name, "off (admin listener only)"))
    for name in ("grpc", "http"):
        if (said := exposed(name, addresses[name], settings.tls_files)) is not None:
            log.warning("%s", said)


async def _http(
    stack: AsyncExitStack, routes: Iterable[web.RouteDef], sockets: list[socket.socket], *,
    drain_s: float = 3.0, tls: WatchedTls | None = None, connections_most: int | None = None,
) -> None:  # fmt: skip
    """Closed by `stack`, after answers under way have had `drain_s`."""
    app = web.Application(middlewares=[error_edge])
    app.add_routes(routes)
    runner = await telemetry.serve_http(
        app, sockets, shutdown_s=drain_s, tls=None if tls is None else tls.context,
        connections_most=connections_most,
    )  # fmt: skip
    stack.push_async_callback(runner.cleanup)


def _note(record: Path, addresses: dict[str, HostPort]) -> None:
    """Where this mirror really listens, for `healthcheck` when a port was left to the system."""
    record.parent.mkdir(exist_ok=True)
    said = {"pid": os.getpid(), **{name: str(address) for name, address in addresses.items()}}
    write_atomically(record, json.dumps(said).encode() + b"\n")


def _forget(record: Path) -> None:
    with suppress(OSError):  # a note left behind is written over at the next start
        record.unlink()
