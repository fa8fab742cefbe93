"""A certificate authority made for one test, by the openssl program."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from llmgw_kit.tls import TlsFiles

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Pair:
    """PEM files."""

    cert: Path
    key: Path

    def trusting(self, ca: Path | None) -> TlsFiles:
        """Shown to whoever shows a certificate of `ca`."""
        return TlsFiles(self.cert, self.key, ca)


class Authority:
    """Signs what it is asked to. `cert` is what trusts it."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name = folder, name
        self.cert = folder / f"{name}.pem"
        self._openssl(
            "req", "-x509", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2", "-subj",
            f"/CN={name}",
        )  # fmt: skip

    def sign(self, name: str, *, names: str = "IP:127.0.0.1,DNS:localhost", days: str = "2") -> Pair:
        """`names`: as subjectAltName writes them. Negative `days` make one that is over."""
        self._openssl(
            "req", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"
        )  # fmt: skip
        (self._folder / f"{name}.ext").write_text(f"subjectAltName={names}\n")
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", f"{self._name}.pem", "-CAkey", f"{self._name}.key",
            "-CAcreateserial", "-out", f"{name}.pem", "-extfile", f"{name}.ext", "-days", days,
        )  # fmt: skip
        return Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self._folder, check=True, capture_output=True, timeout=30)
