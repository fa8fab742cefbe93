"""`profiles:` of the configuration file: deadlines and patience by class of traffic.

`interactive` and `batch` are there without being written; a table of the same name changes only what it
names. Any other table makes a profile of its own, which has `interactive`'s values where it says nothing.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from llmgw_router.core.config import INTERACTIVE, RoutingProfile
from llmgw_router.core.profiles import SHIPPED

Seconds = Annotated[float, Field(gt=0, le=7 * 86_400)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]


class ProfileEntry(BaseModel):
    """One profile as the file writes it. Seconds; null switches a deadline off where that is possible."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    connect_s: Seconds | None = Field(None, description="to connect to an engine; never off")
    first_byte_s: Seconds | None = Field(None, description="until an engine's first byte of a body")
    idle_s: Seconds | None = Field(None, description="longest silence inside an answer")
    write_stall_s: Seconds | None = Field(None, description="longest time a client may take nothing")
    total_s: Seconds | None = Field(None, description="the whole of it, waiting and retries included")
    queue_s: Annotated[float, Field(ge=0, le=7 * 86_400)] | None = Field(
        None, description="longest wait for room at a busy model; 0: none"
    )
    hold_s: Seconds | None = Field(
        None, description="longest wait for a cold model; null: what the model allows"
    )
    max_retries: int | None = Field(None, ge=0, le=16, description="other endpoints tried after the first")
    priority: int | None = Field(None, ge=-1000, le=1000, description="larger goes first where requests wait")
    pools: tuple[str, ...] | None = Field(None, description="its requests stay in these pools; null: any")
    heartbeat: bool | None = Field(
        None, description="streams that wait are told so by SSE comments, without asking for it"
    )
    heartbeat_after_s: Seconds | None = Field(None, description="waited so long before the first comment")
    heartbeat_every_s: Seconds | None = Field(None, description="between two comments")

    def profile(self, name: str) -> RoutingProfile:
        """As the workers know it, of an entry that names every field."""
        return RoutingProfile(name=name, **self.model_dump())


_MAY_BE_OFF = frozenset({"first_byte_s", "idle_s", "write_stall_s", "total_s", "hold_s", "pools"})

#: Settings of the top level that are `interactive`'s deadlines.
PLAIN = ("connect_s", "first_byte_s", "idle_s", "write_stall_s", "total_s")


def resolved(entries: Mapping[str, ProfileEntry], *, plain: Mapping[str, float]) -> dict[str, ProfileEntry]:
    """Every profile with every field: as given, else as shipped, else as `interactive`, whose own deadlines
    are `plain` where its entry names none. Raises ValueError for a null where there is no off."""
    interactive = _over(SHIPPED[INTERACTIVE], plain)
    if INTERACTIVE in entries:
        interactive = _over(interactive, _given(INTERACTIVE, entries[INTERACTIVE]))
    made = {**SHIPPED, INTERACTIVE: interactive}
    for name, entry in entries.items():
        if name != INTERACTIVE:
            made[name] = _over(SHIPPED.get(name, interactive), _given(name, entry))
    return {name: _entry(profile) for name, profile in sorted(made.items())}


def _over(base: RoutingProfile, given: Mapping[str, object]) -> RoutingProfile:
    return msgspec.structs.replace(base, **given)


def _given(name: str, entry: ProfileEntry) -> dict[str, object]:
    given = {field: getattr(entry, field) for field in entry.model_fields_set}
    never = sorted(field for field, value in given.items() if value is None and field not in _MAY_BE_OFF)
    if never:
        raise ValueError(f"{name}: {', '.join(never)} cannot be null")
    return given


def _entry(profile: RoutingProfile) -> ProfileEntry:
    return ProfileEntry.model_validate(
        {field: getattr(profile, field) for field in ProfileEntry.model_fields}
    )


def check_names(profiles: Mapping[str, object], default: str, of_models: Mapping[str, str]) -> None:
    """Raises ValueError where a name stands for no profile."""
    for what, name in (
        ("default_profile", default),
        *((f"model_profiles: {m}", p) for m, p in of_models.items()),
    ):
        if name not in profiles:
            raise ValueError(f"{what} is {name!r}; there are: {', '.join(sorted(profiles))}")
