"""Everything a controller can be told. Times in seconds, sizes in bytes."""

import hashlib
import json
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from llmgw_controller.catalog_file import canonical_json, parse_models
from llmgw_controller.catalog_schema import bytes_of
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.lease import LeaseTiming, validated
from llmgw_controller.core.state import EvictionPolicy, Intervals
from llmgw_kit.addresses import HostPort, parse_host_port, parse_peer
from llmgw_kit.errors import InvalidRequest, StartupError
from llmgw_kit.postgres import Pooler
from llmgw_kit.settings import ServiceSettings
from llmgw_kit.tls_watch import WatchedTls, client_tls


def _address(text: str) -> str:
    try:
        parse_host_port(text, what="address")
    except InvalidRequest as e:
        raise ValueError("; ".join((e.text, *e.next_steps))) from None
    return text


def _mirror_address(text: str) -> str:
    if "://" in text:
        raise ValueError(
            f"expected HOST:PORT of the mirror's gRPC; the URL for nodes is mirror_url (given {text!r})"
        )
    try:
        return str(parse_peer(text, what="mirror"))
    except InvalidRequest as e:
        raise ValueError("; ".join((e.text, *e.next_steps))) from None


def _mirror_urls(text: str) -> str:
    urls = [part.strip() for part in text.split(",") if part.strip()]
    if not urls:
        raise ValueError("expected http://HOST:PORT[,http://HOST:PORT]")
    for url in urls:
        try:
            split = urlsplit(url)
            port_given = split.port is not None
        except ValueError as e:
            raise ValueError(f"{url!r}: {e}") from None
        if split.scheme not in ("http", "https") or not split.hostname:
            raise ValueError(
                f"{url!r} is not the mirror's URL; expected http://HOST:PORT or https://HOST:PORT"
            )
        if split.path not in ("", "/") or split.query or split.fragment:
            raise ValueError(f"{url!r} has more than scheme, host and port")
        if split.port == 0:
            raise ValueError(f"{url!r} has port 0, which nobody can be called at")
        if not port_given:
            raise ValueError(f"{url!r} has no port; the mirror serves on 8071 unless told otherwise")
    return ",".join(url.rstrip("/") for url in urls)


def _redis_url(secret: SecretStr) -> SecretStr:
    try:
        split = urlsplit(secret.get_secret_value())
        fine = split.scheme in ("redis", "rediss", "unix") and (split.port or True)
    except ValueError:
        fine = False
    if not fine:
        raise ValueError("expected redis://HOST:PORT/NUMBER")
    return secret


Address = Annotated[str, AfterValidator(_address)]
Seconds = Annotated[float, Field(gt=0)]


