"""A page of lines, each of styled pieces; and tables in it. Knows nothing of what they say.

Colour only repeats what a word or glyph says; it is off when stdout is no terminal, with NO_COLOR,
and whenever the page is turned into plain text.
"""

import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

WIDTH = 100

#: A piece of a line: its text and a style ("" for none).
Piece = tuple[str, str]


@dataclass
class Page:
    """Lines to print, and whether plain ASCII bars are wanted."""

    ascii_only: bool = False
    lines: list[list[Piece]] = field(default_factory=list)

    def line(self, *pieces: Piece | str) -> None:
        self.lines.append([(piece, "") if isinstance(piece, str) else piece for piece in pieces])

    def blank(self) -> None:
        if self.lines and self.lines[-1]:
            self.lines.append([])

    def plain(self) -> str:
        """Without colour, without trailing blanks."""
        return "\n".join("".join(text for text, _ in line).rstrip() for line in self.lines)

    def print(self) -> None:
        console = _console(sys.stdout)
        for line in self.lines:
            console.print(_text(line), overflow="ignore", crop=False)

    def styled(self) -> list[str]:
        """Lines with the colours that stdout takes."""
        console = _console(sys.stdout)
        made = []
        for line in self.lines:
            with console.capture() as capture:
                console.print(_text(line), overflow="ignore", crop=False, end="")
            made.append(capture.get())
        return made


def _console(out: TextIO) -> Console:
    return Console(file=out, highlight=False, emoji=False, soft_wrap=True, markup=False)


def _text(line: list[Piece]) -> Text:
    text = Text()
    for piece, style in line:
        text.append(piece, style=style or None)
    text.rstrip()
    return text


def wrapped(page: Page, lead: list[Piece], text: str) -> None:
    """`lead`, then `text` broken between words to fit the width, further lines indented beneath it."""
    indent = sum(cell_len(piece) for piece, _ in lead)
    room = max(WIDTH - indent, 40)
    broken = [line for part in text.split("\n") for line in textwrap.wrap(part, room) or [""]]
    page.line(*lead, broken[0])
    for line in broken[1:]:
        page.line(" " * indent, line)


@dataclass(frozen=True)
class Column:
    """`right` for numbers. `most` bounds the width; what is longer ends in `…`."""

    title: str
    right: bool = False
    most: int | None = None


Cell = str | Piece | list[Piece]


@dataclass(frozen=True)
class Span:
    """A row whose first cells stand in their columns, and whose text runs on over the rest."""

    cells: Sequence[Cell]
    text: Piece


Row = Sequence[Cell] | Span


def _pieces(cell: Cell) -> list[Piece]:
    if isinstance(cell, str):
        return [(cell, "")]
    return [cell] if isinstance(cell, tuple) else cell


def _width(cell: Cell) -> int:
    return sum(cell_len(text) for text, _ in _pieces(cell))


def _cut(cell: Cell, most: int | None) -> Cell:
    if most is None or _width(cell) <= most:
        return cell
    text = "".join(text for text, _ in _pieces(cell))
    return text[: most - 1] + "…"


def table(page: Page, columns: Sequence[Column], rows: Iterable[Row], *, indent: str = "") -> None:
    """Columns as wide as their widest cell, two blanks between, titles above even when there is no row."""
    found = [
        row
        if isinstance(row, Span)
        else [_cut(cell, column.most) for cell, column in zip(row, columns, strict=True)]
        for row in rows
    ]
    cells = [list(row.cells) if isinstance(row, Span) else row for row in found]
    widths = [
        max([cell_len(c.title), *(_width(row[i]) for row in cells if i < len(row))])
        for i, c in enumerate(columns)
    ]
    if not columns[-1].right:
        # Free text stands last and takes what is left.
        left = WIDTH - cell_len(indent) - sum(widths[:-1]) - 2 * (len(columns) - 1)
        widths[-1] = max(min(widths[-1], left), cell_len(columns[-1].title))
        for row in found:
            if not isinstance(row, Span):
                row[-1] = _cut(row[-1], widths[-1])
    page.line(
        indent,
        ("  ".join(_aligned(c.title, w, right=c.right) for c, w in zip(columns, widths, strict=True)), "dim"),
    )
    for row in found:
        lead = row.cells if isinstance(row, Span) else row
        pieces: list[Piece] = [(indent, "")]
        for i, cell in enumerate(lead):
            pad = " " * (widths[i] - _width(cell))
            if columns[i].right:
                pieces.append((pad, ""))
            pieces.extend(_pieces(cell))
            if not columns[i].right:
                pieces.append((pad, ""))
            if i < len(columns) - 1:
                pieces.append(("  ", ""))
        if isinstance(row, Span):
            wrapped(
                page, [*pieces, (_lead(row.text[0]), row.text[1])], row.text[0][len(_lead(row.text[0])) :]
            )
        else:
            page.line(*pieces)


def _lead(text: str) -> str:
    """The mark that a text begins with, and its blank: further lines stand beneath what follows it."""
    return next((mark for mark in ("!! ", " * ") if text.startswith(mark)), "")


def _aligned(text: str, width: int, *, right: bool) -> str:
    pad = " " * (width - cell_len(text))
    return pad + text if right else text + pad
