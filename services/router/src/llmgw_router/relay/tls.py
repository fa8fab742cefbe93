"""TLS towards engines: always verified, against the system's authorities or the ones configured.

A context is made once for each trust, not once a connection: reading the system's authorities takes 20 ms.
"""

import ssl
from typing import TYPE_CHECKING

from llmgw_router.core.config import UpstreamTls

if TYPE_CHECKING:
    from llmgw_router.core.table import EndpointRow


def make_context(tls: UpstreamTls, ca: str | None = None) -> ssl.SSLContext:
    """What a connection to an engine trusts and shows. `ca` instead of `tls.ca`. Raises OSError, also for
    files that hold no certificates."""
    context = ssl.create_default_context(cafile=ca or tls.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    return context


class Contexts:
    """One per worker and configuration."""

    def __init__(self, tls: UpstreamTls) -> None:
        self._tls = tls
        self._made: dict[str | None, ssl.SSLContext] = {}

    def of(self, row: "EndpointRow") -> ssl.SSLContext | None:
        """For one endpoint; None: it is asked in the clear. Raises OSError where a file cannot be used."""
        if not row.tls:
            return None
        context = self._made.get(row.tls_ca)
        if context is None:
            try:
                context = make_context(self._tls, row.tls_ca)
            except OSError as error:
                raise OSError(f"the router's own TLS files cannot be used: {reason_of(error)}") from error
            self._made[row.tls_ca] = context
        return context


def reason_of(error: OSError | ValueError) -> str:
    """Why a connection could not be made, in words that help whoever reads them."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    return getattr(error, "strerror", None) or str(error)