class ControllerSettings(ServiceSettings):
    """Flag over environment (LLMGW_CONTROLLER_...) over file over default."""

    model_config = SettingsConfigDict(env_prefix="LLMGW_CONTROLLER_")

    listen: Address = Field("0.0.0.0:7070", description="gRPC: agents, routers, operators")
    admin_listen: Address = Field("127.0.0.1:9091", description="health and metrics; loopback on purpose")
    metrics_listen: Address | None = Field(None, description="health and metrics only, safe to expose; off")
    advertise: Address | None = Field(
        None,
        description="where others reach `listen`; default its host, or this machine's name where it has none",
    )
    name: str | None = Field(
        None, min_length=1, max_length=128, description="in messages and status; default from advertise"
    )
    cluster: str = Field("llmgw", min_length=1, max_length=64, description="first word of every view")
    dsn: SecretStr | None = Field(
        None, description="Postgres; without one there is one controller, in memory, and all is lost with it"
    )
    dsn_file: Path | None = Field(None, description="a file that holds the dsn")
    dsn_pool: int = Field(5, ge=2, le=100, description="connections for rows; the lease has one more")
    pooler: Pooler = Field("none", description="what stands between us and Postgres")
    lease_dsn: SecretStr | None = Field(
        None, description="Postgres without the pooler: the lease never goes through one"
    )
    dsn_give_up_s: Seconds = Field(60.0, description="at start, how long a silent Postgres is tried")
    redis_url: Annotated[SecretStr, AfterValidator(_redis_url)] | None = Field(
        None, description="where routers note activity; without it idleness is unknown and nothing is evicted"
    )
    mirror: Annotated[str, AfterValidator(_mirror_address)] | None = Field(
        None, description="the mirror's gRPC, HOST:PORT; asked to fetch weights"
    )
    mirror_url: Annotated[str, AfterValidator(_mirror_urls)] | None = Field(
        None, description="the mirror's HTTP as nodes reach it, http://HOST:PORT[,...], best first"
    )
    mirror_tls_ca: Path | None = Field(
        None, description="PEM authorities that the mirror's gRPC is verified with; none: plaintext"
    )
    mirror_tls_cert: Path | None = Field(None, description="PEM certificate shown to the mirror")
    mirror_tls_key: Path | None = Field(None, description="its key")
    mirror_tls_name: str | None = Field(
        None, min_length=1, description="what the mirror's certificate calls it, where that is not its host"
    )
    models: list[dict[str, Any]] = Field(
        [], description="the configured part of the catalog; docs/catalog.md"
    )

    reconcile_interval_s: Seconds = Field(2.0, description="between two passes when nothing hints at one")
    backoff_base_s: Seconds = Field(5.0, description="after the first failed start; doubles")
    backoff_max_s: Seconds = Field(300.0, description="longest wait between two starts")
    max_failures: int = Field(6, ge=1, description="failed starts of one replica before it is given up")
    beat_interval_s: Seconds = Field(5.0, description="what agents are told to beat at")
    unreachable_after_s: Seconds = Field(15.0, description="silence after which a node is routed around")
    lost_after_s: Seconds = Field(300.0, description="silence after which its work goes elsewhere")
    brake_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="nobody is judged lost while a larger share of the nodes is silent together"
    )
    learning_window_s: Seconds = Field(30.0, description="a new leader judges nobody for so long at most")
    lease_ttl_s: Seconds = Field(10.0, description="a dead leader is followed after so long at most")
    lease_renew_s: Seconds = Field(2.0, description="between two renewals")
    lease_retry_s: Seconds = Field(1.0, description="after a failed one; also a standby's look")
    lease_margin_s: Seconds = Field(2.0, description="leading ends so long before the lease")
    activity_tick_s: Seconds = Field(5.0, description="between two readings of the routers' map")
    router_stale_s: Seconds = Field(15.0, description="age at which a router's report says nothing any more")
    activation_stale_s: Seconds = Field(30.0, description="an activation nobody repeats is closed")
    port_quarantine_s: Annotated[float, Field(ge=0)] = Field(60.0, description="a freed port rests so long")
    foreign_bytes: Annotated[int, BeforeValidator(bytes_of), Field(gt=0)] = Field(
        512 * 2**20, description="memory used by others from which on a GPU is theirs"
    )
    eviction: Literal["off", "suggest", "on"] = Field(
        "off", description="whether idle replicas leave for models that wait: off, shown only, or done"
    )
    evictions_per_hour: int = Field(12, ge=0, description="of the whole cluster")
    evictions_per_model_per_hour: int = Field(3, ge=0, description="of one model's replicas")
    residency_loads: Annotated[float, Field(ge=0)] = Field(
        3.0, description="nothing is evicted sooner than so many of its own measured loads after it was ready"
    )
    regret_loads: Annotated[float, Field(ge=0)] = Field(
        2.0, description="asked for again within so many loads, a victim was evicted in error"
    )
    eviction_patience_s: Seconds = Field(
        600.0, description="who waits longer than this for room gets it over budget and residency"
    )
    scale_up_after_s: Seconds = Field(30.0, description="waiting without a break that adds a replica")
    failing_nodes: int = Field(2, ge=2, description="the same failure on so many nodes is the profile's")
    events_keep_s: Seconds = Field(30 * 86_400.0, description="older events are forgotten")
    stop_s: Annotated[float, Field(ge=0)] = Field(3.0, description="what calls under way get at a stop")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_style: Literal["text", "json"] = "text"

    @property
    def listen_address(self) -> HostPort:
        """gRPC."""
        return parse_host_port(self.listen, what="--listen")

    @property
    def admin_address(self) -> HostPort:
        """Health and metrics, for this machine."""
        return parse_host_port(self.admin_listen, what="--admin-listen")

    @property
    def metrics_address(self) -> HostPort | None:
        """Health and metrics, for others."""
        return parse_host_port(self.metrics_listen, what="--metrics-listen") if self.metrics_listen else None

    @property
    def mirror_address(self) -> HostPort | None:
        """The mirror's gRPC."""
        return parse_host_port(self.mirror, what="mirror") if self.mirror else None

    def mirror_tls(self) -> WatchedTls | None:
        """TLS towards the mirror's gRPC; None: plaintext. Reads the files; raises StartupError."""
        return client_tls(
            ca=self.mirror_tls_ca, cert=self.mirror_tls_cert, key=self.mirror_tls_key, what="mirror_tls"
        )

    @property
    def mirror_urls(self) -> tuple[str, ...]:
        """What agents are given."""
        return tuple(self.mirror_url.split(",")) if self.mirror_url else ()

    def advertised(self, bound: HostPort) -> HostPort:
        """Where others reach us, given the address that was bound."""
        if self.advertise is not None:
            return parse_host_port(self.advertise, what="--advertise")
        if bound.host in ("*", "0.0.0.0", "::"):
            return HostPort(socket.gethostname(), bound.port)
        return bound

    def named(self, advertised: HostPort) -> str:
        """The given name; else the advertised host where that is a name; else this machine's, with the port:
        two controllers of one machine differ by that."""
        if self.name is not None:
            return self.name
        try:
            ip_address(advertised.host)
        except ValueError:
            if advertised.host != "localhost":
                return advertised.host
        return f"{socket.gethostname()}-{advertised.port}"

    def dsn_text(self) -> str | None:
        """The DSN, from wherever it comes; None: no database. Raises StartupError."""
        if self.dsn_file is None:
            return self.dsn.get_secret_value() if self.dsn is not None else None
        if self.dsn is not None:
            raise StartupError("both dsn and dsn_file are set", next_steps=["keep one of them"])
        try:
            return self.dsn_file.read_text(encoding="utf-8").strip()
        except OSError as e:
            raise StartupError(f"dsn_file {self.dsn_file} cannot be read: {e.strerror}") from None

    def lease_timing(self) -> LeaseTiming:
        """Raises InvalidRequest with the numbers when the timings cannot work."""
        return validated(
            LeaseTiming(self.lease_ttl_s, self.lease_renew_s, self.lease_retry_s, self.lease_margin_s)
        )

    def intervals(self) -> Intervals:
        """What decisions use."""
        return Intervals(
            unreachable_after_s=self.unreachable_after_s,
            lost_after_s=self.lost_after_s,
            learning_window_s=self.learning_window_s,
            backoff_base_s=self.backoff_base_s,
            backoff_max_s=self.backoff_max_s,
            max_failures=self.max_failures,
            activation_stale_s=self.activation_stale_s,
            port_quarantine_s=self.port_quarantine_s,
            router_stale_s=self.router_stale_s,
            foreign_bytes=self.foreign_bytes,
            brake_share=self.brake_share,
            eviction=EvictionPolicy(self.eviction),
            evictions_per_hour=self.evictions_per_hour,
            evictions_per_model_per_hour=self.evictions_per_model_per_hour,
            residency_loads=self.residency_loads,
            regret_loads=self.regret_loads,
            eviction_patience_s=self.eviction_patience_s,
            scale_up_after_s=self.scale_up_after_s,
            failing_nodes=self.failing_nodes,
        )

    def configured(self, config: Path | None) -> list[Model]:
        """The models of the configuration. Raises InvalidRequest with the place of a mistake."""
        return parse_models(self.models, where=str(config or "settings"))


