"""What a relay worker is told to do: limits, deadlines, choosing, admission. One immutable snapshot.

The supervisor makes it from settings and pushes it whole; a worker swaps it between two requests, and a
request keeps the routing profile with which it began. Seconds and bytes; None switches a deadline off.
"""

from collections.abc import Mapping

import msgspec

#: The profile that a request gets when nobody says otherwise; always there.
INTERACTIVE = "interactive"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the client's side and of the process; the same for every request."""

    max_body_bytes: int = 64 * 1024 * 1024
    max_head_bytes: int = 32 * 1024
    #: From the first byte of a request (or the accept) to the end of its headers.
    request_head_s: float = 10.0
    #: Longest silence while a request body is being sent to us.
    request_body_idle_s: float = 60.0
    #: A kept-alive client connection without a request. Longer than a usual load balancer's 60 s (W55).
    keepalive_s: float = 75.0
    #: A pooled upstream connection is closed after this; below uvicorn's 5 s (W54).
    upstream_idle_s: float = 4.0
    #: Pooled idle connections kept per endpoint and worker.
    upstream_idle_max: int = 256
    #: Period of the one sweep that looks at every deadline; their precision.
    sweep_s: float = 1.0
    #: After a refusal that left a request body unread: how long we go on reading, so that the
    #: answer is not lost in a reset.
    linger_s: float = 2.0
    #: Bytes that may wait in user space for one slow client before its engine is paused.
    high_water_bytes: int = 256 * 1024
    #: Longest wait for the cold application's first byte.
    cold_first_byte_s: float = 60.0


class RoutingProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines and patience of one class of traffic."""

    name: str = INTERACTIVE
    connect_s: float = 5.0
    #: From the request's departure to the first byte of the answer's body: a prompt is computed meanwhile.
    first_byte_s: float | None = 600.0
    #: Longest silence between two reads of an answer.
    idle_s: float | None = 120.0
    #: Longest time in which a client takes nothing while bytes wait for it.
    write_stall_s: float | None = 120.0
    total_s: float | None = 3600.0
    #: Longest wait for room at a model all of whose replicas are busy.
    queue_s: float = 30.0
    #: Longest wait for a cold model. None: as long as the model's own `hold_timeout_s` allows.
    hold_s: float | None = None
    #: Other endpoints tried after the first, while nothing has reached the client.
    max_retries: int = 2
    #: Larger goes first where requests wait for room.
    priority: int = 0


class Choosing(msgspec.Struct, frozen=True, kw_only=True):
    """How an endpoint is picked, put aside, and tried again."""


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """How much is let in at once, and how much may wait."""


class Telemetry(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker notes of each exchange besides counting it."""

    #: Send AccessRecords up.
    access_log: bool = False
    #: Share of exchanges traced where the caller has not decided. None: tracing is off, and a client's
    #: `traceparent` passes as it came.
    trace_ratio: float | None = None
    #: A caller's own decision (the sampled flag of its `traceparent`) counts.
    trace_follow_parent: bool = True


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `profiles` by name; `default_profile` and every value of `model_profiles` is one of them."""

    limits: Limits = Limits()
    profiles: Mapping[str, RoutingProfile] = msgspec.field(
        default_factory=lambda: {INTERACTIVE: RoutingProfile()}
    )
    default_profile: str = INTERACTIVE
    #: Model -> the profile of its requests where neither key nor header says another.
    model_profiles: Mapping[str, str] = msgspec.field(default_factory=dict)
    choosing: Choosing = Choosing()
    admission: Admission = Admission()
    telemetry: Telemetry = Telemetry()
