"""The command line itself, as a process would see it: exit codes and what is said on bad input."""

import subprocess
import sys

import pytest

from llmgw_controller.cli import main
from llmgw_kit.errors import Conflict, Denied, InvalidRequest, NotFound, Unavailable


def run(monkeypatch, capsys, *args: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["llmgwctl", *args])
    with pytest.raises(SystemExit) as end:
        main.cli()
    out = capsys.readouterr()
    return int(end.value.code or 0), out.out, out.err


def test_help_is_fine(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "--help")
    assert code == 0
    assert "why" in out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["statis"], "no such command 'statis' (did you mean 'status'?)"),
        (["--controller", "10.20.0.4", "status"], "--controller 10.20.0.4 has no port; expected HOST:PORT"),
        (["--controller", ":7070", "status"], "--controller ':7070' has no host; expected HOST:PORT"),
        (["--controller", "h:70707", "status"], "--controller 'h:70707' has port '70707'"),
        (["--output", "xml", "status"], "'xml' is not one of"),
        (["events", "--since", "3x"], "'3x' is not a span of time"),
        (["model", "apply", "/does/not/exist"], "/does/not/exist cannot be read: No such file or directory"),
        (["model", "apply", "-f", "/does/not"], "/does/not cannot be read: No such file or directory"),
        (["model", "apply", "a.yaml", "-f", "b.yaml"], "give FILE, or --shipped NAME"),
        (["model", "apply"], "give FILE, or --shipped NAME"),
        (["why"], "Missing argument 'MODEL'"),
        (["replica", "drian", "m/1"], "no such command 'drian' (did you mean 'drain'?)"),
        (["replica", "stop"], "Missing argument 'NAME...'"),
        (["node", "cordon"], "Missing argument 'NAME'"),
        (["reclaim"], "neither --plan nor --apply is given"),
        (["reclaim", "--plan", "--apply"], "both of --plan and --apply are given"),
        (["reclaim", "--plan", "--idle", "0s"], "--idle is 0; expected a span above 0"),
        (["reclaim", "--apply", "--watch"], "--watch with --apply would let go again and again"),
        (["node", "cordon", "n1", "--watch"], "--watch goes with the views"),
        (["doctor", "--watch"], "--watch goes with the views"),
    ],
)
def test_bad_input_is_64_and_says_what_was_expected(monkeypatch, capsys, args, said):
    code, _, err = run(monkeypatch, capsys, *args)
    assert code == 64
    assert said in err


def test_no_controller_is_2_and_names_the_address(monkeypatch, capsys, unused_tcp_port):
    code, _, err = run(monkeypatch, capsys, "--controller", f"127.0.0.1:{unused_tcp_port}", "status")
    assert code == 2
    assert f"127.0.0.1:{unused_tcp_port} refused" in err
    assert "engines and routers go on without one" in err


def test_a_file_without_a_model_is_refused(monkeypatch, capsys, tmp_path):
    file = tmp_path / "m.yaml"
    file.write_text("just a line")
    code, _, err = run(monkeypatch, capsys, "model", "apply", str(file))
    assert code == 64
    assert "holds no model" in err


def test_a_full_disk_is_told_in_a_line_and_is_no_data():
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "llmgw_controller.cli.main", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert ended.returncode == 2
    assert ended.stderr == "error: the answer cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["model", "stop", "\udcff\udcfe"], "is not UTF-8"),
        (["replica", "logs", "m/1", "--rank", "99999999999999"], "--rank"),
        (["bench", "run", "m", "--concurrency", "1,99999999999999"], "at most 65535"),
        (["bench", "run", "m", "--concurrency", "9" * 5000], "expected numbers such as 1,2,4,8"),
        (["bench", "run", "m", "--requests", "99999999999999"], "--requests"),
        (["bench", "run", "m", "--prompt-tokens", "99999999999999"], "--prompt-tokens"),
        (["bench", "run", "m", "--output-tokens", "99999999999999"], "--output-tokens"),
        (["events", "--since", "99999999999999d"], "at most 36500d"),
        (["evictions", "--since", "9" * 400 + "d"], "at most 36500d"),
        (["reclaim", "--plan", "--idle", "99999999999999d"], "at most 36500d"),
        (["status", "--at", "-99999999999999d"], "is too far away"),
        (["status", "--at", "0001-01-01"], "is too far away"),
        (["why", "m" * 5000], "no name is that long"),
        (["--controller", "a\x1b[31m:1x", "status"], "\\x1b[31m"),
    ],
)
def test_what_no_message_can_carry_is_usage(monkeypatch, capsys, args, said):
    code, _, err = run(monkeypatch, capsys, *args)
    assert code == 64
    assert said in err
    assert "\x1b" not in err
    assert "Traceback" not in err


@pytest.mark.parametrize("text", ["[" * 5000, "{a: " * 5000, "name: 2026-11-30\n", "name: !!binary aGk=\n"])
def test_a_file_that_no_model_can_be_is_usage(monkeypatch, capsys, tmp_path, text):
    file = tmp_path / "m.yaml"
    file.write_text(text)
    code, _, err = run(monkeypatch, capsys, "model", "apply", str(file))
    assert code == 64
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequest("no such thing"), 64),
        (NotFound("no node n9"), 64),
        (Conflict("in use by tiny/1", code="in_use"), 1),
        (Conflict("clients use it", code="busy"), 1),
        (Conflict("it is not lost", code="node_heard"), 1),
        (Denied("who are you"), 1),
        (Unavailable("nobody leads"), 2),
    ],
)
def test_wrong_words_are_64_and_what_the_fleets_state_refuses_is_1(monkeypatch, capsys, error, status):
    def refused(*_, **__):
        raise error

    monkeypatch.setattr(main, "ctl", refused)
    code, out, err = run(monkeypatch, capsys, "status")
    assert (code, out) == (status, "")
    assert err == f"error: {error.text}\n"


def test_a_bug_is_one_line_and_its_traceback_is_asked_for(monkeypatch, capsys):
    def broken(*_, **__):
        raise ZeroDivisionError("by\x1b[31m zero")

    monkeypatch.setattr(main, "ctl", broken)
    code, _, err = run(monkeypatch, capsys, "status")
    assert code == 1
    assert "error: this is a bug of llmgwctl (ZeroDivisionError: by^[[31m zero)" in err
    monkeypatch.setenv("LLMGW_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["llmgwctl", "status"])
    with pytest.raises(ZeroDivisionError):
        main.cli()


@pytest.mark.parametrize(
    "group", [(), ("model",), ("replica",), ("node",), ("weights",), ("bench",), ("router",)]
)
def test_no_short_help_is_cut(monkeypatch, capsys, group):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(monkeypatch, capsys, *group, "--help")
    assert "..." not in out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["model", "uncordon", "n1"], "did you mean 'node uncordon'?"),
        (["forget"], "did you mean 'router forget'?"),
        (["why", ""], "'' is no model's name"),
        (["replica", "drain", "m/1", " "], "' ' is no replica's name"),
    ],
)
def test_a_command_of_another_group_and_an_empty_name_are_said(monkeypatch, capsys, args, said):
    code, _, err = run(monkeypatch, capsys, *args)
    assert code == 64
    assert said in err