def check(settings: ControllerSettings) -> None:
    """Refuse what cannot work, before a port is opened. Raises StartupError or InvalidRequest."""
    settings.lease_timing()
    if settings.unreachable_after_s < 2 * settings.beat_interval_s:
        raise StartupError(
            f"unreachable_after_s {settings.unreachable_after_s:g} is less than two beats of "
            f"{settings.beat_interval_s:g} s: one late beat would make a node unreachable",
            next_steps=["lengthen unreachable_after_s or shorten beat_interval_s"],
        )
    if settings.lost_after_s <= settings.unreachable_after_s:
        raise StartupError(
            f"lost_after_s {settings.lost_after_s:g} is not after unreachable_after_s "
            f"{settings.unreachable_after_s:g}"
        )
    if settings.backoff_max_s < settings.backoff_base_s:
        raise StartupError(
            f"backoff_max_s {settings.backoff_max_s:g} is below backoff_base_s {settings.backoff_base_s:g}"
        )
    if settings.pooler != "none" and settings.lease_dsn is None and settings.dsn_text() is not None:
        raise StartupError(
            f"pooler {settings.pooler} without lease_dsn: the lease must not go through a pooler",
            next_steps=["set lease_dsn to Postgres itself"],
        )
    if (settings.mirror is None) is not (settings.mirror_url is None):
        given, missing = ("mirror", "mirror_url") if settings.mirror else ("mirror_url", "mirror")
        raise StartupError(
            f"{given} is set, {missing} is not: one is the mirror's gRPC, the other its HTTP for nodes",
            next_steps=[f"set {missing} too"],
        )
    if settings.mirror_tls() is not None and settings.mirror is None:
        raise StartupError(
            "mirror_tls_ca is set, but no mirror", next_steps=["set mirror and mirror_url, or drop it"]
        )


def config_hash(settings: ControllerSettings, models: Sequence[Model]) -> str:
    """Names what decisions depend on: controllers of one cluster must agree on it."""
    text = json.dumps(
        {
            "cluster": settings.cluster,
            "models": [canonical_json(model) for model in sorted(models, key=lambda one: one.name)],
            "intervals": {
                name: getattr(settings.intervals(), name)
                for name in Intervals.__dataclass_fields__
                if name != "eviction"
            },
            "eviction": settings.eviction,
            "mirror_urls": settings.mirror_urls,
        },
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:12]
