"""A call that failed under `--output json`: one object on stderr, none on stdout, the same exit status."""

import json
import sys

import pytest

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import events, main
from llmgw_controller.cli.session import Session
from llmgw_kit.errors import Conflict, NotFound, Unavailable

NAMES = {"schema", "code", "error", "next_steps", "retry_after_seconds", "command", "exit_code"}


def failed(monkeypatch, capsys, *words: str) -> tuple[int, dict[str, object]]:
    monkeypatch.setattr(sys, "argv", ["llmgwctl", *words])
    with pytest.raises(SystemExit) as end:
        main.cli()
    out, err = capsys.readouterr()
    assert out == "", "stdout is for answers"
    told = json.loads(err)
    assert set(told) == NAMES
    assert (told["schema"], told["command"]) == ("llmgw.error/1", list(words))
    assert told["exit_code"] == end.value.code
    return int(end.value.code or 0), told


@pytest.mark.parametrize(
    ("words", "error", "steps"),
    [
        (["statis", "--output", "json"], "no such command 'statis' (did you mean 'status'?)", []),
        (["why", "--output=json"], "Missing argument 'MODEL'.", ["try: llmgwctl why --help"]),
        (
            ["node", "cordon", "n1", "--dry", "--output=json"],
            "No such option '--dry'. Did you mean '--dry-run'?",
            [],
        ),
        (["events", "--limit", "many", "--output=json"], None, None),
        (
            ["--output", "json", "reclaim", "--plan", "--idle", "0s"],
            "--idle is 0; expected a span above 0",
            ["try: llmgwctl reclaim --plan --idle 6h"],
        ),
        (
            ["--output", "json", "model", "stop", "\udcff"],
            "the argument '\\udcff' is not UTF-8; expected text that is",
            [],
        ),
        (["--output", "json", "events", "--since", "3x"], None, None),
    ],
)
def test_wrong_words(monkeypatch, capsys, words, error, steps):
    code, told = failed(monkeypatch, capsys, *words)
    assert (code, told["code"]) == (64, "invalid_request")
    assert error is None or (told["error"], told["next_steps"]) == (error, steps)
    assert "\n" not in str(told["error"])


def test_nobody_answers(monkeypatch, capsys, unused_tcp_port):
    at = f"127.0.0.1:{unused_tcp_port}"
    code, told = failed(monkeypatch, capsys, "--controller", at, "status", "--output", "json")
    assert (code, told["code"]) == (2, "no_controller")
    assert "try: llmgwctl doctor" in told["next_steps"]


@pytest.mark.parametrize(
    ("error", "code", "retry_s"),
    [
        (NotFound("no node n9", code="node_not_found", next_steps=["try: llmgwctl nodes"]), 64, None),
        (Conflict("in use by tiny/1", code="in_use", next_steps=["try: llmgwctl nodes"]), 1, None),
        (Unavailable("soon", code="busy", retry_after_s=4.0, next_steps=["try: llmgwctl nodes"]), 2, 4.0),
    ],
)
def test_what_a_controller_refuses_keeps_its_code_and_steps(monkeypatch, capsys, error, code, retry_s):
    def refused(*_, **__):
        raise error

    monkeypatch.setattr(main, "ctl", refused)
    exited, told = failed(monkeypatch, capsys, "status", "--output", "json")
    assert (exited, told["code"], told["error"]) == (code, error.code, error.text)
    assert (told["next_steps"], told["retry_after_seconds"]) == (["try: llmgwctl nodes"], retry_s)


def test_a_bug_too(monkeypatch, capsys):
    def broken(*_, **__):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(main, "ctl", broken)
    assert failed(monkeypatch, capsys, "status", "--output", "json")[1]["code"] == "bug"


@pytest.mark.parametrize(
    "words", [["--output", "table", "statis"], ["statis"], ["statis", "--", "--output", "json"], ["--output"]]
)
def test_who_did_not_ask_for_json_reads_lines(monkeypatch, capsys, words):
    monkeypatch.setattr(sys, "argv", ["llmgwctl", *words])
    with pytest.raises(SystemExit):
        main.cli()
    assert capsys.readouterr().err.startswith("error: ")


def test_each_followed_event_says_what_it_is(capsys):
    """One object a line; who reads the stream tells an event from a leader that is away by its schema."""
    session = Session((), output="json", ascii_only=False, watch=False)
    follower = events._Follower(session, pb.ListEventsRequest())
    follower._print(pb.Event(event_id=7, at_unix_s=1.0, kind="ready", subject="m/1", text="up"))
    follower._tell(Unavailable("nobody leads", code="no_controller"))
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["schema"], told["id"], told["kind"]) == ("llmgw.event/1", 7, "ready")
    away = json.loads(err)
    assert (away["schema"], away["code"], away["exit_code"]) == ("llmgw.error/1", "no_controller", 2)
