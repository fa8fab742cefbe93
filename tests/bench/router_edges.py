"""What the benches beside nginx do not show: a stream's memory, a lone request's delay, a long body's lag.

- memory: resident bytes for each stream more, between 1,000 and 4,000 open ones;
- first: how much later than at the engine a stream's first byte comes where nobody else asks, in turn with
  nginx;
- lag: CPU time of each turn of a worker's loop while bodies of 20 MB arrive and are read for their model. It
  is how long everybody else waits, and unlike a clock it does not count what other programs take.

    python tests/bench/router_edges.py [--only memory,first,lag] [--core K] [--asked N] [--streams A,B]
"""

import argparse
import asyncio
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import uvloop
from rig import OURS, free_port, need, proxies
from router_core import Bench, Nowhere
from streams_vs_nginx import Engine, Reader

BODY_BYTES = 20_000_000
#: As much as uvloop reads at once.
READ_BYTES = 256_000
#: For all streams to have begun, on a machine that does other things too.
_OPEN_S = 60.0
_HEAD = b"POST /v1/%b HTTP/1.1\r\nhost: r\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"


# --- memory


async def memory(args: argparse.Namespace) -> None:
    Engine.events, Engine.interval_s = 1_000_000, 5.0
    loop = asyncio.get_running_loop()
    port = free_port()
    engine = await loop.create_server(Engine, "127.0.0.1", port, backlog=4096)
    few, many = (int(word) for word in args.streams.split(","))
    with tempfile.TemporaryDirectory() as made:
        async with proxies(Path(made), port, core=args.core, only=(OURS,)) as targets:
            for target in targets:
                readers: list[Reader] = []
                sizes = []
                for count in (few, many):
                    while len(readers) < count:
                        _, reader = await loop.create_connection(Reader, "127.0.0.1", target.port)
                        readers.append(reader)
                        reader.ask()
                        if len(readers) % 50 == 0:
                            # Whoever opens thousands at once measures the queue of a listener.
                            await asyncio.sleep(0.02)
                    async with asyncio.timeout(_OPEN_S):
                        while any(reader.first_s is None for reader in readers):
                            await asyncio.sleep(0.1)
                    await asyncio.sleep(1.0)
                    sizes.append(target.rss_kb())
                slope = (sizes[1] - sizes[0]) / (many - few)
                print(f"{target.name:8} {slope:6.2f} KB for each open stream more, from {few} to {many}")
                for reader in readers:
                    reader.done.cancel()
                    reader.transport.abort()
                await asyncio.sleep(1.0)
    engine.close()


# --- the first byte


async def first(args: argparse.Namespace) -> None:
    Engine.events, Engine.interval_s = 2, 0.0
    loop = asyncio.get_running_loop()
    port = free_port()
    engine = await loop.create_server(Engine, "127.0.0.1", port)
    with tempfile.TemporaryDirectory() as made:
        async with proxies(Path(made), port, core=args.core, only=("nginx", OURS)) as targets:
            ways = {"engine": port} | {target.name: target.port for target in targets}
            took: dict[str, list[float]] = {name: [] for name in ways}
            readers = {
                name: (await loop.create_connection(Reader, "127.0.0.1", at))[1] for name, at in ways.items()
            }
            for number in range(args.asked + 100):
                for name, reader in readers.items():
                    reader.first_s, reader.done = None, loop.create_future()
                    reader.ask()
                    await reader.done
                    if number >= 100:
                        took[name].append((reader.first_s or 0.0) * 1000)
            for name in took.keys() - {"engine"}:
                added = [_at(took[name], share) - _at(took["engine"], share) for share in (0.5, 0.99)]
                print(f"{name:8} first byte later by {added[0]:.3f} ms (p50), {added[1]:.3f} ms (p99)")
    engine.close()


def _at(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


# --- the loop


def _bodies() -> dict[str, bytes]:
    text = "the lamp hums while tokens cross the wire. " * (BODY_BYTES // 43)
    one = json.dumps({"messages": [{"role": "user", "content": text}], "model": "m"}).encode()
    many = json.dumps({"input": list(range(BODY_BYTES // 8)), "model": "m"}).encode()
    part = b"--xYz-0\r\ncontent-disposition: form-data; name=%b\r\n\r\n%b\r\n"
    form = part % (b'"file"; filename="a.wav"', bytes(range(256)) * (BODY_BYTES // 256))
    form += part % (b'"model"', b"m") + b"--xYz-0--\r\n"
    chat, audio = (b"chat/completions", b"application/json"), b"multipart/form-data; boundary=xYz-0"
    return {
        "JSON, one long string": _HEAD % (*chat, len(one)) + one,
        "JSON, many numbers": _HEAD % (b"embeddings", chat[1], len(many)) + many,
        "a form with a file": _HEAD % (b"audio/transcriptions", audio, len(form)) + form,
    }


async def lag(args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    for name, data in _bodies().items():
        turns: list[float] = []
        for _ in range(3):
            bench = Bench(loop, 2)
            reads = [data[at : at + READ_BYTES] for at in range(0, len(data), READ_BYTES)]
            turns += await _turns(bench, reads)
        turns.sort()
        print(
            f"{name:24} {len(turns) // 3} turns a body; p50 {statistics.median(turns):.2f}"
            f" p99 {turns[int(len(turns) * 0.99)]:.2f} most {turns[-1]:.2f} ms of CPU"
        )


async def _turns(bench: Bench, reads: list[bytes]) -> list[float]:
    """CPU milliseconds of each turn of the loop from the first read until the engine was sent the request."""
    loop = asyncio.get_running_loop()
    sent = loop.create_future()
    for upstream in bench.upstreams:
        _Told(cast(Any, upstream), sent)
    turns: list[float] = []
    left = iter(reads)

    def turn(began: float) -> None:
        now = time.thread_time()
        turns.append((now - began) * 1000)
        if sent.done():
            return
        loop.call_soon(turn, time.thread_time())
        part = next(left, None)
        if part is not None:
            bench.client.data_received(part)

    loop.call_soon(turn, time.thread_time())
    await sent
    return turns[1:]


class _Told(Nowhere):
    """Takes the request, and says that it came."""

    def __init__(self, upstream: Any, sent: "asyncio.Future[None]") -> None:
        super().__init__()
        self._sent = sent
        upstream.transport = self

    def write(self, data: bytes) -> None:
        if not self._sent.done():
            self._sent.set_result(None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="memory,first,lag")
    parser.add_argument("--core", type=int, default=None, help="pin the proxies to this core")
    parser.add_argument("--asked", type=int, default=2000, help="streams one after the other, each way")
    parser.add_argument(
        "--streams", default="1000,4000", help="open streams between which memory is compared"
    )
    args = parser.parse_args()
    need("nginx")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for name in args.only.split(","):
        uvloop.run({"memory": memory, "first": first, "lag": lag}[name](args))


if __name__ == "__main__":
    main()
