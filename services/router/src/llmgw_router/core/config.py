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
    #: Client connections of one worker; more are closed as they come.
    max_connections: int = 16_384
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
    #: Pools whose endpoints its requests may use. None: any.
    pools: tuple[str, ...] | None = None
    #: A stream that waits is told so by SSE comments although its request did not ask for them.
    heartbeat: bool = False
    #: How long it has waited before the first one, after which its status is 200; and from one to the next.
    heartbeat_after_s: float = 5.0
    heartbeat_every_s: float = 10.0


class Choosing(msgspec.Struct, frozen=True, kw_only=True):
    """How an endpoint is picked, put aside, and tried again (core/choosing/)."""

    #: Send prompts that begin alike to the endpoints that have seen their beginning.
    prefix_affinity: bool = True
    #: Requests of load that 1 KiB of known prompt outweighs.
    prefix_worth: float = 1.0
    #: Known prefixes remembered by each worker; about 100 bytes each.
    prefix_entries: int = 65_536
    #: Bodies above this are not read for their prompt: that holds up the streams of others.
    prefix_body_bytes: int = 2 * 1024 * 1024
    #: Neither prefix nor session is followed to an endpoint that is busier than the least busy one by
    #: both this number of requests and this factor.
    imbalance: float = 8.0
    imbalance_ratio: float = 1.5
    #: Requests with the same value go to the same endpoint. None: no header is looked at.
    session_header: str | None = "x-session-id"
    #: The same for fields of the body, the first that is there; "user" and "prompt_cache_key" are known.
    session_fields: tuple[str, ...] = ("prompt_cache_key",)
    #: Failures in a row until an endpoint is ejected; a refused connection needs no second one.
    eject_after: int = 3
    #: Or this share of at least so many requests in the last window or two.
    eject_failing_share: float = 0.5
    eject_min_requests: int = 20
    window_s: float = 15.0
    #: At most this share of a model's endpoints is ejected; always one, never the last.
    eject_most_share: float = 0.5
    #: The first ejection lasts so long, each in a row twice as long, up to the top.
    cool_down_first_s: float = 1.0
    cool_down_most_s: float = 60.0
    #: The one request that tries an ejected endpoint has this long until another may.
    trial_s: float = 30.0
    #: An endpoint whose first bytes come so many times later, or whose streams so many times slower, than
    #: those of the model's others gets an eighth of its weight for a while. None: speed is not looked at.
    slow_factor: float | None = 4.0
    #: Streams measured before an endpoint is judged.
    slow_min_samples: int = 20
    slow_s: float = 15.0
    #: Period of health checks of endpoints that failed. None: there are none.
    probe_s: float | None = 2.0
    #: Requests asked again at another endpoint: this share of all, and so many a second besides, per worker.
    retry_share: float = 0.2
    retry_min_per_s: float = 2.0
    #: Without API keys: show `x-llmgw-decision` to everybody.
    explain: bool = False
    #: The newest choices kept for the admin listener. 0: none are.
    keep_decisions: int = 0


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """How much is let in at once, and how much may wait. Of this whole router: its workers count together."""

    #: Requests at engines at once; None: any number.
    max_in_flight: int | None = None
    #: The same for each model of which `model_in_flight` says nothing.
    max_in_flight_per_model: int | None = None
    model_in_flight: Mapping[str, int] = msgspec.field(default_factory=dict)
    #: An endpoint gets no more at once than the controller says that its engine runs at once: what is more
    #: waits here, where it can still go to another one, and be counted.
    heed_concurrency: bool = True
    #: Most that wait for room at one model, and in all.
    max_queued_per_model: int = 512
    max_queued: int = 4096
    #: Bytes of bodies that arrive or wait; each worker has an even share, or room for one body. None: any.
    max_waiting_bytes: int | None = 512 * 1024 * 1024
    #: Who has waited so long is let in before the more important ones, now and then.
    age_bound_s: float = 15.0


class Telemetry(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker notes of each exchange besides counting it."""

    #: Send AccessRecords up.
    access_log: bool = False
    #: "asked": engines are asked what a stream has used where the client did not; "told": only what they tell
    #: by themselves is noted; "off": nothing is.
    usage: str = "off"
    #: Share of exchanges traced where the caller has not decided. None: tracing is off, and a client's
    #: `traceparent` passes as it came.
    trace_ratio: float | None = None
    #: A caller's own decision (the sampled flag of its `traceparent`) counts.
    trace_follow_parent: bool = True


class UpstreamTls(msgspec.Struct, frozen=True, kw_only=True):
    """Files of PEM, by path; read by each worker at its first connection to an https endpoint."""

    #: Authorities that engines' certificates are verified with. None: the system's.
    ca: str | None = None
    #: Certificate, with its key or without, that is shown to engines which ask for one.
    cert: str | None = None
    key: str | None = None


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
    upstream_tls: UpstreamTls = UpstreamTls()
    #: Origins whose pages may read answers; "*" is any. Empty: no browser but on our own pages (W48).
    cors_origins: tuple[str, ...] = ()
    #: Nobody is served without a key, not even before the first KeysUpdate has come.
    keys_required: bool = False
