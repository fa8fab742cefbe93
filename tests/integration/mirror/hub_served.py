"""A mirror that listens with a repository in it, and what Hub clients and bare requests make of it."""

import hashlib
import json
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from llmgw_kit.addresses import HostPort
from llmgw_mirror.adapters.listings import put_listing
from llmgw_mirror.adapters.store import version_id
from llmgw_mirror.core.versions import Proof, Receipt, Repository, Source, wish

from .hub_programs import HubClient
from .scripted import Upstream
from .world import World, content_of, listening, sha256_of, world

COMMIT = "c0ffee" + "0" * 34
NEXT_COMMIT = "beef" + "1" * 36
IN_LFS = (".safetensors", ".bin", ".gguf")


def git_id(content: bytes) -> str:
    """What git calls a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def safetensors(seed: int, size: int = 200_000) -> bytes:
    """One tensor, in the real format."""
    body = content_of(size, seed)
    header = json.dumps({f"t{seed}": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    return struct.pack("<Q", len(header)) + header.encode() + body


FILES = {
    "README.md": b"# a model\n",
    "config.json": b'{"model_type": "llama"}',
    "empty.txt": b"",
    "model.safetensors": safetensors(1),
    "sub/deeper/weights.bin": content_of(1_500_000, 3),
    "sub/\u00e4 b.txt": b"umlaut",
}
HASHES = {path: sha256_of(content) for path, content in FILES.items()}


@dataclass
class Answer:
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.headers["X-Error-Code"])


@dataclass
class Served:
    """`put` asks for a repository's files and returns; `have` waits until they are here."""

    here: World
    hub: Upstream
    at: HostPort
    folder: Path
    #: Paths of the requests that were answered, as they came.
    asked: list[str]

    async def put(
        self, files: Mapping[str, bytes] = FILES, *, repo: str = "org/m", commit: str = COMMIT,
        revision: str | None = "main", version: str | None = None, unchosen: tuple[str, ...] = (),
    ) -> str:  # fmt: skip
        """Returns the version's name. `unchosen`: paths that the repository has besides."""
        name = version or commit
        sources = [self.source(path, content) for path, content in files.items()]
        await self.here.mirror.fetch(repo, name, sources, repository=Repository(repo, commit, revision))
        put_listing(self.here.store, version_id(repo, name), [*files, *unchosen])
        return name

    async def have(self, files: Mapping[str, bytes] = FILES, *, repo: str = "org/m", **more: Any) -> None:
        await self.here.settled(repo, await self.put(files, repo=repo, **more))

    def lay(self, paths: Sequence[str], content: bytes, *, repo: str = "org/m") -> None:
        """Many files of one content, as if fetched: each fetch would wait for the disk many times."""
        store, sha256 = self.here.store, sha256_of(content)
        store.blob(sha256).parent.mkdir(exist_ok=True)
        store.blob(sha256).write_bytes(content)
        files = [Source(path, "http://h.invalid/x", sha256, len(content)) for path in paths]
        store.create(wish(repo, COMMIT, files, now=0.0, repository=Repository(repo, COMMIT, "main")))
        receipt = Receipt(sha256, len(content), Proof.SHA256, at=0.0)
        for path in paths:
            store.put_receipt(version_id(repo, COMMIT), path, receipt)

    def source(self, path: str, content: bytes) -> Source:
        """As a registry describes it: weights by sha256, the rest by their git ids."""
        url = self.hub.put(f"/{sha256_of(content)}", content)
        if path.endswith(IN_LFS):
            return Source(path, url, sha256_of(content), len(content))
        return Source(path, url, None, len(content), git_id(content), True)

    def path_of(self, content: bytes) -> str:
        """At the upstream."""
        return f"/{sha256_of(content)}"

    def client(self, generation: int, *, prefix: str = "", name: str = "home") -> HubClient:
        return HubClient(generation, f"http://{self.at}{prefix}", self.folder / f"{name}{generation}")

    def asking(
        self, path: str, method: str = "GET", **headers: str
    ) -> AbstractAsyncContextManager["aiohttp.ClientResponse"]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        url = URL(f"http://{self.at}{path}", encoded=True)
        return aiohttp.request(method, url, headers=given, allow_redirects=False)

    async def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """One bare request."""
        async with self.asking(path, method, **headers) as answer:
            return Answer(answer.status, answer.headers, await answer.read())

    async def post(self, path: str, **body: Any) -> Answer:
        """`json=` or `data=`."""
        async with aiohttp.request("POST", URL(f"http://{self.at}{path}", encoded=True), **body) as answer:
            return Answer(answer.status, answer.headers, await answer.read())


@asynccontextmanager
async def serving(folder: Path, hub: Upstream, **settings: object) -> AsyncIterator[Served]:
    """`settings` of the mirror."""
    asked: list[str] = []
    async with world(folder / "store", **settings) as here, listening(here, asked=asked) as at:
        yield Served(here, hub, at, folder, asked)
