"""The group's own options may stand behind the command; and what is said when no command stands there."""

import sys

import pytest

from llmgw_controller.cli import main
from llmgw_controller.cli.session import Session


def run(monkeypatch, capsys, *args: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["llmgwctl", *args])
    with pytest.raises(SystemExit) as end:
        main.cli()
    out = capsys.readouterr()
    return int(end.value.code or 0), out.out, out.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["status", "--output", "xml"], "'xml' is not one of"),
        (["status", "--output"], "Option '--output' requires an argument"),
        (["model", "apply", "m.yaml", "--controller=10.20.0.4"], "--controller 10.20.0.4 has no port"),
        (["status", "--", "--output", "xml"], "unexpected extra argument"),
        ([], "error: no command given; expected one of"),
        (["model"], "error: no command given; expected one of activate, apply"),
        (["model"], "  try: llmgwctl model --help"),
    ],
)
def test_bad_input_is_64_and_says_what_was_expected(monkeypatch, capsys, args, said):
    code, _, err = run(monkeypatch, capsys, *args)
    assert code == 64
    assert said in err


def test_options_behind_the_command_reach_the_group(monkeypatch, capsys, unused_tcp_port):
    address = f"127.0.0.1:{unused_tcp_port}"
    code, out, err = run(
        monkeypatch, capsys, "version", "--output", "json", "--controller", address, "--ascii"
    )
    assert code == 2
    assert out.startswith('{"schema": "llmgw.version/1"')
    assert f"{address} refused" in out
    assert not err


@pytest.mark.parametrize(("value", "plain"), [("C", True), ("POSIX", True), ("C.UTF-8", False), ("", False)])
def test_the_c_locale_asks_for_ascii_bars(monkeypatch, value, plain):
    monkeypatch.setenv("LC_ALL", value)
    assert Session((), output="table", ascii_only=False, watch=False).ascii_only is plain
