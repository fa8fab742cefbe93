"""TLS contexts from files, checked when they are read: a mistyped path stops a start, not a page hours later.

Both sides speak TLS 1.2 or newer. The client always verifies; names are checked by its caller's choice, since
inside a cluster certificates carry roles rather than the addresses that nodes happen to have.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from llmgw_kit.errors import InvalidRequest


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: what we show (`cert`, `key`, both or neither) and whom we trust (`ca`; None: nobody of our
    own, so clients use the system's authorities and servers ask no certificate)."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def __bool__(self) -> bool:
        return any((self.cert, self.key, self.ca))


def server_context(files: TlsFiles, *, what: str) -> ssl.SSLContext:
    """Shows `cert`; with `ca` every client must show a certificate of it. Raises InvalidRequest, naming
    `what` is configured wrong."""
    if files.cert is None or files.key is None:
        raise InvalidRequest(
            f"{what}: a listener with TLS needs a certificate and its key",
            next_steps=["set both, or neither and no authority for clients"],
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _show(context, files, what)
    if files.ca is not None:
        _trust(context, files.ca, what)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(files: TlsFiles, *, what: str, check_names: bool = True) -> ssl.SSLContext:
    """Trusts `ca`, or the system's authorities; shows `cert` if there is one. Raises InvalidRequest."""
    if (files.cert is None) is not (files.key is None):
        raise InvalidRequest(
            f"{what}: the {'key' if files.key is None else 'certificate'} is missing",
            next_steps=["give certificate and key together"],
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = check_names
    if files.ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _trust(context, files.ca, what)
    if files.cert is not None:
        _show(context, files, what)
    return context


def _show(context: ssl.SSLContext, files: TlsFiles, what: str) -> None:
    assert files.cert is not None
    try:
        context.load_cert_chain(files.cert, files.key)
    except (OSError, ValueError) as e:
        raise InvalidRequest(
            f"{what}: certificate {files.cert} and key {files.key} cannot be used: {_reason(e)}",
            next_steps=["both are PEM files; the key belongs to the certificate and has no password"],
        ) from None


def _trust(context: ssl.SSLContext, ca: Path, what: str) -> None:
    try:
        context.load_verify_locations(cafile=ca)
    except (OSError, ValueError) as e:
        raise InvalidRequest(
            f"{what}: authority {ca} cannot be used: {_reason(e)}",
            next_steps=["a PEM file with at least one certificate is expected"],
        ) from None


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return getattr(error, "strerror", None) or str(error)
