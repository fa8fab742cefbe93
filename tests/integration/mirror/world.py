"""A mirror in this process, on a real disk, with real upstreams: what most integration tests stand on."""

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from llmgw_kit import telemetry
from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import Clock, SystemClock
from llmgw_kit.listeners import bind, bound_address
from llmgw_kit.pieces import PIECE_BYTES
from llmgw_mirror.adapters.file_answer import FileAnswers
from llmgw_mirror.adapters.http_server import error_edge
from llmgw_mirror.adapters.store import Store
from llmgw_mirror.composition import Built, build
from llmgw_mirror.composition_serving import build_offer
from llmgw_mirror.core.versions import FileView, Source, VersionView, WeightsState
from llmgw_mirror.service import Mirror
from llmgw_mirror.settings import MirrorSettings

#: No test of a working mirror comes near it; one that does has failed.
PATIENCE_S = 45.0

SETTLED = frozenset({WeightsState.PRESENT, WeightsState.FAILED})


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def content_of(size: int, seed: int = 1) -> bytes:
    """Bytes that differ everywhere, the same on every run."""
    block = hashlib.sha256(str(seed).encode()).digest()
    return b"".join(hashlib.sha256(block + n.to_bytes(4, "big")).digest() for n in range(size // 32 + 1))[
        :size
    ]


async def until(condition: Callable[[], bool]) -> None:
    """Give way until it holds. Bounded."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


@dataclass
class World:
    built: Built
    settings: MirrorSettings
    #: Of the last `listening`.
    answers: FileAnswers | None = None

    @property
    def mirror(self) -> Mirror:
        return self.built.mirror

    @property
    def store(self) -> Store:
        return self.built.store

    async def fetch(self, *files: Source, model: str = "org/m", version: str = "v1") -> VersionView:
        """Ask, and wait until every file is here or has failed."""
        await self.mirror.fetch(model, version, files)
        return await self.settled(model, version)

    async def fetch_one(self, url: str, **published: str | int) -> FileView:
        """A version of one file."""
        sha256, size = published.get("sha256"), published.get("size_bytes")
        assert isinstance(sha256, str | None)
        assert isinstance(size, int | None)
        return (await self.fetch(Source("weights.bin", url, sha256, size))).files[0]

    async def settled(self, model: str = "org/m", version: str = "v1") -> VersionView:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                view = await self.mirror.version(model, version)
                assert view is not None, f"{model} {version} is unknown"
                if all(file.state in SETTLED for file in view.files):
                    return view
                await asyncio.sleep(0.005)

    async def removed(self, model: str = "org/m", version: str = "v1") -> int:
        """For good, at once; returns the bytes freed."""
        answer = await self.built.keepers.keeping.removing.remove(model, version, now=True)
        return answer.freed_bytes

    async def received(self, count: int) -> VersionView:
        """Wait until the only download has so many bytes; returns it."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for one in await self.built.downloads.now():
                    if sum(file.received_bytes for file in one.files) == count:
                        return one.whole
                await asyncio.sleep(0.005)

    def parts(self) -> list[Path]:
        return sorted(self.store.parts.glob("*.part"))

    def blobs(self) -> list[str]:
        return self.store.every_blob()


@asynccontextmanager
async def listening(
    here: World, *, piece_bytes: int = PIECE_BYTES, tls: ssl.SSLContext | None = None,
    asked: list[str] | None = None,
) -> AsyncIterator[HostPort]:  # fmt: skip
    """The HTTP listener for nodes, as `serve` opens it, on a port of the system's. `asked` is told the path
    of every request that was answered."""
    offer = build_offer(here.settings, here.built, SystemClock(), piece_bytes=piece_bytes)
    here.answers = offer.answers
    app = web.Application(middlewares=[error_edge])

    async def note(request: web.Request, response: web.StreamResponse) -> None:
        if asked is not None:
            asked.append(request.rel_url.raw_path)

    app.on_response_prepare.append(note)
    app.add_routes(offer.routes())
    sockets = bind(HostPort("127.0.0.1", 0), flag="--http-listen")
    runner = await telemetry.serve_http(app, sockets, shutdown_s=1.0, tls=tls)
    try:
        yield bound_address(sockets, "127.0.0.1")
    finally:
        await runner.cleanup()
        await offer.close()


@asynccontextmanager
async def world(folder: Path, *, clock: Clock | None = None, **settings: object) -> AsyncIterator[World]:
    """A mirror without passes: what it does follows from what the test asks."""
    given = {
        "data_dir": folder,
        "backoff_base_s": 0.001,
        "backoff_most_s": 0.01,
        "disk_reserve_bytes": 0,
        **settings,
    }
    made = MirrorSettings.model_validate(given)
    async with build(made, clock or SystemClock()) as built:
        await built.upkeep.begin()
        yield World(built, made)
