"""A scripted engine: a real process that speaks the OpenAI API and fails on request.

    python -m llmgw_kit.testing.engine --port P --served-name NAME [--load-s 2] [--tokens 50] …

Knobs: `engine_script.Script`, each a flag and a field of `POST /ctl {"tokens": 3}`. `GET /ctl` tells
the script and what was seen. Only for the process itself, besides those: `--wrong-port` listens
elsewhere than told, `--bind-failure` claims that the port is taken and exits 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from aiohttp import web

from llmgw_kit.testing import engine_script as script_of
from llmgw_kit.testing.engine_script import Script

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
#: How often a stalled request looks whether it may go on.
STALL_LOOK_S = 0.05
#: Told by /version.
VERSION = "scripted-1"
#: SO_LINGER on, zero seconds: close() sends RST instead of FIN (socket(7)).
LINGER_RST = struct.pack("ii", 1, 0)


@dataclass
class Engine:
    """The running engine: its script, and what it has seen."""

    served_names: list[str]
    script: Script
    ready: bool = False
    hanging: bool = False
    running: int = 0
    served: int = 0
    tokens: int = 0
    aborted: int = 0
    last_headers: dict[str, str] = field(default_factory=dict)
    timers: set[asyncio.TimerHandle] = field(default_factory=set)

    def app(self) -> web.Application:
        """All routes; /ctl answers in every state."""
        app = web.Application(middlewares=[self.gate], client_max_size=64 << 20)
        app.add_routes(
            [
                web.get("/ctl", self.told),
                web.post("/ctl", self.control),
                web.get("/health", self.health),
                web.get("/metrics", self.metrics),
                web.get("/version", self.version),
                web.get("/v1/models", self.models),
                web.post("/v1/chat/completions", self.generate),
                web.post("/v1/completions", self.generate),
                web.post("/v1/embeddings", self.embeddings),
            ]
        )
        return app

    def begin_loading(self) -> None:
        """Become ready, or leave, when the script says so."""
        self._later(self.script.load_s, self._loaded)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.timers.add(asyncio.get_running_loop().call_later(delay_s, action))

    def _loaded(self) -> None:
        if self.script.exit_at_load is not None:
            leave(self.script.exit_at_load, "scripted failure while loading")
        self.ready = True
        print("model loaded", flush=True)
        self._arm()

    def _arm(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()
        self.hanging = False
        if self.script.exit_after_s is not None:
            code = self.script.exit_code
            self._later(self.script.exit_after_s, lambda: leave(code, "scripted crash"))
        if self.script.hang_after_s is not None:
            self._later(self.script.hang_after_s, self._hang)

    def _hang(self) -> None:
        self.hanging = True

    @web.middleware
    async def gate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Hanging, loading, refusing and credentials, before any route but /ctl."""
        if request.path == "/ctl":
            return await handler(request)
        if self.hanging:
            await asyncio.Event().wait()
        if not self.ready:
            return failure(503, "Loading model", "unavailable_error")
        is_api = request.path.startswith("/v1/")
        key = self.script.require_key
        if is_api and key is not None and request.headers.get("Authorization") != f"Bearer {key}":
            return failure(401, "Invalid API Key", "authentication_error")
        if is_api and request.method == "POST" and self.script.refuse_status is not None:
            answer = failure(self.script.refuse_status, "scripted refusal", "scripted")
            if self.script.retry_after_s is not None:
                answer.headers["Retry-After"] = str(self.script.retry_after_s)
            return answer
        return await handler(request)

    async def told(self, _: web.Request) -> web.Response:
        """What it is set to and has seen."""
        return web.json_response(
            {
                "pid": os.getpid(),
                "script": asdict(self.script),
                "ready": self.ready,
                "running": self.running,
                "served": self.served,
                "aborted": self.aborted,
                "last_headers": self.last_headers,
            }
        )

    async def control(self, request: web.Request) -> web.Response:
        """Change knobs; timers count from now."""
        try:
            self.script = self.script.changed(await request.json())
        except (ValueError, TypeError) as problem:
            return failure(400, str(problem), "invalid_request_error")
        if self.ready:
            self._arm()
        return await self.told(request)

    async def health(self, _: web.Request) -> web.Response:
        """Ready: the gate has answered otherwise."""
        return web.json_response({"status": "ok"})

    async def metrics(self, _: web.Request) -> web.Response:
        """With the running gauge, unless the script breaks it."""
        if self.script.gauge == "error":
            return failure(500, "scripted: the gauge cannot be read", "server_error")
        return web.Response(text=script_of.metrics(self.script, self.running, self.served, self.tokens))

    async def version(self, _: web.Request) -> web.Response:
        """As vLLM tells it."""
        return web.json_response({"version": VERSION})

    async def models(self, _: web.Request) -> web.Response:
        """The served names."""
        data = [
            {"id": name, "object": "model", "created": 0, "owned_by": "scripted"}
            for name in self.served_names
        ]
        return web.json_response({"object": "list", "data": data})

    async def _asked(self, request: web.Request) -> dict[str, Any]:
        self.last_headers = dict(request.headers)
        try:
            asked = await request.json()
        except ValueError:
            raise refusal(400, "the body is not JSON") from None
        if not isinstance(asked, dict) or asked.get("model") not in self.served_names:
            model = asked.get("model") if isinstance(asked, dict) else None
            raise refusal(404, f"The model `{model}` does not exist.")
        return asked

    async def embeddings(self, request: web.Request) -> web.Response:
        """Vectors."""
        asked = await self._asked(request)
        self.served += 1
        return web.json_response(script_of.embeddings(asked))

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Chat and text completions, whole or streamed."""
        asked = await self._asked(request)
        chat = request.path.endswith("/chat/completions")
        self.served += 1
        self.running += 1
        try:
            while self.script.stall:
                await asyncio.sleep(STALL_LOOK_S)
            if asked.get("stream"):
                return await self._stream(request, asked, self.served, chat=chat)
            tokens = script_of.wanted_tokens(self.script, asked)
            await asyncio.sleep(self.script.first_token_s)
            for _ in range(tokens):
                await asyncio.sleep(self.script.token_interval_s)
                self.tokens += 1
            return web.json_response(script_of.whole_answer(self.script, asked, self.served, chat=chat))
        finally:
            self.running -= 1

    async def _stream(
        self, request: web.Request, asked: dict[str, Any], number: int, *, chat: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        script = self.script
        await response.prepare(request)
        await asyncio.sleep(script.first_token_s)
        try:
            for i, chunk in enumerate(script_of.stream_chunks(script, asked, number, chat=chat)):
                if i == script.cut_after_tokens:
                    cut(request, script.cut_by)
                    return response
                if i:
                    await asyncio.sleep(script.token_interval_s)
                while self.script.stall:
                    await asyncio.sleep(STALL_LOOK_S)
                self.tokens += 1
                await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
        except ConnectionError:
            self.aborted += 1  # the client left; nobody is there to be told
        return response


def failure(status: int, message: str, kind: str) -> web.Response:
    """An OpenAI-style error."""
    return web.json_response({"error": {"code": status, "message": message, "type": kind}}, status=status)


def refusal(status: int, message: str) -> web.HTTPException:
    """The same, raised."""
    kinds = {400: web.HTTPBadRequest, 404: web.HTTPNotFound}
    body = json.dumps({"error": {"code": status, "message": message, "type": "invalid_request_error"}})
    return kinds[status](text=body, content_type="application/json")


def cut(request: web.Request, by: str) -> None:
    """End the connection in the middle of an answer."""
    transport = request.transport
    if transport is None:
        return
    if by == "rst":
        raw: socket.socket = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RST)
        transport.abort()
    else:
        transport.close()


def leave(code: int, why: str) -> None:
    """Exit at once, as a crash does: nothing is flushed but this line."""
    print(f"scripted engine: {why}, exit {code}", file=sys.stderr, flush=True)
    os._exit(code)


async def serve(host: str, port: int, engine: Engine) -> None:
    """Listen, load, and serve until SIGTERM or SIGINT."""
    runner = web.AppRunner(engine.app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    bound = runner.addresses[0]
    print(f"scripted engine, pid {os.getpid()}, on http://{bound[0]}:{bound[1]}", flush=True)
    engine.begin_loading()
    while True:
        await told.wait()
        told.clear()
        if not engine.script.ignore_sigterm:
            break
        print("SIGTERM ignored, as scripted", flush=True)
    await asyncio.sleep(engine.script.leave_s)
    await runner.cleanup()


def parser() -> argparse.ArgumentParser:
    """Flags of the process, then one a knob."""
    flags = argparse.ArgumentParser(prog="engine", description="A scripted engine for tests.")
    flags.add_argument("--host", default="127.0.0.1")
    flags.add_argument("--port", type=int, required=True)
    flags.add_argument("--served-name", action="append", required=True, help="repeatable")
    flags.add_argument("--wrong-port", action="store_true", help="listen on another port than told")
    flags.add_argument("--bind-failure", action="store_true", help="say that the port is taken and exit 1")
    kinds: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}
    for knob in fields(Script):
        flag, declared = "--" + knob.name.replace("_", "-"), str(knob.type)
        if declared == "bool":
            flags.add_argument(flag, action="store_true")
        else:
            kind = kinds.get(declared.removesuffix(" | None"), str)
            flags.add_argument(flag, type=kind, default=knob.default)
    return flags


def main() -> int:
    """Parse, serve, and exit 0; 1 when the port is taken."""
    given = vars(parser().parse_args())
    host, port, names = given.pop("host"), given.pop("port"), given.pop("served_name")
    wrong_port, bind_failure = given.pop("wrong_port"), given.pop("bind_failure")
    engine = Engine(served_names=names, script=Script(**given))
    try:
        if bind_failure:
            raise OSError(98, "Address already in use (scripted)")
        asyncio.run(serve(host, 0 if wrong_port else port, engine))
    except OSError as problem:
        print(f"scripted engine: couldn't bind HTTP server socket {host}:{port}: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
