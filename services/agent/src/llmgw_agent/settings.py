"""The agent's settings: one class, each field with its unit and reason."""

import socket
import sys
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from pydantic_settings import SettingsConfigDict

from llmgw_agent.core.devices import Device
from llmgw_agent.core.sizes import parse_size
from llmgw_kit.addresses import HostPort, parse_host_port, parse_host_ports
from llmgw_kit.errors import InvalidRequest, LlmgwError
from llmgw_kit.ids import DeviceId
from llmgw_kit.settings import ServiceSettings
from llmgw_kit.tls import TlsFiles


def _told(error: LlmgwError) -> ValueError:
    return ValueError("\n".join(error.lines()))


def _address(value: str) -> str:
    try:
        return str(parse_host_port(value, what="address"))
    except InvalidRequest as e:
        raise _told(e) from None


def _addresses(value: str) -> str:
    try:
        return ",".join(str(found) for found in parse_host_ports(value, what="controller"))
    except InvalidRequest as e:
        raise _told(e) from None


def _mirrors(value: str) -> str:
    urls = [part.strip().rstrip("/") for part in value.split(",") if part.strip()]
    if not urls:
        raise ValueError("expected http://HOST:PORT[,http://HOST:PORT]")
    for url in urls:
        try:
            split = urlsplit(url)
            fine = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
        except ValueError:
            fine = False
        if not fine or split.query or split.fragment:
            raise ValueError(f"{url!r} is not a mirror's URL; expected http://HOST:PORT or https://HOST:PORT")
    return ",".join(urls)


def _size(value: object) -> int:
    try:
        return parse_size(value if isinstance(value, (int, str)) else str(value))
    except InvalidRequest as e:
        raise _told(e) from None


Address = Annotated[str, AfterValidator(_address)]
Size = Annotated[int, BeforeValidator(_size)]


