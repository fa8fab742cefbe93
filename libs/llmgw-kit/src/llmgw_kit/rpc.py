"""gRPC as every service uses it: options for both sides, errors that keep their meaning, health.

The option names are measured on grpcio 1.85: the server's ping allowance is
`grpc.http2.min_ping_interval_without_data_ms` (its look-alike with `recv` in it does nothing), and
SO_REUSEPORT is on by default, so that a second server on a taken port starts without a word.
"""

from __future__ import annotations  # grpc.aio's generics exist in its type stubs only

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn, cast

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from llmgw.v1 import common_pb2
from llmgw_kit.addresses import HostPort
from llmgw_kit.errors import (
    Conflict,
    Denied,
    InvalidRequest,
    LlmgwError,
    NotConfigured,
    NotFound,
    NotLeader,
    StartupError,
    Unavailable,
)
from llmgw_kit.text import shortened, storable
from llmgw_kit.tls_watch import Material, WatchedTls

log = logging.getLogger(__name__)

#: A silent half-open connection is noticed after at most time + timeout = 30 s; beats are sooner.
KEEPALIVE_TIME_S = 20.0
KEEPALIVE_TIMEOUT_S = 10.0
#: Largest message either way: Hello of a node with many shards, a route snapshot of a large fleet.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

DETAIL_KEY = "llmgw-error-bin"

#: Errors travel as metadata, of which peers take 8 KiB in all: more, and the caller is told that instead of
#: the error. The plain text is for other tools (each of its bytes may take three); the detail has the whole.
TEXT_MOST, DETAIL_TEXT_MOST, STEP_MOST, DETAIL_MOST_BYTES = 200, 1000, 500, 4000

Options = list[tuple[str, Any]]


def client_options(*, keepalive_s: float = KEEPALIVE_TIME_S) -> Options:
    """Options of every internal channel. `keepalive_s` is for tests at a smaller scale."""
    return [
        ("grpc.keepalive_time_ms", int(keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Proxy variables would send even loopback traffic to a proxy.
        ("grpc.enable_http_proxy", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        # In spite of its name this is how long one attempt to connect may take: at 200 ms a busy but
        # healthy peer counts as unreachable. A refused attempt is over at once all the same.
        ("grpc.min_reconnect_backoff_ms", 3000),
        ("grpc.max_reconnect_backoff_ms", 5000),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        # Channels with equal arguments share connections unless told not to; a restarted session
        # must not inherit a half-dead one.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def server_options(*, keepalive_s: float = KEEPALIVE_TIME_S) -> Options:
    """Options of every gRPC listener: accepts pings at half the client's interval."""
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", int(keepalive_s * 500)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", int(keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ]


def channel(
    address: HostPort, *, keepalive_s: float = KEEPALIVE_TIME_S, tls: Material | None = None,
    name: str | None = None,
) -> grpc.aio.Channel:  # fmt: skip
    """A channel; without `tls` a plaintext one, for a trusted network. Close it on the loop that made it.

    `name`: what the server's certificate calls it, where that is not the host. A channel keeps what it was
    made with: when `tls` is replaced on the disk, make another and close this one."""
    options = client_options(keepalive_s=keepalive_s)
    if tls is None:
        return grpc.aio.insecure_channel(str(address), options=options)
    if name is not None:
        options.append(("grpc.ssl_target_name_override", name))
    shown = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
    return grpc.aio.secure_channel(str(address), shown, options=options)


def server(
    *, interceptors: Iterable[grpc.aio.ServerInterceptor] = (), keepalive_s: float = KEEPALIVE_TIME_S
) -> grpc.aio.Server:
    """A server with the suite's options; add services, then `listen`, then `start()`."""
    return grpc.aio.server(
        options=server_options(keepalive_s=keepalive_s), interceptors=[ErrorEdge(), *interceptors]
    )


def listen(
    server: grpc.aio.Server, address: HostPort, *, flag: str, tls: WatchedTls | None = None
) -> HostPort:
    """Bind a listener, plaintext without `tls`, and return the address it has (port 0 becomes the real one).

    Raises StartupError naming the address and the flag that moves it."""
    host = "[::]" if address.host == "*" else (f"[{address.host}]" if ":" in address.host else address.host)
    try:
        if tls is None:
            port = server.add_insecure_port(f"{host}:{address.port}")
        else:
            port = server.add_secure_port(f"{host}:{address.port}", _server_credentials(tls))
    except RuntimeError:
        port = 0
    if port == 0:
        raise StartupError(
            f"cannot listen on {address}: the port is taken or the address is not of this machine",
            next_steps=[f"choose another with {flag} HOST:PORT, or stop what listens there"],
        )
    return HostPort(address.host, port)


def _server_credentials(tls: WatchedTls) -> grpc.ServerCredentials:
    """Asked before each handshake, on a thread of gRPC's (measured on 1.85): a look at a field, no files."""
    given = tls.now

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        if tls.now is given:
            return None  # what it has
        given = tls.now
        return _certificates(given)

    fetcher: Any = newer  # the stubs do not know None, which the documentation does
    return grpc.dynamic_ssl_server_credentials(
        _certificates(given), fetcher, require_client_authentication=given.ca is not None
    )


def _certificates(material: Material) -> grpc.ServerCertificateConfiguration:
    assert material.cert is not None, "a server shows a certificate"
    assert material.key is not None, "with its key"
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.cert)], root_certificates=material.ca
    )


class Health:
    """grpc.health.v1 and reflection on one server. `set_serving` follows the service's readiness."""

    def __init__(self, server: grpc.aio.Server, services: Iterable[str]) -> None:
        self._servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        self._names = ("", *services)
        reflection.enable_server_reflection((*services, health.SERVICE_NAME, reflection.SERVICE_NAME), server)

    async def set_serving(self, serving: bool) -> None:  # noqa: FBT001 - mirrors the protocol's own word
        status = health_pb2.HealthCheckResponse
        for name in self._names:
            await self._servicer.set(name, status.SERVING if serving else status.NOT_SERVING)


STATUS: tuple[tuple[type[LlmgwError], grpc.StatusCode], ...] = (
    (InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (Denied, grpc.StatusCode.PERMISSION_DENIED),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (NotLeader, grpc.StatusCode.FAILED_PRECONDITION),
    (NotConfigured, grpc.StatusCode.FAILED_PRECONDITION),
    (Conflict, grpc.StatusCode.ABORTED),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
)


def detail_of(error: LlmgwError) -> common_pb2.ErrorDetail:
    """The error as it travels beside the status."""
    detail = common_pb2.ErrorDetail(
        code=error.code,
        text=shortened(storable(error.text), most=DETAIL_TEXT_MOST),
        next_steps=[shortened(storable(step), most=STEP_MOST) for step in error.next_steps],
    )
    while detail.ByteSize() > DETAIL_MOST_BYTES and detail.next_steps:
        detail.next_steps.pop()
    if isinstance(error, Unavailable) and error.retry_after_s is not None:
        detail.retry_after_s = error.retry_after_s
    if isinstance(error, NotLeader) and error.leader_address is not None:
        detail.leader_address = error.leader_address
    return detail


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: LlmgwError) -> NoReturn:
    """End a call with what `error` means."""
    status = next(status for kind, status in STATUS if isinstance(error, kind))
    await context.abort(
        status,
        shortened(storable(error.text), most=TEXT_MOST),
        ((DETAIL_KEY, detail_of(error).SerializeToString()),),
    )


def error_from(e: grpc.aio.AioRpcError, *, peer: str) -> LlmgwError:
    """What a failed call meant. `peer` names who was called, for the text of a lost connection."""
    for key, value in e.trailing_metadata() or ():
        if key == DETAIL_KEY:
            detail = common_pb2.ErrorDetail.FromString(
                value if isinstance(value, bytes) else value.encode("latin-1")
            )
            return _error_from_detail(e.code(), detail)
    if e.code() in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
    ):
        return Unavailable(
            f"{peer} does not answer: {e.details() or e.code().name.lower()}", code="unreachable"
        )
    if e.code() is grpc.StatusCode.UNIMPLEMENTED:
        return InvalidRequest(
            f"{peer} does not know this call: it may be an older version", code="unimplemented"
        )
    return LlmgwError(f"{peer} failed: {e.code().name} {e.details() or ''}".rstrip(), code="internal")


