"""Times as people type them, a view that is watched, and what TAB offers."""

import io
import json
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import completion, watch
from llmgw_controller.cli.main import ctl
from llmgw_controller.cli.page import Page
from llmgw_controller.cli.session import Session
from llmgw_controller.cli.times import moment
from llmgw_controller.cli.views import status
from llmgw_kit.errors import Unavailable

from . import fleet

NOW = 1_796_049_120.0  # 30 Nov 2026 14:32 UTC


def at(text: str) -> str | None:
    found = moment(text, now=NOW)
    return None if found is None else datetime.fromtimestamp(found, UTC).strftime("%d %H:%M:%S")


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("-2h", "30 12:32:00"),
        ("90s", "30 14:30:30"),
        ("-1.5d", "29 02:32:00"),
        ("14:05", "30 14:05:00"),
        ("14:32", "30 14:32:00"),
        ("14:33", "29 14:33:00"),
        ("9:05:07", "30 09:05:07"),
        ("2026-11-30T14:05", "30 14:05:00"),
        ("2026-11-30 14:05:10", "30 14:05:10"),
        ("2026-11-30T15:05:00+01:00", "30 14:05:00"),
        ("2026-11-29", "29 00:00:00"),
        ("25:00", None),
        ("12:60", None),
        ("soon", None),
        ("", None),
        ("-h", None),
    ],
)
def test_a_time_of_day_is_the_last_that_has_come(text, then):
    assert at(text) == then


class Screen(io.StringIO):
    def __init__(self, *, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


class Enough(Exception):
    """Ctrl-C of a test."""


def watched(answers: list, *, tty: bool, output: str = "table") -> str:
    session = Session((), output=output, ascii_only=False, watch=True)
    waiting = iter(answers)

    def ask(_):
        answer = next(waiting)
        if isinstance(answer, Exception):
            raise answer
        return answer

    session.look = ask  # type: ignore[method-assign]
    out, left = Screen(tty=tty), [len(answers)]

    def pause(_: float) -> None:
        left[0] -= 1
        if not left[0]:
            raise Enough

    made = watch.Watch(session, out=out, pause=pause)

    def render(page: Page, answer: pb.GetStatusResponse) -> int:
        status.render(page, answer)
        return 0

    with pytest.raises(Enough):
        made.run(lambda stub: stub, render, lambda answer: {"cluster": answer.info.cluster})
    return out.getvalue()


def test_on_a_terminal_it_is_drawn_in_place_on_the_other_screen():
    drawn = watched([fleet.status(), fleet.status()], tty=True)
    assert drawn.startswith(watch.ALTERNATE_ON)
    assert drawn.endswith(watch.ALTERNATE_OFF), "the terminal is given back"
    first, second = drawn.split(watch.HOME)[1:]
    assert "leader controller-1" in first
    assert "leader controller-1" in second
    # Nothing is cleared before it is drawn anew: that is what flickers.
    assert "\x1b[2J" not in drawn
    lines = second.removesuffix(watch.ALTERNATE_OFF).split("\n")
    assert all(line.endswith(watch.REST_OF_LINE) for line in lines[:-1])
    assert lines[-1].endswith(watch.REST_OF_SCREEN)


def test_what_does_not_fit_the_screen_is_counted(monkeypatch):
    monkeypatch.setenv("LINES", "10")
    monkeypatch.setenv("COLUMNS", "100")
    drawn = watched([fleet.status()], tty=True)
    assert len(drawn.split(watch.HOME)[1].split("\n")) == 10
    assert "more lines; without --watch all are shown" in drawn


def test_a_leader_that_is_away_is_a_line_and_not_the_end():
    drawn = watched(
        [fleet.status(), Unavailable("nobody leads", code="no_controller"), fleet.status()], tty=True
    )
    one, two, three = drawn.split(watch.HOME)[1:]
    assert "nobody leads" in two
    assert "leader controller-1" not in two
    assert "leader controller-1" in three
    assert "nobody leads" not in one


def test_in_a_pipe_each_json_document_is_a_line():
    lines = watched(
        [fleet.status(), Unavailable("away", code="x")], tty=False, output="json"
    ).strip().split("\n")  # fmt: skip
    answer, away = [json.loads(line) for line in lines]
    assert answer == {"cluster": "lab"}
    assert (away["schema"], away["code"], away["error"], away["exit_code"]) == (
        "llmgw.error/1",
        "x",
        "away",
        2,
    )


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_each_shell_has_a_script(shell):
    ran = subprocess.run(
        [sys.executable, "-m", "llmgw_controller.cli.main", "completion", shell],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert f"_LLMGWCTL_COMPLETE={shell}_complete" in ran.stdout


def offered(words: list[str], incomplete: str) -> list[str]:
    from click.shell_completion import ShellComplete

    complete = ShellComplete(ctl, {}, "llmgwctl", "_LLMGWCTL_COMPLETE")
    return [item.value for item in complete.get_completions(words, incomplete)]


def test_commands_are_offered_without_a_controller():
    assert offered([], "stat") == ["status"]
    assert "cordon" in offered(["node"], "c")


@pytest.mark.parametrize("words", [["--output"], ["status", "--output"], ["node", "drain", "n1", "--output"]])
def test_what_a_flag_of_the_group_takes_is_offered_wherever_it_stands(words):
    assert offered(words, "") == ["table", "json"]
    assert offered(words, "j") == ["json"]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["why"], "model"),
        (["model", "activate"], "model"),
        (["replica", "drain"], "replica"),
        (["replica", "drain", "m/1", "--for"], "model"),
        (["node", "cordon"], "node"),
        (["gpus", "--node"], "node"),
        (["router", "forget"], "router"),
    ],
)
def test_names_of_the_right_kind_are_offered(monkeypatch, words, kind):
    asked = []

    async def names(addresses, of):
        asked.append((str(addresses[0]), of))
        return ["alpha", "beta"]

    monkeypatch.setattr(completion, "_names", names)
    monkeypatch.setenv("LLMGW_CONTROLLER", "10.9.8.7:7070")
    assert offered(words, "b") == ["beta"]
    assert asked == [("10.9.8.7:7070", kind)]


def test_no_controller_offers_nothing_and_takes_no_time(unused_tcp_port, monkeypatch):
    monkeypatch.setenv("LLMGW_CONTROLLER", f"127.0.0.1:{unused_tcp_port}")
    assert offered(["why"], "") == []
    monkeypatch.setenv("LLMGW_CONTROLLER", "no port")
    assert offered(["why"], "") == []


def test_a_name_that_is_plain_text_elsewhere_is_left_alone():
    apply = ctl.commands["model"].commands["apply"]  # type: ignore[attr-defined]
    assert not any(isinstance(param.type, completion.Names) for param in apply.params)
