"""What must hold of the settings about the router's two edges: browsers in front, TLS towards engines."""

import re
from collections.abc import Iterable

from llmgw_kit.errors import StartupError
from llmgw_router.core.config import UpstreamTls
from llmgw_router.relay.tls import make_context, reason_of

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")


def check_tls(tls: UpstreamTls, of_endpoints: Iterable[str]) -> None:
    """Read every file once, before a port is opened. Raises StartupError."""
    if tls.key is not None and tls.cert is None:
        raise StartupError("upstream_key is set without upstream_cert", next_steps=["set both, or neither"])
    shared: list[str | None] = [None] if tls.ca is not None or tls.cert is not None else []
    for ca in [*shared, *sorted(set(of_endpoints))]:
        try:
            make_context(tls, ca)
        except OSError as error:
            files = ", ".join(one for one in (ca or tls.ca, tls.cert, tls.key) if one)
            raise StartupError(
                f"TLS files for engines cannot be used: {reason_of(error)} ({files})",
                next_steps=[
                    "they are PEM; authorities: upstream_ca, or an endpoint's ca; ours: upstream_cert"
                ],
            ) from None


def check_origins(origins: Iterable[str]) -> None:
    """Raises StartupError for what no browser would send as its origin."""
    for one in origins:
        if one != "*" and not _ORIGIN.fullmatch(one):
            raise StartupError(
                f"cors_origins holds {one!r}, which is no origin",
                next_steps=["write scheme, host and port only: https://app.example, or *"],
            )
