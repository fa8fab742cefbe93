"""An operator's day, from a search to a model that can be asked for: a registry, a mirror, a controller with
its database and a node, each real, and `llmgwctl` as it is typed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from llmgw_controller.cli import main
from llmgw_kit.testing.processes import Cage
from tests.integration.controller.controller_bench import Controller, Controllers
from tests.integration.controller.sim_peers import SimAgent
from tests.integration.mirror.hub_registry import HubRegistry, hub_registry
from tests.integration.mirror.test_mirror_process import Running, start
from tests.integration.mirror.world import content_of, sha256_of

pytestmark = pytest.mark.timeout(240)

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "num_hidden_layers": 2,
    "num_attention_heads": 4, "hidden_size": 64, "torch_dtype": "float16",
}  # fmt: skip
SHARDS = {f"model-{n:05}-of-00002.safetensors": content_of(700_000, seed=n) for n in (1, 2)}
FILES = {
    **SHARDS,
    "config.json": json.dumps(CONFIG).encode(),
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {f"t{n}": path for n, path in enumerate(SHARDS)}}
    ).encode(),
    "pytorch_model.bin": content_of(1_400_000, seed=9),
    "modeling.py": b"print('never taken along')",
}


@dataclass
class Place:
    hub: HubRegistry
    mirror: Running
    controller: Controller | None = None

    async def type(self, *words: str, stdin: str = "") -> tuple[int, str, str]:
        """Exit status, stdout, stderr. In a thread: a process for each would take most of the test's time."""
        controller = "127.0.0.1:1" if self.controller is None else str(self.controller.address)
        flags = ("--controller", controller)
        if words[0] == "mirror":
            flags = (*flags, "--mirror", str(self.mirror.grpc))
        async with asyncio.timeout(90):
            return await asyncio.to_thread(_type, (*words, *flags), stdin)

    async def fine(self, *words: str, stdin: str = "") -> str:
        code, out, err = await self.type(*words, stdin=stdin)
        assert code == 0, f"{words} ended with {code}:\n{out}\n{err}"
        assert all(len(line) <= 100 for line in out.splitlines() if not line.startswith(" ")), out
        return out

    async def brought(self, name: str) -> None:
        """The repository under this name, without waiting at the terminal."""
        await self.fine("mirror", "fetch", "Org/Tiny", "--as", name, "--no-wait")
        async with asyncio.timeout(60):
            while True:
                said = json.loads((await self.type("mirror", "versions", "--output", "json"))[1])
                if [one["state"] for one in said["versions"]] == ["present"]:
                    return
                await asyncio.sleep(0.1)


def _type(words: tuple[str, ...], stdin: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
        mock.patch.multiple(sys, argv=["llmgwctl", *words], stdin=io.StringIO(stdin)),
    ):  # fmt: skip
        try:
            main.cli()
        except SystemExit as end:
            return int(end.code or 0), out.getvalue(), err.getvalue()


@asynccontextmanager
async def place(cage: Cage, folder: Path, **settings: object) -> AsyncIterator[Place]:
    async with hub_registry(prefix="/hub") as hub:
        hub.add("Org/Tiny", FILES)
        mirror = await start(cage, folder, registry_url=hub.base, **settings)
        try:
            yield Place(hub, mirror)
        finally:
            mirror.child.stop(grace_s=10)


async def test_from_a_search_to_a_model_of_the_catalog(cage: Cage, migrated_dsn: str, tmp_path: Path) -> None:
    controllers = Controllers(cage, tmp_path)
    async with place(cage, tmp_path) as here:
        here.controller = controllers.start(models=[], dsn=migrated_dsn)
        try:
            await here.controller.until_leading()
            async with SimAgent("node-1", [here.controller.address]) as node:
                await node.until_welcome()
                await find(here)
                commit = await fetch(here)
                await keep(here, commit)
                await suggested(here)
                await remove(here)
        finally:
            await asyncio.to_thread(controllers.stop_all)


async def find(here: Place) -> None:
    out = await here.fine("mirror", "search", "tiny")
    assert "Org/Tiny" in out
    assert "next: llmgwctl mirror files Org/Tiny" in out
    out = await here.fine("mirror", "files", "Org/Tiny")
    assert "safetensors" in out
    assert "pytorch_model.bin" in out
    assert "published sha256" in out
    assert "modeling.py" not in out, "weight files and their company only"
    assert "was not checked" not in out, "the controller told of a fleet"
    said = json.loads(await here.fine("mirror", "registry", "--output", "json"))
    assert said["base_url"] == here.hub.base


