"""A version verified on demand: every byte read again, with progress, and what is rotten set aside."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from llmgw_kit.clock import Clock
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.lifecycle import cancel_all
from llmgw_mirror.adapters.store import version_id
from llmgw_mirror.core.history import Entry, Kind
from llmgw_mirror.core.refusals import unknown_version
from llmgw_mirror.core.versions import FileView, VersionView, WeightsState
from llmgw_mirror.flights import Flights
from llmgw_mirror.ports import History
from llmgw_mirror.proving import ContentGone, Prover, Rot

#: Between two words about one file.
TELL_EVERY_S = 0.5


@dataclass(frozen=True)
class Verified:
    """How far one file is. `trouble`, when done: what is wrong with it; None: nothing."""

    path: str
    read_bytes: int
    total_bytes: int
    done: bool = False
    trouble: str | None = None


class Verifying:
    """Of one mirror process."""

    def __init__(self, *, flights: Flights, prover: Prover, history: History, clock: Clock) -> None:
        self._flights = flights
        self._prover = prover
        self._history = history
        self._clock = clock

    async def verify(
        self, model: str, version: str, paths: Sequence[str] = (), *, asked_by: str | None = None
    ) -> AsyncGenerator[Verified]:
        """Read all files of a version, or these: one word a file when it is done, and some in between.

        What is not here is told as such. Leaving early ends the reading. Raises NotFound, InvalidRequest,
        Unavailable."""
        files = await self._files(model, version, paths)
        #: Two files of a version may be one content.
        known: dict[str, str | None] = {}
        read_bytes, wrong = 0, []
        for file in files:
            last = Verified(file.source.path, 0, file.size_bytes or 0)
            if file.state is not WeightsState.PRESENT or file.sha256 is None:
                why = f": {file.error}" if file.error else ""
                last = Verified(
                    last.path, 0, last.total_bytes, done=True, trouble=f"not here: {file.state.value}{why}"
                )
            elif file.sha256 in known:
                last = Verified(
                    last.path, last.total_bytes, last.total_bytes, done=True, trouble=known[file.sha256]
                )
            else:
                async for word in self._one(file.source.path, file.sha256, last.total_bytes):
                    last = word
                    if not word.done:
                        yield word
                known[file.sha256] = last.trouble
                read_bytes += last.read_bytes
            wrong += [last.path] if last.trouble is not None else []
            yield last
        right = f"{len(files) - len(wrong)} of {len(files)} files are right"
        text = right + (f"; not so: {', '.join(wrong[:5])}" if wrong else "")
        now = self._clock.unix_s()
        entry = Entry(now, Kind.VERIFIED, model, version, text, asked_by=asked_by, bytes=read_bytes)
        await self._history.note(entry)

    async def _files(self, model: str, version: str, paths: Sequence[str]) -> list[FileView]:
        vid = version_id(model, version)
        stored = await self._flights.load(vid)
        if stored is None:
            raise unknown_version(model, version)
        view: VersionView = self._flights.view(vid, stored)
        unknown = sorted(set(paths) - {file.source.path for file in view.files})
        if unknown:
            raise InvalidRequest(
                f"version {version!r} of {model!r} has no file {unknown[0]!r}",
                code="unknown_file",
                next_steps=["name files as the version lists them, or none to mean all"],
            )
        return [file for file in view.files if not paths or file.source.path in paths]

    async def _one(self, path: str, sha256: str, total: int) -> AsyncGenerator[Verified]:
        read = 0

        async def on_chunk(count: int, read_bytes: int) -> None:
            nonlocal read
            read = read_bytes

        proving = asyncio.create_task(self._prover.prove(sha256, on_chunk=on_chunk), name=f"verify {path}")
        try:
            while not proving.done():
                ticking = asyncio.ensure_future(self._clock.sleep(TELL_EVERY_S))
                try:
                    await asyncio.wait({proving, ticking}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    ticking.cancel()
                if not proving.done():
                    yield Verified(path, read, total)
            yield Verified(path, read, total, done=True, trouble=_trouble(proving))
        finally:
            await cancel_all(proving)


def _trouble(proving: asyncio.Task[Rot | None]) -> str | None:
    try:
        rot = proving.result()
    except ContentGone:
        return "it went away while it was read: its version was removed, or it is being fetched again"
    return None if rot is None else rot.text
