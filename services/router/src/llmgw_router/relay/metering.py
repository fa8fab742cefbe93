"""Metering: what each request to an engine has used, noted before its last byte leaves.

One Meter an exchange. It sees what the engine sends, takes out the one event that only we asked for, and
writes two lines into the worker's spool: open when the request is sent, close before the end of its answer.
"""

import logging
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING

from llmgw_router.core.config import Telemetry
from llmgw_router.core.routes import HELD, JSON
from llmgw_router.core.usage import (
    COUNTED,
    ENGINE,
    ESTIMATED,
    NOTHING,
    SOURCES,
    TAIL_BYTES,
    UNKNOWN,
    Tokens,
    guessed_prompt,
    tokens_of,
    told_in_json,
)
from llmgw_router.core.usage_ask import LONGEST_BYTES, with_usage_asked
from llmgw_router.core.usage_lines import Closed, Opened
from llmgw_router.core.usage_stream import StreamUsage
from llmgw_router.relay.endpoint import ColdEndpoint
from llmgw_router.relay.slots import COUNTER
from llmgw_router.relay.spool import Spool

if TYPE_CHECKING:
    from llmgw_router.relay.ending import Ending
    from llmgw_router.relay.hub import Hub
    from llmgw_router.relay.upstream import UpstreamConnection

#: Where `stream_options` is understood.
_ASKED_AT = frozenset((b"/v1/chat/completions", b"/v1/completions"))

_PROMPT = COUNTER["tokens_prompt"]
_CACHED = COUNTER["tokens_cached"]
_OUTPUT = COUNTER["tokens_output"]
_LOST = COUNTER["usage_lines_lost"]
#: Words that say that a prompt may be a guess.
_GUESSES = (COUNTED, ESTIMATED)
_BY_SOURCE = {source: COUNTER[f"usage_{source}"] for source in SOURCES}


class Metering:
    """One per worker; `off` makes no meters at all."""

    def __init__(self, hub: "Hub", folder: str | None) -> None:
        self.hub = hub
        self._folder = None if folder is None else Path(folder)
        #: Opened with the first tick, and tried again with each while it cannot be.
        self.spool: Spool | None = None
        self._complained = False
        self._preparing = False
        self.off = True
        self._asking = False

    def reconfigure(self, telemetry: Telemetry) -> None:
        """From the next request on; what runs keeps its meter."""
        self.off = telemetry.usage == "off"
        self._asking = telemetry.usage == "asked"

    def tick(self) -> None:
        """Note how far the wall clock is from the monotonic one; the sweep sets it right."""
        self.to_unix_ns = time_ns() - monotonic_ns()
        if self.spool is None:
            self._open_spool()
        elif self.spool.wants_next and not self._preparing:
            self._preparing = True
            # Once a few thousand requests, and never one's own.
            self.hub.loop.run_in_executor(None, self._prepare, self.spool)

    def _open_spool(self) -> None:
        if self._folder is None or self.off:
            return
        try:
            self.spool = Spool(self._folder, self.hub.new_id().decode(), self.running)
        except OSError as error:
            if not self._complained:
                self._complained = True
                self.hub.log(logging.ERROR, f"usage cannot be spooled in {self._folder}: {error}; it is lost")

    def _prepare(self, spool: Spool) -> None:
        try:
            spool.prepare()
        except OSError:
            # A full disk: it is counted where a line finds no room, and tried again there.
            return
        finally:
            self._preparing = False

    @property
    def spooling(self) -> bool:
        return self._folder is not None

    def meter(self, exchange: "Ending") -> "Meter | None":
        """Begin, when a request is sent to its first engine; None: nothing is used by it."""
        entry = exchange.entry
        if entry is None or entry.content is HELD:
            # A look at a response that was made before: what that has used is noted.
            return None
        made = Meter(self, exchange)
        if self._asking and entry.path in _ASKED_AT and len(exchange.body) <= LONGEST_BYTES:
            body = with_usage_asked(bytes(exchange.body))
            if body is not None:
                exchange.body = body
                made.asked = True
        return made

    def write(self, line: Opened | Closed) -> None:
        """Into the spool, where there is to be one."""
        if self._folder is not None and (self.spool is None or not self.spool.append(line)):
            self.hub.counters[_LOST] += 1

    def running(self) -> list[Opened]:
        """Opening lines of all that runs."""
        meters = (client.current.meter for client in self.hub.connections if client.current is not None)
        return [
            meter.opened
            for meter in meters
            if meter is not None and meter.opened is not None and not meter.closed
        ]


