"""What a mirror's calls cost over many versions.

    python -m tests.bench.mirror_many_versions [--versions 2000] [--files 10]

One version is fetched and its small files are copied under other names; then each call is timed once, as its
caller waits for it, without the wire.
"""

import argparse
import asyncio
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path

from llmgw_mirror.adapters.store import version_id
from llmgw_mirror.core.versions import Source
from tests.integration.mirror.world import World, world

MODEL = "org/m"
#: What has just changed is read again each time; a mirror has rarely just begun.
SETTLES_S = 2.5


async def fill(root: Path, versions: int, files: int) -> None:
    """A store of so many versions."""
    source = root / "from"
    source.mkdir()
    for number in range(files):
        (source / f"f{number}.safetensors").write_bytes(f"content {number}".encode() * 100)
    wanted = [Source(path.name, f"file://{path}") for path in sorted(source.iterdir())]
    async with world(root / "store", file_roots=(source,)) as here:
        await here.fetch(*wanted, model=MODEL, version="v0")
        folder = here.store.versions
    first = folder / version_id(MODEL, "v0")
    wish = json.loads((first / "wish.json").read_text())
    for number in range(1, versions):
        copy = folder / version_id(MODEL, f"v{number}")
        shutil.copytree(first, copy)
        (copy / "wish.json").write_text(json.dumps({**wish, "version": f"v{number}"}))
    await asyncio.sleep(SETTLES_S)


async def timed(what: str, call: Awaitable[object]) -> None:
    """Say how long it took."""
    began, used = time.monotonic(), time.process_time()
    await call
    print(f"{what:32} {time.monotonic() - began:7.2f} s, {time.process_time() - used:7.2f} s of processor")


async def measure(here: World, versions: int) -> None:
    keeping = here.built.keepers.keeping
    by_name = {"model": MODEL, "version": f"v{versions - 1}", "repository": None, "revision": None}
    await timed("first pass", here.built.upkeep.once())
    await timed("list versions", keeping.versions())
    await timed("list versions again", keeping.versions())
    await timed("resolve an exact name", keeping.resolve(**by_name))
    await timed("list downloads", here.built.downloads.now())
    await timed("remove one at once", keeping.removing.remove(MODEL, "v17", now=True))
    await timed("list versions, ten at once", asyncio.gather(*(keeping.versions() for _ in range(10))))
    await timed("a pass with nothing to do", here.built.upkeep.once())


async def run(versions: int, files: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        await fill(root, versions, files)
        async with world(root / "store", file_roots=(root / "from",)) as here:
            await measure(here, versions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=int, default=2_000)
    parser.add_argument("--files", type=int, default=10)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    asyncio.run(run(given.versions, given.files))


if __name__ == "__main__":
    main()
