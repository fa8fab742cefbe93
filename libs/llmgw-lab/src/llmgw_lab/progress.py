"""What the lab is doing, on the terminal: a live line a step, or plain lines when it is no terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

#: On no terminal a step that takes long says again what it is at, so that a log shows life.
REPEAT_S = 5.0


class Step:
    """One thing being done; `say` tells what it is at now."""

    def __init__(self, shown: Shown, name: str) -> None:
        self._shown, self.name = shown, name
        self.detail = ""
        self.started = time.monotonic()
        self._told = time.monotonic()
        self._task = shown.live.add_task(name, detail="") if shown.live else None

    def say(self, detail: str) -> None:
        """What it is at; without a `conclude` the last thing said stays beside the finished step."""
        changed, self.detail = detail != self.detail, detail
        live, now = self._shown.live, time.monotonic()
        if live and self._task is not None:
            live.update(self._task, detail=detail)
        elif changed and now - self._told >= REPEAT_S:
            self._told = now
            self._shown.console.print(f"  ... {self.name}: {detail}", highlight=False, markup=False)

    def conclude(self, detail: str) -> None:
        """What stands beside the finished step."""
        self.detail = detail

    def end(self, mark: str, style: str) -> None:
        """Leave a line behind."""
        if self._shown.live and self._task is not None:
            self._shown.live.remove_task(self._task)
        took = f"{time.monotonic() - self.started:6.1f} s"
        line = Text.assemble((f"  {mark} ", style), f"{self.name:<14}", (took, "dim"), f"  {self.detail}")
        self._shown.console.print(line, soft_wrap=True)


class Shown:
    """The terminal during start-up. NO_COLOR and a pipe are respected by rich itself."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live: Progress | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show spinners while inside; nothing is left of them."""
        if not self.console.is_terminal:
            yield
            return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description:<14}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}"),
        )
        with Progress(*columns, console=self.console, transient=True) as self.live:
            try:
                yield
            finally:
                self.live = None

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """One step; its line says done or failed by itself."""
        step = Step(self, name)
        try:
            yield step
        except asyncio.CancelledError:
            step.end("-", "dim")  # something else ended it
            raise
        except BaseException:
            step.end("x", "red")
            raise
        step.end("+", "green")
