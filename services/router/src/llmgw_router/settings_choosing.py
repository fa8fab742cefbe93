"""`choosing:` of the configuration file: how an endpoint is picked, put aside, and tried again."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from llmgw_router.core.config import Choosing
from llmgw_router.core.heads import REQUEST
from llmgw_router.settings_bounds import LARGEST_BODY, MANY

Share = Annotated[float, Field(ge=0, le=1)]


def _names_a_session(name: str) -> str:
    if name.lower().encode() in REQUEST:
        raise ValueError(f"{name} is a secret, or means something else; take one such as x-session-id")
    return name


HeaderName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$"), AfterValidator(_names_a_session)
]


class ChoosingEntry(BaseModel):
    """What each field does stands in docs/router.md and at core/config.py."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    prefix_affinity: bool = Field(
        True, description="prompts that begin alike go where their beginning is known"
    )
    prefix_worth: float = Field(
        1.0, ge=0, le=1000, description="requests of load that 1 KiB of known prompt outweighs"
    )
    prefix_entries: int = Field(
        65_536, ge=1024, le=16_777_216, description="known prefixes a worker remembers; about 100 bytes each"
    )
    prefix_body_bytes: int = Field(
        2 * 1024 * 1024, ge=0, le=LARGEST_BODY, description="larger bodies are not read for their prompt"
    )
    imbalance: float = Field(
        8.0, ge=0, description="neither prefix nor session is followed to who is busier by so many requests"
    )
    imbalance_ratio: float = Field(1.5, ge=1, description="and by this factor")
    session_header: HeaderName | None = Field(
        "x-session-id", description="requests with the same value go to the same endpoint; null: none"
    )
    session_fields: tuple[Literal["prompt_cache_key", "user"], ...] = Field(
        ("prompt_cache_key",), description="the same for fields of the body, the first that is there"
    )
    eject_after: int = Field(3, ge=1, le=1000, description="failures in a row until an endpoint is put aside")
    eject_failing_share: Share = Field(0.5, description="or this share of the requests of a window or two")
    eject_min_requests: int = Field(20, ge=1, le=MANY, description="which are at least so many")
    window_s: float = Field(15.0, gt=0, le=3600)
    eject_most_share: Share = Field(
        0.5, description="most of a model's endpoints put aside; always one, never the last"
    )
    cool_down_first_s: float = Field(1.0, gt=0, le=3600, description="how long the first time; then doubled")
    cool_down_most_s: float = Field(60.0, gt=0, le=3600, description="at most; also of what engines ask for")
    trial_s: float = Field(30.0, gt=0, le=3600, description="how long one request may try an endpoint alone")
    slow_factor: Annotated[float, Field(gt=1)] | None = Field(
        4.0, description="so many times slower than its model's others: little load for a while; null: off"
    )
    slow_min_samples: int = Field(
        20, ge=1, le=MANY, description="streams measured before an endpoint is judged"
    )
    slow_s: float = Field(15.0, gt=0, le=3600)
    probe_s: Annotated[float, Field(gt=0, le=3600)] | None = Field(
        2.0, description="period of health checks of endpoints that failed; null: none"
    )
    retry_share: Share = Field(0.2, description="of the requests may be asked again elsewhere, per worker")
    retry_min_per_s: float = Field(2.0, ge=0, description="and so many a second besides")
    explain: bool = Field(False, description="without API keys: x-llmgw-decision for everybody")
    keep_decisions: int = Field(0, ge=0, le=10_000, description="choices kept for /admin/explain")

    def choosing(self) -> Choosing:
        """As the workers know it."""
        return Choosing(**self.model_dump())
