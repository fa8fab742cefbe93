"""What the benchmarks stand on: nginx as the measure, a pool with one relay worker, CPU time by pid."""

import asyncio
import os
import re
import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from llmgw_router.core.config import Telemetry, WorkerConfig
from llmgw_router.relay.ipc import AccessRecord, EndpointRow, TableUpdate
from llmgw_router.supervisor.workers import PoolConfig, WorkerPool

PROXY = """
worker_processes 1; daemon off; pid {dir}/proxy.pid; error_log stderr crit;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 1000000000;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 512; keepalive_requests 1000000000; }}
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f;
  uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s; client_body_buffer_size 1m;
  server {{ listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
                  proxy_buffering off; }} }} }}
"""


class Nobody:
    """Hears the pool out and does nothing with it."""

    def want(self, model: str, waiting: int) -> None: ...
    def unwant(self, model: str) -> None: ...
    def applied(self, seq: int) -> None: ...
    def drained(self, endpoint_ids: frozenset[str]) -> None: ...
    def access(self, records: Sequence[AccessRecord]) -> None: ...


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


async def nginx(folder: Path, name: str, config: str) -> tuple[asyncio.subprocess.Process, int]:
    """Start one; returns its process and the pid of its single worker."""
    path = folder / f"{name}.conf"
    path.write_text(config)
    process = await asyncio.create_subprocess_exec("nginx", "-p", str(folder), "-c", str(path))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    async with asyncio.timeout(10):
        while not (found := children.read_text().split()):
            if process.returncode is not None:
                raise SystemExit(f"nginx ({name}) ended with {process.returncode}")
            await asyncio.sleep(0.02)
    return process, int(found[0])


@asynccontextmanager
async def proxies(
    folder: Path, engine_port: int, *, core: int | None, log: bool = False
) -> AsyncIterator[dict[str, tuple[int, int]]]:
    """One nginx worker and one relay worker in front of the engine: name -> (port, pid of the worker)."""
    port = free_port()
    config = WorkerConfig(telemetry=Telemetry(access_log=log))
    pool = WorkerPool(
        PoolConfig(workers=1, host="127.0.0.1", port=0, cold_socket=str(folder / "cold"), config=config),
        Nobody(),
    )
    master, pid = await nginx(folder, "proxy", PROXY.format(dir=folder, port=port, engine=engine_port))
    try:
        await pool.start()
        row = EndpointRow(
            endpoint_id="e@1", replica_id="e", group_epoch=1, model="m", host="127.0.0.1", port=engine_port
        )
        pool.push_table(TableUpdate(endpoints=(row,)))
        worker = pool.workers[0].pid
        assert worker is not None
        if core is not None:
            for each in (pid, worker):
                os.sched_setaffinity(each, {core})
        yield {"nginx": (port, pid), "llmgw": (pool.addresses[0].port, worker)}
    finally:
        await pool.stop()
        pool.close()
        master.terminate()
        await master.wait()


def need(*tools: str) -> None:
    """End with a word on what is missing."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        raise SystemExit(f"missing on PATH: {', '.join(missing)} (Debian: apt-get install nginx-light wrk)")
