"""HOST:PORT as people write it, and how it is bound and shown (IPv6 bracketed)."""

from dataclasses import dataclass

from llmgw_kit.errors import InvalidRequest


@dataclass(frozen=True, order=True)
class HostPort:
    """`host` "*" means every family the kernel has; port 0 lets the kernel choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Reachable from this machine only."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def parse_host_port(text: str, *, what: str) -> HostPort:
    """Parse one address. `what` names the flag or setting.

    Raises InvalidRequest saying what was given and what was expected."""
    given = text.strip()
    host, colon, port = given.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif "://" in given:
        raise InvalidRequest(
            f"{what} {given!r} is a URL; expected HOST:PORT",
            next_steps=[f"try: {given.split('://', 1)[1].rstrip('/')}"],
        )
    elif ":" in host:
        raise InvalidRequest(
            f"{what} {given!r} is not HOST:PORT",
            next_steps=[f"an IPv6 host stands in brackets: [{host}]:{port}"],
        )
    if not colon and given.isdigit():
        raise InvalidRequest(
            f"{what} {given} has no host; expected HOST:PORT", next_steps=[f"try: 127.0.0.1:{given}"]
        )
    if not colon:
        raise InvalidRequest(
            f"{what} {given} has no port; expected HOST:PORT", next_steps=[f"try: {given}:PORT"]
        )
    if not host:
        raise InvalidRequest(
            f"{what} {given!r} has no host; expected HOST:PORT", next_steps=["every address: *:PORT"]
        )
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidRequest(f"{what} {given!r} has port {port!r}; expected a number from 0 to 65535")
    return HostPort(host, int(port))


def parse_peer(text: str, *, what: str) -> HostPort:
    """Parse the address of somebody to call: no scheme, a real host and a real port.

    Raises InvalidRequest."""
    if "://" in text:
        raise InvalidRequest(
            f"{what} {text.strip()!r} is a URL; expected HOST:PORT",
            next_steps=[f"try: {text.split('://', 1)[1].strip().rstrip('/')}"],
        )
    found = parse_host_port(text, what=what)
    if found.port == 0:
        raise InvalidRequest(f"{what} {text.strip()!r} has port 0, which nobody can be called at")
    if found.host in ("*", "0.0.0.0", "::") or any(one.isspace() or one in "/@?#" for one in found.host):
        raise InvalidRequest(f"{what} {text.strip()!r}: {found.host!r} is no host that can be called")
    return found


def parse_host_ports(text: str, *, what: str) -> tuple[HostPort, ...]:
    """Parse `H:P[,H:P]`; at least one."""
    found = tuple(parse_host_port(part, what=what) for part in text.split(",") if part.strip())
    if not found:
        raise InvalidRequest(f"{what} is empty; expected HOST:PORT[,HOST:PORT]")
    return found
