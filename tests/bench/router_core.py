"""What the data path costs without a kernel: one worker's code between two transports that do nothing.

A request is fed to a real client connection and its answer to a real pooled upstream connection, as often as
asked; printed is the CPU time of each part. This is the share of a request that our code can change: the
system calls beside it cost a proxy in C the same.

    python tests/bench/router_core.py [--requests N] [--profile json|json4|stream]
"""

import argparse
import asyncio
import cProfile
import pstats
import time
from collections.abc import Callable
from typing import cast

from llmgw_router.relay import ipc
from llmgw_router.relay.client import ClientConnection
from llmgw_router.relay.hub import Hub
from llmgw_router.relay.slots import Slots
from llmgw_router.relay.upstream import UpstreamConnection

PROMPT = "Tell me about the lamp that hums while tokens cross the wire. " * 8
BODY = '{"model":"m","messages":[{"role":"user","content":"%s"}],"max_tokens":64%s}'
HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nhost: router:8080\r\naccept: application/json\r\n"
    "content-type: application/json\r\nuser-agent: OpenAI/Python 2.9.0\r\n"
    "authorization: Bearer sk-0123456789abcdef\r\nx-stainless-lang: python\r\n"
    "x-stainless-runtime: CPython\r\n"
    "content-length: %d\r\n\r\n%s"
)
REPLY = (
    '{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,'
    '"message":{"role":"assistant","content":"the lamp hums while tokens cross the wire one by one"},'
    '"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":11,"total_tokens":23}}'
)
ANSWER = (
    f"HTTP/1.1 200 OK\r\ndate: x\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
    f"content-length: {len(REPLY)}\r\n\r\n{REPLY}"
).encode()
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: x\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" lamp"},"logprobs":null,"finish_reason":null}]}\n\n'
)
USAGE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":11,"total_tokens":23}}\n\n'
)
EVENTS = 100


def request(more: str = "") -> bytes:
    body = BODY % (PROMPT, more)
    return (HEAD % (len(body), body)).encode()


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


class Nowhere:
    """A transport that takes everything and costs nothing."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: bytes) -> None:
        self.bytes += len(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.bytes += sum(map(len, parts))

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default


class Bench:
    """One hub, one client, and as many pooled upstreams as there are endpoints."""

    def __init__(self, loop: asyncio.AbstractEventLoop, endpoints: int) -> None:
        slots = Slots.create(workers=2, capacity=endpoints)
        self.hub = Hub(
            ipc.Configure(worker=0, workers=2, slot_capacity=endpoints, cold_socket=""),
            slots,
            loop,
            lambda message: None,
        )
        rows = tuple(
            ipc.EndpointRow(
                endpoint_id=f"e{n}@1", replica_id=f"e{n}", group_epoch=1, model="m", host="h", port=1, slot=n
            )
            for n in range(endpoints)
        )
        self.hub.routes.apply(ipc.TableUpdate(endpoints=rows, seq=1))
        self.upstreams: list[UpstreamConnection] = []
        for endpoint in self.hub.routes.targets["m"].endpoints:
            upstream = UpstreamConnection(endpoint)
            upstream.connection_made(cast(asyncio.Transport, Nowhere()))
            endpoint.idle.append(upstream)
            self.upstreams.append(upstream)
        self.client = ClientConnection(self.hub)
        self.client.connection_made(cast(asyncio.Transport, Nowhere()))

    def asked(self) -> UpstreamConnection:
        for upstream in self.upstreams:
            if upstream.exchange is not None:
                return upstream
        raise SystemExit("no upstream was asked: the request was refused")

    def json(self, asked: bytes) -> None:
        self.client.data_received(asked)
        self.asked().data_received(ANSWER)

    def stream(self, asked: bytes, events: list[bytes]) -> None:
        self.client.data_received(asked)
        upstream = self.asked()
        for event in events:
            upstream.data_received(event)


def cost_us(work: Callable[[], None], times: int, rounds: int = 7) -> float:
    found = []
    for _ in range(rounds):
        began = time.process_time_ns()
        for _ in range(times):
            work()
        found.append((time.process_time_ns() - began) / times / 1000)
    return min(found)


async def run(args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    plain, streamed = request(), request(',"stream":true')
    asks = request(',"stream":true,"stream_options":{"include_usage":true}')
    events = [STREAM_HEAD, *[chunk(EVENT)] * EVENTS, chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"]
    told = [*events[:-1], chunk(USAGE), events[-1]]
    one, four, many = Bench(loop, 1), Bench(loop, 4), Bench(loop, 64)
    if args.profile:
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(args.requests):
            if args.profile == "stream":
                one.stream(streamed, told)
            else:
                (four if args.profile == "json4" else one).json(plain)
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
        return
    rows = [
        ("JSON request, 1 endpoint", cost_us(lambda: one.json(plain), args.requests)),
        ("JSON request, 4 endpoints", cost_us(lambda: four.json(plain), args.requests)),
        ("JSON request, 64 endpoints", cost_us(lambda: many.json(plain), args.requests)),
    ]
    few = max(1, args.requests // 20)
    for name, asked in (("stream", streamed), ("stream that asks for usage", asks)):
        whole = cost_us(lambda asked=asked: one.stream(asked, told), few)  # type: ignore[misc]
        short = cost_us(lambda asked=asked: one.stream(asked, [told[0], *told[-3:]]), few)  # type: ignore[misc]
        rows.append((f"{name}: request", short))
        rows.append((f"{name}: event more", (whole - short) / (EVENTS - 1)))
    for name, us in rows:
        print(f"{name:40}{us:8.2f} µs")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--profile", choices=["json", "json4", "stream"])
    args = parser.parse_args()
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(args))


if __name__ == "__main__":
    main()
