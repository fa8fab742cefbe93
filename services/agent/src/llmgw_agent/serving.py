"""The composition root of `serve`: what is built from what, in which order it starts and stops."""

import asyncio
import contextlib
import json
import logging
import os
import random
import secrets
import socket
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from llmgw_agent.adapters import machine, nvidia, processes
from llmgw_agent.adapters.admin import AgentMetrics, application, metrics_application
from llmgw_agent.adapters.declared import DeclaredDevices
from llmgw_agent.adapters.engine_http import AiohttpEngine
from llmgw_agent.adapters.engine_load import EngineLoad
from llmgw_agent.adapters.fault_memory import FaultMemory
from llmgw_agent.adapters.fetching import FetchLimits, Weights
from llmgw_agent.adapters.journal import Journal
from llmgw_agent.adapters.log_files import LogFile
from llmgw_agent.adapters.metrics_pieces import PieceMetrics
from llmgw_agent.adapters.mirror_edges import Edges, in_pieces, open_edges, serve_edges
from llmgw_agent.adapters.ownership import Ownership
from llmgw_agent.adapters.stream import dial
from llmgw_agent.adapters.weights_store import WeightsStore
from llmgw_agent.core.devices import Device, Inventory
from llmgw_agent.core.session import Rotation, TermGate
from llmgw_agent.core.words import Hello
from llmgw_agent.engines import llamacpp_main
from llmgw_agent.engines.base import Surroundings
from llmgw_agent.loops.connection import Connection
from llmgw_agent.loops.node import Node
from llmgw_agent.loops.takeover import take_over
from llmgw_agent.loops.view import View
from llmgw_agent.loops.waiting import Changes
from llmgw_agent.loops.world import World
from llmgw_agent.settings import AgentSettings
from llmgw_agent.supervise import READY_VARIABLE
from llmgw_kit import listeners, telemetry
from llmgw_kit.clock import Clock, SystemClock
from llmgw_kit.lifecycle import StopSignal, cancel_all, until_stopped
from llmgw_kit.tls_watch import refresh_at_hangup

if TYPE_CHECKING:
    from llmgw_agent.ports import DeviceProvider

log = logging.getLogger(__name__)

#: How often the engines' logs are looked at.
LOG_CHECK_S = 30.0
#: Logs of engines that are forgotten, kept for people.
MOST_OLD_LOGS = 100


async def serve(settings: AgentSettings) -> int:
    """Run the agent until SIGTERM or SIGINT. The engines go on."""
    stop = StopSignal()
    refresh_at_hangup()  # until it is known which files there are
    machine.check_engine_ports(*settings.port_range)
    folder = machine.DataFolder(settings.data_dir)
    folder.open()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(folder.close)
        await _run(settings, folder, stop, stack)
    return 0


