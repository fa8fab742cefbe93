"""Where everything of one lab is: its parts, their ports, their files. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
CONTROLLERS = ("controller-1", "controller-2")

#: The documented defaults where a service has one, near them for the second of a kind.
DEFAULT_PORTS: dict[str, int] = {
    "router": 8080,
    "router-admin": 9090,
    "controller-1": 7070,
    "controller-1-admin": 9091,
    "controller-2": 7072,
    "controller-2-admin": 9191,
    "mirror": 7071,
    "mirror-http": 8071,
    "mirror-admin": 9093,
    "lab-1-admin": 9092,
    "lab-2-admin": 9192,
}
#: First port for engines (below the kernel's ephemeral range), and how many each node has: both nodes
#: of the lab are one machine, and must not lease the same port.
ENGINE_PORTS_FROM, ENGINE_PORTS_END = 20_000, 25_000
ENGINE_PORTS_EACH = 50
ENGINE_PORTS_OF_LAB = 2 * ENGINE_PORTS_EACH


@dataclass(frozen=True)
class DeclaredGpu:
    """A GPU that is only claimed to exist; engines of the lab run on the CPU."""

    gpu_class: str
    memory_bytes: int


@dataclass(frozen=True)
class Node:
    """One agent of the lab."""

    node_id: str
    gpus: tuple[DeclaredGpu, ...]
    #: Both ends inclusive.
    engine_ports: tuple[int, int]


GIB = 1 << 30
SMALL, LARGE = DeclaredGpu("LAB-24G", 24 * GIB), DeclaredGpu("LAB-48G", 48 * GIB)


def lab_nodes(first_engine_port: int = ENGINE_PORTS_FROM) -> tuple[Node, ...]:
    """Two nodes, three small GPUs and a large one."""

    def engine_ports(i: int) -> tuple[int, int]:
        first = first_engine_port + i * ENGINE_PORTS_EACH
        return first, first + ENGINE_PORTS_EACH - 1

    return (
        Node("lab-1", (SMALL, SMALL), engine_ports(0)),
        Node("lab-2", (SMALL, LARGE), engine_ports(1)),
    )


def port_variable(name: str) -> str:
    """The environment variable that moves a port: router-admin -> LAB_ROUTER_ADMIN_PORT."""
    return f"LAB_{name.upper().replace('-', '_')}_PORT"


@dataclass(frozen=True)
class Layout:
    """One lab's folder and ports."""

    #: Absolute. Everything the lab writes is below it.
    folder: Path
    ports: Mapping[str, int]
    #: Both nodes' engine ports begin here.
    first_engine_port: int = ENGINE_PORTS_FROM

    def address(self, name: str) -> str:
        """HOST:PORT of a listener."""
        return f"{HOST}:{self.ports[name]}"

    @property
    def controllers(self) -> str:
        """What --controller takes."""
        return ",".join(self.address(name) for name in CONTROLLERS)

    @property
    def router_url(self) -> str:
        """Base of the client API."""
        return f"http://{self.address('router')}"

    def config(self, part: str) -> Path:
        """A service's configuration file."""
        return self.folder / "config" / f"{part}.yaml"

    def log(self, part: str) -> Path:
        """What a part prints."""
        return self.folder / "log" / f"{part}.log"

    def data(self, part: str) -> Path:
        """A part's own files."""
        return self.folder / "data" / part
