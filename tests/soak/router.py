"""A router under churn for as long as asked: nothing may leak, and no stream may end shorter than it says.

Engines die, come back, reset in mid-answer; endpoints are drained, removed and return, under a new group
epoch or under the same; clients leave at random. Every quarter of a minute the load pauses, and then all
must be as at first: nothing in flight, no gauge above zero, no socket open. Memory may grow by what the
allocator keeps, and no more. A client knows what it should have been sent: an answer is whole, or an error
says that it is not.

    python -m tests.soak.router [--minutes 30] [--seed N] [--clients 48]
"""

import argparse
import asyncio
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llmgw_router.core.config import Limits, RoutingProfile, WorkerConfig
from llmgw_router.drill.engine import DrillEngine
from llmgw_router.drill.rules import DONE, LAST, SSE, chunk, event
from llmgw_router.drill.wire import Answer, Broken, Router, Unreachable
from llmgw_router.relay.slots import GAUGES
from tests.integration.router import harness

ENGINES = 4
WORKERS = 2
#: Between two settlements, and the longest that one may take.
ROUND_S = 15.0
SETTLE_S = 15.0
#: What a worker may hold more than after warming up: arenas that the allocator does not give back.
MEMORY_SLACK_KB = 6 * 1024
#: Counters of time, which are gauges only in that they go down.
_CLOCKS = ("swept_at_ns", "lag_last_us")


@dataclass
class Seen:
    """What a settlement found of one worker."""

    sockets: int
    rss_kb: int


