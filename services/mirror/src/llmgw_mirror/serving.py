"""`serve`: listeners first, then the store, then work; stopped in the opposite order."""

import asyncio
import json
import logging
import os
import socket
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import grpc.aio
from aiohttp import web

from llmgw.v1 import mirror_pb2_grpc
from llmgw_kit import rpc, telemetry
from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import SystemClock
from llmgw_kit.lifecycle import StopSignal, cancel_all, until_stopped
from llmgw_kit.listeners import bind, bound_address
from llmgw_kit.tls_watch import WatchedTls, refresh_at_hangup
from llmgw_mirror.adapters.disk import write_atomically
from llmgw_mirror.adapters.file_answer import FileAnswers
from llmgw_mirror.adapters.grpc_server import SERVICE, MirrorServicer
from llmgw_mirror.adapters.http_server import WeightsHttp, error_edge
from llmgw_mirror.adapters.metrics import CapCollector, MirrorCollector
from llmgw_mirror.adapters.metrics_keeping import KeepingCollector
from llmgw_mirror.adapters.metrics_tls import TlsCollector
from llmgw_mirror.adapters.piece_hashes import PieceHashes
from llmgw_mirror.adapters.registry_metrics import RegistryCollector
from llmgw_mirror.adapters.swarm_http import SwarmHttp
from llmgw_mirror.composition import Built, build
from llmgw_mirror.composition_finding import build_finders
from llmgw_mirror.composition_hub import build_hub
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
        sockets = _bind_all(settings, stack)
        server = rpc.server()
        grpc_address = rpc.listen(server, settings.grpc_address, flag="--listen", tls=tls)
        stack.push_async_callback(server.stop, None)
        built = await stack.enter_async_context(build(settings, SystemClock()))
        await _serve_on(settings, built, server, grpc_address, sockets, tls, stop)
    log.info("stopped")
    return 0


Sockets = dict[str, list[socket.socket]]


def _bind_all(settings: MirrorSettings, stack: AsyncExitStack) -> Sockets:
    """One that cannot be bound closes those before it."""
    wanted = {
        "http": (settings.http_address, "--http-listen"),
        "admin": (settings.admin_address, "--admin-listen"),
    }
    if settings.metrics_address is not None:
        wanted["metrics"] = (settings.metrics_address, "--metrics-listen")
    sockets: Sockets = {}
    for name, (address, flag) in wanted.items():
        sockets[name] = bind(address, flag=flag)
        for sock in sockets[name]:
            stack.callback(sock.close)
    return sockets


async def _serve_on(
    settings: MirrorSettings,
    built: Built,
    server: grpc.aio.Server,
    grpc_address: HostPort,
    sockets: Sockets,
    tls: WatchedTls | None,
    stop: StopSignal,
) -> None:
    mirror = built.mirror
    serving = True

    async def ready() -> tuple[bool, str]:
        return mirror.ready() if serving else (False, "stopping")

    answers = FileAnswers(mirror.content, built.readers, built.reads, stall_s=settings.send_stall_s)
    finders = build_finders(settings, built, SystemClock())
    hub = build_hub(settings, built, answers, finders.fetching, SystemClock())
    weights = WeightsHttp(mirror, answers)
    hashes = PieceHashes(built.store, SystemClock(), on_damaged=built.keepers.suspects.doubt)
    built.upkeep.beside.append(hashes.sweep)
    swarm = SwarmHttp(mirror, hashes, answers, SystemClock(), uploads=settings.piece_uploads)
    registry = telemetry.registry()
    registry.register(MirrorCollector(built.upkeep, built.flights, built.store, built.tally, answers.served))
    registry.register(RegistryCollector(finders.http))
    registry.register(
        KeepingCollector(
            upkeep=built.upkeep,
            prover=built.keepers.prover,
            reads=built.reads,
            store=built.store,
            clock=SystemClock(),
        )
    )
    if tls is not None:
        registry.register(TlsCollector(tls))
    registry.register(CapCollector(built.throttle))
    health, metrics = telemetry.health_routes(ready), telemetry.metrics_route(registry)
    servicer = MirrorServicer(built, finders)
    mirror_pb2_grpc.add_MirrorServiceServicer_to_server(servicer, server)
    grpc_health = rpc.Health(server, [SERVICE])

    # Before the first answer: what a restart interrupted is on its way again.
    await built.upkeep.begin()
    runners = {
        "admin": await _http([*health, metrics], sockets["admin"]),
        "http": await _http(
            [*health, *swarm.routes(), *weights.routes(), *hub.routes()],
            sockets["http"],
            drain_s=settings.drain_s,
            tls=tls,
        ),
    }
    if "metrics" in sockets:
        runners["metrics"] = await _http([*health, metrics], sockets["metrics"])
    await server.start()
    await grpc_health.set_serving(True)
    addresses = {"grpc": grpc_address} | {
        name: bound_address(bound, getattr(settings, f"{name}_address").host)
        for name, bound in sockets.items()
    }
    record = built.store.root / "run" / f"{socket.gethostname()}.json"
    _note(record, addresses)
    for name in ("grpc", "http", "admin", "metrics"):
        log.info("%s: %s", name, addresses.get(name, "off (admin listener only)"))
    for name in ("grpc", "http"):
        if (said := exposed(name, addresses[name], settings.tls_files)) is not None:
            log.warning("%s", said)

    passes = asyncio.create_task(built.upkeep.run(), name="passes")
    hashing = asyncio.create_task(hashes.watch(settings.pass_interval_s), name="pieces")
    tasks = [passes, hashing]
    tasks.append(asyncio.create_task(built.keepers.suspects.run(), name="suspects"))
    if built.keepers.scrub is not None:
        tasks.append(asyncio.create_task(built.keepers.scrub.run(), name="scrub"))
    if tls is not None:
        tasks.append(asyncio.create_task(tls.watch(SystemClock().sleep), name="tls files"))
    try:
        await until_stopped(stop, *tasks)
    finally:
        serving = False
        await grpc_health.set_serving(False)
        await cancel_all(*tasks)
        await hashes.close()
        # Flights stop at once, they resume; readers may finish.
        await built.flights.stop()
        await server.stop(GRPC_GRACE_S)
        for name in ("metrics", "http", "admin"):
            if name in runners:
                await runners[name].cleanup()
        await hub.close()
        await finders.close()
        record.unlink(missing_ok=True)


async def _http(
    routes: Iterable[web.RouteDef], sockets: list[socket.socket], *, drain_s: float = 3.0,
    tls: WatchedTls | None = None,
) -> web.AppRunner:  # fmt: skip
    app = web.Application(middlewares=[error_edge])
    app.add_routes(routes)
    return await telemetry.serve_http(
        app, sockets, shutdown_s=drain_s, tls=None if tls is None else tls.context
    )


def _note(record: Path, addresses: dict[str, HostPort]) -> None:
    """Where this mirror really listens, for `healthcheck` when a port was left to the system."""
    record.parent.mkdir(exist_ok=True)
    said = {"pid": os.getpid(), **{name: str(address) for name, address in addresses.items()}}
    write_atomically(record, json.dumps(said).encode() + b"\n")
