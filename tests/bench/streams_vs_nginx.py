"""Event streams through one relay worker and one nginx worker, rounds interleaved; prints ratios.

N streams of an event each T milliseconds. Compared: CPU time an event costs the proxy, memory a
stream costs it, and how much later than at the engine itself the first event is seen.

    python tests/bench/streams_vs_nginx.py [--rounds N] [--streams N] [--events N] [--interval-ms T]
"""

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rig import cpu_s, free_port, need, proxies, rss_kb

EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" lamp"},"finish_reason":null}]}\n\n'
)
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"Tell me about the lamp."}]}'
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: b\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


class Engine(asyncio.Protocol):
    """Streams `events` events, one each `interval_s`; the first at once."""

    events = 0
    interval_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        if self.data.endswith(BODY):
            self.data = b""
            self.left = self.events
            self.transport.write(HEAD)
            self.step()

    def step(self) -> None:
        if self.transport.is_closing():
            return
        self.left -= 1
        if self.left:
            self.transport.write(CHUNK)
            asyncio.get_running_loop().call_later(self.interval_s, self.step)
        else:
            self.transport.write(END)


class Reader(asyncio.Protocol):
    """One client: notes when the first event came, and that the end did."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.first_s: float | None = None
        self.sent_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def ask(self) -> None:
        self.sent_s = time.monotonic()
        self.transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        if self.first_s is None and b"data:" in data:
            self.first_s = time.monotonic() - self.sent_s
        if data.endswith(b"0\r\n\r\n"):
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the proxy closed in mid-stream"))


@dataclass(frozen=True)
class Round:
    cpu_us: float
    ttft_ms: tuple[float, float]
    kb_a_stream: float


async def streams(port: int, pid: int | None, args: argparse.Namespace) -> Round:
    loop = asyncio.get_running_loop()
    before_kb = rss_kb(pid) if pid else 0
    readers = [(await loop.create_connection(Reader, "127.0.0.1", port))[1] for _ in range(args.streams)]
    began = cpu_s(pid) if pid else 0.0
    gap_s = args.interval_ms / 1000 / args.streams
    for reader in readers:
        # Spread over one interval, as independent clients are.
        reader.ask()
        await asyncio.sleep(gap_s)
    peak_kb = rss_kb(pid) if pid else 0
    async with asyncio.timeout(args.events * args.interval_ms / 1000 * 5 + 20):
        await asyncio.gather(*(reader.done for reader in readers))
    used = (cpu_s(pid) - began) if pid else 0.0
    for reader in readers:
        reader.transport.close()
    await asyncio.sleep(0.1)
    first = sorted((reader.first_s or 0.0) * 1000 for reader in readers)
    return Round(
        used / (args.events * args.streams) * 1e6,
        (statistics.median(first), first[int(len(first) * 0.99)]),
        (peak_kb - before_kb) / args.streams,
    )


async def run(args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    Engine.events, Engine.interval_s = args.events, args.interval_ms / 1000
    port = free_port()
    engine = await loop.create_server(Engine, "127.0.0.1", port, backlog=4096)
    gc.freeze()
    with tempfile.TemporaryDirectory() as made:
        async with proxies(Path(made), port, core=args.core) as targets:
            rounds: dict[str, list[Round]] = {name: [] for name in ("direct", *targets)}
            for number in range(args.rounds + 1):
                for name, (at, pid) in {"direct": (port, None), **targets}.items():
                    result = await streams(at, pid, args)
                    if number:
                        rounds[name].append(result)
                        print(
                            f"round {number} {name:6} {result.cpu_us:6.1f} us CPU an event, first event after"
                            f" {result.ttft_ms[0]:.2f} ms (p50) {result.ttft_ms[1]:.2f} ms (p99)",
                            flush=True,
                        )
                    elif pid:
                        # Only the first round grows the process; later ones find the memory there.
                        print(f"{name:6} {result.kb_a_stream:.1f} KB resident an open stream")
            pairs = list(zip(rounds["llmgw"], rounds["nginx"], rounds["direct"], strict=True))
            ratios = [ours.cpu_us / theirs.cpu_us for ours, theirs, _ in pairs]
            print(f"CPU an event, x nginx: median {statistics.median(ratios):.2f}, best {min(ratios):.2f}")
            for index, word in ((0, "p50"), (1, "p99")):
                later = {
                    name: statistics.median(
                        through.ttft_ms[index] - direct.ttft_ms[index]
                        for through, direct in zip(rounds[name], rounds["direct"], strict=True)
                    )
                    for name in targets
                }
                print(f"first event later than at the engine, {word}, ms: {later}")
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--interval-ms", type=float, default=20.0)
    parser.add_argument("--core", type=int, default=None, help="pin both proxies to this core")
    need("nginx")
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
