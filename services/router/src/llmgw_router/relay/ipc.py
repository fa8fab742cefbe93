"""The channel between the supervisor and one relay worker: frames of length-prefixed msgpack.

Both ends are one build of one program, so there is no versioning here. A worker begins with whole
snapshots; of the table, which may be long, it is then sent what differs. What goes up are facts the
worker alone knows; losing one costs at most a tick.
"""

import struct
from collections.abc import Iterator, Mapping

import msgspec

from llmgw_router.core.choosing.decision import Decision as Decision
from llmgw_router.core.config import Limits as Limits
from llmgw_router.core.config import RoutingProfile as RoutingProfile
from llmgw_router.core.config import WorkerConfig as WorkerConfig
from llmgw_router.core.keys import KeyRow as KeyRow
from llmgw_router.core.table import Availability as Availability
from llmgw_router.core.table import EndpointRow as EndpointRow
from llmgw_router.core.table import ModelRow as ModelRow

#: Frames longer than this are a bug on the other side, not a big table: 400 endpoints are about 100 KB.
MAX_FRAME_BYTES = 64 * 1024 * 1024

_LENGTH = struct.Struct(">I")


class Configure(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First frame down, exactly once."""

    worker: int
    workers: int
    slot_capacity: int
    #: Unix socket of the cold application.
    cold_socket: str
    config: WorkerConfig = WorkerConfig()
    #: Where usage is spooled; None: nowhere.
    usage_folder: str | None = None


class Reconfigure(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Replaces the configuration from the next request on; what runs keeps its profile."""

    config: WorkerConfig


class KeysUpdate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Which keys are good. Until the first of these a worker that must check keys refuses everybody."""

    #: The whole set; else `keys` are added or replaced and `gone` taken away.
    whole: bool
    #: A part of the whole set, which counts from its last part on: a long one must not stop a worker.
    more: bool = False
    #: False: no key is asked for (`keys` is empty then).
    required: bool = True
    keys: tuple[KeyRow, ...] = ()
    #: Digests.
    gone: tuple[bytes, ...] = ()
    #: No key can be told good or bad any more, and everybody is refused with this; until the next update.
    stale: str | None = None


class TableUpdate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The whole table. `term` and `version` are the controller's, None when the table is static."""

    endpoints: tuple[EndpointRow, ...] = ()
    models: tuple[ModelRow, ...] = ()
    term: int | None = None
    version: int | None = None
    #: Counts pushes of one supervisor; set by the WorkerPool.
    seq: int = 0


class TableDelta(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What differs from push `seq` - 1, which this worker has: the channel keeps order and loses nothing."""

    endpoints: tuple[EndpointRow, ...] = ()
    models: tuple[ModelRow, ...] = ()
    gone_endpoints: tuple[str, ...] = ()
    gone_models: tuple[str, ...] = ()
    term: int | None = None
    version: int | None = None
    seq: int


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Accept no connection any more, finish what runs within `deadline_s`, then exit 0."""

    deadline_s: float
    #: Requests on kept-alive connections are still served for this long, with `Connection: close`.
    grace_s: float = 1.0


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Exit at once."""


class ActivationRefused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer everything held for `model` with 503 and this story. `code` None: model_loading."""

    model: str
    text: str
    code: str | None = None
    retry_after_s: float | None = None


class AskRunning(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer with Running, carrying the same number."""

    ask: int


class RunningRow(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange that is not over."""

    request_id: str
    method: str
    path: str
    model: str | None
    endpoint_id: str | None
    #: arriving, queued, held, connecting, waiting (for the engine's first byte), relaying.
    phase: str
    age_s: float
    bytes_out: int
    chunks: int
    key_id: str | None
    profile: str


class Running(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    ask: int
    worker: int
    rows: tuple[RunningRow, ...]
    left_out: int


class Probed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Health checks of endpoints that some worker suspects, by id."""

    alive: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()


class StartPhase(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How far the start of `model` is, for what is said to who waits for it."""

    model: str
    #: None: no start is under way any more that anybody waits for.
    phase: str | None
    progress: float | None = None
    #: Until ready; None: unknown.
    eta_s: float | None = None


class Gates(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Models that all workers count together from here on, and their numbers; adds to what was told."""

    numbers: Mapping[str, int]
    #: These have their number no longer: it may become another's with a later message.
    gone: tuple[str, ...] = ()


class Started(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pid: int
    worker: int


class Applied(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """From here on every pick of this worker is made from push `seq` or a later one."""

    seq: int
    term: int | None
    version: int | None


class Want(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`waiting` requests are held for `model`; sent at the first and when the number changes much."""

    model: str
    waiting: int


class Unwant(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Nobody waits for `model` any more: served, refused, timed out or gone."""

    model: str


class Queued(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`waiting` requests wait here for room at `model`, which is up; 0: none any more."""

    model: str
    waiting: int


class GateWanted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Requests for `model` are to be counted together with the other workers'."""

    model: str


class DrainedEndpoints(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """These are draining, or gone, in push `seq`, and nothing of this worker runs there."""

    seq: int
    endpoint_ids: tuple[str, ...]


class Suspects(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All endpoints that this worker would have looked at, by id; replaces what it said before."""

    endpoint_ids: tuple[str, ...] = ()


class Decisions(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Choices of the last sweep, at most as many as are kept; only where that is asked for."""

    decisions: tuple[Decision, ...]


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    level: int
    text: str


class LogLines(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    lines: tuple[LogLine, ...]


class TraceIds(msgspec.Struct, frozen=True, array_like=True):
    """A sampled exchange in W3C Trace Context: lower-case hex."""

    trace_id: str
    span_id: str
    #: Of the span that stands for the engine's work; what the engine got as its parent.
    engine_span_id: str
    #: The caller's span. None: this router began the trace.
    parent_id: str | None


class AccessRecord(msgspec.Struct, frozen=True, array_like=True):
    """One finished exchange. Status 499: the client left first. Times in milliseconds."""

    at_unix_s: float
    request_id: str
    method: str
    #: Normalised, without its query: a query may hold what should not be logged.
    path: str
    status: int
    #: Of our own refusal or interruption; None when the engine's answer went through.
    code: str | None
    model: str | None
    endpoint_id: str | None
    bytes_in: int
    bytes_out: int
    ttft_ms: float | None
    duration_ms: float
    retries: int
    key_id: str | None = None
    tenant: str | None = None
    #: The name that the request used, where it was not the model's own.
    alias: str | None = None
    profile: str | None = None
    #: None: it did not wait there.
    queue_ms: float | None = None
    hold_ms: float | None = None
    connect_ms: float | None = None
    #: From the whole request to its (last) departure to an engine. None: it was sent to none.
    sent_ms: float | None = None
    #: Reads of an event stream that were passed on. None: no event stream.
    chunks: int | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    #: Set for sampled exchanges.
    trace: TraceIds | None = None
    #: What the client sent, where the exchange is not sampled.
    traceparent: str | None = None


class AccessRecords(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    records: tuple[AccessRecord, ...]


class ModelCount(msgspec.Struct, frozen=True, array_like=True):
    """What was finished for one model since this was last told: whole numbers, microseconds."""

    model: str
    answers_2xx: int
    answers_3xx: int
    answers_4xx: int
    answers_5xx: int
    client_gone: int
    duration_sum_us: int
    ttft_sum_us: int
    #: Of these, with a first byte of an answer.
    answered: int
    chunks: int
    #: As far as anybody told.
    tokens_prompt: int = 0
    tokens_output: int = 0


class ModelCounts(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    models: tuple[ModelCount, ...]


Down = (
    Configure
    | Reconfigure
    | TableUpdate
    | TableDelta
    | KeysUpdate
    | Drain
    | Stop
    | ActivationRefused
    | Probed
    | AskRunning
    | StartPhase
    | Gates
)
Up = (
    Started
    | Applied
    | Want
    | Unwant
    | DrainedEndpoints
    | LogLines
    | AccessRecords
    | Suspects
    | Decisions
    | ModelCounts
    | Running
    | Queued
    | GateWanted
)

decode_down = msgspec.msgpack.Decoder(Down).decode
decode_up = msgspec.msgpack.Decoder(Up).decode
_encode = msgspec.msgpack.Encoder().encode


class ChannelBroken(Exception):
    """The other end sent what cannot be a frame; the channel is of no further use."""


def pack(message: Down | Up) -> bytes:
    """One frame. Raises ChannelBroken when it would be longer than MAX_FRAME_BYTES."""
    body = _encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ChannelBroken(f"{type(message).__name__} of {len(body)} bytes exceeds {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a byte stream into frame bodies, however the bytes arrive."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Bodies completed by `data`. Raises ChannelBroken on an impossible length."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer)
            if length > MAX_FRAME_BYTES:
                raise ChannelBroken(f"frame announces {length} bytes; at most {MAX_FRAME_BYTES} are possible")
            end = _LENGTH.size + length
            if len(buffer) < end:
                return
            body = bytes(buffer[_LENGTH.size : end])
            del buffer[:end]
            yield body
