"""The Hub's real clients against the mirror, given HF_ENDPOINT and nothing else; every byte is compared."""

import json
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from llmgw_kit.addresses import HostPort
from llmgw_mirror.adapters.listings import put_listing
from llmgw_mirror.adapters.store import version_id
from llmgw_mirror.core.versions import Repository, Source

from .hub_programs import GENERATIONS, HubClient
from .scripted import Upstream
from .world import World, content_of, listening, sha256_of, world

COMMIT = "c0ffee" + "0" * 34


def git_id(content: bytes) -> str:
    import hashlib

    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def safetensors(seed: int) -> bytes:
    body = content_of(200_000, seed)
    header = json.dumps({f"t{seed}": {"dtype": "U8", "shape": [len(body)], "data_offsets": [0, len(body)]}})
    return struct.pack("<Q", len(header)) + header.encode() + body


FILES = {
    "README.md": b"# a model\n",
    "config.json": b'{"model_type": "llama"}',
    "empty.txt": b"",
    "model.safetensors": safetensors(1),
    "sub/deeper/weights.bin": content_of(1_500_000, 3),
    "sub/\u00e4 b.txt": b"umlaut",
}


@dataclass
class Served:
    """A mirror that listens, and how to put a repository into it."""

    here: World
    hub: Upstream
    at: HostPort
    tmp: Path

    async def put(
        self, files: dict[str, bytes] = FILES, *, repo: str = "org/m", commit: str = COMMIT,
        revision: str | None = "main", version: str | None = None, listed: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Ask for these files and return at once."""
        sources = []
        for path, content in files.items():
            lfs = path.endswith((".safetensors", ".bin", ".gguf"))
            url = self.hub.put(f"/{sha256_of(content)}", content)
            sources.append(
                Source(path, url, sha256_of(content), len(content)) if lfs
                else Source(path, url, None, len(content), git_id(content), True)
            )  # fmt: skip
        await self.here.mirror.fetch(
            repo, version or commit, sources, repository=Repository(repo, commit, revision)
        )
        put_listing(self.here.store, version_id(repo, version or commit), [*files, *listed])

    async def have(self, files: dict[str, bytes] = FILES, **more: object) -> None:
        """Ask, and wait until all is here."""
        await self.put(files, **more)  # type: ignore[arg-type]
        await self.here.settled(
            str(more.get("repo", "org/m")), str(more.get("version") or more.get("commit", COMMIT))
        )

    def client(self, generation: int, *, prefix: str = "") -> HubClient:
        return HubClient(generation, f"http://{self.at}{prefix}", self.tmp / f"home{generation}")


@pytest.fixture
async def served(hub: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with world(tmp_path / "store") as here, listening(here) as at:
        yield Served(here, hub, at, tmp_path)


generations = pytest.mark.parametrize("generation", GENERATIONS)


@generations
async def test_a_snapshot_is_the_repository_byte_for_byte(served: Served, generation: int) -> None:
    await served.have()
    client = served.client(generation)
    got = await client.act("snapshot", repo="org/m")
    assert got["commit"] == COMMIT
    assert got["files"] == {path: sha256_of(content) for path, content in FILES.items()}