class DeclaredDevice(BaseModel):
    """One device of a node whose devices are declared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str | None = Field(
        None, min_length=1, description="unique on the node, stable over restarts; default gpu-0, gpu-1, ..."
    )
    gpu_class: str = Field(min_length=1, description='what profiles ask for, e.g. "H100"')
    memory_bytes: Size | None = Field(
        None,
        validation_alias=AliasChoices("memory_bytes", "memory"),
        description='bytes, or "24GiB"; unknown when absent',
    )
    vendor: str = Field("declared", description="for people")


class AgentSettings(ServiceSettings):
    """Settings of one agent. Nothing in here is a secret."""

    model_config = SettingsConfigDict(env_prefix="LLMGW_AGENT_")

    node_id: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        description="name of this node; default its host name",
    )
    controller: Annotated[str, AfterValidator(_addresses)] = Field(
        "127.0.0.1:7070", description="HOST:PORT[,HOST:PORT] of the controllers"
    )
    data_dir: Path = Field(
        Path("/var/lib/llmgw/agent"), description="journal, weights and logs of engines; one agent each"
    )
    admin_listen: Address = Field("127.0.0.1:9092", description="admin pages, health and metrics")
    metrics_listen: Address | None = Field(None, description="health and metrics only; off by default")

    inventory: Literal["declared", "nvidia"] | None = Field(
        None, description="where devices come from; default declared when devices are listed, else nvidia"
    )
    devices: tuple[DeclaredDevice, ...] = Field(
        (), description="with inventory declared: this node's devices"
    )
    devices_state_file: Path | None = Field(
        None, description="with inventory declared: a JSON file that breaks devices, for tests; in data_dir"
    )
    fabrics: tuple[str, ...] = Field((), description="interconnects this node is on")
    pool: str | None = Field(None, description="pool this node is set aside for")
    labels: dict[str, str] = Field(default_factory=dict, description="for placement rules and people")

    management_interface: str | None = Field(
        None,
        description="its address is where routers reach this node's engines; default the first non-loopback",
    )
    management_address: str | None = Field(None, description="that address itself, or a host name")
    engine_listen: str | None = Field(
        None, description="address engines listen on; default the management address, 0.0.0.0 for a name"
    )
    engine_ports: str = Field(
        "20000-24999",
        description="ports leased to engines, both ends inclusive; below the kernel's ephemeral range",
    )
    engines: tuple[str, ...] | None = Field(None, description="engines this node offers; default those found")
    llamacpp_python: str = Field(
        sys.executable, description="Python (3.11 or newer) that has xllamacpp; default our own"
    )
    vllm_program: str = Field("vllm", description="the vllm program: a name on PATH, or a path")
    sglang_python: str = Field("python3", description="Python that has sglang")

    mirror: Annotated[str, AfterValidator(_mirrors)] | None = Field(
        None, description="base URL[,URL] of mirrors; default those the controller names"
    )
    mirror_tls_ca: Path | None = Field(
        None, description="PEM of the authority mirrors and other nodes are known by; default the system's"
    )
    mirror_tls_cert: Path | None = Field(
        None, description="PEM this node shows to mirrors and other nodes; with mirror_tls_key"
    )
    mirror_tls_key: Path | None = Field(None, description="its key")
    peers: bool = Field(True, description="whether pieces of weights are taken from other nodes too")
    peer_listen: Address | None = Field(
        None, description="where this node gives pieces to others, on its management address; off by default"
    )
    peer_uploads: int = Field(8, ge=1, le=256, description="pieces given at once; the rest wait in line")
    peer_upload_limit: Size | None = Field(
        None, description="bytes a second given to other nodes, all together; no limit by default"
    )
    hub_listen: Address | None = Field(
        None,
        description="loopback port with the Hub's protocol, for HF_ENDPOINT on this node; off by default",
    )
    fetch_parallel: int = Field(4, ge=1, le=64, description="files fetched at a time")
    fetch_give_up_s: float = Field(
        600.0, gt=0, description="seconds without one byte before a fetch has failed"
    )
    disk_reserve: Size = Field(1 << 30, description="bytes of the data disk that weights never fill")
    engine_log_max: Size = Field(32 << 20, description="bytes of one engine's log before it is cut")
    refresh_interval_s: float = Field(
        5.0, gt=0, description="seconds between two looks at devices, disk and weights"
    )
    probe_interval_s: float = Field(
        60.0, gt=0, description="seconds without traffic before an engine is asked one real request again"
    )
    device_quiet_s: float = Field(
        600.0, gt=0, description="seconds without another fault before a suspect GPU is used again"
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least that is said")
    log_style: Literal["text", "json"] = Field("text", description="how a line of the log looks")

    @field_validator("engine_ports")
    @classmethod
    def _ports(cls, value: str) -> str:
        first, dash, last = value.partition("-")
        if not dash or not first.strip().isdigit() or not last.strip().isdigit():
            raise ValueError("expected FIRST-LAST, for example 20000-24999")
        if not 1 <= int(first) <= int(last) <= 65535:
            raise ValueError("expected two ports from 1 to 65535, the first not above the last")
        return f"{int(first)}-{int(last)}"

    @field_validator("hub_listen")
    @classmethod
    def _hub(cls, value: str | None) -> str | None:
        # It lends this node's certificate to whoever can reach it.
        if value is not None and not parse_host_port(value, what="hub_listen").loopback:
            raise ValueError(f"{value} is not of this machine alone; expected 127.0.0.1:PORT")
        return value

    @field_validator("devices")
    @classmethod
    def _devices(cls, value: tuple[DeclaredDevice, ...]) -> tuple[DeclaredDevice, ...]:
        ids = [one.id or f"gpu-{index}" for index, one in enumerate(value)]
        doubled = sorted({one for one in ids if ids.count(one) > 1})
        if doubled:
            raise ValueError(f"device ids must differ; twice: {', '.join(doubled)}")
        return value

    @model_validator(mode="after")
    def _hub_has_a_mirror(self) -> "AgentSettings":
        if self.hub_listen is not None and self.mirror is None:
            raise ValueError("hub_listen passes on what a mirror answers: set mirror too")
        return self

    @property
    def port_range(self) -> tuple[int, int]:
        """`engine_ports` as numbers."""
        first, _, last = self.engine_ports.partition("-")
        return int(first), int(last)

    @property
    def provider(self) -> Literal["declared", "nvidia"]:
        """`inventory`, or what follows from the rest."""
        return self.inventory or ("declared" if self.devices else "nvidia")

    @property
    def controllers(self) -> tuple[str, ...]:
        """Addresses to dial."""
        return tuple(self.controller.split(","))

    @property
    def mirrors(self) -> tuple[str, ...]:
        """Override of the mirrors a shard names; empty: none."""
        return tuple(self.mirror.split(",")) if self.mirror is not None else ()

    @property
    def mirror_tls(self) -> TlsFiles:
        """What is shown to mirrors and other nodes, and whom this node trusts."""
        return TlsFiles(self.mirror_tls_cert, self.mirror_tls_key, self.mirror_tls_ca)

    @property
    def peer_address(self) -> HostPort | None:
        """Where pieces are given; None: nowhere."""
        return parse_host_port(self.peer_listen, what="--peer-listen") if self.peer_listen else None

    @property
    def hub_address(self) -> HostPort | None:
        """Where the Hub's protocol is spoken; None: nowhere."""
        return parse_host_port(self.hub_listen, what="--hub-listen") if self.hub_listen else None

    @property
    def admin_address(self) -> HostPort:
        """Where the admin pages listen."""
        return parse_host_port(self.admin_listen, what="--admin-listen")

    @property
    def metrics_address(self) -> HostPort | None:
        """Where health and metrics listen besides."""
        return parse_host_port(self.metrics_listen, what="--metrics-listen") if self.metrics_listen else None

    def declared(self) -> tuple[Device, ...]:
        """The declared devices as core knows them."""
        return tuple(
            Device(
                DeviceId(one.id or f"gpu-{index}"),
                index,
                one.gpu_class,
                one.vendor,
                memory_total_bytes=one.memory_bytes,
            )
            for index, one in enumerate(self.devices)
        )
