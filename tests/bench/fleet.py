"""The control plane under a large fleet: real controllers and Postgres, simulated agents over real gRPC.

    python -m tests.bench.fleet [--nodes 500] [--models 1000] [--replicas 2] [--window 20]

Prints a table of targets and measured values. Agents live in this process and cost about as much as the
controller, so durations are those of a machine that does both.
"""

import argparse
import asyncio
import os
import re
import statistics
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgw_kit.testing.embedded import EmbeddedPostgres
from llmgw_kit.testing.processes import Cage
from tests.integration.controller.controller_bench import Controller, Controllers, until
from tests.integration.controller.sim_peers import SimAgent

DEVICES = 8
TICKS = os.sysconf("SC_CLK_TCK")
#: Starting and re-learning a whole fleet; on a busy machine.
WAIT_S = 180.0
#: Between two looks at a fleet that is not steady yet: each is a whole status, and looking all the time would
#: measure ourselves.
LOOK_S = 0.25


def model(number: int, replicas: int) -> dict[str, Any]:
    """One GPU each; the command is never run."""
    return {
        "name": f"m{number:04}",
        "replicas": replicas,
        "profiles": [{"engine": "command", "gpu_class": "L4", "command": ["engine", "{port}"]}],
    }


@dataclass
class Fleet:
    """What runs: two controllers that share a database, and agents that know both."""

    controllers: list[Controller]
    agents: list[SimAgent]
    postgres: EmbeddedPostgres
    wanted: int

    async def leader(self) -> Controller:
        """Whoever leads now."""
        for one in self.controllers:
            if one.child.code is None and (await one.leader()).leading:
                return one
        raise AssertionError("nobody leads")

    def serving(self) -> int:
        """Engines up, as the agents have it."""
        return sum(len(one.shards) for one in self.agents)

    def welcome(self) -> int:
        return sum(one.welcome is not None for one in self.agents)

    def transactions(self) -> int:
        """Committed and rolled back, in all databases."""
        return int(self._ask("SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database"))

    def connections(self) -> int:
        """Of both controllers."""
        where = "application_name LIKE 'llmgw-controller%'"
        return int(self._ask(f"SELECT count(*) FROM pg_stat_activity WHERE {where}"))

    def _ask(self, sql: str) -> str:
        return self.postgres.execute(sql)


@asynccontextmanager
async def fleet(
    folder: Path, *, nodes: int, models: int, replicas: int, beat_s: float = 5.0
) -> AsyncIterator[Fleet]:
    """Started, and every agent welcome; engines may still be on their way."""
    with Cage() as cage:
        postgres = EmbeddedPostgres(cage, folder / "postgres")
        await postgres.start()
        made = Controllers(cage, folder)
        settings = {
            "dsn": postgres.dsn(),
            "models": [model(number, replicas) for number in range(models)],
            "beat_interval_s": beat_s,
        }
        async with AsyncExitStack() as stack:
            stack.callback(made.stop_all)
            first = await made.start(**settings).until_leading()
            second = await made.start(**settings).until_ready()
            addresses = [first.address, second.address]
            agents = [
                SimAgent(f"n{number:04}", addresses, gpus=DEVICES, beat=True) for number in range(nodes)
            ]
            running = Fleet([first, second], agents, postgres, models * replicas)
            for agent in agents:
                await stack.enter_async_context(agent)
            await until("all are welcome", lambda: running.welcome() == nodes, most_s=WAIT_S)
            yield running


def cpu_s(pid: int) -> float:
    """Of one process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mb(pid: int) -> float:
    """Resident now."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def passes(one: Controller) -> dict[float, float]:
    """Upper bound of a bucket in seconds -> passes no longer than that."""
    text = urllib.request.urlopen(f"http://{one.admin}/metrics", timeout=10).read().decode()
    found = re.findall(r'llmgw_controller_pass_seconds_bucket\{le="([^"]+)"\} (\S+)', text)
    return {float(bound.replace("+Inf", "inf")): float(count) for bound, count in found}


