"""Lines that grow: seldom in a pipe, in place on a terminal, and never without their end. And what the
controller says of a version that is to leave."""

import asyncio
import io

import pytest

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.mirror.live import DRAW_EVERY_S, PLAIN_EVERY_S, Live
from llmgw_controller.cli.mirror.removing import nodes_of
from llmgw_controller.cli.page import Page
from llmgw_kit.errors import NotFound, Unavailable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Shown:
    """Seconds by hand."""

    def __init__(self, out: io.StringIO) -> None:
        self.at = 0.0
        self.out = out
        self.live = Live(out=out, now=lambda: self.at)

    def show(self, line: str, *, key: str = "same", last: bool = False, after: float = 0.0) -> None:
        self.at += after
        page = Page()
        page.line(line)
        self.live.show(page, line=line, key=key, last=last)

    @property
    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()


def test_in_a_pipe_bytes_are_a_line_now_and_then_and_what_happens_is_one_at_once():
    shown = Shown(io.StringIO())
    shown.show("1 %")
    shown.show("2 %", after=1)
    shown.show("a file came", key="other", after=1)
    shown.show("3 %", key="other", after=PLAIN_EVERY_S - 0.1)
    shown.show("4 %", key="other", after=0.2)
    shown.show("end", key="other", last=True)
    assert shown.lines == ["1 %", "a file came", "4 %", "end"]


def test_in_a_pipe_no_line_holds_a_control():
    shown = Shown(io.StringIO())
    shown.show("x\x1b[2J\nforged")
    assert shown.lines == ["x^[[2J^Jforged"]


def test_a_terminal_is_not_drawn_faster_than_eyes_and_not_later_than_news(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    shown = Shown(Terminal())
    shown.show("1 %")
    shown.show("2 %", after=DRAW_EVERY_S / 2)
    shown.show("3 %", after=DRAW_EVERY_S)
    shown.show("news", key="other")
    drawn = shown.out.getvalue()
    assert "2 %" not in drawn
    assert [text in drawn for text in ("1 %", "3 %", "news")] == [True] * 3
    assert drawn.count("\x1b[1F") == 2, "over what stood there"


def test_a_line_wider_than_the_terminal_is_gone_over_row_by_row(monkeypatch):
    """Half of the frame before it stayed on the screen."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "24")
    shown = Shown(Terminal())
    shown.show("x" * 95)
    shown.show("y", after=1)
    assert "\x1b[3F" in shown.out.getvalue()


def test_a_page_higher_than_the_terminal_says_what_is_left_out(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "10")
    out = Terminal()
    page = Page()
    for number in range(30):
        page.line(f"line {number}")
    Live(out=out, now=lambda: 0.0).show(page, line="x", key="k")
    assert "… 23 more lines" in out.getvalue()
    assert "line 6" in out.getvalue()
    assert "line 7\x1b" not in out.getvalue()


class Controller:
    """A session that is answered at once."""

    def __init__(self, answer: pb.ListWeightsResponse | Exception) -> None:
        self._answer = answer
        self.asked: list[pb.ListWeightsRequest] = []

    def look(self, call):
        return asyncio.run(call(self))

    async def ListWeights(self, request: pb.ListWeightsRequest, timeout: float) -> pb.ListWeightsResponse:
        self.asked.append(request)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def held(version: str, *replicas: str) -> pb.NodeWeights:
    return pb.NodeWeights(node_id="n1", model="m", version=version, used_by=replicas)


def test_m18_only_those_that_have_this_version_open_are_named():
    answer = pb.ListWeightsResponse(weights=[held("v1", "m/1", "m/2"), held("v2", "m/3")])
    controller = Controller(answer)
    nodes = nodes_of(controller, "m", "v1")  # type: ignore[arg-type]
    assert nodes.mapped == ["m/1 on n1", "m/2 on n1"]
    assert controller.asked[0].model == "m"


@pytest.mark.parametrize(
    ("error", "unknown"),
    [
        (NotFound("no model m in the catalog"), None),
        (Unavailable("no controller answered"), "no controller answered"),
    ],
)
def test_a_model_that_no_node_has_is_in_nobodys_way_and_silence_is_told(error, unknown):
    nodes = nodes_of(Controller(error), "m", "v1")  # type: ignore[arg-type]
    assert (nodes.mapped, nodes.unknown) == ([], unknown)
