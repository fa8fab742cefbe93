"""The mirror, asked to have a model's weights."""

import asyncio

import grpc
import grpc.aio

from llmgw.v1 import common_pb2, mirror_pb2, mirror_pb2_grpc
from llmgw_controller.core.catalog import Model
from llmgw_kit import rpc
from llmgw_kit.addresses import HostPort
from llmgw_kit.errors import Unavailable
from llmgw_kit.lifecycle import cancel_all
from llmgw_kit.tls_watch import Material, WatchedTls

#: Fetch only notes what is wanted; the bytes come later.
FETCH_TIMEOUT_S = 5.0


class GrpcMirror:
    """MirrorClient on one channel, opened at the first call; on a new one once our certificate is another."""

    def __init__(self, address: HostPort, *, tls: WatchedTls | None = None, name: str | None = None) -> None:
        self._address = address
        self._tls = tls
        self._name = name
        self._channel: grpc.aio.Channel | None = None
        self._made_with: Material | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def fetch(self, model: Model) -> None:
        """As in the port."""
        if model.weights is None:
            return
        channel = self._open()
        request = mirror_pb2.FetchRequest(model=model.name, version=model.weights.version)
        for file in model.weights.files:
            source = common_pb2.WeightsSource(path=file.path, url=file.url)
            if file.sha256 is not None:
                source.sha256 = file.sha256
            if file.size_bytes is not None:
                source.size_bytes = file.size_bytes
            request.files.append(source)
        try:
            await mirror_pb2_grpc.MirrorServiceStub(channel).Fetch(request, timeout=FETCH_TIMEOUT_S)
        except grpc.aio.AioRpcError as e:
            raise rpc.error_from(e, peer=f"mirror {self._address}") from None

    def _open(self) -> grpc.aio.Channel:
        material = self._tls.now if self._tls is not None else None
        if self._channel is not None and self._made_with is not material:
            # What runs on it may end; a call lasts FETCH_TIMEOUT_S at most.
            task = asyncio.create_task(self._channel.close(grace=FETCH_TIMEOUT_S))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            self._channel = None
        if self._channel is None:
            self._channel = rpc.channel(self._address, tls=material, name=self._name)
            self._made_with = material
        return self._channel

    async def close(self) -> None:
        """Close the channel."""
        await cancel_all(*self._closing)
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
