"""The stream to a controller: grpc.aio below, words above."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from llmgw.v1 import agent_pb2 as pb
from llmgw.v1 import agent_pb2_grpc
from llmgw_agent.core.words import Heard, Said
from llmgw_agent.wire import heard_from, said_to
from llmgw_kit import rpc
from llmgw_kit.addresses import parse_host_port
from llmgw_kit.errors import Unavailable


class GrpcStream:
    """One Connect call on a channel of its own, so that nothing of an older session is shared."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self._address, self._channel = address, channel
        # The generated stubs are those of the synchronous API.
        stub: Any = agent_pb2_grpc.AgentServiceStub(channel)
        self._call: grpc.aio.StreamStreamCall[pb.ConnectRequest, pb.ConnectResponse] = stub.Connect()
        # grpc takes one write at a time; beats and reports come from different tasks.
        self._writing = asyncio.Lock()

    async def say(self, epoch: int | None, said: Said) -> None:
        """Raises LlmgwError when the stream is gone."""
        try:
            async with self._writing:
                await self._call.write(said_to(epoch, said))
        except grpc.aio.AioRpcError as e:
            raise rpc.error_from(e, peer=f"controller {self._address}") from None
        except asyncio.InvalidStateError as e:
            # The call has ended; who hears says why.
            raise Unavailable(f"controller {self._address}: {e}", code="unreachable") from None

    async def hear(self) -> Heard | None:
        """None at the end of the stream."""
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as e:
            raise rpc.error_from(e, peer=f"controller {self._address}") from None
        if isinstance(message, pb.ConnectResponse):
            return heard_from(message)
        return None  # grpc.aio.EOF

    async def close(self) -> None:
        """Ends the call and the channel."""
        self._call.cancel()
        await rpc.close_quietly(self._channel)


async def dial(address: str) -> GrpcStream:
    """A plaintext stream. The connection itself is made by the first write or read."""
    return GrpcStream(address, rpc.channel(parse_host_port(address, what="controller address")))
