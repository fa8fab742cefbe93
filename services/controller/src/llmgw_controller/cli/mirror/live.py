"""Lines that grow: drawn over in place on a terminal, and elsewhere told now and then, one after another."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

from rich.cells import cell_len
from rich.text import Text

from llmgw_controller.cli.page import Page

#: In a pipe or a file, while nothing happens but bytes.
PLAIN_EVERY_S = 10.0
#: On a terminal; the eye sees no more, and a slow line carries no more.
DRAW_EVERY_S = 0.2

_UP, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[{}F", "\x1b[K", "\x1b[J"


class Live:
    """One block of lines on stdout. `now` is monotonic seconds."""

    def __init__(self, *, out: TextIO | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._out = out or sys.stdout
        self._now = now
        self._drawn = 0
        self._at: float | None = None
        self._said: str | None = None
        self.on_screen = self._out.isatty()

    @property
    def room(self) -> int:
        """Lines that stay in place: a screen scrolls above its last one."""
        return shutil.get_terminal_size().lines - 2

    def show(self, page: Page, *, line: str, key: str, last: bool = False) -> None:
        """On a terminal the page; elsewhere `line`, when `key` is another than before or time has passed.
        The `last` is never left out."""
        now = self._now()
        if self.on_screen:
            # What happened is drawn at once: nothing more may come for a long time.
            if last or key != self._said or self._at is None or now - self._at >= DRAW_EVERY_S:
                self._at, self._said = now, key
                self._draw(page)
        elif last or key != self._said or self._at is None or now - self._at >= PLAIN_EVERY_S:
            self._at, self._said = now, key
            plain = Page(ascii_only=page.ascii_only, width=page.width)
            plain.line(line)
            self._out.write(plain.plain() + "\n")
            self._out.flush()

    def _draw(self, page: Page) -> None:
        lines = page.styled()
        if len(lines) > self.room:
            lines = [*lines[: self.room - 1], f"… {len(lines) - self.room + 1} more lines"]
        if self._drawn:
            self._out.write(_UP.format(self._drawn))
        for line in lines:
            self._out.write(f"{line}{_REST_OF_LINE}\n")
        self._out.write(_REST_OF_SCREEN)
        self._out.flush()
        # A line that is wider than the screen takes several rows of it, and going up counts rows.
        columns = max(1, shutil.get_terminal_size().columns)
        self._drawn = sum(max(1, -(-cell_len(Text.from_ansi(line).plain) // columns)) for line in lines)
