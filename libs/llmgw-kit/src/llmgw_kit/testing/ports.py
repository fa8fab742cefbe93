"""Ports from the operating system."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Distinct TCP ports that were free a moment ago, from the kernel's ephemeral range.

    A moment ago is not now: another process may take one before it is used. Who starts a program on
    such a port watches it and tries again with another (see EmbeddedPostgres).
    """
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]


def is_listening(port: int, host: str = "127.0.0.1", timeout_s: float = 0.5) -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(timeout_s)
        return probe.connect_ex((host, port)) == 0