async def _run(
    settings: AgentSettings, folder: machine.DataFolder, stop: StopSignal, stack: contextlib.AsyncExitStack
) -> None:
    # Bound first: a taken port is an error before anything was touched.
    admin_sockets = listeners.bind(settings.admin_address, flag="--admin-listen")
    metrics_sockets = (
        listeners.bind(settings.metrics_address, flag="--metrics-listen") if settings.metrics_address else []
    )
    clock, changes = SystemClock(), Changes()
    edges = await open_edges(settings, stack)
    refresh_at_hangup(*edges.watched)
    http = await stack.enter_async_context(_http_session())
    agent = _Agent(settings, folder, clock, changes, http, edges)
    stack.push_async_callback(agent.pieces.close)
    stack.callback(agent.devices.close)
    stack.push_async_callback(agent.node.leave)
    view, connection = await agent.start()
    await serve_edges(settings, edges, agent.sharing, agent.store, stack)

    registry = telemetry.registry()
    registry.register(AgentMetrics(view))
    registry.register(PieceMetrics(agent.pieces, agent.sharing))
    declared = agent.devices if isinstance(agent.devices, DeclaredDevices) else None
    runner = await telemetry.serve_http(application(view, registry, declared), admin_sockets)
    stack.push_async_callback(runner.cleanup)
    admin, metrics = listeners.bound_address(admin_sockets, settings.admin_address.host), None
    if settings.metrics_address:
        metrics_runner = await telemetry.serve_http(metrics_application(view, registry), metrics_sockets)
        stack.push_async_callback(metrics_runner.cleanup)
        metrics = listeners.bound_address(metrics_sockets, settings.metrics_address.host)
    folder.write_listeners(admin, metrics)
    tasks = [
        asyncio.create_task(connection.run(), name="connection"),
        asyncio.create_task(view.keep_fresh(settings.refresh_interval_s), name="view"),
        asyncio.create_task(_keep_logs_short(view, folder.logs, settings.engine_log_max, clock), name="logs"),
        asyncio.create_task(_raise_bug(agent.node), name="shards"),
        *edges.tasks(clock),
    ]
    log.info("agent of node %s: admin on http://%s, data in %s", settings.node_id, admin, settings.data_dir)
    _tell_supervisor(settings.data_dir)
    try:
        await until_stopped(stop, *tasks)
    finally:
        await cancel_all(*tasks)
        running = len(agent.node.leaders())
        log.info(
            "agent stops; %d engine%s left running, adopted at its next start", running, "s"[: running != 1]
        )


def _http_session() -> aiohttp.ClientSession:
    # No limit of connections: probes of one slow engine must not hold up the others'.
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


