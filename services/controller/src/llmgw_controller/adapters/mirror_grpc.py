"""The mirror, asked to have a model's weights."""

import grpc
import grpc.aio

from llmgw.v1 import common_pb2, mirror_pb2, mirror_pb2_grpc
from llmgw_controller.core.catalog import Model
from llmgw_kit import rpc
from llmgw_kit.addresses import HostPort
from llmgw_kit.errors import Unavailable

#: Fetch only notes what is wanted; the bytes come later.
FETCH_TIMEOUT_S = 5.0


class GrpcMirror:
    """MirrorClient on one channel, opened at the first call."""

    def __init__(self, address: HostPort) -> None:
        self._address = address
        self._channel: grpc.aio.Channel | None = None

    async def fetch(self, model: Model) -> None:
        """As in the port."""
        if model.weights is None:
            return
        if self._channel is None:
            self._channel = rpc.channel(self._address)
        request = mirror_pb2.FetchRequest(model=model.name, version=model.weights.version)
        for file in model.weights.files:
            source = common_pb2.WeightsSource(path=file.path, url=file.url)
            if file.sha256 is not None:
                source.sha256 = file.sha256
            if file.size_bytes is not None:
                source.size_bytes = file.size_bytes
            request.files.append(source)
        try:
            await mirror_pb2_grpc.MirrorServiceStub(self._channel).Fetch(request, timeout=FETCH_TIMEOUT_S)
        except grpc.aio.AioRpcError as e:
            raise rpc.error_from(e, peer=f"mirror {self._address}") from None

    async def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            await rpc.close_quietly(self._channel)


class NoMirror:
    """MirrorClient where none is configured: nodes must hold the weights already."""

    async def fetch(self, model: Model) -> None:
        """Raises Unavailable: nobody will fetch."""
        raise Unavailable(
            f"no mirror is configured, so nobody fetches the weights of {model.name}",
            code="no_mirror",
            next_steps=["set mirror and mirror_url in the controller's configuration"],
        )

    async def close(self) -> None:
        """Nothing to close."""
