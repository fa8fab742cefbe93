"""TLS files that are replaced while the process runs: taken up by the next handshake, without a restart.

Certificate, key and authorities are read together and proven to fit together before any of them counts; what
does not is told once, and the old ones stay in force. Open connections go on with what they began with. One
object serves both sides: asyncio and aiohttp take `context`, gRPC the bytes of `now` (llmgw_kit.rpc).
"""

import asyncio
import logging
import os
import signal
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from llmgw_kit.errors import InvalidRequest, StartupError
from llmgw_kit.tls import TlsFiles, client_context, server_context
from llmgw_kit.tls_dates import expires_at

log = logging.getLogger(__name__)

#: Between two looks at the files. Whoever mounts them takes up to a minute to put new ones there anyway.
LOOK_EVERY_S = 10.0
#: How often what is being replaced in this very moment is read again at the start.
_TRIES = 3


class Side(Enum):
    """Whose handshakes these files are for."""

    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True)
class Material:
    """What the files held at one moment. `generation` grows with each change that counts."""

    context: ssl.SSLContext
    cert: bytes | None
    key: bytes | None
    ca: bytes | None
    #: Unix seconds at which our certificate ends; None: we show none.
    expires_at: float | None
    generation: int


class WatchedTls:
    """Raises InvalidRequest when the files are no good at the start; later that is told and counted only.

    `what` begins every message. `check_names` is for clients: whether a server must be who it is called."""

    def __init__(self, files: TlsFiles, side: Side, *, what: str, check_names: bool = True) -> None:
        self.files = files
        self.what = what
        self.handshakes_failed = 0
        #: Why the newest files are not in force; None: they are.
        self.refused: str | None = None
        self._side = side
        self._check_names = check_names
        for _ in range(_TRIES):
            seen = self._look()
            made = self._read(1)
            if seen == self._look():
                break
        self._seen = seen
        self.now = made
        self.context: ssl.SSLContext = _Current(
            ssl.PROTOCOL_TLS_SERVER if side is Side.SERVER else ssl.PROTOCOL_TLS_CLIENT
        )
        assert isinstance(self.context, _Current)
        self.context.now = lambda: self.now.context

    def refresh(self) -> bool:
        """Take up what changed on the disk. True: there is something new in force. Never raises."""
        seen = self._look()
        if seen == self._seen:
            return False
        try:
            made = self._read(self.now.generation + 1)
        except InvalidRequest as e:
            made, why = None, e.text
        if self._look() != seen:
            return False  # it is being written right now; the next look sees all of it
        self._seen = seen
        if made is None:
            self.refused = why
            log.error("%s; the certificate in use stays in force", why)
            return False
        self.refused = None
        self.now = made
        log.info("%s: new TLS files are in force", self.what)
        return True

    async def watch(
        self, sleep: Callable[[float], Awaitable[None]], *, every_s: float = LOOK_EVERY_S
    ) -> None:
        """Look for ever. The files are small and local: reading them holds the loop for less than a
        handshake does."""
        while True:
            await sleep(every_s)
            self.refresh()

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for path in (self.files.cert, self.files.key, self.files.ca))

    def _read(self, generation: int) -> Material:
        if self._side is Side.SERVER:
            context = server_context(self.files, what=self.what)
        else:
            context = client_context(self.files, what=self.what, check_names=self._check_names)
        context.sslobject_class = _told_to(self._failed)
        cert, key, ca = (self._bytes(path) for path in (self.files.cert, self.files.key, self.files.ca))
        return Material(context, cert, key, ca, None if cert is None else expires_at(cert), generation)

    def _bytes(self, path: Path | None) -> bytes | None:
        try:
            return None if path is None else path.read_bytes()
        except OSError as e:
            raise InvalidRequest(f"{self.what}: {path} cannot be read: {e.strerror or e}") from None

    def _failed(self, error: ssl.SSLError) -> None:
        self.handshakes_failed += 1
        log.debug("%s: a handshake failed: %s", self.what, error.reason or error)


def client_tls(*, ca: Path | None, cert: Path | None, key: Path | None, what: str) -> WatchedTls | None:
    """TLS towards a peer, switched on by the authority it is verified with. `what`: prefix of the settings.

    Raises StartupError for files that cannot be used."""
    if ca is None:
        if cert is None and key is None:
            return None
        raise StartupError(
            f"{what}_cert and {what}_key are set without {what}_ca", next_steps=[f"set {what}_ca too"]
        )
    try:
        return WatchedTls(TlsFiles(cert, key, ca), Side.CLIENT, what=f"{what}_ca, {what}_cert, {what}_key")
    except InvalidRequest as e:
        raise StartupError(e.text, next_steps=e.next_steps) from None


def refresh_at_hangup(*watched: WatchedTls) -> None:
    """SIGHUP reads these files again, and these alone; without any it is said that there is nothing to read.

    It replaces what was said before. To be called in any case: an unhandled SIGHUP ends a process."""

    def hang_up() -> None:
        if not watched:
            log.info("SIGHUP: no TLS files are configured, nothing is read again")
        for one in watched:
            if not one.refresh():
                log.info("SIGHUP: %s: nothing new is in force", one.what)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up)


class _Current(ssl.SSLContext):
    """Begins each connection with the context that is in force then. Event loops ask for nothing else of a
    context than its next connection."""

    now: Callable[[], ssl.SSLContext]

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.now().wrap_bio(*args, **kwargs)

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        return self.now().wrap_socket(*args, **kwargs)


def _told_to(failed: Callable[[ssl.SSLError], None]) -> type[ssl.SSLObject]:
    """Connections that tell of failed handshakes: event loops drop those without a word."""

    class Told(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as e:
                failed(e)
                raise

    return Told


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    # Links are followed: Kubernetes replaces the folder that the files' links lead through.
    try:
        found = None if path is None else os.stat(path)
    except OSError:
        return (0, 0, 0)
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)