class _Agent:
    """The parts, put together."""

    def __init__(
        self, settings: AgentSettings, folder: machine.DataFolder, clock: Clock, changes: Changes,
        http: aiohttp.ClientSession, edges: Edges,
    ) -> None:  # fmt: skip
        self._settings, self._folder, self._clock, self._changes = settings, folder, clock, changes
        self._table = processes.MachineTable(clock)
        self._boot_id = self._table.boot_id()
        self._launcher = processes.Launcher(self._boot_id, clock)
        self._journal = Journal(folder.journal)
        self._instance = secrets.token_hex(8)
        self.store = WeightsStore(folder.weights)
        limits = FetchLimits(settings.fetch_parallel, settings.fetch_give_up_s, settings.disk_reserve)
        self._management = machine.management_address(
            settings.management_interface, settings.management_address
        )
        self.pieces, self.sharing = in_pieces(settings, edges, clock, self._management)
        self._weights = Weights(
            self.store, edges.client(), clock, limits, mirrors=settings.mirrors, pieces=self.pieces
        )
        self._listen = machine.listen_host(settings.engine_listen, self._management)
        self._beat_interval_s = 5.0
        self.devices: DeviceProvider = self._device_provider()
        self.node = Node(self._world(http), changes.notify, self._table.sweep)

    def _device_provider(self) -> "DeviceProvider":
        if self._settings.provider == "nvidia":
            owners = Ownership(lambda: self.node.leaders(), self._folder.owner_id())
            return nvidia.NvidiaDevices(
                nvidia.load_nvml(), holder=owners.holder, clock=self._clock,
                memory=FaultMemory(self._folder.state / "device_faults.json", self._boot_id),
                quiet_s=self._settings.device_quiet_s,
            )  # fmt: skip
        state_file = self._settings.devices_state_file or self._folder.state / "devices.json"
        return DeclaredDevices(self._settings.declared(), state_file, self._clock)

    def _world(self, http: aiohttp.ClientSession) -> World:
        settings = self._settings
        return World(
            clock=self._clock, journal=self._journal, launcher=self._launcher, weights=self._weights,
            devices=self.devices, http=AiohttpEngine(http), new_token=lambda: secrets.token_hex(16),
            load=EngineLoad(http, self._clock), log_file=LogFile,
            surroundings=Surroundings(
                listen_host=self._listen, model_path=None, llamacpp_python=settings.llamacpp_python,
                llamacpp_runner=str(Path(llamacpp_main.__file__).resolve()),
                vllm_program=settings.vllm_program, sglang_python=settings.sglang_python,
            ),
            connect_host=machine.connect_host(self._listen), node_id=settings.node_id,
            owner_id=self._folder.owner_id(),
            # Ours are settings of the agent, and may hold what an engine should not know.
            base_env={name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")},
            log_folder=self._folder.logs, run_folder=self._folder.run,
            beat_interval_s=lambda: self._beat_interval_s,
            probe_interval_s=settings.probe_interval_s,
            installed=lambda engine: _installed(engine, settings),
        )  # fmt: skip

    async def start(self) -> tuple[View, Connection]:
        """Take over what runs, look at everything once, and be ready to talk."""
        devices = await self.devices.read()
        view = View(
            self.node, self.devices, self._weights, self._inventory(devices), self._changes, self._clock,
            self._folder.disk,
        )  # fmt: skip
        journalled = self._journal.read()
        await take_over(self.node, journalled, self._table, self._launcher, self._journal)
        known = {shard.token for shard in journalled.values() if shard.token}
        self.node.know_strays(self._table.strays(self._folder.owner_id(), known))
        await asyncio.to_thread(self.store.empty_trash)
        await view.refresh()
        connection = Connection(
            dial, Rotation(self._settings.controllers), TermGate(self._folder.highest_term()),
            lambda highest: self._hello(view, highest), view, self._clock, random.random,
            self._folder.remember_term, self._beat_changed,
        )  # fmt: skip
        return view, connection

    def _beat_changed(self, interval_s: float) -> None:
        self._beat_interval_s = interval_s

    def _inventory(self, devices: tuple[Device, ...]) -> Inventory:
        settings = self._settings
        engines = settings.engines or machine.engines_here(
            settings.llamacpp_python, settings.vllm_program, settings.sglang_python
        )
        return Inventory(
            hostname=socket.gethostname(), management_address=self._management, devices=devices,
            fabrics=settings.fabrics, pool=settings.pool, engine_ports=settings.port_range,
            engines=engines, labels=tuple(sorted(settings.labels.items())),
        )  # fmt: skip

    def _hello(self, view: View, highest_term: int | None) -> Hello:
        return Hello(
            node_id=self._settings.node_id, boot_id=self._boot_id, agent_instance=self._instance,
            version=version("llmgw-agent"), highest_term_seen=highest_term, inventory=view.inventory,
            shards=tuple(view.shards().values()), weights=view.weights,
        )  # fmt: skip


def _installed(engine: str, settings: AgentSettings) -> str | None:
    """llama.cpp as a library does not know which build it is; its package does."""
    if engine != "llamacpp":
        return None
    version = machine.package_version(settings.llamacpp_python, "xllamacpp")
    return None if version is None else f"xllamacpp {version}"


async def _raise_bug(node: Node) -> None:
    """A bug in a shard's owner ends the agent; the next one adopts the engines."""
    await node.bug


async def _keep_logs_short(view: View, folder: Path, most_bytes: int, clock: Clock) -> None:
    while True:
        await clock.sleep(LOG_CHECK_S)
        held = {Path(shard.log_path).stem for shard in view.shards().values() if shard.log_path}
        for path in sorted(folder.glob("*.log")):
            await asyncio.to_thread(processes.rotate, path, most_bytes=most_bytes)
        await asyncio.to_thread(processes.prune, folder, keep=held, most=MOST_OLD_LOGS)


def _tell_supervisor(data_dir: Path) -> None:
    """Say that we are up, and where our engines are noted, to a supervisor that listens."""
    descriptor = os.environ.pop(READY_VARIABLE, None)
    if descriptor is None:
        return
    with contextlib.suppress(OSError), os.fdopen(int(descriptor), "wb") as pipe:
        pipe.write(json.dumps({"data_dir": str(data_dir.resolve())}).encode() + b"\n")