class Meter:
    """Of one exchange. After `close` it does nothing any more."""

    __slots__ = ("_begun", "_metering", "_stream", "_tail", "asked", "closed", "opened", "tokens")

    def __init__(self, metering: Metering, exchange: "Ending") -> None:
        self._metering = metering
        #: We asked the engine for an event that the client did not ask for.
        self.asked = False
        self.closed = False
        self._begun = False
        self._stream: StreamUsage | None = None
        #: The end of an answer that is no stream; None: of one that is not looked into.
        self._tail: bytes | None = None
        #: What was told or counted, once closed; a guess is only in the line, beside the word that marks it.
        self.tokens: Tokens = NOTHING
        #: Where lines go to a spool; the first of them.
        self.opened: Opened | None = None
        if metering.spooling:
            key = exchange.key
            self.opened = opened = Opened(
                metering.hub.new_id().decode(),
                (exchange.request_id or b"").decode("latin-1"),
                (exchange.started_ns + metering.to_unix_ns) // 1_000_000,
                None if key is None else key.key_id,
                None if key is None else key.tenant,
                exchange.model or "",
                exchange.path.decode("latin-1"),
            )
            metering.write(opened)

    # --- what passes

    def first(self, exchange: "Ending", connection: "UpstreamConnection", payload: bytes) -> bytes:
        """The first part of the answer: what of it the client is to have."""
        self._begun = True
        if connection.encoding is not None or not 200 <= connection.status < 300:
            # Compressed by an engine that was asked not to, or an error: unknown, not 0 (W39).
            return payload
        dialect = exchange.dialect
        if not connection.is_stream or dialect is None:
            self._tail = payload if len(payload) <= TAIL_BYTES else payload[-TAIL_BYTES:]
            return payload
        # Where the engine has promised a length, no byte can be taken out.
        self._stream = StreamUsage(dialect, removing=self.asked and connection.length is None)
        return self._stream.part(payload)

    def part(self, exchange: "Ending", connection: "UpstreamConnection", payload: bytes) -> bytes:
        """A later part of it; or the first, where the client has had a head of ours before."""
        stream = self._stream
        if stream is not None:
            if stream.between and payload.endswith(b"\n\n") and payload.find(b'"usage"') < 0:
                # As nearly always; one call less.
                stream.marks += payload.count(stream.mark)
                return payload
            return stream.part(payload)
        tail = self._tail
        if not self._begun:
            return self.first(exchange, connection, payload)
        if tail is not None:
            self._tail = (
                payload[-TAIL_BYTES:] if len(payload) >= TAIL_BYTES else (tail + payload)[-TAIL_BYTES:]
            )
        return payload

    # --- how it ends

    def end(self, exchange: "Ending", connection: "UpstreamConnection", payload: bytes, now_ns: int) -> bytes:
        """The last part; `exchange` has begun to answer. The line is written when this returns."""
        payload = self.part(exchange, connection, payload)
        if self._stream is not None:
            payload += self._stream.end()
        self.close(exchange, exchange.status, now_ns, complete=True)
        return payload

    def whole(
        self, exchange: "Ending", connection: "UpstreamConnection", payload: bytes, now_ns: int
    ) -> bytes:
        """The only part."""
        payload = self.first(exchange, connection, payload)
        if self._stream is not None:
            payload += self._stream.end()
        self.close(exchange, connection.status, now_ns, complete=True)
        return payload

    def cut(self, exchange: "Ending", now_ns: int) -> bytes:
        """The answer breaks off here: what of it is still to be passed on."""
        rest = b"" if self._stream is None else self._stream.end()
        self.close(exchange, exchange.status, now_ns, complete=False)
        return rest

    def close(self, exchange: "Ending", status: int, now_ns: int, *, complete: bool) -> None:
        """Write the line, once."""
        if self.closed:
            return
        self.closed = True
        source, tokens = self._reckon(exchange, complete=complete)
        self.tokens = tokens
        metering = self._metering
        counters = metering.hub.counters
        counters[_BY_SOURCE[source]] += 1
        if tokens is not NOTHING:
            counters[_PROMPT] += tokens.prompt or 0
            counters[_CACHED] += tokens.cached or 0
            counters[_OUTPUT] += tokens.output or 0
        opened = self.opened
        if opened is not None:
            if tokens.prompt is None and source in _GUESSES:
                tokens = Tokens(_guess(exchange), tokens.cached, tokens.output)
            metering.write(
                _closing(opened, exchange, status, now_ns, metering.to_unix_ns, source, tokens, complete)
            )

    def _reckon(self, exchange: "Ending", *, complete: bool) -> tuple[str, Tokens]:
        dialect = exchange.dialect
        assert dialect is not None
        stream = self._stream
        if stream is None:
            told = None if self._tail is None or not complete else told_in_json(self._tail)
            tokens = NOTHING if told is None else tokens_of(told, dialect)
            # A usage of nulls tells as little as none.
            return (UNKNOWN, NOTHING) if tokens == NOTHING else (ENGINE, tokens)
        told = stream.told()
        tokens = NOTHING if told is None else tokens_of(told, dialect)
        if tokens.output is not None and (complete or tokens.output >= stream.marks):
            return ENGINE, tokens
        # HO17: the client left, or the engine broke, before anybody said what it cost; or nobody ever does.
        events = max(0, stream.marks - 1) if complete else stream.marks
        return COUNTED if complete else ESTIMATED, Tokens(tokens.prompt, tokens.cached, events)


def _guess(exchange: "Ending") -> int | None:
    entry = exchange.entry
    # Of a form the most part is a file.
    return guessed_prompt(exchange.body_bytes) if entry and entry.content is JSON else None


def _closing(
    opened: Opened,
    exchange: "Ending",
    status: int,
    now_ns: int,
    to_unix_ns: int,
    source: str,
    tokens: Tokens,
    complete: bool,  # noqa: FBT001
) -> Closed:
    began, first = exchange.started_ns, exchange.first_ns
    endpoint = exchange.asked
    return Closed(
        opened.usage_id,
        opened.request_id,
        opened.began_unix_ms,
        opened.key_id,
        opened.tenant,
        opened.model,
        opened.path,
        (now_ns + to_unix_ns) // 1_000_000,
        None if endpoint is None or isinstance(endpoint, ColdEndpoint) else endpoint.row.replica_id,
        status,
        exchange.code,
        source,
        complete,
        tokens.prompt,
        tokens.cached,
        tokens.output,
        (first - began) / 1e6 if first else None,
        (now_ns - began) / 1e6,
    )
