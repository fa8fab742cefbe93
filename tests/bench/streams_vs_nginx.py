"""Event streams through our router and the proxies beside it, in turn in each round; ratios.

N streams of an event each T milliseconds. Compared: CPU time an event costs the whole process tree, memory a
stream costs it, and how much later than at the engine itself the first event is seen. smg and vllm-router
join where they are on PATH. `--interval-ms 0` sends without a pause.

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
from rig import INFO, MODELS, OURS, Target, free_port, need, proxies

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
        if self.data.startswith(b"GET ") and self.data.endswith(b"\r\n\r\n"):
            told = (MODELS if b"/models" in self.data[:64] else INFO).encode()
            self.data = b""
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            self.transport.write(head % len(told) + told)
            return
        if b"\r\n\r\n" in self.data and self.data.rstrip().endswith((b"}", b"}\r\n0")):
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


async def streams(port: int, target: Target | None, args: argparse.Namespace) -> Round:
    loop = asyncio.get_running_loop()
    before_kb = target.rss_kb() if target else 0
    readers = [(await loop.create_connection(Reader, "127.0.0.1", port))[1] for _ in range(args.streams)]
    began = target.cpu_s() if target else 0.0
    gap_s = args.interval_ms / 1000 / args.streams
    for reader in readers:
        # Spread over one interval, as independent clients are.
        reader.ask()
        await asyncio.sleep(gap_s)
    peak_kb = target.rss_kb() if target else 0
    async with asyncio.timeout(args.events * args.interval_ms / 1000 * 5 + 20):
        await asyncio.gather(*(reader.done for reader in readers))
    used = (target.cpu_s() - began) if target else 0.0
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
        only = tuple(args.only.split(",")) if args.only else ()
        async with proxies(Path(made), port, core=args.core, only=only) as targets:
            rounds: dict[str, list[Round]] = {name: [] for name in ("direct", *(t.name for t in targets))}
            every: list[tuple[str, int, Target | None]] = [("direct", port, None)]
            every += [(target.name, target.port, target) for target in targets]
            for number in range(args.rounds + 1):
                for name, at, target in every if number % 2 else reversed(every):
                    result = await streams(at, target, args)
                    if number:
                        rounds[name].append(result)
                        print(
                            f"round {number} {name:12} {result.cpu_us:6.1f} us CPU an event, first event"
                            f" after {result.ttft_ms[0]:.2f} ms (p50) {result.ttft_ms[1]:.2f} ms (p99)",
                            flush=True,
                        )
                    elif target:
                        # Only the first round grows the process; later ones find the memory there.
                        print(f"{name:12} {result.kb_a_stream:.1f} KB resident an open stream")
            report(rounds)
    engine.close()


def report(rounds: dict[str, list[Round]]) -> None:
    for name in rounds.keys() - {"direct", OURS}:
        ratios = [
            ours.cpu_us / theirs.cpu_us for ours, theirs in zip(rounds[OURS], rounds[name], strict=True)
        ]
        print(f"CPU an event, x {name}: median {statistics.median(ratios):.2f}, best {min(ratios):.2f}")
    for name in rounds.keys() - {"direct"}:
        later = [
            statistics.median(
                through.ttft_ms[index] - direct.ttft_ms[index]
                for through, direct in zip(rounds[name], rounds["direct"], strict=True)
            )
            for index in (0, 1)
        ]
        print(
            f"first event later than at the engine, {name:12} p50 {later[0]:+.2f} ms, p99 {later[1]:+.2f} ms"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--interval-ms", type=float, default=20.0)
    parser.add_argument("--core", type=int, default=None, help="pin the proxies to this core")
    parser.add_argument("--only", default="", help="only these proxies: nginx,llmgw")
    need("nginx")
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
