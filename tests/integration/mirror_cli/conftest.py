"""`llmgwctl` as a process would see it, against a mirror that answers what was recorded."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from llmgw_controller.cli import main
from llmgw_kit.tls_watch import WatchedTls

from .recorded import Answer, Recorded, serving

pytestmark = pytest.mark.timeout(120)

#: Nobody listens there: port 0 cannot be connected to.
NOBODY = "127.0.0.1:1"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit status, stdout, stderr. No controller answers unless the words name one."""

    def typed(*words: str) -> tuple[int, str, str]:
        monkeypatch.setenv("LLMGW_CONTROLLER", NOBODY)
        monkeypatch.setattr(sys, "argv", ["llmgwctl", *words])
        with pytest.raises(SystemExit) as end:
            main.cli()
        out = capsys.readouterr()
        return int(end.value.code or 0), out.out, out.err

    return typed


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, Answer]], Recorded]]:
    """Start one, and let `llmgwctl` ask it."""
    with ExitStack() as stack:

        def start(answers: dict[str, Answer]) -> Recorded:
            recorded, address = stack.enter_context(serving(answers))
            monkeypatch.setenv("LLMGW_MIRROR", address)
            return recorded

        yield start


@pytest.fixture
def tls_mirror() -> Iterator[Callable[[dict[str, Answer], WatchedTls], str]]:
    """The same behind TLS; returns its address, which `llmgwctl` is told by nobody."""
    with ExitStack() as stack:
        yield lambda answers, tls: stack.enter_context(serving(answers, tls))[1]
