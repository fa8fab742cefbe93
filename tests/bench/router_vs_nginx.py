"""One relay worker beside one nginx worker, same engine, same load, rounds interleaved; prints ratios.

Needs nginx and wrk on PATH. What is compared is the CPU time a request costs (from /proc/PID/stat):
it depends far less on what else the machine does than requests a second. Absolute figures do not
travel, ratios within a round should.

    python tests/bench/router_vs_nginx.py [--rounds N] [--seconds S] [--connections C] [--core K]
"""

import argparse
import asyncio
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmgw_router.relay.ipc import AccessRecord, EndpointRow, TableUpdate
from llmgw_router.supervisor.workers import PoolConfig, WorkerPool

#: A chat request of a usual size, with the headers that the openai client sends.
PROMPT = "Tell me about the lamp that hums while tokens cross the wire. " * 8
WRK = f"""
wrk.method = "POST"
wrk.path = "/v1/chat/completions"
wrk.body = '{{"model":"m","messages":[{{"role":"user","content":"{PROMPT}"}}],"temperature":0.2,"max_tokens":64}}'
wrk.headers["content-type"] = "application/json"
wrk.headers["accept"] = "application/json"
wrk.headers["user-agent"] = "OpenAI/Python 2.9.0"
wrk.headers["authorization"] = "Bearer sk-0123456789abcdef"
wrk.headers["x-stainless-lang"] = "python"
wrk.headers["x-stainless-runtime"] = "CPython"
"""
REPLY = (
    '{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,'
    '"message":{"role":"assistant","content":"the lamp hums while tokens cross the wire one by one"},'
    '"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":11,"total_tokens":23}}'
)

ENGINE = """
worker_processes 1; daemon off; pid {dir}/engine.pid; error_log stderr crit;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 1000000000; default_type application/json;
  server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ return 200 '{reply}'; }} }} }}
"""
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


@dataclass(frozen=True)
class Round:
    requests_s: float
    cpu_us: float
    busy: float


class Nobody:
    """Hears the pool out and does nothing with it."""

    def want(self, model: str, waiting: int) -> None: ...
    def unwant(self, model: str) -> None: ...
    def applied(self, update: TableUpdate) -> None: ...
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


async def load(port: int, pid: int, script: Path, *, seconds: int, connections: int) -> Round:
    before = cpu_s(pid)
    process = await asyncio.create_subprocess_exec(
        "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), f"http://127.0.0.1:{port}",
        stdout=subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    used = cpu_s(pid) - before
    text = out.decode()
    found = re.search(r"(\d+) requests in ([\d.]+)(m?s)", text)
    if found is None or "Non-2xx" in text or "Socket errors" in text:
        raise SystemExit(f"the load met errors:\n{text}")
    count, took = int(found[1]), float(found[2]) / (1000 if found[3] == "ms" else 1)
    return Round(count / took, used / count * 1e6, used / took)


async def run(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        script = folder / "load.lua"
        script.write_text(WRK)
        engine_port, proxy_port = free_port(), free_port()
        running: list[asyncio.subprocess.Process] = []
        pool = WorkerPool(
            PoolConfig(
                workers=1, host="127.0.0.1", port=0, cold_socket=str(folder / "cold"), access_log=args.log
            ),
            Nobody(),
        )
        try:
            engine, _ = await nginx(
                folder, "engine", ENGINE.format(dir=folder, port=engine_port, reply=REPLY)
            )
            running.append(engine)
            proxy, proxy_pid = await nginx(
                folder, "proxy", PROXY.format(dir=folder, port=proxy_port, engine=engine_port)
            )
            running.append(proxy)
            await pool.start()
            row = EndpointRow(
                endpoint_id="e@1",
                replica_id="e",
                group_epoch=1,
                model="m",
                host="127.0.0.1",
                port=engine_port,
            )
            pool.push_table(TableUpdate(endpoints=(row,)))
            worker_pid = pool.workers[0].pid
            assert worker_pid is not None
            if args.core is not None:
                for pid in (proxy_pid, worker_pid):
                    os.sched_setaffinity(pid, {args.core})
            rounds: dict[str, list[Round]] = {"nginx": [], "llmgw": []}
            targets = {"nginx": (proxy_port, proxy_pid), "llmgw": (pool.addresses[0].port, worker_pid)}
            for number in range(args.rounds + 1):
                for name, (port, pid) in targets.items():
                    result = await load(
                        port,
                        pid,
                        script,
                        seconds=1 if number == 0 else args.seconds,
                        connections=args.connections,
                    )
                    if number:
                        # The first is for warming up: pools, caches, the interpreter's specialisation.
                        rounds[name].append(result)
                        print(
                            f"round {number} {name:6} {result.requests_s:9.0f} req/s {result.cpu_us:7.1f} us CPU"
                            f" {result.busy:5.0%} of a core",
                            flush=True,
                        )
            report(rounds)
            print(f"memory: nginx worker {rss_kb(proxy_pid)} KB, relay worker {rss_kb(worker_pid)} KB")
        finally:
            await pool.stop()
            pool.close()
            for process in running:
                process.terminate()
                await process.wait()


def report(rounds: dict[str, list[Round]]) -> None:
    cpu = [ours.cpu_us / theirs.cpu_us for ours, theirs in zip(rounds["llmgw"], rounds["nginx"], strict=True)]
    rate = [
        ours.requests_s / theirs.requests_s
        for ours, theirs in zip(rounds["llmgw"], rounds["nginx"], strict=True)
    ]
    for name, of in rounds.items():
        print(
            f"{name:6} median {statistics.median(r.cpu_us for r in of):.1f} us CPU a request,"
            f" best {min(r.cpu_us for r in of):.1f}; {statistics.median(r.requests_s for r in of):.0f} req/s"
        )
    print(f"CPU a request, x nginx: median {statistics.median(cpu):.2f}, best {min(cpu):.2f}")
    print(f"requests a second, x nginx: median {statistics.median(rate):.2f}, best {max(rate):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--core", type=int, default=None, help="pin both proxies to this core")
    parser.add_argument("--log", action="store_true", help="with access records")
    args = parser.parse_args()
    missing = [tool for tool in ("nginx", "wrk") if shutil.which(tool) is None]
    if missing:
        raise SystemExit(f"missing on PATH: {', '.join(missing)} (Debian: apt-get install nginx-light wrk)")
    asyncio.run(run(args))


if __name__ == "__main__":
    sys.exit(main())
