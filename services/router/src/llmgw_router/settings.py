"""The router's settings, and what must hold of them together before anything is opened."""

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import SettingsConfigDict

from llmgw_kit.addresses import HostPort, parse_host_port, parse_host_ports
from llmgw_kit.errors import InvalidRequest, StartupError
from llmgw_router.core.config import INTERACTIVE, Limits, Telemetry, UpstreamTls, WorkerConfig
from llmgw_router.core.endpoints import (
    StaticEndpoint,
    check_together,
    split_endpoint,
    static_endpoint,
)
from llmgw_router.settings_admission import AdmissionEntry
from llmgw_router.settings_bounds import (
    LARGEST_BODY,
    WEEK_S,
    check_files,
    check_profiles_of_keys,
    check_told,
)
from llmgw_router.settings_choosing import ChoosingEntry
from llmgw_router.settings_edges import check_origins, check_tls
from llmgw_router.settings_endpoints import EndpointEntry, told
from llmgw_router.settings_keys import KeyEntry, check_stores
from llmgw_router.settings_mirror import MirrorFields, check_mirror
from llmgw_router.settings_profiles import PLAIN, Name, ProfileEntry, check_names, resolved
from llmgw_router.settings_telemetry import TracingEntry
from llmgw_router.settings_usage import Usage

CLIENT_PORT = 8080
OPEN_LISTEN = f"0.0.0.0:{CLIENT_PORT}"
LOOPBACK_LISTEN = f"127.0.0.1:{CLIENT_PORT}"


def _address(value: str) -> str:
    try:
        return str(parse_host_port(value, what="address"))
    except InvalidRequest as e:
        raise told(e) from None


def _addresses(value: str) -> str:
    try:
        return ",".join(str(found) for found in parse_host_ports(value, what="address list"))
    except InvalidRequest as e:
        raise told(e) from None


def _redis_url(value: SecretStr) -> SecretStr:
    parts = urlsplit(value.get_secret_value())
    if parts.scheme not in ("redis", "rediss", "unix") or not (parts.hostname or parts.path):
        raise ValueError("this is no Redis URL; expected redis://[:PASSWORD@]HOST:PORT[/DB]")
    return value


