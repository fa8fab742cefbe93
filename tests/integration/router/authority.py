"""A certificate authority made for one test by the openssl program, and engines with its certificates."""

import asyncio
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .upstream import Upstream


@dataclass(frozen=True)
class Pair:
    """PEM files."""

    cert: Path
    key: Path


def _openssl(*words: str, cwd: Path) -> None:
    subprocess.run(["openssl", *words], cwd=cwd, check=True, capture_output=True, timeout=30)


class Authority:
    """Signs what it is asked to. `cert` is what trusts it."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._name = folder, name
        self.cert = folder / f"{name}.pem"
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        _openssl(
            "req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2",
            "-subj", f"/CN={name}", cwd=folder,
        )  # fmt: skip

    def sign(self, name: str, *, names: str, days: str = "2") -> Pair:
        """`names`: as subjectAltName writes them. Negative `days` make one that is over."""
        folder, ca = self._folder, self._name
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        _openssl(
            "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}", cwd=folder
        )
        (folder / f"{name}.ext").write_text(f"subjectAltName={names}\n")
        _openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key",
            "-CAcreateserial", "-out", f"{name}.pem", "-extfile", f"{name}.ext", "-days", days, cwd=folder,
        )  # fmt: skip
        return Pair(folder / f"{name}.pem", folder / f"{name}.key")


class TlsUpstream(Upstream):
    """A scripted engine behind TLS; with `asks_for` it wants a client's certificate of that authority."""

    pair: Pair
    asks_for: Path | None = None

    async def __aenter__(self) -> "TlsUpstream":
        self._tasks: set[asyncio.Task[None]] = set()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.asks_for)
        context.load_cert_chain(self.pair.cert, self.pair.key)
        if self.asks_for is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            # TLS 1.3 tells a client without a certificate only after the handshake.
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self