def p99(before: dict[float, float], after: dict[float, float]) -> float:
    """The bucket that holds it, in seconds: the histogram knows no finer."""
    counts = {bound: count - before.get(bound, 0.0) for bound, count in after.items()}
    total = counts[float("inf")]
    return min(bound for bound, count in counts.items() if count >= 0.99 * total)


async def measure(given: argparse.Namespace) -> list[tuple[str, str, str]]:
    """(what, target, measured)"""
    rows: list[tuple[str, str, str]] = []
    with tempfile.TemporaryDirectory() as name:
        began = time.monotonic()
        async with fleet(
            Path(name), nodes=given.nodes, models=given.models, replicas=given.replicas
        ) as running:
            joined_s = time.monotonic() - began
            rows.append((f"{given.nodes} agents join an empty fleet", "-", f"{joined_s:.1f} s"))
            await until("all engines run", lambda: running.serving() >= running.wanted, most_s=WAIT_S)
            rows.append((f"{running.wanted} shards placed and up", "-", f"{time.monotonic() - began:.1f} s"))
            leader = await running.leader()

            async def ready() -> bool:
                await asyncio.sleep(LOOK_S)
                status = await leader.status()
                return sum(row.ready for row in status.models) == running.wanted

            await until("all are ready", ready, most_s=WAIT_S)
            await asyncio.sleep(5)  # The last changes are written and told.

            buckets, xacts, busy = passes(leader), running.transactions(), cpu_s(leader.child.pid)
            await asyncio.sleep(given.window)
            spent = running.transactions() - xacts
            beats = given.nodes * given.window / 5.0
            load = (cpu_s(leader.child.pid) - busy) / given.window
            bound = p99(buckets, passes(leader))
            rows.append(("full pass at rest, p99", "< 250 ms", f"<= {bound * 1000:.0f} ms (bucket)"))
            rows.append((f"transactions while {beats:.0f} beats came", "none for beats", f"{spent}"))
            rows.append(("leader's CPU at rest", "-", f"{load * 100:.0f} % of a core"))

            times, busy = [], cpu_s(leader.child.pid)
            for _ in range(10):
                asked = time.monotonic()
                await leader.status()
                times.append((time.monotonic() - asked) * 1000)
            spent_ms = (cpu_s(leader.child.pid) - busy) / 10 * 1000
            rows.append(("status, median of 10", "<= 300 ms", f"{statistics.median(times):.0f} ms"))
            rows.append(("leader's CPU for one, all else included", "-", f"{spent_ms:.0f} ms"))
            rows.append(("database connections, both", "<= 10", f"{running.connections()}"))
            rows.append(("leader's memory", "<= 400 MB", f"{rss_mb(leader.child.pid):.0f} MB"))

            starts = sum(len(one.starts) for one in running.agents)
            cut = time.monotonic()
            leader.child.kill()
            await asyncio.sleep(0.5)
            await until("a new leader", lambda: _led(running, leader), most_s=WAIT_S)
            led_s = time.monotonic() - cut
            await until("all are heard", lambda: _heard(running, given.nodes), most_s=WAIT_S)
            steady_s = time.monotonic() - cut - led_s
            again = sum(len(one.starts) for one in running.agents) - starts
            rows.append(("a new leader after a kill", "<= 12 s", f"{led_s:.1f} s"))
            rows.append(("reconnect after that, steady in", "<= 10 s", f"{steady_s:.1f} s"))
            rows.append(("engines started again by it", "0", f"{again}"))
    return rows


async def _led(running: Fleet, but: Controller) -> bool:
    return any([(await one.leader()).leading for one in running.controllers if one is not but])


async def _heard(running: Fleet, nodes: int) -> bool:
    await asyncio.sleep(LOOK_S)
    status = await (await running.leader()).status()
    return status.nodes.heard == nodes and sum(row.ready for row in status.models) == running.wanted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--window", type=float, default=20.0, help="seconds of rest to look at")
    rows = asyncio.run(measure(parser.parse_args()))
    width = max(len(what) for what, _, _ in rows)
    print(f"{'':<{width}}  {'target':>15}  measured")
    for what, target, measured in rows:
        print(f"{what:<{width}}  {target:>15}  {measured}")


if __name__ == "__main__":
    main()
