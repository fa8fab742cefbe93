"""Mirrors that die at random moments of everything they do to their store; a seed is a complete report.

    python -m tests.integration.mirror.crash_seeds [--seeds 200] [--first 1] [--limit-s S] [--plant NAME]

A seed is a few lives of a mirror over one folder. Each life does some random acts (fetch, remove, restore,
purge, verify, scrub, passes, export, import) and ends before its n-th call that changes the disk, or finds
the disk full from there on for a while. Between two lives a byte may rot. What must hold is asked of the
folder, not of the mirror: every content is what its name says, in a bundle too, what is served is what was
published, what can be restored has its bytes; and in the end everything is there again, a bundle of it makes
another store like this one, and nothing is left when all is removed.

Lives are forks of this process, which has imported everything and started nothing. Upstream is a folder.
"""

import argparse
import errno
import hashlib
import itertools
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmgw_kit.errors import LlmgwError, StartupError
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.removals import Removals
from llmgw_mirror.core.versions import Source, WeightsState

from . import crash_bundles
from .crash_driver import ACTS, DEATH, life
from .crash_plants import PLANTS
from .world import World, content_of, sha256_of, world

#: As in crash_driver: the harness itself writes to the disk too, and must not count.
WRITE = os.write
#: Of one life, so that deaths fall everywhere in it.
MOST_ACTS = 160
FULL_FOR = 12
CONTENTS = {"a": content_of(1_500_000, 1), "b": content_of(300_000, 2), "c": content_of(900, 3)}
MODEL = "org/m"
DOINGS = (
    "fetch", "fetch", "fetch", "remove", "remove now", "restore", "purge", "verify", "scrub", "pass",
    "export", "export", "import",
)  # fmt: skip
#: Files of each version; the middle one shares content with both others.
VERSIONS = {"v1": ("a", "b"), "v2": ("b", "c"), "v3": ("c",)}


class Broken(AssertionError):
    """What must hold does not."""


@dataclass
class Story:
    """One seed: its chances, where it happens, and which contents the harness itself has spoiled."""

    seed: int
    root: Path
    rotten: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    @property
    def store(self) -> Path:
        return self.root / "store"

    def sources(self, version: str) -> list[Source]:
        """As published with checksums or without, the same for the whole story."""
        known = random.Random(f"{self.seed} {version}").random() < 0.5
        return [
            Source(name, f"file://{self.root}/from/{name}", sha256_of(CONTENTS[name]) if known else None)
            for name in VERSIONS[version]
        ]


def mirror_of(story: Story) -> Any:
    """One disk thread at a time as far as it can be: a seed should play the same acts again."""
    return world(
        story.store, file_roots=(story.root / "from",), parallel_fetches=1, removal_undo_s=1e9,
        scrub_interval_days=1e-9, damaged_keep_days=0, bundle_dir=story.root / "bundles",
    )  # fmt: skip


def misbehave(story: Story, at: int, how: str) -> None:
    """Patch `os` so that the process ends just before that act, or finds the disk full for a while."""
    count = itertools.count(1)

    def patched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **keys: Any) -> Any:
            number = next(count)
            if how == "dies" and number == at:
                os._exit(DEATH)
            if how == "full" and at <= number < at + FULL_FOR and name not in ("unlink", "rmdir"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **keys)

        return act

    for name in ACTS:
        setattr(os, name, patched(name, getattr(os, name)))


async def act_once(here: World, story: Story, rng: random.Random) -> str:
    """One thing that people or the mirror itself do; returns what."""
    version = rng.choice(("v1", "v1", "v2", "v3"))
    keeping, upkeep = here.built.keepers.keeping, here.built.upkeep
    what = rng.choice(DOINGS)
    if what == "fetch":
        await here.mirror.fetch(MODEL, version, story.sources(version))
        if rng.random() < 0.7:
            await here.settled(MODEL, version)
    elif what.startswith("remove"):
        await keeping.removing.remove(MODEL, version, force=rng.random() < 0.5, now=what == "remove now")
    elif what == "restore":
        await keeping.removing.restore(MODEL, version)
    elif what == "purge":
        await upkeep._garbage.relieve(rng.randrange(1, 2_000_000))
    elif what == "verify":
        async for _ in keeping.verifying.verify(MODEL, version):
            pass
    elif what == "scrub":
        thread = DiskThreads(1)
        assert here.built.keepers.scrub is not None, "it is on"
        await here.built.keepers.scrub.step(thread)
        thread.close()
    elif what == "export":
        return await crash_bundles.export(here, MODEL, rng)
    elif what == "import":
        return await crash_bundles.bring(here, rng)
    else:
        upkeep._tidied_at = None
        await upkeep.once()
    return f"{what} {version}"


async def live(story: Story, plan: int, tell: int) -> None:
    """Some acts, each followed by a look at the folder."""
    rng = random.Random(plan)
    async with AsyncExitStack() as stack:
        try:
            here = await stack.enter_async_context(mirror_of(story))
        except StartupError as e:
            WRITE(tell, json.dumps(f"did not start: {e.text}").encode() + b"\n")
            return
        for _ in range(rng.randrange(3, 10)):
            try:
                done = await act_once(here, story, rng)
            except LlmgwError as e:
                done = f"refused: {e.code}"
            WRITE(tell, json.dumps(done).encode() + b"\n")
            await check(here, story)


