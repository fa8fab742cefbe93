"""Files out of the mirror beside nginx, in turn in each round: plaintext and mutual TLS; ratios, latencies.

Needs nginx on PATH. The mirror is the real command with every default and no database; nginx has one worker,
sendfile, and the same certificates. HEADs are those of the Hub's
`resolve`, from 100 connections at once; memory is the mirror's before and after all of it. Absolute figures
do not travel, ratios within a round should; CPU time a gigabyte depends least on what else the machine does.

    python tests/bench/mirror_serving.py [--rounds N] [--mib M] [--only plain-1,tls-1,heads]
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import uvloop
import yaml
from rig import Target, free_port, need, nginx, rss_kb

from llmgw.v1 import common_pb2, mirror_pb2, mirror_pb2_grpc
from llmgw_kit import rpc
from llmgw_kit.addresses import HostPort
from llmgw_kit.testing.authority import Authority, Pair
from llmgw_kit.tls_watch import Side, WatchedTls

NGINX = """
worker_processes 1; daemon off; pid {dir}/nginx.pid; error_log stderr crit;
events {{ worker_connections 4096; }}
http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000; default_type a/b;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f;
  uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  server {{ listen 127.0.0.1:{plain} backlog=4096; root {root}; }}
  server {{ listen 127.0.0.1:{tls} ssl backlog=4096; root {root};
    ssl_certificate {cert}; ssl_certificate_key {key}; ssl_client_certificate {ca}; ssl_verify_client on;
    ssl_protocols TLSv1.2 TLSv1.3; }} }}
