"""Taking the client port: once, wholly, and told plainly when somebody else has it."""

import errno
import socket
from dataclasses import dataclass


class PortTaken(Exception):
    """Another process holds the address, with or without SO_REUSEPORT."""


@dataclass(frozen=True, slots=True)
class Address:
    family: socket.AddressFamily
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.family is socket.AF_INET6 else f"{self.host}:{self.port}"


def families(host: str) -> tuple[tuple[socket.AddressFamily, str], ...]:
    """`*` is every family the kernel has; a literal address, or a name, is its own family."""
    if host == "*":
        both: list[tuple[socket.AddressFamily, str]] = [(socket.AF_INET, "0.0.0.0")]
        if socket.has_ipv6 and _kernel_has_ipv6():
            both.append((socket.AF_INET6, "::"))
        return tuple(both)
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    return ((family, str(address[0])),)


@dataclass(frozen=True, slots=True)
class Reservation:
    """The addresses of a router, held: one bound socket each, and the word to other routers."""

    sockets: tuple[socket.socket, ...]
    _locks: tuple[socket.socket, ...]

    def close(self) -> None:
        for sock in (*self._locks, *self.sockets):
            sock.close()


def reserve(host: str, port: int) -> Reservation:
    """Bind every address of `host` plainly and keep it; the sockets do not listen.

    A plain bind fails even against listeners that allow sharing, which is what makes a second
    router an error rather than a silent half of the traffic. Only once the address is ours is
    sharing allowed on the bound socket (Linux looks at the option when the next one binds), so
    that there is no moment in which nobody holds it. Two routers that start in the same instant
    could both pass, since neither listens yet: a name in the abstract socket space, which one
    process of a network namespace can have, decides between them. Port 0 takes any free port, the
    same for all families. Raises PortTaken, or OSError for what is not about being taken.
    """
    held: list[socket.socket] = []
    locks: list[socket.socket] = []
    try:
        for family, literal in families(host):
            sock = socket.socket(family, socket.SOCK_STREAM)
            held.append(sock)
            # A restart must not wait for its own connections' TIME_WAIT; this shares nothing that listens.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            locks.append(lock)
            try:
                sock.bind((literal, port))
                port = sock.getsockname()[1]
                lock.bind(f"\0llmgw-router {literal} {port}")
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                taken = Address(family, literal, port)
                raise PortTaken(f"{taken} is taken by another process") from error
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except BaseException:
        for sock in (*held, *locks):
            sock.close()
        raise
    return Reservation(tuple(held), tuple(locks))


def address_of(sock: socket.socket) -> Address:
    name = sock.getsockname()
    return Address(sock.family, name[0], name[1])


def listen_beside(reserved: socket.socket, *, backlog: int) -> socket.socket:
    """One more listening socket on a reserved address; the kernel spreads connections over all of these."""
    sock = socket.socket(reserved.family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if reserved.family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(reserved.getsockname()[:2])
        sock.listen(backlog)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _kernel_has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