class Engine:
    """One address, and whoever listens there at the moment."""

    def __init__(self) -> None:
        self.port = 0
        self.epoch = 1
        self._engine: DrillEngine | None = None

    async def start(self) -> None:
        self._engine = await DrillEngine("127.0.0.1", self.port, model="m").__aenter__()
        self.port = self._engine.port

    async def stop(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.__aexit__()


class Soak:
    """One run. `seed` decides everything but the machine's own timing."""

    def __init__(self, pool: harness.Router, seed: int) -> None:
        self.router = pool
        self.rng = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.violations: list[str] = []
        self.engines = [Engine() for _ in range(ENGINES)]
        self.state = ["up"] * ENGINES
        self.running = asyncio.Event()
        self.over = False
        self.busy = 0

    async def push(self) -> None:
        """The table as it is now."""
        rows = [
            msgspec.structs.replace(
                harness.endpoint(number, engine.port, draining=self.state[number] == "draining"),
                endpoint_id=f"e{number}@{engine.epoch}",
                group_epoch=engine.epoch,
            )
            for number, engine in enumerate(self.engines)
            if self.state[number] != "gone"
        ]
        await self.router.push(rows)

    async def churn(self) -> None:
        """One fault or repair every few hundred milliseconds; the first engine always stays."""
        while not self.over:
            await self.running.wait()
            await asyncio.sleep(self.rng.uniform(0.05, 0.5))
            number = self.rng.randrange(1, ENGINES)
            what = self.rng.choice(("drain", "undrain", "remove", "return", "die", "die", "restart"))
            engine = self.engines[number]
            self.faults[what] += 1
            if what in ("drain", "undrain", "remove"):
                self.state[number] = {"drain": "draining", "undrain": "up", "remove": "gone"}[what]
            elif what == "return":
                # A start anew, or the one that was away for a moment, with what still runs there.
                engine.epoch += self.rng.randrange(2)
                self.state[number] = "up"
            elif what == "die":
                await engine.stop()
                continue
            else:
                await engine.stop()
                await engine.start()
                continue
            await self.push()

    async def client(self, number: int) -> None:
        """Asks again and again, each time something else."""
        rng = random.Random(f"{self.rng.random()} {number}")
        at = Router(host="127.0.0.1", port=self.router.port, model="m", step_s=20.0)
        while not self.over:
            await self.running.wait()
            self.busy += 1
            try:
                await self.one(at, rng)
            except (Broken, Unreachable, ConnectionError) as error:
                # A worker never ends in this run, so nobody's connection may be cut without a word.
                self.violations.append(f"a client saw: {error}")
            finally:
                self.busy -= 1

    async def one(self, at: Router, rng: random.Random) -> None:
        """One exchange of a random shape."""
        payload = b"".join(event(n) for n in range(rng.randrange(1, 40)))
        shape = rng.choices(("json", "stream", "broken", "leave", "refused"), (4, 4, 1, 2, 1))[0]
        gap_ms = rng.choice((0, 0, 5, 20))
        if shape == "refused":
            answer = await at.ask(b'{"model":"nobody"}')
            self.check(answer.status == 404, f"an unknown model was answered {answer.status}")
            return
        if shape == "json":
            answer = await at.ask(at.play(_json(payload)))
            self.check_whole(answer, payload)
            return
        pieces = [payload[at_ : at_ + 700] for at_ in range(0, len(payload), 700)]
        sends = [SSE, *map(chunk, pieces)]
        if shape == "broken":
            body = at.play(*sends, end=rng.choice(("close", "reset")), gap_ms=gap_ms, stream=True)
        else:
            body = at.play(*sends, chunk(DONE) + LAST, gap_ms=gap_ms, stream=True)
        async with await at.connect() as connection:
            connection.send(at.request(body))
            if shape == "leave":
                await asyncio.sleep(rng.uniform(0, 0.1))
                self.outcomes["left"] += 1
                return
            self.check_stream(await connection.answer(), payload, clean=shape == "stream")

    def check_whole(self, answer: Answer, payload: bytes) -> None:
        if answer.status == 200 and answer.complete:
            self.check(answer.body == payload, "an answer of another length or content")
        elif answer.status == 200:
            self.outcomes["cut short, and seen to be"] += 1
            return
        self.outcomes[f"answered {answer.status}"] += 1

    def check_stream(self, answer: Answer, payload: bytes, *, clean: bool) -> None:
        if answer.status != 200:
            self.outcomes[f"{'stream' if clean else 'broken stream'} answered {answer.status}"] += 1
            return
        body = answer.body
        if body == payload + DONE:
            self.check(clean, "a broken stream arrived with an end")
            self.outcomes["streamed"] += 1
        elif b'"stream_interrupted"' in body[-400:]:
            told = body.rpartition(b'\n\ndata: {"error"')[0]
            self.check(payload.startswith(told.rstrip(b"\n")), "bytes before the error are not the engine's")
            self.outcomes["told as broken"] += 1
        else:
            self.violations.append(
                f"a stream ended in {body[-80:]!r} after {len(body)} of {len(payload)} bytes"
            )

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.violations.append(what)

    async def settle(self) -> list[Seen]:
        """Pause the load; then nothing may be left of it. Returns what each worker holds."""
        self.running.clear()
        until = time.monotonic() + SETTLE_S
        pids = [worker.pid for worker in self.router.pool.workers]
        while time.monotonic() < until:
            totals = self.router.pool.totals()
            left = {name: totals[name] for name in GAUGES if totals[name] and name not in _CLOCKS}
            if not left and self.router.quiet() and not self.busy and not any(map(_connections, pids)):
                break
            await asyncio.sleep(0.1)
        else:
            self.violations.append(f"{SETTLE_S:g} s after the load paused: {left}, {self.busy} clients wait")
        return [Seen(_connections(pid), _rss_kb(pid)) for pid in pids]

    async def run(self, minutes: float, clients: int) -> None:
        for engine in self.engines:
            await engine.start()
        await self.push()
        tasks = [asyncio.create_task(self.client(number)) for number in range(clients)]
        tasks.append(asyncio.create_task(self.churn()))
        began = time.monotonic()
        first: list[Seen] = []
        rounds = max(3, round(minutes * 60 / ROUND_S))
        for number in range(rounds):
            self.running.set()
            await asyncio.sleep(ROUND_S)
            seen = await self.settle()
            if number == rounds // 3:
                first = seen
            done = sum(self.outcomes.values())
            kb = ", ".join(str(one.rss_kb) for one in seen)
            print(
                f"{time.monotonic() - began:6.0f} s  {done:8} exchanges  {sum(self.faults.values()):5} faults"
                f"  workers hold {kb} KB  {len(self.violations)} violations",
                flush=True,
            )
            if any(task.done() for task in tasks):
                break
        self.over = True
        self.running.set()
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                self.violations.append(f"the soak itself failed: {ended!r}")
        for before, after in zip(first, seen, strict=True):
            if after.rss_kb > before.rss_kb + MEMORY_SLACK_KB:
                self.violations.append(f"memory grew from {before.rss_kb} to {after.rss_kb} KB")
        for engine in self.engines:
            await engine.stop()


def _json(payload: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(payload) + payload


def _connections(pid: int | None) -> int:
    """Open sockets of a worker but those it listens on or talks to its supervisor by."""
    if pid is None:
        return 0
    mine = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            continue
        if (found := re.fullmatch(r"socket:\[(\d+)\]", link)) is not None:
            mine.add(found[1])
    listening = "0A"
    rows: Sequence[str] = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return sum(row.split()[9] in mine and row.split()[3] != listening for row in rows)


def _rss_kb(pid: int | None) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


async def soak(minutes: float, seed: int, clients: int) -> int:
    # Short patience everywhere: a settlement has to see pooled and kept connections go.
    config = WorkerConfig(
        limits=Limits(sweep_s=0.1, upstream_idle_s=0.5, keepalive_s=1.0),
        profiles={"interactive": RoutingProfile(connect_s=2.0, idle_s=10.0, total_s=30.0)},
    )
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="llmgw-soak-")))
        pool = await stack.enter_async_context(harness.router(folder, config=config, workers=WORKERS))
        run = Soak(pool, seed)
        await run.run(minutes, clients)
        deaths = sum(worker.deaths for worker in pool.pool.workers)
    if deaths:
        run.violations.append(f"{deaths} workers died")
    print(f"seed {seed}; outcomes: {dict(run.outcomes.most_common())}; faults: {dict(run.faults)}")
    for what, times in Counter(run.violations).most_common(20):
        print(f"VIOLATION x{times}: {what}")
    if not run.violations:
        print("no leak, and no stream that ended without a word")
        return 0
    print(f"again: python -m tests.soak.router --seed {seed} --minutes {minutes:g}")
    return 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--clients", type=int, default=48)
    args = parser.parse_args()
    seed = int.from_bytes(os.urandom(4), "big") if args.seed is None else args.seed
    print(f"seed {seed}", flush=True)
    sys.exit(asyncio.run(soak(args.minutes, seed, args.clients)))


if __name__ == "__main__":
    main()