async def check(here: World, story: Story) -> None:
    """What must hold at any moment. Content that the harness spoiled is allowed to be what it is."""
    for name in here.blobs():
        try:
            actual = hashlib.sha256(here.store.blob(name).read_bytes()).hexdigest()
        except FileNotFoundError:
            continue
        if actual != name and name not in story.rotten:
            raise Broken(f"content {name} is {actual}")
    crash_bundles.check(story.root / "bundles")
    for view in await here.mirror.versions():
        for file in view.files:
            if file.state is WeightsState.PRESENT and file.sha256 != sha256_of(CONTENTS[file.source.path]):
                raise Broken(f"{view.version} {file.source.path} is offered as {file.sha256}")
    blobs = set(here.blobs())
    for removed in Removals(here.store).every():
        if lost := sorted(removed.contents.keys() - blobs - story.rotten):
            raise Broken(f"{removed.version} can be restored and lacks {lost}")


async def end(story: Story, tell: int) -> None:
    """The last life, on a disk that works: everything comes back, then everything goes."""
    async with mirror_of(story) as here:
        await check(here, story)
        for version in VERSIONS:
            await here.mirror.fetch(MODEL, version, story.sources(version))
            # What had failed in earlier lives is tried again at once.
            await here.mirror.fetch(MODEL, version, [])
            await here.settled(MODEL, version)
        for round_ in ("first", "second"):
            for version in VERSIONS:
                async for word in here.built.keepers.keeping.verifying.verify(MODEL, version):
                    if word.done and word.trouble and (round_ == "second" or not story.rotten):
                        raise Broken(f"{version} {word.path}: {word.trouble}")
            await here.built.upkeep.look()
            for version in VERSIONS:
                view = await here.settled(MODEL, version)
                if view.state is not WeightsState.PRESENT:
                    raise Broken(f"{version} is {view.state.value}: {[file.error for file in view.files]}")
        story.rotten.clear()
        await check(here, story)
        await crash_bundles.end(here, MODEL, sorted(VERSIONS), story.root / "fresh")
        for version in VERSIONS:
            await here.built.keepers.keeping.removing.remove(MODEL, version, now=True)
        for removed in Removals(here.store).every():
            await here.built.upkeep._garbage.purge(removed, told=None)
        await here.built.upkeep.tidy()
        for folder in ("parts", "versions", "removed", "trash", "damaged"):
            left = [entry.name for entry in (here.store.root / folder).iterdir()]
            # A small file that a death left half-written is swept an hour later.
            if left := [name for name in left if not name.startswith(".tmp-")]:
                raise Broken(f"{folder}/ still has {left}")
        if here.blobs():
            raise Broken(f"content is left: {here.blobs()}")


def rot(story: Story) -> str | None:
    """Spoil a byte of one content, as a disk does: its length and time stay."""
    blobs = sorted(story.store.glob("blobs/sha256/*/*"))
    if not blobs:
        return None
    path = story.rng.choice(blobs)
    seen = path.stat()
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[story.rng.randrange(len(content))] ^= 1
    path.write_bytes(content)
    path.chmod(0o444)
    os.utime(path, (seen.st_atime, seen.st_mtime))
    story.rotten.add(path.name)
    return path.name


def play(seed: int, *, plant: str | None = None) -> str | None:
    """What is broken, with the whole story; None: nothing."""
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    root = Path(tempfile.mkdtemp(prefix=f"seed-{seed}-", dir=shm))
    story, said = Story(seed, root), []
    try:
        (root / "from").mkdir()
        for name, content in CONTENTS.items():
            (root / "from" / name).write_bytes(content)
        for number in range(story.rng.randrange(2, 5)):
            how = story.rng.choice(("dies", "dies", "full", "lives"))
            at, plan = story.rng.randrange(1, MOST_ACTS), story.rng.randrange(1 << 30)
            said.append(f"life {number}: {how} at act {at}")
            code, told = run_life(lambda tell, p=plan: live(story, p, tell), story, at, how, plant)  # type: ignore[misc]
            said += told
            if code not in (0, DEATH):
                return "\n  ".join([f"seed {seed}: life {number} ended with {code}", *said])
            if story.rng.random() < 0.3 and (spoiled := rot(story)):
                said.append(f"rot in {spoiled[:12]}")
        code, told = run_life(lambda tell: end(story, tell), story, 0, "lives", plant)
        if code != 0:
            return "\n  ".join([f"seed {seed}: the last life ended with {code}", *said, *told])
        return None
    finally:
        shutil.rmtree(root, ignore_errors=True)


def run_life(
    work: Callable[[int], Awaitable[None]], story: Story, at: int, how: str, plant: str | None
) -> tuple[int, list[str]]:
    """Its exit status, and what it did."""

    def prepare(tell: int) -> None:
        if plant is not None:
            PLANTS[plant]()
        misbehave(story, at, how)

    async def told(tell: int) -> None:
        try:
            await work(tell)
        except BaseException:
            WRITE(tell, json.dumps(traceback.format_exc()).encode() + b"\n")
            raise

    code, said = life(told, prepare)
    return code, [json.loads(line) for line in said.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no seed after so long")
    parser.add_argument("--plant", choices=sorted(PLANTS))
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    done = 0
    for seed in range(given.first, given.first + given.seeds):
        if time.monotonic() - began > given.limit_s:
            break
        if (story := play(seed, plant=given.plant)) is not None:
            print(story)
            print(f"replay: make soak-mirror SEED={seed}")
            sys.exit(1)
        done += 1
    print(f"{done} seeds in {time.monotonic() - began:.0f} s: nothing is broken")


if __name__ == "__main__":
    main()
