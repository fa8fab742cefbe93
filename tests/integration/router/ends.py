"""Endpoints that are no use, and what is told of them: shared by the tests of failing engines."""

import json
import socket

_kept: list[socket.socket] = []


def dead_port() -> int:
    """A port on which nobody listens, and that nobody gets meanwhile: bound, not listening."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    _kept.append(sock)
    return int(sock.getsockname()[1])


def code_of(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])
