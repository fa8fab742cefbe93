"""What a page looks like on a terminal: as wide as it is, within bounds; no codes where none are wanted."""

import io
import sys

import pytest

from llmgw_controller.cli.page import NARROWEST, WIDTH, Page, screen_width


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("columns", "width"), [("40", NARROWEST), ("80", 80), ("93", 93), ("100", WIDTH), ("250", WIDTH)]
)
def test_as_wide_as_the_terminal_within_bounds(monkeypatch, columns, width):
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", columns)
    assert screen_width() == Page().width == width


def test_in_a_pipe_it_is_the_same_everywhere(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", "80")
    assert screen_width() == WIDTH


def printed(monkeypatch) -> str:
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm-256color")
    page = Page()
    page.line(("!! ", "bold red"), ("busy", "cyan"), ("a hint", "dim"))
    page.print()
    return out.getvalue()


def test_styles_are_codes_on_a_terminal(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in printed(monkeypatch)


def test_who_wants_no_colour_gets_no_code_at_all(monkeypatch):
    """Bold and dim are codes too."""
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed(monkeypatch) == "!! busya hint\n"