"""
#: Connections, whether over TLS, and what share of nginx's speed is asked for; None: only told.
CASES: dict[str, tuple[int, bool, float | None]] = {
    "plain-1": (1, False, 0.90),
    "plain-4": (4, False, 0.75),
    "tls-1": (1, True, 0.90),
    "tls-4": (4, True, None),
}
HEADS, HEAD_CLIENTS, HEAD_P99_MS = 4000, 100, 20.0
#: More than this between before and after is no noise of an allocator: some part keeps what it sent.
GROWTH_KB = 48 * 1024
COMMIT = "5" * 40
FILE = "/v1/weights/org%2Fm/v1/files/w.bin"
HUB_FILE = f"/org/m/resolve/{COMMIT}/w.bin"
START_S = 60.0
CLIENT = Path(__file__).with_name("mirror_client.py")


@dataclass(frozen=True)
class Server:
    """One program that serves the file, and where; its processes for plaintext and for TLS."""

    name: str
    pids: dict[bool, int]
    ports: dict[bool, int]
    path: str

    def cpu_s(self, *, tls: bool) -> float:
        """CPU seconds so far, its workers' and threads' too."""
        used: float = Target(self.name, 0, self.pids[tls], 0.0).cpu_s()
        return used


@dataclass(frozen=True)
class Keys:
    """Files of the client."""

    ca: str
    cert: str
    key: str


@dataclass(frozen=True)
class Speed:
    mb_s: float
    cpu_s_gb: float


async def throughput(server: Server, keys: Keys | None, connections: int, size: int) -> Speed:
    """Of so many clients together, until the last of them is done; and what a gigabyte cost the server."""
    port = server.ports[keys is not None]
    command = [sys.executable, str(CLIENT), str(port), server.path, str(size)]
    command += [keys.ca, keys.cert, keys.key] if keys is not None else []
    pipe = asyncio.subprocess.PIPE
    clients = [
        await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe) for _ in range(connections)
    ]
    for client in clients:
        assert client.stdout is not None
        if await client.stdout.readline() != b"connected\n":
            raise SystemExit(f"a client of {server.name} did not connect")
    before = server.cpu_s(tls=keys is not None)
    told = await asyncio.gather(*(client.communicate(b"\n") for client in clients))
    if any(client.returncode for client in clients):
        raise SystemExit(f"a client of {server.name} failed")
    sent = connections * size
    used = server.cpu_s(tls=keys is not None) - before
    return Speed(sent / max(float(out) for out, _ in told) / 1e6, used / sent * 1e9)


class HeadClient(asyncio.Protocol):
    """Asks again and again on one connection; notes milliseconds. As little work as can be: the two share a
    machine."""

    def __init__(self, request: bytes, times: int, took: list[float], done: asyncio.Future[None]) -> None:
        self._request, self._left, self._took, self._done = request, times, took, done
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have no base class: nothing can be asserted of them.
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        self._seen, self._began = b"", time.monotonic()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if not self._seen.endswith(b"\r\n\r\n"):
            return
        self._took.append((time.monotonic() - self._began) * 1000)
        if not self._seen.startswith(b"HTTP/1.1 200 ") or COMMIT.encode() not in self._seen:
            self._done.set_exception(SystemExit(f"HEAD answered {self._seen!r}"))
        elif self._left > 1:
            self._left -= 1
            self._ask()
        else:
            self._done.set_result(None)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(SystemExit("a HEAD's connection ended"))


async def heads(server: Server) -> tuple[list[float], float]:
    """Milliseconds of each of many HEADs, from many clients at once; microseconds of CPU one cost."""
    request = f"HEAD {HUB_FILE} HTTP/1.1\r\nHost: b\r\nAccept-Encoding: identity\r\n\r\n".encode()
    took: list[float] = []
    loop = asyncio.get_running_loop()
    done: list[asyncio.Future[None]] = [loop.create_future() for _ in range(HEAD_CLIENTS)]
    before = server.cpu_s(tls=False)
    for one in done:
        await loop.create_connection(
            partial(HeadClient, request, HEADS // HEAD_CLIENTS, took, one), "127.0.0.1", server.ports[False]
        )
    await asyncio.gather(*done)
    return took, (server.cpu_s(tls=False) - before) / len(took) * 1e6


@asynccontextmanager
async def mirrors(folder: Path, root: Path, pair: Pair, ca: Path) -> AsyncIterator[Server]:
    """Two mirrors with stores of their own, one with TLS; both hold the file."""
    async with AsyncExitStack() as stack:
        pids, ports = [], []
        for tls in (False, True):
            pid, port = await stack.enter_async_context(mirror(folder, root, pair if tls else None, ca))
            pids.append(pid)
            ports.append(port)
        yield Server(
            "mirror",
            dict(zip((False, True), pids, strict=True)),
            dict(zip((False, True), ports, strict=True)),
            FILE,
        )


@asynccontextmanager
async def mirror(folder: Path, root: Path, pair: Pair | None, ca: Path) -> AsyncIterator[tuple[int, int]]:
    name = "plain" if pair is None else "tls"
    grpc_port, http_port, admin_port = free_port(), free_port(), free_port()
    given: dict[str, object] = {
        "data_dir": str(folder / name), "file_roots": [str(root)], "listen": f"127.0.0.1:{grpc_port}",
        "http_listen": f"127.0.0.1:{http_port}", "admin_listen": f"127.0.0.1:{admin_port}",
    }  # fmt: skip
    tls = None
    if pair is not None:
        given |= {"tls_cert": str(pair.cert), "tls_key": str(pair.key), "tls_client_ca": str(ca)}
        tls = WatchedTls(pair.trusting(ca), Side.CLIENT, what="client")
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump(given))
    command = [sys.executable, "-m", "llmgw_mirror.main", "serve", "--config", str(config)]
    with (folder / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        try:
            await fetched(HostPort("127.0.0.1", grpc_port), tls, root / "w.bin")
            yield process.pid, http_port
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


async def fetched(address: HostPort, tls: WatchedTls | None, file: Path) -> None:
    """Ask for the file until it is there."""
    wanted = mirror_pb2.FetchRequest(
        model="org/m", version="v1", files=[common_pb2.WeightsSource(path="w.bin", url=f"file://{file}")]
    )
    wanted.repository.id, wanted.repository.commit = "org/m", COMMIT
    channel = rpc.channel(address, tls=tls.now if tls is not None else None)
    try:
        async with asyncio.timeout(START_S):
            while True:
                stub = mirror_pb2_grpc.MirrorServiceStub(channel)
                answer = await stub.Fetch(wanted, wait_for_ready=True)
                if answer.version.state == mirror_pb2.WEIGHTS_STATE_PRESENT:
                    return
                await asyncio.sleep(0.1)
    finally:
        await channel.close()


async def measured(servers: list[Server], keys: Keys, size: int, args: argparse.Namespace) -> bool:
    """Print every round and the medians; whether every bar holds."""
    wanted = set(args.only.split(",")) if args.only else {*CASES, "heads"}
    fine = True
    for name, (connections, tls, bar) in CASES.items():
        if name not in wanted:
            continue
        seen: dict[str, list[Speed]] = {server.name: [] for server in servers}
        for number in range(args.rounds + 1):
            # The order turns each round, so that nobody always comes after the same neighbour.
            for server in servers if number % 2 else reversed(servers):
                speed = await throughput(server, keys if tls else None, connections, size)
                if number:  # the first is for warming up
                    seen[server.name].append(speed)
        ours, theirs = seen["mirror"], seen["nginx"]
        ratio = statistics.median(one.mb_s / other.mb_s for one, other in zip(ours, theirs, strict=True))
        cost = statistics.median(
            one.cpu_s_gb / other.cpu_s_gb for one, other in zip(ours, theirs, strict=True)
        )
        for who, speeds in seen.items():
            spent = statistics.median(speed.cpu_s_gb for speed in speeds)
            print(f"{name:8} {who:6} {shown(speed.mb_s for speed in speeds)} MB/s; {spent:.2f} s CPU a GB")
        asked = f" (wanted {bar:.2f})" if bar is not None else ""
        print(f"{name:8} x nginx: speed median {ratio:.2f}{asked}, CPU a GB {cost:.2f}", flush=True)
        fine = fine and (bar is None or ratio >= bar)
    if "heads" in wanted:
        tails, costs = [], []
        for _ in range(args.rounds):
            took, cost = await heads(servers[0])
            tails.append(sorted(took)[int(len(took) * 0.99)])
            costs.append(cost)
        tail = statistics.median(tails)
        print(
            f"heads    p99 of {HEADS} at {HEAD_CLIENTS} clients: {shown(tails)} ms, median {tail:.1f}", end=""
        )
        print(f" (wanted {HEAD_P99_MS:g}); {statistics.median(costs):.0f} us CPU each")
        fine = fine and tail < HEAD_P99_MS
    return fine


def shown(values: Iterable[float]) -> str:
    return " ".join(f"{value:.0f}" for value in values)


async def run(args: argparse.Namespace) -> int:
    size = args.mib << 20
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=base) as made:
        folder = Path(made)
        folder.chmod(0o755)  # nginx's worker is another user when all this runs as root
        root = folder / "root"
        root.mkdir()
        with (root / "w.bin").open("wb") as file:
            for _ in range(args.mib):
                file.write(os.urandom(1 << 20))
        ca = Authority(folder / "ca")
        pair = ca.sign("both")
        plain, tls = free_port(), free_port()
        config = NGINX.format(
            dir=folder, plain=plain, tls=tls, root=root, cert=pair.cert, key=pair.key, ca=ca.cert
        )
        process = await nginx(folder, "nginx", config)
        try:
            async with mirrors(folder, root, pair, ca.cert) as ours:
                keys = Keys(str(ca.cert), str(pair.cert), str(pair.key))
                both = {False: process.pid, True: process.pid}
                theirs = Server("nginx", both, {False: plain, True: tls}, "/w.bin")
                before = {tls: rss_kb(pid) for tls, pid in ours.pids.items()}
                fine = await measured([ours, theirs], keys, size, args)
                for kind, pid in ours.pids.items():
                    grown = rss_kb(pid) - before[kind]
                    name = "with TLS" if kind else "plaintext"
                    print(f"memory   {name}: {before[kind]} KB before, {grown:+} KB after all of it")
                    fine = fine and grown < GROWTH_KB
        finally:
            process.terminate()
            await process.wait()
    print("every bar holds" if fine else "NOT every bar holds")
    return 0 if fine else 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024, help="size of the file")
    parser.add_argument("--only", default="", help=f"only these: {','.join([*CASES, 'heads'])}")
    args = parser.parse_args()
    need("nginx", "openssl")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(run(args)))


if __name__ == "__main__":
    main()
