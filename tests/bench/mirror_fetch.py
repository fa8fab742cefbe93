"""What a fetch costs beside its parts: the origin alone, writing alone, hashing alone; one run, interleaved.

    python -m tests.bench.mirror_fetch [--mib 1024] [--rounds 5] [--folder DIR]
    python -m tests.bench.mirror_fetch --memory [--mib 8192]

The bar: fetch + verify + write at 0.85 of the slower of the origin and 1/(1/write + 1/hash). nginx on
loopback is the origin. The mirror is a process of its own, with every default. With `--memory`: what it
holds after 1 GiB and after so many, of a sparse file; the bar is a quarter more.
"""

import argparse
import asyncio
import hashlib
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from llmgw_kit.clock import SystemClock
from llmgw_mirror.composition import build
from llmgw_mirror.core.versions import Source, WeightsState
from llmgw_mirror.settings import MirrorSettings
from tests.bench.rig import free_port, nginx

ORIGIN = """
worker_processes 1; daemon off; pid {dir}/origin.pid; error_log stderr crit;
events {{ worker_connections 256; }}
http {{ access_log off; sendfile on; sendfile_max_chunk 2m; tcp_nopush on; etag on;
  client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f;
  uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  server {{ listen 127.0.0.1:{port}; root {root}; }} }}
"""
PIECE_BYTES = 1 << 20
BAR = 0.85


async def fetch_once(url: str, folder: Path, sha256: str | None) -> dict[str, float]:
    """One file by a mirror in this process."""
    settings = MirrorSettings.model_validate({"data_dir": folder, "disk_reserve_bytes": 0})
    async with build(settings, SystemClock()) as built:
        began = time.perf_counter()
        await built.mirror.fetch("bench/m", "v1", [Source("w", url, sha256)])
        while True:
            view = await built.mirror.version("bench/m", "v1")
            assert view is not None
            if view.state in (WeightsState.PRESENT, WeightsState.FAILED):
                break
            await asyncio.sleep(0.01)
        took = time.perf_counter() - began
    assert view.state is WeightsState.PRESENT, view.files[0].error
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"s": took, "rss_mib": used.ru_maxrss / 1024, "cpu_s": used.ru_utime + used.ru_stime}


async def measured_fetch(url: str, folder: Path, sha256: str | None) -> dict[str, float]:
    """The same in a process of its own, for its memory."""
    shutil.rmtree(folder, ignore_errors=True)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.mirror_fetch", "--once", url, str(folder), sha256 or "",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await child.communicate()
    if child.returncode != 0:
        raise SystemExit("the fetch failed; its log is above")
    shutil.rmtree(folder, ignore_errors=True)
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


async def origin_alone(url: str) -> float:
    """Seconds that curl takes to drop it all."""
    began = time.perf_counter()
    curl = await asyncio.create_subprocess_exec("curl", "-sf", "-o", "/dev/null", url)
    if await curl.wait() != 0:
        raise SystemExit("curl could not read the origin")
    return time.perf_counter() - began


def write_alone(folder: Path, size: int) -> float:
    """Seconds to write as the mirror does, the last sync included."""
    piece = os.urandom(PIECE_BYTES)
    path = folder / "written"
    began = time.perf_counter()
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    for offset in range(0, size, PIECE_BYTES):
        os.pwrite(fd, piece, offset)
    os.fsync(fd)
    took = time.perf_counter() - began
    os.close(fd)
    path.unlink()
    return took


def hash_alone(size: int) -> float:
    piece, digest = os.urandom(PIECE_BYTES), hashlib.sha256()
    began = time.perf_counter()
    for _ in range(0, size, PIECE_BYTES):
        digest.update(piece)
    digest.digest()
    return time.perf_counter() - began


def make_file(path: Path, size: int) -> str:
    """Of bytes that differ; returns its hash."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(0, size, PIECE_BYTES):
            piece = os.urandom(PIECE_BYTES)
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


@asynccontextmanager
async def origin(folder: Path, root: Path) -> AsyncIterator[str]:
    """nginx over `root`; yields the beginning of its URLs."""
    port = free_port()
    server = await nginx(folder, "origin", ORIGIN.format(dir=folder, port=port, root=root))
    try:
        for _ in range(200):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        await server.wait()


HEADS = ("origin", "write", "hash", "bound", "fetch", "ratio", "cpu s", "RSS MiB")


async def compare(folder: Path, size: int, rounds: int) -> bool:
    """Print a round a line; whether the bar holds."""
    root = folder / "origin"
    root.mkdir()
    folder.chmod(0o755)
    sha256 = make_file(root / "w", size)
    mib = size / (1 << 20)
    print(f"{mib:.0f} MiB a fetch, MiB/s; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(" ".join(f"{head:>8}" for head in HEADS))
    ratios = []
    async with origin(folder, root) as prefix:
        await origin_alone(f"{prefix}/w")
        for _ in range(rounds):
            origin_s = await origin_alone(f"{prefix}/w")
            write_s = await asyncio.to_thread(write_alone, folder, size)
            hash_s = await asyncio.to_thread(hash_alone, size)
            fetch = await measured_fetch(f"{prefix}/w", folder / "store", sha256)
            bound_s = max(origin_s, write_s + hash_s)
            ratios.append(bound_s / fetch["s"])
            row = [f"{mib / s:8.0f}" for s in (origin_s, write_s, hash_s, bound_s, fetch["s"])]
            row += [f"{ratios[-1]:8.2f}", f"{fetch['cpu_s']:8.2f}", f"{fetch['rss_mib']:8.0f}"]
            print(" ".join(row), flush=True)
    ratio = statistics.median(ratios)
    print(f"median ratio {ratio:.2f}, the bar is {BAR}")
    return ratio >= BAR


async def memory(folder: Path, size: int) -> bool:
    """Print what the process held at most; whether that is the same at both sizes."""
    root = folder / "origin"
    root.mkdir()
    folder.chmod(0o755)
    held = []
    async with origin(folder, root) as prefix:
        for one in (1 << 30, size):
            with (root / "w").open("wb") as file:
                file.truncate(one)
            fetch = await measured_fetch(f"{prefix}/w", folder / "store", None)
            held.append(fetch["rss_mib"])
            print(f"{one >> 20:6} MiB fetched: at most {held[-1]:.0f} MiB resident", flush=True)
    return held[1] <= held[0] * 1.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--once", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        url, store, sha256 = args.once
        print(json.dumps(uvloop.run(fetch_once(url, Path(store), sha256 or None))))
        return
    mib = args.mib or (8192 if args.memory else 1024)
    with tempfile.TemporaryDirectory(dir=args.folder) as made:
        folder, size = Path(made), mib << 20
        run = memory(folder, size) if args.memory else compare(folder, size, args.rounds)
        fine = asyncio.run(run)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
