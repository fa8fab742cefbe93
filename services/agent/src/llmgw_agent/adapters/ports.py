"""Whether a leased port is free right now."""

import errno
import socket
from collections.abc import Mapping

from llmgw_kit.errors import Conflict


def check_free(host: str, ports: Mapping[str, int]) -> None:
    """Bind and listen on each port, then let go. Raises Conflict (code "port_taken") naming the first taken.

    Without SO_REUSEPORT, so that a listener that set it counts as taken too; with SO_REUSEADDR, so that
    connections of an engine that just left do not."""
    for name, port in sorted(ports.items()):
        # Rendezvous ports are bound on every address by the engines, the HTTP port on one.
        where = host if name == "http" else ""
        family, _, _, _, address = socket.getaddrinfo(
            where or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                probe.listen(1)
            except OSError as e:
                why = "somebody listens there" if e.errno == errno.EADDRINUSE else e.strerror
                raise Conflict(f"port {port} ({name}) on {where or '*'}: {why}", code="port_taken") from None
