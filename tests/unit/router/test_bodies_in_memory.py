"""How much memory one big body takes on its way: once its size, and not twice (W47)."""

import asyncio
import tracemalloc

from llmgw_router.core.table import ModelRow
from llmgw_router.relay import ipc
from llmgw_router.relay.client import ClientConnection
from llmgw_router.relay.upstream import UpstreamConnection

from .test_fuzz_parsers import ANSWER, ClientWire, Rig
from .test_relay_pausing import Wire

BOUNDARY = b"bOuNd-7"
SIZE = 16 * 1024 * 1024
PIECE = 64 * 1024


def form(model: bytes, size: int) -> tuple[bytes, bytes]:
    """What stands before and behind a file of `size` bytes."""
    line = b"--" + BOUNDARY + b"\r\nContent-Disposition: form-data; "
    before = (
        line + b'name="model"\r\n\r\n' + model + b"\r\n" + line + b'name="file"; filename="a.wav"\r\n\r\n'
    )
    behind = b"\r\n--" + BOUNDARY + b"--\r\n"
    length = len(before) + size + len(behind)
    head = (
        b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: r\r\ncontent-type: multipart/form-data; boundary="
        + BOUNDARY
        + b"\r\ncontent-length: %d\r\n\r\n" % length
    )
    return head + before, behind


class Sink(Wire):
    """An engine's connection that takes everything and keeps nothing."""

    taken = 0

    def write(self, data: bytes) -> None:
        self.taken += len(data)


def peak_of(rig: Rig, model: bytes) -> int:
    """Most bytes allocated at once while a big form comes in, is read, and goes out."""
    before, behind = form(model, SIZE)
    piece = b"\0" * PIECE
    sink, wire = Sink(), ClientWire()
    upstream = UpstreamConnection(rig.engine)
    upstream.connection_made(sink.as_transport())
    rig.engine.idle[:] = [upstream]
    client = ClientConnection(rig.hub)
    client.connection_made(wire.as_transport())
    tracemalloc.start()
    try:
        client.data_received(before)
        for _ in range(SIZE // PIECE):
            client.data_received(piece)
        client.data_received(behind)
        # The form is walked in turns of the loop.
        while not sink.taken:
            rig.loop.run_until_complete(asyncio.sleep(0))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        assert sink.taken > SIZE
        upstream.data_received(ANSWER)
        assert wire.written.startswith(b"HTTP/1.1 200 ")
        client.connection_lost(None)


def test_a_file_is_in_memory_once() -> None:
    """W47: also where an alias is spliced into its form. What a bytearray keeps in reserve comes on top."""
    rig = Rig(noting=False)
    try:
        row = rig.engine.row
        models = (ModelRow(name="m", aliases=("whisper-1",)),)
        rig.hub.routes.apply(ipc.TableUpdate(endpoints=(row,), models=models, seq=2))
        for model in (b"m", b"whisper-1"):
            assert SIZE < peak_of(rig, model) < 1.5 * SIZE
    finally:
        rig.close()