def _error_from_detail(status: grpc.StatusCode, detail: common_pb2.ErrorDetail) -> LlmgwError:
    steps = tuple(detail.next_steps)
    if detail.code == NotLeader.code_default:
        leader = detail.leader_address if detail.HasField("leader_address") else None
        return NotLeader(detail.text, leader_address=leader, next_steps=steps)
    if status is grpc.StatusCode.UNAVAILABLE:
        after = detail.retry_after_s if detail.HasField("retry_after_s") else None
        return Unavailable(detail.text, code=detail.code, retry_after_s=after, next_steps=steps)
    for kind, mapped in STATUS:
        if mapped is status and kind is not NotLeader:
            return kind(detail.text, code=detail.code, next_steps=steps)
    return LlmgwError(detail.text, code=detail.code, next_steps=steps)


class ErrorEdge(grpc.aio.ServerInterceptor):
    """Turns LlmgwError into its status with detail, and a bug into INTERNAL with a log line and no leak."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        # The stubs type handlers as those of the synchronous server; here they are coroutines.
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return cast("grpc.RpcMethodHandler[Any, Any]", None)  # unknown method: grpc answers UNIMPLEMENTED
        method = handler_call_details.method
        if handler.unary_unary or handler.stream_unary:
            single = handler.unary_unary or handler.stream_unary

            async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
                try:
                    return await single(request, context)
                except LlmgwError as e:
                    await abort_with(context, e)
                except Exception as e:
                    await _abort_bug(method, e, context)

            make: Any = (
                grpc.unary_unary_rpc_method_handler
                if handler.unary_unary
                else grpc.stream_unary_rpc_method_handler
            )
            return make(answer, handler.request_deserializer, handler.response_serializer)  # type: ignore[no-any-return]

        many = handler.unary_stream or handler.stream_stream

        async def stream(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            try:
                answers = many(request, context)
                if inspect.isawaitable(answers):
                    await answers  # one that writes by itself, such as the health service's Watch
                    return
                async for message in answers:
                    yield message
            except LlmgwError as e:
                await abort_with(context, e)
            except Exception as e:
                await _abort_bug(method, e, context)

        made: Any = (
            grpc.unary_stream_rpc_method_handler
            if handler.unary_stream
            else grpc.stream_stream_rpc_method_handler
        )
        return made(stream, handler.request_deserializer, handler.response_serializer)  # type: ignore[no-any-return]


async def _abort_bug(method: str, error: Exception, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    # context.abort raises AbortError itself: an abort on its way is not a bug.
    if isinstance(error, grpc.aio.AbortError):
        raise error
    log.error("%s failed by a bug", method, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, "internal error; the server's log has the story")


async def close_quietly(channel: grpc.aio.Channel) -> None:
    """Close a channel that may already be dead."""
    with suppress(grpc.RpcError):
        await channel.close(grace=None)