async def fetch(here: Place) -> str:
    out = await here.fine("mirror", "fetch", "Org/Tiny", "--as", "tiny@2026-01", "--dry-run")
    assert "tiny @ 2026-01: 4 files, 1.4 MB to fetch (dry run: nothing was fetched)" in out
    assert "0 versions" in await here.fine("mirror", "versions")
    await here.brought("tiny@2026-01")
    said = json.loads(await here.fine("mirror", "versions", "tiny", "--output", "json"))
    [one] = said["versions"]
    assert {file["path"]: file["sha256"] for file in one["files"]} == {
        path: sha256_of(content) for path, content in FILES.items() if path in SHARDS or path.endswith("json")
    }
    out = await here.fine("mirror", "versions", "tiny", "--files")
    assert "git id" in out, "config.json has no published sha256"
    assert "nothing is on its way" in await here.fine("mirror", "downloads")
    return str(one["repository"]["commit"])


async def keep(here: Place, commit: str) -> None:
    out = await here.fine("mirror", "verify", "tiny@2026")
    assert "every byte of 4 files is right" in out
    out = await here.fine("mirror", "history", "tiny")
    assert "published" in out
    assert "verified" in out
    out = await here.fine("mirror", "search", "tiny")
    assert "2026-01" in out, "it is here"
    code, _, err = await here.type("mirror", "verify", "tiny@no-such")
    assert code == 64
    assert "is not here" in err


async def suggested(here: Place) -> None:
    out = await here.fine("mirror", "suggest", "tiny@2026-01")
    assert "# read in config.json: LlamaForCausalLM, context 4096, in float16" in out
    assert 'gpu_class: "L4"' in out
    applied = await here.fine("model", "apply", "-", stdin=out)
    assert applied.startswith("tiny: ")
    assert "tiny" in await here.fine("models")
    assert "node-1" in await here.fine("weights", "prefetch", "tiny", "--node", "node-1", "--dry-run")


async def remove(here: Place) -> None:
    out = await here.fine("mirror", "remove", "tiny@2026-01", "--dry-run")
    assert "would be removed" in out
    out = await here.fine("mirror", "remove", "tiny@2026-01")
    assert "llmgwctl mirror restore tiny@2026-01" in out
    assert "0 versions" in await here.fine("mirror", "versions")
    assert "tiny" in await here.fine("mirror", "removed")
    await here.fine("mirror", "restore", "tiny@2026-01")
    assert "present" in await here.fine("mirror", "versions")


async def test_without_a_registry_every_question_to_it_says_so(cage: Cage, tmp_path: Path) -> None:
    """M21: and everything else works."""
    async with hub_registry() as hub:
        mirror = await start(cage, tmp_path)
        here = Place(hub, mirror)
        for words in (["search", "x"], ["files", "x"], ["fetch", "x"]):
            code, _, err = await here.type("mirror", *words)
            assert code != 0
            assert "registry_url" in err
        assert "no registry is configured" in await here.fine("mirror", "registry")
        assert "0 versions" in await here.fine("mirror", "versions")
        assert "no bundle folder is configured" in await here.fine("mirror", "bundles")
        mirror.child.stop(grace_s=10)


async def test_a_bundle_carries_versions_to_another_mirror(cage: Cage, tmp_path: Path) -> None:
    folder = tmp_path / "bundles"
    folder.mkdir()
    async with place(cage, tmp_path, bundle_dir=str(folder)) as here:
        await here.brought("tiny@v1")
        out = await here.fine("mirror", "export", "tiny@v1", "--name", "tiny.llmgw")
        assert "tiny @ v1" in out
        assert "tiny.llmgw" in await here.fine("mirror", "bundles")
        (tmp_path / "other").mkdir()
        other = Place(here.hub, await start(cage, tmp_path / "other", bundle_dir=str(folder)))
        asked = len(here.hub.requests)
        await other.fine("mirror", "import", "tiny.llmgw")
        assert "present" in await other.fine("mirror", "versions")
        assert len(here.hub.requests) == asked, "nothing but the bundle was read"
        other.mirror.child.stop(grace_s=10)


async def test_a_fetch_is_waited_for_until_it_is_here_or_has_failed(cage: Cage, tmp_path: Path) -> None:
    async with place(cage, tmp_path) as here:
        out = await here.fine("mirror", "fetch", "Org/Tiny", "--as", "tiny@v1")
        assert "tiny @ v1 present: 4 files, 1.4 MB" in out
        assert "next: llmgwctl mirror suggest tiny@v1" in out
        out = await here.fine("mirror", "fetch", "Org/Tiny", "--as", "tiny@v1")
        assert "all of it is here" in out
