"""A page of lines, each of styled pieces; and tables in it. Knows nothing of what they say.

Colour only repeats what a word or glyph says; it is off when stdout is no terminal, with NO_COLOR,
and whenever the page is turned into plain text. Much of it others wrote, and it is made harmless here, for
all pages: a piece is one line, and its control characters are shown.
"""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from llmgw_kit.text import in_one_line, visible

#: At most; and on a narrower terminal at least, below which lines break where the terminal breaks them.
WIDTH, NARROWEST = 100, 80

#: A column of names gives way down to so many characters where a page is too narrow for it.
NAME_LEAST = 8

#: A piece of a line: its text and a style ("" for none).
Piece = tuple[str, str]


def screen_width() -> int:
    """Of a page on stdout: as wide as a narrow terminal, else `WIDTH`, also in a file or a pipe."""
    if not sys.stdout.isatty():
        return WIDTH
    return max(NARROWEST, min(WIDTH, shutil.get_terminal_size().columns))


@dataclass
class Page:
    """Lines to print, whether plain ASCII bars are wanted, and how wide a line may be."""

    ascii_only: bool = False
    width: int = field(default_factory=screen_width)
    lines: list[list[Piece]] = field(default_factory=list)

    def line(self, *pieces: Piece | str) -> None:
        self.lines.append([(in_one_line(text), style) for piece in pieces for text, style in _pieces(piece)])

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
    # rich itself keeps bold and dim under NO_COLOR; who sets it wants none of the codes.
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(
        file=out, highlight=False, emoji=False, soft_wrap=True, markup=False,
        color_system=None if plain else "auto",
    )  # fmt: skip


def _text(line: list[Piece]) -> Text:
    text = Text()
    for piece, style in line:
        text.append(piece, style=style or None)
    text.rstrip()
    return text


def wrapped(page: Page, lead: list[Piece], text: str) -> None:
    """`lead`, then `text` broken between words to fit the width, further lines indented beneath it."""
    lead = [(in_one_line(piece), style) for piece, style in lead]
    indent = sum(cell_len(piece) for piece, _ in lead)
    room = max(page.width - indent, 20)
    broken = [line for part in visible(text).split("\n") for line in textwrap.wrap(part, room) or [""]]
    page.line(*lead, broken[0])
    for line in broken[1:]:
        page.line(" " * indent, line)


@dataclass(frozen=True)
class Column:
    """`right` for numbers. `most` bounds the width where the page is full; what is longer ends in `…`."""

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


def _shown(cells: Sequence[Cell]) -> list[Cell]:
    """Made harmless before it is measured: what is shown of a control character is wider than it."""
    return [[(in_one_line(text), style) for text, style in _pieces(cell)] for cell in cells]


def _width(cell: Cell) -> int:
    return sum(cell_len(text) for text, _ in _pieces(cell))


def _cut(cell: Cell, most: int) -> Cell:
    if _width(cell) <= most:
        return cell
    text = "".join(text for text, _ in _pieces(cell))
    return text[: most - 1] + "…"


def _fitted(cells: Sequence[Cell], widths: Sequence[int]) -> list[Cell]:
    return [_cut(cell, width) for cell, width in zip(cells, widths, strict=False)]


def table(page: Page, columns: Sequence[Column], rows: Iterable[Row], *, indent: str = "") -> None:
    """Columns as wide as their widest cell, two blanks between, titles above even when there is no row."""
    found = [Span(_shown(row.cells), row.text) if isinstance(row, Span) else _shown(row) for row in rows]
    cells = [list(row.cells) if isinstance(row, Span) else list(row) for row in found]
    whole = [
        max([cell_len(c.title), *(_width(row[i]) for row in cells if i < len(row))])
        for i, c in enumerate(columns)
    ]
    widths = _widths(columns, whole, page.width - cell_len(indent) - 2 * (len(columns) - 1))
    found = [
        Span(_fitted(row.cells, widths), row.text) if isinstance(row, Span) else _fitted(row, widths)
        for row in found
    ]
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


def _widths(columns: Sequence[Column], whole: Sequence[int], room: int) -> list[int]:
    """Of each column: what its widest cell takes, bounded where there is no room for all of it. Free text
    stands last and takes what is left; what it leaves goes to the others, from the left."""
    widths = [
        min(most, max(cell_len(c.title), c.most or most)) for c, most in zip(columns, whole, strict=True)
    ]
    if not columns[-1].right:
        left = room - sum(widths[:-1])
        widths[-1] = max(min(widths[-1], left), cell_len(columns[-1].title))
    free = room - sum(widths)
    names = [i for i, c in enumerate(columns) if c.most is not None and not c.right]
    while free < 0 and (
        long := [i for i in names if widths[i] > max(NAME_LEAST, cell_len(columns[i].title))]
    ):
        widths[max(long, key=lambda i: widths[i])] -= 1
        free += 1
    for i, most in enumerate(whole):
        given = min(max(free, 0), most - widths[i])
        widths[i] += given
        free -= given
    return widths


def _lead(text: str) -> str:
    """The mark that a text begins with, and its blank: further lines stand beneath what follows it."""
    return next((mark for mark in ("!! ", " * ") if text.startswith(mark)), "")


def _aligned(text: str, width: int, *, right: bool) -> str:
    pad = " " * (width - cell_len(text))
    return pad + text if right else text + pad
