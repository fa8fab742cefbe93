"""A mirror that answers over real gRPC what a test recorded, and notes what it was asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llmgw.v1 import mirror_pb2_grpc
from llmgw_kit import rpc
from llmgw_kit.addresses import HostPort
from llmgw_kit.errors import LlmgwError
from llmgw_kit.tls_watch import WatchedTls

#: A message, an error, several messages of a stream, or what makes one of them from the request.
Answer = Any


class Recorded(mirror_pb2_grpc.MirrorServiceServicer):
    """`answers` by call. A stream's list may hold errors too, and None: nothing more comes, and no end."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []
        for name in dir(mirror_pb2_grpc.MirrorServiceServicer):
            if not name.startswith("_"):
                setattr(self, name, self._call(name))

    def _call(self, name: str) -> Callable[[Any, Any], Any]:
        async def single(request: Any, _: Any) -> Any:
            return self._told(name, request)

        async def stream(request: Any, _: Any) -> AsyncIterator[Any]:
            for message in self._told(name, request):
                if message is None:
                    await asyncio.Event().wait()
                if isinstance(message, LlmgwError):
                    raise message
                yield message

        streams = ("WatchDownloads", "VerifyVersion", "ExportBundle", "ImportBundle")
        return stream if name in streams else single

    def _told(self, name: str, request: Any) -> Any:
        self.asked.append((name, request))
        answer = self.answers.get(name)
        assert answer is not None, f"{name} was asked and is not recorded"
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, LlmgwError):
            raise answer
        return answer

    def requests(self, name: str) -> list[Any]:
        return [request for asked, request in self.asked if asked == name]


@contextmanager
def serving(answers: dict[str, Answer], tls: WatchedTls | None = None) -> Iterator[tuple[Recorded, str]]:
    """Its address; on a loop of its own, for the CLI runs one itself."""
    recorded = Recorded(answers)
    ready, ended = threading.Event(), threading.Event()
    found: list[str] = []

    async def serve() -> None:
        server = rpc.server()
        mirror_pb2_grpc.add_MirrorServiceServicer_to_server(recorded, server)  # type: ignore[no-untyped-call, unused-ignore]
        found.append(str(rpc.listen(server, HostPort("127.0.0.1", 0), flag="--listen", tls=tls)))
        await server.start()
        ready.set()
        await asyncio.to_thread(ended.wait)
        await server.stop(0)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(30), "the recorded mirror did not start"
    try:
        yield recorded, found[0]
    finally:
        ended.set()
        thread.join(30)