def _postgres_url(value: SecretStr) -> SecretStr:
    if urlsplit(value.get_secret_value()).scheme not in ("postgres", "postgresql"):
        raise ValueError("this is no Postgres URL; expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
    return value


Address = Annotated[str, AfterValidator(_address)]


def _listed(value: Any) -> Any:
    return () if value is None else value


class RouterSettings(MirrorFields):
    """Everything a router can be told. Times in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="LLMGW_ROUTER_", allow_inf_nan=False)

    listen: Address | None = Field(
        None, description="client API; default 0.0.0.0:8080 with API keys (or insecure), else 127.0.0.1:8080"
    )
    admin_listen: Address = Field("127.0.0.1:9090", description="metrics and debugging; loopback on purpose")
    metrics_listen: Address | None = Field(None, description="metrics and health only, safe to expose; off")
    controller: Annotated[str, AfterValidator(_addresses)] | None = Field(
        None, description="controllers to follow, H:P[,H:P]; excludes endpoints"
    )
    endpoints: Annotated[tuple[EndpointEntry, ...], BeforeValidator(_listed)] = Field(
        (), description="router-only mode: engines to serve from; --endpoint adds to these"
    )
    redis_url: Annotated[SecretStr, AfterValidator(_redis_url)] | None = Field(
        None, description="where activity is noted for the controller; without it idleness stays unknown"
    )
    insecure: bool = Field(False, description="serve beyond loopback although no API key protects it")
    workers: int | None = Field(None, ge=1, le=64, description="relay workers; default: one a usable CPU")
    router_id: str | None = Field(
        None, min_length=1, max_length=128, description="stable name; default HOSTNAME-PORT"
    )
    state_dir: Path | None = Field(
        None,
        description="last route snapshot; default $XDG_STATE_HOME/llmgw/router-PORT (~/.local/state/...)",
    )
    drain_s: float = Field(
        30.0, ge=0, le=WEEK_S, description="what runs may finish for so long at a graceful stop (M10)"
    )
    unready_s: float = Field(
        0.0,
        ge=0,
        le=WEEK_S,
        description="served on after readiness goes off, for balancers to see it; Kubernetes: 5",
    )
    activity_tick_s: float = Field(5.0, gt=0, le=WEEK_S, description="one activity map to Redis each tick")
    activity_ttl_s: float = Field(
        45.0, gt=0, le=WEEK_S, description="a silent router's report vanishes; 3 x stale (15 s)"
    )
    request_head_s: float = Field(
        10.0, gt=0, le=WEEK_S, description="longest time for a request's headers, on every HTTP listener (M4)"
    )
    request_body_idle_s: float = Field(
        60.0, gt=0, le=WEEK_S, description="longest silence while a client sends a body"
    )
    keepalive_s: float = Field(
        75.0, gt=0, le=WEEK_S, description="a client connection that asks nothing; above balancers' 60 (W55)"
    )
    upstream_idle_s: float = Field(
        4.0, gt=0, le=WEEK_S, description="a pooled connection to an engine; below its own 5 s (W54)"
    )
    max_head_bytes: int = Field(
        32 * 1024, ge=1024, le=2**20, description="longest request line with headers; 431 above"
    )
    max_body_bytes: int = Field(
        64 * 1024 * 1024, ge=1024, le=LARGEST_BODY, description="longest request body; 413 above"
    )
    max_connections: int = Field(
        16_384, ge=16, le=2**20, description="client connections of one worker; more are closed as they come"
    )
    connect_s: float = Field(5.0, gt=0, le=WEEK_S, description="to connect to an engine")
    first_byte_s: float = Field(
        600.0, gt=0, le=WEEK_S, description="until an engine's first byte: a prompt is computed"
    )
    idle_s: float = Field(120.0, gt=0, le=WEEK_S, description="longest silence inside an answer")
    write_stall_s: float = Field(120.0, gt=0, le=WEEK_S, description="longest time a client may take nothing")
    total_s: float = Field(3600.0, gt=0, le=WEEK_S, description="longest exchange")
    profiles: dict[Name, ProfileEntry] = Field(
        {},
        validate_default=True,
        description="deadlines by class of traffic; interactive and batch are there unwritten",
    )
    default_profile: str = Field(INTERACTIVE, description="for requests of which nobody says another")
    model_profiles: dict[str, str] = Field(
        {}, description="model: profile of its requests, where neither header nor key says another"
    )
    admission: AdmissionEntry = Field(
        AdmissionEntry.model_validate({}), description="how many requests at once, and how many may wait"
    )
    choosing: ChoosingEntry = Field(
        ChoosingEntry.model_validate({}), description="how an endpoint is picked, put aside, and tried again"
    )
    upstream_ca: Path | None = Field(
        None, description="PEM authorities that https engines are verified with; default the system's"
    )
    upstream_cert: Path | None = Field(None, description="PEM certificate shown to engines that ask for one")
    upstream_key: Path | None = Field(None, description="its key, where that is a file of its own")
    cors_origins: tuple[str, ...] = Field(
        (), description="origins whose web pages may use the API, as https://app.example; * is any; off"
    )
    database_url: Annotated[SecretStr, AfterValidator(_postgres_url)] | None = Field(
        None, description="Postgres with API keys and usage; every request then needs a key"
    )
    require_keys: bool = Field(
        True, description="false: database_url is for usage only, and nobody is asked for a key"
    )
    keys: Annotated[tuple[KeyEntry, ...], BeforeValidator(_listed)] = Field(
        (), description="API keys without a database: digests, or keys; with any, every request needs one"
    )
    worker_hang_s: float = Field(
        10.0, ge=2, le=WEEK_S, description="a relay worker whose loop stands still for so long is replaced"
    )
    usage: Usage = Field(
        "asked",
        description="where a database or usage_file takes it: ask engines; note only what is told; or off",
    )
    usage_file: Path | None = Field(
        None, description="usage as JSON lines, where no database takes it; 8 files of 64 MiB are kept"
    )
    access_log: bool = Field(False, description="a JSON line a request, without bodies, queries or keys")
    access_log_file: Path | None = Field(
        None, description="where the access log goes; reopened when moved away; default stdout"
    )
    tracing: TracingEntry = Field(
        TracingEntry.model_validate({}), description="spans by OTLP/HTTP; off without an endpoint"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_style: Literal["text", "json"] = "text"

    @property
    def client_address(self) -> HostPort:
        """Where the client API listens: as given, else beyond loopback where keys guard it, or `insecure`."""
        default = OPEN_LISTEN if self.insecure or self.guarded else LOOPBACK_LISTEN
        return parse_host_port(self.listen or default, what="--listen")

    @property
    def records_usage(self) -> bool:
        """Whether there is somewhere to put it; `usage` may be switched on while the router runs."""
        return self.usage_file is not None or self.database_url is not None

    @property
    def usage_noted(self) -> Usage:
        """What `usage` comes to: nothing is asked, read or held back where nobody takes it."""
        return self.usage if self.records_usage else "off"

    @property
    def guarded(self) -> bool:
        """Whether every request needs a key."""
        return self.require_keys and (bool(self.keys) or self.database_url is not None)

    @property
    def admin_address(self) -> HostPort:
        return parse_host_port(self.admin_listen, what="--admin-listen")

    @property
    def metrics_address(self) -> HostPort | None:
        return parse_host_port(self.metrics_listen, what="--metrics-listen") if self.metrics_listen else None

    @property
    def controllers(self) -> tuple[HostPort, ...]:
        return parse_host_ports(self.controller, what="--controller") if self.controller else ()

    @property
    def worker_count(self) -> int:
        return self.workers or max(1, len(os.sched_getaffinity(0)))

    def static_endpoints(self) -> tuple[StaticEndpoint, ...]:
        return tuple(entry.endpoint() for entry in self.endpoints)

    @field_validator("profiles")
    @classmethod
    def _whole_profiles(
        cls, entries: dict[str, ProfileEntry], info: ValidationInfo
    ) -> dict[str, ProfileEntry]:
        # The plain deadlines are those of `interactive`; they stand before this field.
        return resolved(entries, plain={name: info.data[name] for name in PLAIN if name in info.data})

    @model_validator(mode="after")
    def _profiles_are_there(self) -> "RouterSettings":
        check_names(self.profiles, self.default_profile, self.model_profiles)
        return self

    def worker_config(self) -> WorkerConfig:
        """What the relay workers are told."""
        return WorkerConfig(
            limits=Limits(
                request_head_s=self.request_head_s,
                request_body_idle_s=self.request_body_idle_s,
                keepalive_s=self.keepalive_s,
                upstream_idle_s=self.upstream_idle_s,
                max_head_bytes=self.max_head_bytes,
                max_body_bytes=self.max_body_bytes,
                max_connections=self.max_connections,
            ),
            profiles={name: entry.profile(name) for name, entry in self.profiles.items()},
            default_profile=self.default_profile,
            model_profiles=self.model_profiles,
            admission=self.admission.admission(),
            choosing=self.choosing.choosing(),
            telemetry=Telemetry(
                usage=self.usage_noted,
                access_log=self.access_log,
                trace_ratio=self.tracing.worker_ratio,
                trace_follow_parent=self.tracing.follow_parent,
            ),
            keys_required=self.guarded,
            upstream_tls=self.upstream_tls(),
            cors_origins=self.cors_origins,
        )

    def upstream_tls(self) -> UpstreamTls:
        return UpstreamTls(
            ca=str(self.upstream_ca) if self.upstream_ca else None,
            cert=str(self.upstream_cert) if self.upstream_cert else None,
            key=str(self.upstream_key) if self.upstream_key else None,
        )

    def named(self, port: int) -> str:
        """This router's id, given its real client port: two routers of one machine differ by that."""
        return self.router_id or f"{socket.gethostname()}-{port}"

    def state_folder(self, port: int) -> Path:
        """Where state lives, given the real client port."""
        if self.state_dir is not None:
            return self.state_dir
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        return Path(base) / "llmgw" / f"router-{port}"


def with_flag_endpoints(settings: RouterSettings, flags: Sequence[str]) -> RouterSettings:
    """Add `--endpoint` values to the file's. Raises StartupError with what was given and expected."""
    added = []
    for text in flags:
        try:
            endpoint_id, url, models = split_endpoint(text)
            static_endpoint(endpoint_id, url, models)
        except InvalidRequest as e:
            raise StartupError(f"--endpoint {text!r}: {e.text}", next_steps=e.next_steps) from None
        added.append(EndpointEntry(id=endpoint_id, url=url, models=models))
    return settings.model_copy(update={"endpoints": (*settings.endpoints, *added)})


def check(settings: RouterSettings) -> None:
    """Refuse what cannot be meant, before a port is opened. Raises StartupError."""
    if settings.controller and settings.endpoints:
        raise StartupError(
            "endpoints and a controller exclude each other: the controller's routes replace a static list",
            next_steps=[
                "router-only mode: drop --controller (controller: in the file, LLMGW_ROUTER_CONTROLLER)",
                "a fleet: drop --endpoint (endpoints: in the file, LLMGW_ROUTER_ENDPOINTS)",
            ],
        )
    if not settings.controller and not settings.endpoints:
        raise StartupError(
            "nothing to serve: neither an endpoint nor a controller is configured",
            next_steps=[
                "one engine: llmgw-router serve --endpoint gpu1=http://HOST:PORT=MODEL",
                "a fleet: llmgw-router serve --controller HOST:7070",
                "or write `endpoints:` or `controller:` into a file and give it with --config FILE",
            ],
        )
    try:
        check_together(settings.static_endpoints())
    except InvalidRequest as e:
        raise StartupError(e.text, next_steps=e.next_steps) from None
    check_tls(settings.upstream_tls(), [str(entry.ca) for entry in settings.endpoints if entry.ca])
    check_origins(settings.cors_origins)
    check_mirror(settings)
    check_stores(
        settings.keys,
        database=settings.database_url is not None,
        usage_file=settings.usage_file is not None,
        required=settings.require_keys,
    )
    check_profiles_of_keys(settings.keys, settings.profiles)
    check_files(settings.usage_file, settings.access_log_file)
    check_told(settings.worker_config, settings.static_endpoints())
    client = settings.client_address
    if not client.loopback and not settings.insecure and not settings.guarded:
        raise StartupError(
            f"refusing to listen on {client}: no API key guards it: whoever reaches it could use every model",
            next_steps=[
                f"this machine only: --listen 127.0.0.1:{client.port}",
                "or guard it: `keys:` in the file (llmgw-router key new prints one), or database_url",
                "or accept that on a trusted network: --insecure",
            ],
        )
