"""Exports and imports under the crash seeds; see crash_seeds.py.

What must hold of the folder: a file that has a bundle's name is whole, a checksum beside it is right, and
each content in it is what its name says, whatever died or was full while it was written.
"""

import hashlib
import random
import tarfile
from pathlib import Path

from llmgw_kit.errors import InvalidRequest
from llmgw_mirror.adapters.bundle_files import BundleFolder
from llmgw_mirror.adapters.calls_bundles import Bundling
from llmgw_mirror.core.versions import WeightsState

from .world import World, world


class BrokenBundle(AssertionError):
    """What must hold does not."""


def bundling(here: World) -> Bundling:
    made = here.built.bundling
    assert made is not None, "it has a folder"
    return made


async def export(here: World, model: str, rng: random.Random) -> str:
    """Some versions that are whole, now and then one that is not, into a bundle; now and then the one before
    is taken away first."""
    room = bundling(here)
    known = [
        view
        for view in await here.mirror.versions()
        if view.state is WeightsState.PRESENT or rng.random() < 0.1
    ]
    versions = sorted({rng.choice(known).version for _ in range(2)}) if known else []
    if not versions:
        return "export nothing"
    name = "-".join(versions) + ".tar"
    if rng.random() < 0.3:
        for path in sorted(room.folder.root.glob(f"{name}*")):
            path.unlink()
    names = [(model, version) for version in versions]
    told = room.exports.export(names, name, since=None, asked_by=None)
    if rng.random() < 0.2:
        await anext(told)
        await told.aclose()  # type: ignore[attr-defined]
        return f"export {name}, not waited for"
    async for _ in told:
        pass
    return f"export {name}"


async def bring(here: World, rng: random.Random) -> str:
    """Some bundle that is there."""
    room = bundling(here)
    whole = sorted(path.name for path in room.folder.root.glob("*.tar"))
    if not whole:
        return "import nothing"
    name = rng.choice(whole)
    async for _ in room.imports.bring(name, asked_by=None):
        # A full disk may have kept a file from being begun; here no pass comes by itself.
        await here.built.upkeep.once()
    return f"import {name}"


def check(root: Path) -> None:
    """Raises BrokenBundle."""
    for path in sorted(root.glob("*.tar")):
        data = path.read_bytes()
        actual = hashlib.sha256(data).hexdigest()
        beside = path.with_name(path.name + ".sha256")
        # After a death in between it lacks; the next export under that name completes it.
        noted = beside.read_text().split()[0] if beside.exists() else actual
        if noted != actual:
            raise BrokenBundle(f"{path.name} is {actual}, its checksum says {noted}")
        try:
            BundleFolder(root).checked(path.name)
        except InvalidRequest as e:
            raise BrokenBundle(e.text) from e
        with tarfile.open(path) as tar:
            for entry in tar.getmembers():
                name, content = entry.name.rpartition("/")[2], tar.extractfile(entry)
                if not entry.name.startswith("blobs/") or content is None:
                    continue
                if (found := hashlib.sha256(content.read()).hexdigest()) != name:
                    raise BrokenBundle(f"{path.name} has {found} as {name}")


async def end(here: World, model: str, versions: list[str], fresh: Path) -> None:
    """On a disk that works every version goes into a bundle, whatever was broken off, and from there into a
    mirror that has nothing else."""
    room = bundling(here)
    for path in sorted(room.folder.root.iterdir()):
        if not path.name.endswith(".partial"):
            path.unlink()
    names = [(model, version) for version in versions]
    async for _ in room.exports.export(names, "-".join(versions) + ".tar", since=None, asked_by=None):
        pass
    check(room.folder.root)
    async with world(fresh, bundle_dir=room.folder.root) as there:
        async for _ in bundling(there).imports.bring("-".join(versions) + ".tar", asked_by=None):
            pass
        for view in await there.mirror.versions():
            if view.state is not WeightsState.PRESENT:
                raise BrokenBundle(f"{view.version} came as {view.state.value}")
        if there.blobs() != here.blobs():
            raise BrokenBundle(f"{there.blobs()} came of {here.blobs()}")
