"""One relay worker beside one nginx worker, same engine, same load, rounds interleaved; prints ratios.

Needs nginx and wrk on PATH. What is compared is the CPU time a request costs (from /proc/PID/stat):
it depends far less on what else the machine does than requests a second. Absolute figures do not
travel, ratios within a round should.

    python tests/bench/router_vs_nginx.py [--rounds N] [--seconds S] [--connections C] [--core K]
"""

import argparse
import asyncio
import re
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rig import cpu_s, free_port, need, nginx, proxies, rss_kb

#: A chat request of a usual size, with the headers that the openai client sends.
PROMPT = "Tell me about the lamp that hums while tokens cross the wire. " * 8
WRK = f"""
wrk.method = "POST"
wrk.path = "/v1/chat/completions"
wrk.body = '{{"model":"m","messages":[{{"role":"user","content":"{PROMPT}"}}],"max_tokens":64}}'
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


@dataclass(frozen=True)
class Round:
    requests_s: float
    cpu_us: float
    busy: float


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
        port = free_port()
        engine, _ = await nginx(folder, "engine", ENGINE.format(dir=folder, port=port, reply=REPLY))
        try:
            async with proxies(folder, port, core=args.core, log=args.log) as targets:
                rounds: dict[str, list[Round]] = {name: [] for name in targets}
                for number in range(args.rounds + 1):
                    for name, (at, pid) in targets.items():
                        # The first is for warming up: pools, caches, the interpreter's specialisation.
                        seconds = args.seconds if number else 1
                        result = await load(at, pid, script, seconds=seconds, connections=args.connections)
                        if number:
                            rounds[name].append(result)
                            print(
                                f"round {number} {name:6} {result.requests_s:9.0f} req/s"
                                f" {result.cpu_us:7.1f} us CPU {result.busy:5.0%} of a core",
                                flush=True,
                            )
                report(rounds)
                for name, (_, pid) in targets.items():
                    print(f"{name:6} resident memory of the worker: {rss_kb(pid)} KB")
        finally:
            engine.terminate()
            await engine.wait()


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
    need("nginx", "wrk")
    asyncio.run(run(args))


if __name__ == "__main__":
    main()
