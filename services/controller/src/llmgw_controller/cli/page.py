"""A page of lines, each of styled pieces; and tables in it. Knows nothing of what they say.

Colour only repeats what a word or glyph says; it is off when stdout is no terminal, with NO_COLOR,
and whenever the page is turned into plain text.
"""

import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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
        console = Console(file=sys.stdout, highlight=False, emoji=False, soft_wrap=True, markup=False)
        for line in self.lines:
            text = Text()
            for piece, style in line:
                text.append(piece, style=style or None)
            text.rstrip()
            console.print(text, overflow="ignore", crop=False)


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


def table(page: Page, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], *, indent: str = "") -> None:
    """Columns as wide as their widest cell, two blanks between, titles above even when there is no row."""
    cut = [[_cut(cell, column.most) for cell, column in zip(row, columns, strict=True)] for row in rows]
    widths = [max([cell_len(c.title), *(_width(row[i]) for row in cut)]) for i, c in enumerate(columns)]
    page.line(
        indent,
        ("  ".join(_aligned(c.title, w, right=c.right) for c, w in zip(columns, widths, strict=True)), "dim"),
    )
    for row in cut:
        pieces: list[Piece] = [(indent, "")]
        for i, (cell, column, width) in enumerate(zip(row, columns, widths, strict=True)):
            pad = " " * (width - _width(cell))
            if column.right:
                pieces.append((pad, ""))
            pieces.extend(_pieces(cell))
            if not column.right:
                pieces.append((pad, ""))
            if i < len(columns) - 1:
                pieces.append(("  ", ""))
        page.line(*pieces)


def _aligned(text: str, width: int, *, right: bool) -> str:
    pad = " " * (width - cell_len(text))
    return pad + text if right else text + pad
