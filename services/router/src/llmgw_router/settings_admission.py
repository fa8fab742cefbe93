"""`admission:` of the configuration file: how many requests at once, and how many may wait."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from llmgw_router.core.config import Admission
from llmgw_router.settings_bounds import MANY, WEEK_S


class AdmissionEntry(BaseModel):
    """Numbers of this whole router, whatever its number of workers; null: no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_in_flight: int | None = Field(None, ge=1, le=MANY, description="requests at engines at once")
    max_in_flight_per_model: int | None = Field(None, ge=1, le=MANY, description="the same for each model")
    model_in_flight: dict[str, Annotated[int, Field(ge=1, le=MANY)]] = Field(
        {}, description="model: its own limit, before the one of each"
    )
    heed_concurrency: bool = Field(
        True, description="no endpoint gets more at once than the controller says that it runs"
    )
    max_queued_per_model: int = Field(512, ge=0, le=MANY, description="most that wait for room at one model")
    max_queued: int = Field(4096, ge=0, le=MANY, description="most that wait for room in all")
    max_waiting_bytes: int | None = Field(
        512 * 1024 * 1024,
        ge=1024,
        le=2**50,
        description="bytes of bodies that arrive or wait; a worker has an even share, or room for one body",
    )
    age_bound_s: float = Field(
        15.0,
        gt=0,
        le=WEEK_S,
        description="who waited so long goes before higher priorities, one time in four",
    )

    def admission(self) -> Admission:
        """As the workers know it."""
        return Admission(**self.model_dump())
