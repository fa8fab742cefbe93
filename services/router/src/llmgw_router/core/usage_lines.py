"""What one request has used, as lines of a spool: one when it is let in, one when it is over.

Whoever reads the lines of one process in their order, twice over or not, ends up with the same records.
"""

from collections.abc import Iterator

import msgspec


class Opened(msgspec.Struct, frozen=True, array_like=True, tag="o"):
    """A request has been sent to an engine. `usage_id` is ours, and unique."""

    usage_id: str
    request_id: str
    began_unix_ms: int
    key_id: str | None
    tenant: str | None
    model: str
    path: str


class Closed(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """It is over; written before its last byte leaves. Whole in itself."""

    usage_id: str
    request_id: str
    began_unix_ms: int
    key_id: str | None
    tenant: str | None
    model: str
    path: str
    ended_unix_ms: int
    replica_id: str | None
    #: As sent; 499: the client left first.
    status: int
    code: str | None
    #: One of core.usage.SOURCES.
    source: str
    #: False: interrupted.
    complete: bool
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    ttft_ms: float | None
    duration_ms: float


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One row, as sinks take it. None is unknown."""

    usage_id: str
    request_id: str
    router_id: str
    key_id: str | None
    tenant: str | None
    model: str
    replica_id: str | None
    path: str
    began_unix_ms: int
    #: None, like the status and the duration: the process that served it died first.
    ended_unix_ms: int | None
    status: int | None
    code: str | None
    source: str
    complete: bool
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    ttft_ms: float | None
    duration_ms: float | None


Line = Opened | Closed

_decode = msgspec.json.Decoder(Line).decode


def lines_in(data: bytes, *, complete: bool) -> Iterator[tuple[Line, int]]:
    """Each whole line, and where it ends. A process that was killed within a line has left zeros or no line
    end, and has answered nobody with it. Where more may come, the first that is not whole ends it: it may be
    whole at the next look. Where nothing comes any more (`complete`), it is passed over."""
    at = 0
    while True:
        end = data.find(b"\n", at)
        if end < 0:
            return
        try:
            line = _decode(data[at:end])
        except msgspec.DecodeError:
            if not complete:
                return
            at = end + 1
            continue
        at = end + 1
        yield line, at


def record_of(line: Closed, router_id: str) -> UsageRecord:
    return UsageRecord(
        usage_id=line.usage_id,
        request_id=line.request_id,
        router_id=router_id,
        key_id=line.key_id,
        tenant=line.tenant,
        model=line.model,
        replica_id=line.replica_id,
        path=line.path,
        began_unix_ms=line.began_unix_ms,
        ended_unix_ms=line.ended_unix_ms,
        status=line.status,
        code=line.code,
        source=line.source,
        complete=line.complete,
        prompt_tokens=line.prompt_tokens,
        cached_tokens=line.cached_tokens,
        output_tokens=line.output_tokens,
        ttft_ms=line.ttft_ms,
        duration_ms=line.duration_ms,
    )


def lost_record(line: Opened, router_id: str) -> UsageRecord:
    """Of a request whose process died: nobody knows what it has used, and that is what the row says."""
    return UsageRecord(
        usage_id=line.usage_id,
        request_id=line.request_id,
        router_id=router_id,
        key_id=line.key_id,
        tenant=line.tenant,
        model=line.model,
        replica_id=None,
        path=line.path,
        began_unix_ms=line.began_unix_ms,
        ended_unix_ms=None,
        status=None,
        code=None,
        source="unknown",
        complete=False,
        prompt_tokens=None,
        cached_tokens=None,
        output_tokens=None,
        ttft_ms=None,
        duration_ms=None,
    )
