"""Of several controllers none of which answers, each one's own failure is told."""

import asyncio
import socket

import pytest

from llmgw.v1 import operator_pb2, operator_pb2_grpc
from llmgw_controller.cli.client import NoController, call_leader
from llmgw_kit import rpc
from llmgw_kit.addresses import HostPort


class Silent(operator_pb2_grpc.OperatorServiceServicer):
    """Takes a call and says nothing."""

    async def GetLeader(self, request, context):
        await asyncio.sleep(60)


async def test_one_that_refuses_and_one_that_says_nothing_are_told_apart(unused_tcp_port):
    server = rpc.server()
    operator_pb2_grpc.add_OperatorServiceServicer_to_server(Silent(), server)
    silent = rpc.listen(server, HostPort("127.0.0.1", 0), flag="--listen")
    await server.start()
    closed = HostPort("127.0.0.1", unused_tcp_port)
    try:
        with pytest.raises(NoController) as failed:
            await call_leader(
                (silent, closed),
                lambda stub: stub.GetLeader(operator_pb2.GetLeaderRequest(), timeout=0.3),
            )
    finally:
        await server.stop(None)
    assert f"{silent} does not answer: " in failed.value.text
    assert f"{closed} refused" in failed.value.text


async def test_one_that_accepts_and_never_speaks_timed_out(monkeypatch):
    monkeypatch.setattr("llmgw_controller.cli.client.CONNECT_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = HostPort("127.0.0.1", mute.getsockname()[1])
        with pytest.raises(NoController, match=f"{address} timed out"):
            await call_leader(
                (address,), lambda stub: stub.GetLeader(operator_pb2.GetLeaderRequest(), timeout=0.3)
            )
