"""`--watch`: the same view again and again, in place, until Ctrl-C.

On a terminal the page is drawn on the alternate screen, line over line, so that it neither flickers nor
fills the scrollback; what does not fit the height is left out and said so. Elsewhere each answer follows the
last: a JSON document each, or pages with a blank line between. A leader that is away is a line, not the end.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

import click

from llmgw_controller.cli.failure import as_json
from llmgw_controller.cli.page import Page
from llmgw_kit.errors import LlmgwError

if TYPE_CHECKING:
    from llmgw_controller.cli.session import Asking, Render

T = TypeVar("T")

EVERY_S = 2.0

ALTERNATE_ON, ALTERNATE_OFF = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class Watch:
    """One watched view."""

    def __init__(
        self, session: Asking[Any], *, out: TextIO | None = None, pause: Callable[[float], None] = time.sleep
    ):
        self._session = session
        self._out = out or sys.stdout
        self._pause = pause
        self._on_screen = self._out.isatty() and session.output != "json"

    def run(
        self, call: Callable[[Any], Awaitable[T]], render: Render[T], to_json: Callable[[T], Any]
    ) -> NoReturn:
        """Until Ctrl-C."""
        if self._on_screen:
            self._out.write(ALTERNATE_ON)
        try:
            while True:
                self._once(call, render, to_json)
                self._pause(EVERY_S)
        finally:
            if self._on_screen:
                self._out.write(ALTERNATE_OFF)
                self._out.flush()

    def _once(
        self, call: Callable[[Any], Awaitable[T]], render: Render[T], to_json: Callable[[T], Any]
    ) -> None:
        page = Page(ascii_only=self._session.ascii_only)
        try:
            answer = self._session.look(call)
        except LlmgwError as e:
            if self._session.output == "json":
                self._line(json.dumps(as_json(e)))
                return
            page.line(("!! ", "bold red"), e.text)
            page.line((f"asked again every {EVERY_S:.0f} s; Ctrl-C ends it", "dim"))
        else:
            if self._session.output == "json":
                self._line(json.dumps(to_json(answer), ensure_ascii=False))
                return
            render(page, answer)
        if self._on_screen:
            self._draw(page)
        else:
            page.print()
            self._line("")

    def _draw(self, page: Page) -> None:
        """Over what stood there: each line is written and its rest wiped, then what is below."""
        height = shutil.get_terminal_size().lines
        lines = page.styled()
        if len(lines) > height:
            hidden = len(lines) - (height - 1)
            lines = [*lines[: height - 1], f"… {hidden} more lines; without --watch all are shown"]
        drawn = f"{REST_OF_LINE}\n".join(lines)
        self._out.write(f"{HOME}{drawn}{REST_OF_LINE}{REST_OF_SCREEN}")
        self._out.flush()

    def _line(self, text: str) -> None:
        click.echo(text, file=self._out)
        self._out.flush()
