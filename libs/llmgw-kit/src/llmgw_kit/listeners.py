"""HTTP listeners of the cold side: bound before anything else runs, named when they cannot be."""

import errno
import socket

from llmgw_kit.addresses import HostPort
from llmgw_kit.errors import StartupError


def bind(address: HostPort, *, flag: str, backlog: int = 512) -> list[socket.socket]:
    """Bind and listen; host "*" means both families where the kernel has them.

    Raises StartupError naming the address, the cause and the flag that moves it."""
    if address.host == "*":
        return _bind_all(address.port, flag=flag, backlog=backlog)
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as e:
        raise StartupError(
            f"cannot listen on {address}: {e.strerror}", next_steps=[f"check {flag}"]
        ) from None
    family, _, _, _, sockaddr = found[0]
    return [_listening(socket.AddressFamily(family), sockaddr, address, flag=flag, backlog=backlog)]


def _bind_all(port: int, *, flag: str, backlog: int) -> list[socket.socket]:
    shown = HostPort("*", port)
    bound = []
    if socket.has_ipv6 and _kernel_has_ipv6():
        bound.append(_listening(socket.AF_INET6, ("::", port), shown, flag=flag, backlog=backlog))
        port = bound[0].getsockname()[1]
    bound.append(_listening(socket.AF_INET, ("0.0.0.0", port), shown, flag=flag, backlog=backlog))
    return bound


def _kernel_has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _listening(
    family: socket.AddressFamily, sockaddr: tuple[object, ...], shown: HostPort, *, flag: str, backlog: int
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(sockaddr)
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError as e:
        sock.close()
        why = "the port is taken" if e.errno == errno.EADDRINUSE else (e.strerror or str(e))
        raise StartupError(
            f"cannot listen on {shown}: {why}",
            next_steps=[f"choose another with {flag} HOST:PORT, or stop what listens there"],
        ) from None
    return sock


def bound_address(sockets: list[socket.socket], host: str) -> HostPort:
    """The address that `bind` got: port 0 became a real one."""
    return HostPort(host, sockets[0].getsockname()[1])
