"""The real program, killed by SIGKILL at random moments of what people ask of it: after each death a new one
over the same folder, and what it serves compared byte by byte. One seed here; `make soak-mirror` runs more.
"""

import asyncio
import os
import random
from pathlib import Path

import grpc.aio
import pytest

from llmgw.v1 import mirror_pb2
from llmgw_kit import rpc
from llmgw_kit.errors import Conflict, InvalidRequest, LlmgwError, NotFound, Unavailable
from llmgw_kit.testing.processes import Cage

from .scripted import Upstream
from .test_mirror_process import Running, source, start
from .world import PATIENCE_S, content_of, sha256_of

SEEDS = int(os.environ.get("LLMGW_MIRROR_KILL_SEEDS", "1"))
FIRST = int(os.environ.get("LLMGW_MIRROR_KILL_FIRST", "1"))
LIVES = 4
CONTENTS = {"a.bin": content_of(6_000_000, 1), "b.bin": content_of(2_000_000, 2), "c.json": b"{}"}
VERSIONS = {"v1": ("a.bin", "c.json"), "v2": ("a.bin", "b.bin")}


def must_belong(e: LlmgwError) -> None:
    """Refused, or the mirror is dead: both belong to it. Raises what tells of a bug in the mirror."""
    if not isinstance(e, InvalidRequest | NotFound | Conflict | Unavailable):
        raise e


async def ask_on(mirror: Running, hub: Upstream, rng: random.Random) -> None:
    """Call after call, whatever is answered but bugs, until cancelled."""
    async with mirror.stub() as stub:
        while True:
            version = rng.choice(sorted(VERSIONS))
            what = rng.choice(("fetch", "fetch", "remove", "now", "restore", "verify"))
            try:
                if what == "fetch":
                    files = [source(name, hub.url(f"/{name}")) for name in VERSIONS[version]]
                    await mirror.fetch(*files, version=version)
                elif what in ("remove", "now"):
                    remove = mirror_pb2.RemoveVersionRequest(
                        model="org/m", version=version, force=rng.random() < 0.5, now=what == "now"
                    )
                    await stub.RemoveVersion(remove, timeout=10)
                elif what == "restore":
                    restore = mirror_pb2.RestoreVersionRequest(model="org/m", version=version)
                    await stub.RestoreVersion(restore, timeout=10)
                else:
                    verify = mirror_pb2.VerifyVersionRequest(model="org/m", version=version)
                    async for word in stub.VerifyVersion(verify, timeout=10):
                        assert "damaged" not in word.trouble, word
            except grpc.aio.AioRpcError as e:
                must_belong(rpc.error_from(e, peer="mirror"))
            except LlmgwError as e:
                must_belong(e)
            await asyncio.sleep(rng.random() * 0.05)


async def compare(mirror: Running) -> None:
    """Whatever is served as a file is that file."""
    for version, names in VERSIONS.items():
        for name in names:
            status, body = await mirror.get(f"/v1/weights/org%2Fm/{version}/files/{name}")
            assert status in (200, 404, 502, 503), (version, name, status, body[:200])
            assert status != 200 or body == CONTENTS[name], (version, name)


@pytest.mark.timeout(120 + 60 * SEEDS)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
async def test_kill_9_at_random_moments(cage: Cage, hub: Upstream, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for name, content in CONTENTS.items():
        hub.put(f"/{name}", content)
    for _ in range(LIVES):
        mirror = await start(cage, tmp_path, scrub_interval_days=1e-6)
        await compare(mirror)
        asking = asyncio.create_task(ask_on(mirror, hub, rng))
        await asyncio.wait({asking}, timeout=rng.random() * 1.5)
        mirror.child.kill()
        await mirror.child.wait(PATIENCE_S)
        if asking.done():
            asking.result()
        asking.cancel()
        await asyncio.wait({asking})
    mirror = await start(cage, tmp_path)
    for version, names in VERSIONS.items():
        await mirror.fetch(*(source(name, hub.url(f"/{name}")) for name in names), version=version)
        async with asyncio.timeout(PATIENCE_S):
            while (await mirror.get(f"/v1/weights/org%2Fm/{version}"))[0] != 200:
                await asyncio.sleep(0.02)
    await compare(mirror)
    store = tmp_path / "store"
    found = {path.name: path.read_bytes() for path in store.glob("blobs/sha256/*/*")}
    assert all(sha256_of(content) == name for name, content in found.items())
    assert await asyncio.to_thread(mirror.child.stop, grace_s=PATIENCE_S) == 0
    # A small file that a death left half-written is swept an hour later.
    assert [path for path in (store / "parts").iterdir() if not path.name.startswith(".tmp-")] == []
