"""A bundle as an upstream: what is imported goes the way of everything that is fetched, with its leases, its
resuming, its checks and its progress. URLs are made here alone: `bundle:NAME/SHA256`."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from llmgw_kit.errors import LlmgwError
from llmgw_mirror.adapters.bundle_files import BundleFolder
from llmgw_mirror.adapters.disk import READ_BYTES, DiskThreads
from llmgw_mirror.core.headers import ContentRange
from llmgw_mirror.core.transfer import Head
from llmgw_mirror.ports import Interrupted, Refused

SCHEME = "bundle"


def bundle_url(name: str, sha256: str) -> str:
    return f"{SCHEME}:{name}/{sha256}"


@dataclass
class _Answer:
    head: Head
    fd: int
    at: int
    end: int
    threads: DiskThreads

    async def body(self) -> AsyncIterator[bytes]:
        while self.at < self.end:
            try:
                piece = await self.threads.run(
                    os.pread, self.fd, min(READ_BYTES, self.end - self.at), self.at
                )
            except OSError as e:
                raise Interrupted(f"reading the bundle failed at byte {self.at}: {e.strerror or e}") from e
            if not piece:
                raise Interrupted(f"the bundle ends at byte {self.at}")
            self.at += len(piece)
            yield piece


class BundleUpstream:
    """See ports.Upstream."""

    remote = False

    def __init__(self, folder: BundleFolder | None, threads: DiskThreads) -> None:
        self._folder = folder
        self._threads = threads

    @asynccontextmanager
    async def open(self, url: str, *, offset: int, validator: str | None) -> AsyncIterator[_Answer]:
        fd, start, size, sha256 = await self._threads.run(self._find, url)
        try:
            tag = f'"{sha256}"'
            if offset and validator in (None, tag):
                span = ContentRange(offset, size - 1, size)
                head = Head(206, content_length=size - offset, content_range=span, validator=tag)
            else:
                offset, head = 0, Head(200, content_length=size, validator=tag)
            yield _Answer(head, fd, start + offset, start + size, self._threads)
        finally:
            os.close(fd)

    def _find(self, url: str) -> tuple[int, int, int, str]:
        """The opened bundle, where the content begins, its size and hash."""
        name, _, sha256 = url.removeprefix(f"{SCHEME}:").partition("/")
        if self._folder is None:
            raise Refused(
                "the mirror has no bundle folder any more; set bundle_dir again",
                next_steps=["set bundle_dir to the folder it was imported from"],
            )
        try:
            path, planned, _ = self._folder.checked(name)
        except LlmgwError as e:
            raise Refused(e.text, next_steps=e.next_steps) from None
        member = planned.content_at(sha256)
        if member is None:
            raise Refused(
                f"bundle {name!r} does not have the content {sha256[:12]}…",
                next_steps=["import the bundle again, whole"],
            )
        try:
            return os.open(path, os.O_RDONLY), member.start, member.size_bytes, sha256
        except OSError as e:
            raise Refused(
                f"bundle {name!r} cannot be read: {e.strerror or e}",
                next_steps=["see whether the file is there and the mirror may read it"],
            ) from None
