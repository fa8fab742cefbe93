"""What the settings say of tracing: whether, how much, and where to."""

from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from llmgw_router.core.header_texts import is_name, is_value

#: An export's own: another of them would make it another message.
_OURS = frozenset(
    ("connection", "content-encoding", "content-length", "content-type", "host", "transfer-encoding")
)


class TracingEntry(BaseModel):
    """Spans of sampled exchanges, exported by OTLP over HTTP. Off while `endpoint` is not set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint: str | None = Field(None, description="OTLP/HTTP collector, http://HOST:4318; off")
    ratio: float = Field(0.01, ge=0, le=1, description="share of requests whose caller has not decided")
    follow_parent: bool = Field(
        True, description="a caller's own decision counts; false: the ratio decides for everybody"
    )
    headers: dict[str, SecretStr] = Field({}, description="sent with every export, as for authorization")
    service_name: str = Field("llmgw-router", min_length=1, description="service.name of the spans")

    @field_validator("endpoint")
    @classmethod
    def _checked(cls, endpoint: str | None) -> str | None:
        if endpoint is None:
            return None
        parts = urlsplit(endpoint.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("this is no OTLP/HTTP endpoint; expected http://HOST:4318")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError("an OTLP endpoint has no user, query or fragment; credentials go into `headers`")
        return endpoint.strip().rstrip("/")

    @field_validator("headers")
    @classmethod
    def _can_be_sent(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            if not is_name(name):
                raise ValueError(f"{name!r} is no header name")
            if name.lower() in _OURS:
                raise ValueError(f"{name} is set by the export itself")
            if not is_value(value.get_secret_value()):
                raise ValueError(
                    f"the value of {name} cannot be sent: it is empty, begins or ends with a blank, or holds "
                    "control characters or what is not ASCII"
                )
        return headers

    @property
    def traces_url(self) -> str | None:
        """Where spans are posted (OTLP specification, "OTLP/HTTP Request"); None: tracing is off."""
        if self.endpoint is None:
            return None
        return self.endpoint if self.endpoint.endswith("/v1/traces") else f"{self.endpoint}/v1/traces"

    @property
    def worker_ratio(self) -> float | None:
        """What a worker is told; None: tracing is off."""
        return None if self.endpoint is None else self.ratio
