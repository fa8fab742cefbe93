"""`endpoints:` of the configuration file: the engines of router-only mode."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from llmgw_kit.errors import InvalidRequest, LlmgwError
from llmgw_router.core.endpoints import STATIC_POOL, StaticEndpoint, split_endpoint, static_endpoint
from llmgw_router.settings_bounds import HEAVIEST


def told(error: LlmgwError) -> ValueError:
    """As a validator says it."""
    return ValueError("\n".join(error.lines()))


class EndpointEntry(BaseModel):
    """One engine of router-only mode, as the file writes it; `id=URL=model[,model]` is the short form."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    url: str
    models: tuple[str, ...]
    pool: str = STATIC_POOL
    weight: Annotated[int, Field(le=HEAVIEST)] = 1
    #: Requests go to the smallest tier that has a usable endpoint.
    tier: Annotated[int, Field(ge=0, le=100)] = 0
    #: Sent to the engine as `Authorization: Bearer`; what clients send never is.
    credential: SecretStr | None = None
    #: Of an https URL: a PEM file of the authorities that sign its certificate, instead of upstream_ca ...
    ca: Path | None = None
    #: ... and the name that its certificate is made out to, where that is not the URL's host.
    server_name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            endpoint_id, url, models = split_endpoint(value)
        except InvalidRequest as e:
            raise told(e) from None
        return {"id": endpoint_id, "url": url, "models": models}

    @field_validator("url")
    @classmethod
    def _without_trailing_slashes(cls, url: str) -> str:
        return url.strip().rstrip("/")

    @model_validator(mode="after")
    def _checked(self) -> "EndpointEntry":
        try:
            self.endpoint()
        except InvalidRequest as e:
            raise told(e) from None
        return self

    def endpoint(self) -> StaticEndpoint:
        """As the core knows it. Raises InvalidRequest."""
        return static_endpoint(
            self.id,
            self.url,
            self.models,
            pool=self.pool,
            weight=self.weight,
            tier=self.tier,
            credential=self.credential.get_secret_value() if self.credential is not None else None,
            ca=str(self.ca) if self.ca else None,
            server_name=self.server_name,
        )
