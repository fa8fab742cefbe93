"""The mirror's settings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import NoDecode, SettingsConfigDict

from llmgw_kit.addresses import HostPort, parse_host_port
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.settings import ServiceSettings
from llmgw_kit.tls import TlsFiles
from llmgw_mirror.core.origins import check_url, origin_of
from llmgw_mirror.core.pacing import Limits, parse_schedule
from llmgw_mirror.core.registry_names import check_base
from llmgw_mirror.manners import Pace


def _told(error: InvalidRequest) -> ValueError:
    return ValueError("\n".join(error.lines()))


def _address(value: str) -> str:
    try:
        return str(parse_host_port(value, what="address"))
    except InvalidRequest as e:
        raise _told(e) from None


def _folders(value: Any) -> Any:
    """From the environment: folders divided as in PATH."""
    return tuple(part for part in value.split(os.pathsep) if part) if isinstance(value, str) else value


def _words(value: Any) -> Any:
    """From the environment: divided by commas."""
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


Address = Annotated[str, AfterValidator(_address)]


class MirrorSettings(ServiceSettings):
    """Everything a mirror can be told. Times in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="LLMGW_MIRROR_")

    listen: Address = Field("0.0.0.0:7071", description="gRPC, for controllers and operators")
    http_listen: Address = Field("0.0.0.0:8071", description="files, for nodes")
    admin_listen: Address = Field("127.0.0.1:9093", description="metrics and debugging; loopback on purpose")
    metrics_listen: Address | None = Field(None, description="metrics and health only, safe to expose; off")
    tls_cert: Path | None = Field(
        None,
        description="PEM certificate (chain) shown on `listen` and `http_listen`; none: both are plaintext",
    )
    tls_key: Path | None = Field(None, description="its key; replaced files are taken up without a restart")
    tls_client_ca: Path | None = Field(
        None, description="PEM authorities; who shows no certificate of theirs is refused on both listeners"
    )
    data_dir: Path = Field(
        Path("/var/lib/llmgw/mirror"), description="the store; may be shared by mirrors that share a dsn"
    )
    dsn: SecretStr | None = Field(
        None, description="Postgres; without it one mirror alone, its state in the store's own files only"
    )
    pooler: Literal["none", "session", "transaction"] = Field(
        "none", description="what stands before Postgres"
    )
    dsn_patience_s: float = Field(
        60.0, ge=0, description="at start, how long a silent Postgres is waited for"
    )

    file_roots: Annotated[tuple[Path, ...], NoDecode, BeforeValidator(_folders)] = Field(
        (), description="folders that file URLs may name files in; none: file URLs are refused"
    )
    bundle_dir: Path | None = Field(
        None, description="where versions are exported to and imported from as bundles; none: neither is done"
    )
    upstream_proxy: SecretStr | None = Field(
        None,
        description="HTTP proxy towards upstreams only, perhaps with a login; proxy variables are not read",
    )
    upstream_tokens: Mapping[str, SecretStr] = Field(
        {}, description="bearer token by origin (https://HOST[:PORT]); sent to that origin alone"
    )
    connect_timeout_s: float = Field(10.0, gt=0, description="to connect to an upstream")
    registry_url: str | None = Field(
        None, description="base URL of the registry to search, perhaps with a path; none: nothing is searched"
    )
    registry_token: SecretStr | None = Field(
        None, description="bearer token for the registry; sent to its origin alone, for its files as well"
    )
    registry_timeout_s: float = Field(
        10.0, gt=0, description="for one answer of the registry, redirects and body included"
    )

    parallel_fetches: int = Field(4, ge=1, le=64, description="files fetched at once")
    parallel_per_origin: int | None = Field(
        None, ge=1, le=64, description="of one origin at once; bounded by parallel_fetches alone unless set"
    )
    fetch_rate_bytes_s: int | None = Field(
        None, ge=1, description="cap on what comes from http and https, all files together; none"
    )
    fetch_schedule: str | None = Field(
        None,
        description="caps by the time of the week, the first that covers it counts, else fetch_rate_bytes_s: "
        "mon-fri 08:00-18:00=20MB/s, 22:00-06:00=unlimited, sat=pause, *=100MB/s",
    )
    fetch_schedule_zone: str | None = Field(
        None, description="the schedule's time zone, such as Europe/Rome or UTC; never the machine's own"
    )
    stall_window_s: float = Field(
        30.0, gt=0, description="a transfer that gains too little in it is cut and resumed"
    )
    stall_bytes: int = Field(1, ge=1, description="the least a window must gain")
    attempts: int = Field(8, ge=1, description="in a row without progress before a file counts as failed")
    backoff_base_s: float = Field(0.5, gt=0, description="before the second attempt; doubles")
    backoff_most_s: float = Field(60.0, gt=0, description="longest wait between attempts of our own choice")
    pause_most_s: float = Field(
        3600.0, gt=0, description="longest Retry-After that is obeyed; above, the file fails"
    )
    disk_reserve_bytes: int = Field(
        256 * 1024 * 1024, ge=0, description="kept free: a full disk stops everything else on it too"
    )
    lease_ttl_s: float = Field(15.0, ge=1, description="after a mirror's death another takes its fetch over")
    pass_interval_s: float = Field(5.0, gt=0, description="how often the whole store is looked at")
    removal_undo_s: float = Field(
        86_400.0, ge=0, description="a removed version can be restored for so long; sooner purged for room"
    )
    scrub_interval_days: float = Field(
        30.0, ge=0, description="all content is read again once in so many days; 0: never by itself"
    )
    scrub_rate_bytes_s: float = Field(50e6, gt=0, description="at most so fast; slower while nodes read")
    damaged_keep_days: float = Field(
        7.0, ge=0, description="content found damaged is kept so long for people to look at"
    )
    damaged_keep_bytes: int = Field(20 * 1024**3, ge=0, description="and at most so much of it, the newest")
    history_keep_days: float = Field(
        365.0,
        ge=1,
        description="lines of the history are kept so long; without a database, the newest 1000",
    )
    send_stall_s: float = Field(60.0, gt=0, description="a node that takes no byte for so long is cut off")
    piece_uploads: int = Field(
        16, ge=1, le=1024, description="pieces sent to nodes at once; the rest wait in line"
    )
    pull_through: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_words)] = Field(
        (),
        description="repositories that Hub clients have fetched by asking, as patterns such as org/*; off",
    )
    hub_prefix: str = Field(
        "",
        pattern=r"^(/[A-Za-z0-9._~-]+)*$",
        description="path below which the Hub's protocol is offered as well, such as /hub; ends HF_ENDPOINT",
    )
    hub_big_bytes: int = Field(
        50_000_000_000,
        ge=0,
        description="newer Hub clients refuse a file above this size if they are told it; so they are not",
    )
    drain_s: float = Field(30.0, ge=0, description="what nodes are reading may go on for so long at a stop")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_style: Literal["text", "json"] = "text"

    @field_validator("file_roots")
    @classmethod
    def _absolute(cls, roots: tuple[Path, ...]) -> tuple[Path, ...]:
        for root in roots:
            if not root.is_absolute():
                raise ValueError(f"{root} is not an absolute path")
        return roots

    @field_validator("upstream_tokens")
    @classmethod
    def _origins(cls, tokens: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
        for url in tokens:
            try:
                check_url(url, what="an origin")
            except InvalidRequest as e:
                raise _told(e) from None
            if url.startswith("file:") or str(origin_of(url)) != url.rstrip("/"):
                raise ValueError(f"{url!r} is not an origin; expected https://HOST or http://HOST:PORT")
        return tokens

    @field_validator("registry_url")
    @classmethod
    def _registry(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            check_url(url, what="registry_url")
        except InvalidRequest as e:
            raise _told(e) from None
        return check_base(url)

    @field_validator("pull_through")
    @classmethod
    def _pulled(cls, patterns: tuple[str, ...], known: ValidationInfo) -> tuple[str, ...]:
        # A mistyped registry_url is not there, and told by itself.
        if patterns and known.data.get("registry_url", "mistyped") is None:
            raise ValueError("there is no registry to pull from; set registry_url as well")
        return patterns

    @field_validator("upstream_proxy")
    @classmethod
    def _proxy(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not url.get_secret_value().startswith(("http://", "https://")):
            raise ValueError("not a proxy's URL; expected http://HOST:PORT")
        return url

    @property
    def tls_files(self) -> TlsFiles:
        """False: plaintext."""
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_client_ca)

    @field_validator("fetch_schedule")
    @classmethod
    def _schedule(cls, text: str | None) -> str | None:
        try:
            return text if text is None or parse_schedule(text) else None
        except InvalidRequest as e:
            raise _told(e) from None

    @model_validator(mode="after")
    def _zone(self) -> "MirrorSettings":
        if (self.fetch_schedule is None) != (self.fetch_schedule_zone is None):
            raise ValueError("fetch_schedule and fetch_schedule_zone are set both or not at all")
        try:
            self.limits()
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(
                f"fetch_schedule_zone {self.fetch_schedule_zone!r} is no time zone known here; "
                "expected a name such as Europe/Rome or UTC"
            ) from None
        return self

    def limits(self) -> Limits:
        if self.fetch_schedule is None or self.fetch_schedule_zone is None:
            return Limits(self.fetch_rate_bytes_s)
        zone = ZoneInfo(self.fetch_schedule_zone)
        return Limits(self.fetch_rate_bytes_s, parse_schedule(self.fetch_schedule), zone)

    @property
    def grpc_address(self) -> HostPort:
        return parse_host_port(self.listen, what="--listen")

    @property
    def http_address(self) -> HostPort:
        return parse_host_port(self.http_listen, what="--http-listen")

    @property
    def admin_address(self) -> HostPort:
        return parse_host_port(self.admin_listen, what="--admin-listen")

    @property
    def metrics_address(self) -> HostPort | None:
        return parse_host_port(self.metrics_listen, what="--metrics-listen") if self.metrics_listen else None

    def pace(self) -> Pace:
        return Pace(
            stall_window_s=self.stall_window_s,
            stall_bytes=self.stall_bytes,
            attempts=self.attempts,
            backoff_base_s=self.backoff_base_s,
            backoff_most_s=self.backoff_most_s,
            pause_most_s=self.pause_most_s,
            lease_ttl_s=self.lease_ttl_s,
        )
