"""What the router's benchmarks stand on: the proxies compared, each one process tree, and their CPU time.

nginx is the measure: it looks at nothing. `smg` and `vllm-router` are compared too where they are on PATH.
Our own router is the real command with every default, in router-only mode with one relay worker.
"""

import asyncio
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

PROXY = """
worker_processes 1; daemon off; pid {dir}/proxy.pid; error_log stderr crit;
events {{ worker_connections 8192; }}
http {{ access_log off; keepalive_requests 1000000000;
  upstream engine {{ {servers} keepalive 512; keepalive_requests 1000000000; }}
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f;
  uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s; client_body_buffer_size 1m;
  server {{ listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
                  proxy_buffering off; }} }} }}
"""
OURS = "llmgw"
#: Ours with a second relay worker; only where it is asked for by name.
OURS_TWICE = "llmgw-2"
#: What other routers ask an engine before they send it anything.
MODELS = '{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"bench","root":"m"}]}'
INFO = (
    '{"status":"ready","model_path":"m","served_model_name":"m","model_id":"m","tokenizer_path":"m",'
    '"is_generation":true,"version":"0.5.0","dp_size":1,"tp_size":1,"max_total_num_tokens":100000}'
)
_START_S = 60.0


@dataclass(frozen=True)
class Target:
    """One proxy that runs: where it answers, and the processes that it is."""

    name: str
    port: int
    pid: int
    #: From spawning it to its first 200, in seconds.
    start_s: float

    def pids(self) -> list[int]:
        """The process and all its descendants, as they are now."""
        found = [self.pid]
        for pid in found:
            try:
                for task in os.listdir(f"/proc/{pid}/task"):
                    found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
            except FileNotFoundError:
                continue
        return found

    def cpu_s(self) -> float:
        """CPU seconds used so far, from the scheduler's own nanoseconds."""
        total = 0
        for pid in self.pids():
            for task in os.listdir(f"/proc/{pid}/task"):
                total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
        return total / 1e9

    def rss_kb(self) -> int:
        """Resident memory of the whole tree; pages that its processes share are counted once a process."""
        return sum(rss_kb(pid) for pid in self.pids())


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def rss_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


async def nginx(folder: Path, name: str, config: str) -> asyncio.subprocess.Process:
    """Start one with this configuration."""
    path = folder / f"{name}.conf"
    path.write_text(config)
    return await asyncio.create_subprocess_exec("nginx", "-p", str(folder), "-c", str(path))


def _commands(folder: Path, engines: Sequence[int]) -> dict[str, tuple[int, list[str]]]:
    """Name -> (port, command) of every proxy that can be run here."""
    urls = [f"http://127.0.0.1:{engine}" for engine in engines]
    ports = {name: free_port() for name in ("nginx", OURS, OURS_TWICE, "smg", "vllm-router")}
    config = folder / "nginx.conf"
    servers = " ".join(f"server 127.0.0.1:{engine};" for engine in engines)
    config.write_text(PROXY.format(dir=folder, port=ports["nginx"], servers=servers))
    replicas = [word for n, url in enumerate(urls) for word in ("--endpoint", f"e{n}={url}=m")]
    commands = {"nginx": ["nginx", "-p", str(folder), "-c", str(config)]}
    for name, workers in ((OURS, "1"), (OURS_TWICE, "2")):
        listen = ["--listen", f"127.0.0.1:{ports[name]}", "--admin-listen", f"127.0.0.1:{free_port()}"]
        more = ["--workers", workers, "--state-dir", str(folder / name), *replicas]
        commands[name] = [sys.executable, "-m", "llmgw_router.main", "serve", *listen, *more]
    for name, head in (("smg", ["smg", "launch"]), ("vllm-router", ["vllm-router"])):
        if shutil.which(name):
            where = ["--host", "127.0.0.1", "--port", str(ports[name]), "--worker-urls", *urls]
            quiet = ["--policy", "round_robin", "--log-level", "error", "--prometheus-port", str(free_port())]
            commands[name] = [*head, *where, *quiet]
    return {name: (ports[name], command) for name, command in commands.items()}


@asynccontextmanager
async def proxies(
    folder: Path, *engines: int, core: int | None = None, only: tuple[str, ...] = ()
) -> AsyncIterator[list[Target]]:
    """Every proxy in front of these engines of one model, pinned to `core` if one is given; nginx first, then
    ours."""
    async with AsyncExitStack() as stack:
        targets = []
        for name, (port, command) in _commands(folder, engines).items():
            if name not in only if only else name == OURS_TWICE:
                continue
            targets.append(await stack.enter_async_context(_running(name, port, command, folder, core)))
        yield targets


@asynccontextmanager
async def _running(
    name: str, port: int, command: list[str], folder: Path, core: int | None
) -> AsyncIterator[Target]:
    pinned = ["taskset", "-c", str(core), *command] if core is not None else command
    began = time.monotonic()
    with (folder / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*pinned, stdout=log, stderr=log)
        try:
            await _answers(name, port, process, folder / f"{name}.log")
            yield Target(name, port, process.pid, time.monotonic() - began)
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


async def _answers(name: str, port: int, process: asyncio.subprocess.Process, log: Path) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: b\r\ncontent-type: application/json\r\n"
    until = time.monotonic() + _START_S
    line = b""
    while process.returncode is None and time.monotonic() < until:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body))
            line = await asyncio.wait_for(reader.readline(), 5.0)
            writer.close()
            if b" 200 " in line:
                return
        except (OSError, TimeoutError):
            pass
        await asyncio.sleep(0.005)
    state = "does not answer" if process.returncode is None else f"ended with {process.returncode}"
    raise SystemExit(f"{name} {state}; last heard: {line!r}; log: {log.read_text()[-800:]}")


def need(*tools: str) -> None:
    """End with a word on what is missing."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        raise SystemExit(f"missing on PATH: {', '.join(missing)} (Debian: apt-get install nginx-light wrk)")
