"""`llmgw-router drill` and `drill-engine`."""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import click

from llmgw_kit.addresses import parse_host_port
from llmgw_kit.errors import InvalidRequest, LlmgwError, Unavailable
from llmgw_kit.lifecycle import print_error
from llmgw_router.drill.engine import MODEL, DrillEngine
from llmgw_router.drill.run import Outcome, as_json, chosen, drill, line, summary
from llmgw_router.drill.wire import Misplaced, Router, Unreachable

_START_S = 30.0


@click.command("drill")
@click.argument("url", required=False)
@click.option(
    "--model", default=MODEL, show_default=True, help="the model behind which a drill engine stands"
)
@click.option("--api-key", envvar="LLMGW_DRILL_API_KEY", help="sent as Bearer; also LLMGW_DRILL_API_KEY")
@click.option("--rule", "only", multiple=True, metavar="W24", help="only this rule; repeatable")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--no-color", is_flag=True, envvar="NO_COLOR", help="no colours; also NO_COLOR")
def drill_command(
    url: str | None,
    model: str,
    api_key: str | None,
    only: tuple[str, ...],
    output: str,
    no_color: bool,  # noqa: FBT001
) -> None:
    """Try the wire rules on a live router, and print which hold.

    URL is the router's, with a `llmgw-router drill-engine` as the only replica of the drill's model. Without
    one, a router and an engine are started for the drill, on loopback, and ended with it. Exit codes: 0 every
    rule holds, 1 some do not, 2 the router does not answer, 64 the question makes no sense.
    """
    try:
        rules = chosen(only)
    except KeyError as unknown:
        print_error(
            InvalidRequest(
                f"there is no rule {unknown.args[0]}",
                next_steps=["a drill without --rule tries all of them, and prints their numbers"],
            )
        )
        sys.exit(64)
    colour = not no_color and sys.stdout.isatty()

    def told(outcome: Outcome) -> None:
        if output == "table":
            click.echo(line(outcome, colour=colour))

    async def work() -> tuple[Router, list[Outcome]]:
        async with contextlib.AsyncExitStack() as stack:
            if url is None:
                router = await stack.enter_async_context(_own(model))
            else:
                router = _router(url, model, api_key)
            return router, await drill(router, rules, told)

    try:
        router, outcomes = asyncio.run(work())
    except Unreachable as gone:
        print_error(
            Unavailable(
                str(gone),
                next_steps=[
                    "give the router's URL: llmgw-router drill http://HOST:8080",
                    "or none: it starts its own",
                ],
            )
        )
        sys.exit(2)
    except Misplaced as misplaced:
        print_error(InvalidRequest(str(misplaced), next_steps=[misplaced.next_step]))
        sys.exit(2)
    except LlmgwError as error:
        print_error(error)
        sys.exit(64 if isinstance(error, InvalidRequest) else 2)
    click.echo(json.dumps(as_json(router, outcomes), indent=2) if output == "json" else summary(outcomes))
    sys.exit(0 if all(outcome.why is None for outcome in outcomes) else 1)


@click.command("drill-engine")
@click.option("--listen", default="127.0.0.1:9999", show_default=True, metavar="H:P")
@click.option("--model", default=MODEL, show_default=True, help="what /v1/models says it serves")
def drill_engine_command(listen: str, model: str) -> None:
    """Run the scripted engine of a drill. It sends what a request tells it to: keep it where only you ask."""
    try:
        address = parse_host_port(listen, what="--listen")
    except LlmgwError as error:
        print_error(error)
        sys.exit(64)

    async def serve() -> None:
        async with DrillEngine(address.host, address.port, model=model) as engine:
            click.echo(f"drill engine for {model} on http://{address.host}:{engine.port}; end it with Ctrl-C")
            click.echo(
                f"next: llmgw-router serve --endpoint drill=http://{address.host}:{engine.port}={model}"
            )
            await asyncio.Event().wait()

    try:
        asyncio.run(serve())
    except OSError as error:
        click.echo(f"error: cannot listen on {listen}: {error.strerror or error}", err=True)
        click.echo("next: choose another address: --listen HOST:PORT", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        return


def _router(url: str, model: str, api_key: str | None) -> Router:
    parts = urlsplit(url if "//" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidRequest(
            f"{url!r} is no URL of a router", next_steps=["for example: http://10.0.0.5:8080"]
        )
    tls = parts.scheme == "https"
    return Router(host=parts.hostname, port=port or (443 if tls else 80), tls=tls, key=api_key, model=model)


@contextlib.asynccontextmanager
async def _own(model: str) -> AsyncIterator[Router]:
    """A router process in router-only mode around an engine of our own."""
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(DrillEngine("127.0.0.1", 0, model=model))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="llmgw-drill-")))
        log = stack.enter_context((folder / "router.log").open("wb"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "llmgw_router.main", "serve", "--workers", "1", "--drain-s", "0"),
            *(
                "--listen",
                "127.0.0.1:0",
                "--admin-listen",
                "127.0.0.1:0",
                "--state-dir",
                str(folder / "state"),
            ),
            *("--endpoint", f"drill=http://127.0.0.1:{engine.port}={model}"),
            stdout=log,
            stderr=log,
            # Nothing of the settings of a router that serves: not its keys, and not the files it writes to.
            env={name: value for name, value in os.environ.items() if not name.startswith("LLMGW_ROUTER_")},
        )
        try:
            yield Router(
                host="127.0.0.1", port=await _client_port(process, folder / "router.log"), model=model
            )
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


async def _client_port(process: asyncio.subprocess.Process, log: Path) -> int:
    mark = "client API on http://127.0.0.1:"
    async with asyncio.timeout(_START_S):
        while process.returncode is None:
            text = log.read_text(errors="replace")
            if mark in text:
                return int(text.partition(mark)[2].split(",")[0])
            await asyncio.sleep(0.05)
    raise Unavailable(f"the drill's own router ended with {process.returncode}: {log.read_text()[-400:]}")
