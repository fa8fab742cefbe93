"""Run by test_mirror_crashes.py as a program: let a mirror die before its first, second, … act on the
disk, start another over what it left, and print what that one found, a JSON line a death.

    python -m tests.integration.mirror.crash_driver first|fetch|remove FOLDER URL_PREFIX [SHA256]

`first` is a fetch that makes its store as well. Each life is a fork of this process, which has imported
everything and started nothing.
"""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from llmgw_mirror.core.versions import Source, WeightsState

from .world import World, world

DEATH = 9
#: Every way in which the mirror changes the disk.
ACTS = (
    "fsync", "rename", "replace", "link", "unlink", "mkdir", "rmdir", "write", "pwrite",
    "ftruncate", "truncate", "fchmod",
)  # fmt: skip
MOST_ACTS = 400


def die_before(number: int, tell: int) -> None:
    """Patch `os` so that the process ends, as by SIGKILL, just before that act."""
    done = {"acts": 0, "written": 0}

    def patched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **keys: Any) -> Any:
            done["acts"] += 1
            if done["acts"] == number:
                write(tell, json.dumps({"before": name, "written": done["written"]}).encode())
                os._exit(DEATH)
            result = real(*args, **keys)
            if name == "pwrite":
                done["written"] += result
            return result

        return act

    write = os.write
    for name in ACTS:
        setattr(os, name, patched(name, getattr(os, name)))


def life(work: Callable[[int], Awaitable[None]], prepare: Callable[[int], None]) -> tuple[int, bytes]:
    """One fork; returns its exit status and what it told."""
    read, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        prepare(tell)
        try:
            asyncio.run(work(tell))  # type: ignore[arg-type]
        except BaseException as e:
            print(f"life ended by {type(e).__name__}: {e}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    os.close(tell)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), said


def main() -> None:
    mode, folder, prefix = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    sha256 = sys.argv[4] if len(sys.argv) > 4 else None
    for number in range(1, MOST_ACTS):
        shutil.rmtree(folder, ignore_errors=True)
        files = [Source("weights.bin", f"{prefix}/{number}", sha256)]

        async def opened(tell: int) -> None:
            async with world(folder):
                pass

        async def fetch(tell: int, files: list[Source] = files) -> None:
            async with world(folder) as here:
                await here.fetch(*files)

        async def remove(tell: int) -> None:
            async with world(folder) as here:
                await here.removed("org/m", "v1")

        async def look(tell: int, files: list[Source] = files) -> None:
            async with world(folder) as here:
                os.write(tell, json.dumps(await found(here, files, fetch_again=mode != "remove")).encode())

        if mode != "first":
            code, _ = life(fetch if mode == "remove" else opened, lambda tell: None)
            assert code == 0, "the life before failed"
        mortal = remove if mode == "remove" else fetch
        code, said = life(mortal, lambda tell, n=number: die_before(n, tell))  # type: ignore[misc]
        death: dict[str, Any] = json.loads(said) if said else {}
        if code not in (0, DEATH):
            sys.exit(f"act {number}: the first life ended with {code}")
        code, said = life(look, lambda tell: None)
        if code != 0:
            sys.exit(f"act {number} ({death}): the second life ended with {code}")
        print(json.dumps({"act": number, **death, **json.loads(said)}), flush=True)
        if not death:
            return  # it lived to the end: every act has been tried


async def found(here: World, files: list[Source], *, fetch_again: bool) -> dict[str, Any]:
    view = await here.mirror.version("org/m", "v1")
    known = view is not None
    if fetch_again:
        # A client whose call was cut short asks again; one that was answered need not.
        view = await (here.settled() if known else here.fetch(*files))
    await here.built.upkeep.tidy()
    await here.built.upkeep.look()
    await here.built.upkeep.collect_parts()
    return {
        "known": known,
        "state": (view.state if view is not None else WeightsState.ABSENT).value,
        "blobs": here.blobs(),
        "parts": len(here.parts()),
        "versions": len(here.store.ids()),
    }


if __name__ == "__main__":
    main()
