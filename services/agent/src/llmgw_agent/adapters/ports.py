"""Whether a leased port is free right now."""

import errno
import socket
from collections.abc import Mapping

from llmgw_kit.errors import Conflict, InvalidRequest


def check_free(host: str, ports: Mapping[str, int]) -> None:
    """Bind and listen on each port, then let go.

    Without SO_REUSEPORT, so that a listener that set it counts as taken too; with SO_REUSEADDR, so that
    connections of an engine that just left do not. Raises Conflict (code "port_taken") naming the first
    taken, InvalidRequest when it is the address that is wrong: no other port would help."""
    for name, port in sorted(ports.items()):
        # Rendezvous ports are bound on every address by the engines, the HTTP port on one.
        where = host if name == "http" else ""
        try:
            family, _, _, _, address = socket.getaddrinfo(
                where or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen(1)
        except OSError as e:
            if e.errno == errno.EADDRINUSE:
                raise Conflict(
                    f"port {port} ({name}) on {where or '*'}: somebody has it", code="port_taken"
                ) from None
            raise InvalidRequest(
                f"engines cannot listen on {where or '*'}:{port} ({name}): {e.strerror}",
                next_steps=["check engine_listen and management_address in the agent's settings"],
            ) from None
