"""From `main` to exit: one loop a process, signals, errors as lines, a health check without curl."""

import asyncio
import http.client
import logging
import os
import signal
import sys
import textwrap
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from llmgw_kit.addresses import HostPort
from llmgw_kit.errors import LlmgwError, StartupError
from llmgw_kit.text import visible

log = logging.getLogger(__name__)


def run(main: Callable[[], Coroutine[Any, Any, int | None]]) -> int:
    """Run a service's main coroutine on uvloop and return the exit status.

    A StartupError is printed as lines, without a traceback; a bug keeps its traceback."""
    # An engine or a worker is exec'd, never forked bare; grpc's fork handlers only cost.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main()) or 0
    except StartupError as e:
        print_error(e)
        return e.exit_status
    except LlmgwError as e:
        print_error(e)
        return 1
    except KeyboardInterrupt:
        return 130


def print_error(e: LlmgwError, *, width: int | None = None) -> None:
    """`error: what happened`, then the steps, on stderr. Nothing in it moves a terminal's cursor, and no line
    but the first begins at the margin. With `width`, prose is broken there; a command to type never is."""
    first, *rest = [line for part in e.lines() for line in visible(part).split("\n")]
    lines = [f"error: {first}", *(line if line.startswith("  ") else f"  {line}" for line in rest)]
    print(*(part for line in lines for part in _broken(line, width)), sep="\n", file=sys.stderr)


def _broken(line: str, width: int | None) -> list[str]:
    if width is None or len(line) <= width or line.lstrip().startswith(("try:", "next:", "llmgw")):
        return [line]
    indent = "    " if line.startswith(" ") else "  "
    return textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [line]  # fmt: skip


class StopSignal:
    """SIGINT and SIGTERM as an event. A second signal exits at once: somebody means it.

    `on_second` runs just before that exit, for what would otherwise outlive this process. With `on_hurry`
    the second signal calls that and goes on stopping, and it is the third that exits."""

    def __init__(
        self, *, on_second: Callable[[], None] | None = None, on_hurry: Callable[[], None] | None = None
    ) -> None:
        self._event = asyncio.Event()
        self._on_second = on_second
        self._on_hurry = on_hurry
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on, number)

    def _on(self, number: int) -> None:
        if self._event.is_set() and self._on_hurry is not None:
            log.warning("%s again: stopping sooner; a third one exits at once", signal.Signals(number).name)
            hurry, self._on_hurry = self._on_hurry, None
            hurry()
            return
        if self._event.is_set():
            log.warning("%s again: exiting at once", signal.Signals(number).name)
            if self._on_second is not None:
                self._on_second()
            os._exit(128 + number)
        then = "exits at once" if self._on_hurry is None else "makes it quicker"
        log.info("%s: stopping; a second one %s", signal.Signals(number).name, then)
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()


async def until_stopped(stop: StopSignal, *tasks: "asyncio.Task[Any]") -> None:
    """Wait for the signal; a task that ends first is a fault and its exception is raised."""
    waiter = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait({waiter, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {waiter}:
            await task
            raise RuntimeError(f"{task.get_name()} ended by itself")
    finally:
        waiter.cancel()


async def cancel_all(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel and await; exceptions other than cancellation are logged, not lost."""
    for task in tasks:
        task.cancel()
    for task, result in zip(tasks, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
        if isinstance(result, Exception):
            log.error("%s ended with an error while stopping", task.get_name(), exc_info=result)


async def all_or_none(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All at once. The first failure is raised, when the others have been cancelled and have ended; theirs
    are of no interest then."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def probe(address: HostPort, path: str = "/readyz", *, timeout_s: float = 2.0) -> tuple[bool, str]:
    """One GET against a listener of this machine: (2xx?, what it said). For `healthcheck` subcommands."""
    host = {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    connection = http.client.HTTPConnection(host, address.port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read(2000).decode("utf-8", "replace").strip()
    except OSError as e:
        return False, f"{address}{path}: {e}"
    finally:
        connection.close()
    return 200 <= answer.status < 300, f"{address}{path}: {answer.status} {text}"


async def retry_forever(
    what: str,
    action: Callable[[], Awaitable[None]],
    *,
    sleep: Callable[[float], Awaitable[None]],
    most_s: float = 5.0,
) -> None:
    """Run `action` for ever: after an LlmgwError with back-off and a warning, after a return at once."""
    wait_s = 0.2
    while True:
        try:
            await action()
            wait_s = 0.2
        except LlmgwError as e:
            log.warning("%s: %s; again in %.1f s", what, e.text, wait_s)
            await sleep(wait_s)
            wait_s = min(wait_s * 2, most_s)
