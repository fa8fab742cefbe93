"""gRPC as the kit sets it up, on real connections: errors keep their meaning, ports are exclusive,
a silent stream outlives many pings."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from llmgw.v1 import operator_pb2, operator_pb2_grpc
from llmgw_kit import rpc
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

LOOPBACK = HostPort("127.0.0.1", 0)


class Raises(operator_pb2_grpc.OperatorServiceServicer):
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def GetLeader(self, request, context):
        raise self.error


async def ask(error: Exception) -> LlmgwError:
    server = rpc.server()
    operator_pb2_grpc.add_OperatorServiceServicer_to_server(Raises(error), server)
    address = rpc.listen(server, LOOPBACK, flag="--listen")
    await server.start()
    channel = rpc.channel(address)
    try:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await operator_pb2_grpc.OperatorServiceStub(channel).GetLeader(
                operator_pb2.GetLeaderRequest(), timeout=5
            )
        return rpc.error_from(failed.value, peer="server")
    finally:
        await rpc.close_quietly(channel)
        await server.stop(None)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("no", code="bad_model", next_steps=["try this"]),
        Denied("no"),
        NotFound("no model x"),
        Conflict("moved"),
        NotConfigured("no registry", code="no_registry"),
        Unavailable("later", retry_after_s=7.5),
        NotLeader("stands by", leader_address="10.0.0.1:7070"),
        NotLeader("nobody leads", leader_address=None),
    ],
    ids=lambda e: type(e).__name__,
)
async def test_an_error_arrives_as_what_it_was(error):
    got = await ask(error)
    assert type(got) is type(error)
    assert (got.text, got.code, got.next_steps) == (error.text, error.code, error.next_steps)
    for extra in ("retry_after_s", "leader_address"):
        assert getattr(got, extra, "none") == getattr(error, extra, "none")


async def test_a_bug_leaks_nothing(caplog):
    got = await ask(RuntimeError("the password is hush"))
    assert got.code == "internal"
    assert "hush" not in got.text
    assert "the password is hush" in caplog.text, "the server's own log has the story"


async def test_a_taken_port_is_an_error_naming_address_and_flag():
    first = rpc.server()
    address = rpc.listen(first, LOOPBACK, flag="--listen")
    await first.start()
    second = rpc.server()
    with pytest.raises(StartupError) as refused:
        rpc.listen(second, address, flag="--listen")
    assert str(address) in refused.value.text
    assert "--listen" in refused.value.next_steps[0]
    await first.stop(None)


async def silent_stream(server_options: rpc.Options) -> grpc.StatusCode | None:
    """A stream on which nothing is said for 8 s while the client pings each second; None: it lived."""

    async def watch(request, context):
        await context.send_initial_metadata(())
        await asyncio.sleep(8)  # four strikes of the server under test
        yield operator_pb2.GetLeaderRequest()

    handler = grpc.unary_stream_rpc_method_handler(
        watch,
        request_deserializer=operator_pb2.GetLeaderRequest.FromString,
        response_serializer=operator_pb2.GetLeaderRequest.SerializeToString,
    )
    server = grpc.aio.server(options=server_options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", {"Watch": handler}),))
    address = rpc.listen(server, LOOPBACK, flag="--listen")
    await server.start()
    channel = rpc.channel(address, keepalive_s=1.0)
    try:
        call = channel.unary_stream(
            "/t.T/Watch",
            request_serializer=operator_pb2.GetLeaderRequest.SerializeToString,
            response_deserializer=operator_pb2.GetLeaderRequest.FromString,
        )(operator_pb2.GetLeaderRequest())
        async for _ in call:
            pass
        return None
    except grpc.aio.AioRpcError as e:
        return e.code()
    finally:
        await rpc.close_quietly(channel)
        await server.stop(None)


async def test_pings_over_a_silent_stream_are_allowed_and_only_our_key_allows_them():
    """1/20 of the real intervals. The second half shows that the test can fail: without the server's
    ping allowance the same stream dies of "Too many pings"."""
    bare = [(key, value) for key, value in rpc.server_options(keepalive_s=1.0) if "min_ping" not in key]
    lived, died = await asyncio.gather(
        silent_stream(rpc.server_options(keepalive_s=1.0)), silent_stream(bare)
    )
    assert lived is None
    assert died is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("given", ["m" * 100_000, "世" * 100_000, "a b " * 100_000, "\udcff"])
async def test_an_error_that_quotes_what_was_asked_keeps_its_meaning(given):
    error = await ask(NotFound(f"no model {given} in the catalog", code="x", next_steps=[given] * 50))
    assert type(error) is NotFound
    assert error.code == "x"
    assert error.text.startswith("no model ")
    assert len(error.text) <= rpc.DETAIL_TEXT_MOST


async def test_health_can_be_watched():
    server = rpc.server()
    health = rpc.Health(server, [])
    address = rpc.listen(server, LOOPBACK, flag="--listen")
    await server.start()
    channel = rpc.channel(address)
    watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=20)
    seen = [(await watched.read()).status]
    await health.set_serving(True)
    if seen[-1] != health_pb2.HealthCheckResponse.SERVING:
        seen.append((await watched.read()).status)
    assert seen[-1] == health_pb2.HealthCheckResponse.SERVING
    watched.cancel()
    await rpc.close_quietly(channel)
    await server.stop(None)
