"""`admission:` of the configuration file: how many requests at once, and how many may wait."""

from pydantic import BaseModel, ConfigDict, Field

from llmgw_router.core.config import Admission


class AdmissionEntry(BaseModel):
    """Numbers of this whole router, whatever its number of workers; null: no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_in_flight: int | None = Field(None, ge=1, description="requests at engines at once")
    max_in_flight_per_model: int | None = Field(None, ge=1, description="the same for each model")
    model_in_flight: dict[str, int] = Field({}, description="model: its own limit, before the one of each")
    heed_concurrency: bool = Field(
        True, description="no endpoint gets more at once than the controller says that it runs"
    )
    max_queued_per_model: int = Field(512, ge=0, description="most that wait for room at one model")
    max_queued: int = Field(4096, ge=0, description="most that wait for room in all")
    age_bound_s: float = Field(
        15.0, gt=0, description="who waited so long goes before higher priorities, one time in four"
    )

    def admission(self) -> Admission:
        """As the workers know it. Raises ValueError for a limit under which nothing could run."""
        low = sorted(model for model, limit in self.model_in_flight.items() if limit < 1)
        if low:
            raise ValueError(f"admission.model_in_flight of {', '.join(low)} must be at least 1")
        return Admission(**self.model_dump())
