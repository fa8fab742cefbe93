"""JSON requests through our router and the proxies beside it, in turn in each round; ratios.

Needs nginx and wrk on PATH; smg and vllm-router join where they are on PATH. What is compared is the CPU time
a request costs the whole process tree: it depends far less on what else the machine does than requests a
second. Absolute figures do not travel, ratios within a round should. A round counts in which each proxy had
most of its core.

With `--endpoints 2` or more the model has so many replicas: ours then reads the prompt and looks for who
knows its beginning, nginx and the others turn round among them.

    python tests/bench/router_vs_nginx.py [--rounds N] [--endpoints E] [--core K] [--load-core K] [--only a,b]
"""

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rig import INFO, MODELS, OURS, Target, free_port, need, nginx, proxies

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
  server {{ {listen} location / {{ return 200 '{info}'; }}
    location = /v1/models {{ return 200 '{models}'; }}
    location = /v1/chat/completions {{ return 200 '{reply}'; }} }} }}
"""


@dataclass(frozen=True)
class Round:
    requests_s: float
    cpu_us: float
    busy: float


async def load(target: Target, script: Path, *, args: argparse.Namespace, seconds: int) -> Round:
    before = target.cpu_s()
    command = ["wrk", "-t1", f"-c{args.connections}", f"-d{seconds}s", "-s", str(script)]
    pinned = ["taskset", "-c", str(args.load_core)] if args.load_core is not None else []
    process = await asyncio.create_subprocess_exec(
        *pinned, *command, f"http://127.0.0.1:{target.port}", stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    used = target.cpu_s() - before
    text = out.decode()
    found = re.search(r"(\d+) requests in ([\d.]+)(m?s)", text)
    if found is None or "Non-2xx" in text or "Socket errors" in text:
        raise SystemExit(f"the load on {target.name} met errors:\n{text}")
    count, took = int(found[1]), float(found[2]) / (1000 if found[3] == "ms" else 1)
    return Round(count / took, used / count * 1e6, used / took)


async def run(args: argparse.Namespace) -> None:
    only = tuple(args.only.split(",")) if args.only else ()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        script = folder / "load.lua"
        script.write_text(WRK)
        ports = [free_port() for _ in range(args.endpoints)]
        listen = " ".join(f"listen 127.0.0.1:{port} backlog=4096;" for port in ports)
        engine = await nginx(
            folder, "engine", ENGINE.format(dir=folder, listen=listen, reply=REPLY, models=MODELS, info=INFO)
        )
        try:
            async with proxies(folder, *ports, core=args.core, only=only) as targets:
                if args.load_core is not None:
                    os.sched_setaffinity(engine.pid, {args.load_core})
                rounds: dict[str, list[Round]] = {target.name: [] for target in targets}
                for number in range(args.rounds + 1):
                    # The order turns each round, so that nobody always comes after the same neighbour.
                    for target in targets if number % 2 else reversed(targets):
                        # The first is for warming up: pools, caches, the interpreter's specialisation.
                        seconds = args.seconds if number else 1
                        result = await load(target, script, args=args, seconds=seconds)
                        if number:
                            rounds[target.name].append(result)
                            print(
                                f"round {number} {target.name:12}{result.requests_s:9.0f} req/s"
                                f" {result.cpu_us:7.1f} us CPU {result.busy:5.0%} of a core",
                                flush=True,
                            )
                report(rounds)
                for target in targets:
                    size = f"{target.rss_kb()} KB resident in {len(target.pids())} processes"
                    print(f"{target.name:12} {size}, first 200 after {target.start_s:.2f} s")
        finally:
            engine.terminate()
            await engine.wait()


def report(rounds: dict[str, list[Round]]) -> None:
    for name, of in rounds.items():
        print(
            f"{name:12} median {statistics.median(r.cpu_us for r in of):.1f} us CPU a request,"
            f" best {min(r.cpu_us for r in of):.1f}; {statistics.median(r.requests_s for r in of):.0f} req/s"
        )
    for name, of in rounds.items():
        if name == OURS:
            continue
        cpu = [ours.cpu_us / theirs.cpu_us for ours, theirs in zip(rounds[OURS], of, strict=True)]
        rate = [ours.requests_s / theirs.requests_s for ours, theirs in zip(rounds[OURS], of, strict=True)]
        print(
            f"CPU a request, x {name}: median {statistics.median(cpu):.2f}, best {min(cpu):.2f};"
            f" requests a second: median {statistics.median(rate):.2f}, best {max(rate):.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--endpoints", type=int, default=1, help="replicas of the model")
    parser.add_argument("--core", type=int, default=None, help="pin the proxies to this core")
    parser.add_argument("--load-core", type=int, default=None, help="pin engine and load to this core")
    parser.add_argument("--only", default="", help="only these proxies: nginx,llmgw")
    args = parser.parse_args()
    need("nginx", "wrk")
    asyncio.run(run(args))


if __name__ == "__main__":
    main()
