"""How soon a router serves, and what it holds when it does nothing: `python tests/bench/router_start.py`.

The bar of the router: a relay worker <= 45 MB, the supervisor <= 120 MB, the first request <= 1 s after the
start in router-only mode, every default on. Start times are of this machine at this moment; run it on a
quiet one. Resident set as the kernel counts it, shared pages included, and the private part beside it.
"""

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil

BODY = json.dumps({"model": "m", "messages": []}).encode()
_LISTENS = re.compile(r"client API on http://127\.0\.0\.1:(\d+)")
#: For the sweep, the collector's freeze and the first lazy imports to be over.
SETTLE_S = 2.0


class Engine(BaseHTTPRequestHandler):
    """Answers everything at once."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Nothing: only the router is measured."""


@contextmanager
def engine() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()


def megabytes(pid: int) -> tuple[float, float]:
    """Resident, and of that private."""
    full = psutil.Process(pid).memory_full_info()
    return full.rss / 1e6, full.uss / 1e6


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def first_answer_s(log: Path, began: float) -> float:
    """Until the first 200 of an inference request."""
    while True:
        found = _LISTENS.search(log.read_text())
        if found is not None:
            connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=5)
            try:
                connection.request("POST", "/v1/chat/completions", BODY, {"content-type": "application/json"})
                if connection.getresponse().status == 200:
                    return time.monotonic() - began
            except OSError:
                pass
            finally:
                connection.close()
        time.sleep(0.002)


def one(workers: int, port: int) -> dict[str, float]:
    """Start one router, ask once, look at its processes, stop it."""
    with tempfile.TemporaryDirectory() as folder, engine() as engine_port:
        log = Path(folder) / "log"
        argv = [
            *(sys.executable, "-m", "llmgw_router.main", "serve", "--listen", f"127.0.0.1:{port}"),
            *("--admin-listen", "127.0.0.1:0", "--workers", str(workers)),
            *("--endpoint", f"a=http://127.0.0.1:{engine_port}=m"),
        ]
        with log.open("wb") as out:
            began = time.monotonic()
            router = subprocess.Popen(argv, stdout=out, stderr=out)
        try:
            served_s = first_answer_s(log, began)
            children = [child.pid for child in psutil.Process(router.pid).children()]
            cpu_s = sum(map(cpu_seconds, (router.pid, *children)))
            time.sleep(SETTLE_S)
            of_workers = [megabytes(pid) for pid in children]
            supervisor = megabytes(router.pid)
        finally:
            router.terminate()
            router.wait(20)
    return {
        "first request, s": served_s,
        # The same on a machine with nothing else to do, were it all one after the other.
        "CPU until then, s": cpu_s,
        "worker, MB": max(rss for rss, _ in of_workers),
        "worker private, MB": max(own for _, own in of_workers),
        "supervisor, MB": supervisor[0],
        "supervisor private, MB": supervisor[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    rounds = [one(given.workers, 0) for _ in range(given.rounds)]
    bars = {"first request, s": 1.0, "worker, MB": 45.0, "supervisor, MB": 120.0}
    print(f"{given.rounds} rounds, {given.workers} relay workers; median (best), bar")
    for name in rounds[0]:
        values = [round_[name] for round_ in rounds]
        bar = f"<= {bars[name]:g}" if name in bars else ""
        print(f"{name:<24} {statistics.median(values):8.2f} ({min(values):.2f})  {bar}")


if __name__ == "__main__":
    main()
