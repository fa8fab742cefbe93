"""A bug in the router is an answer too (W17), and costs nobody else anything."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from llmgw_router.relay import ipc

from .test_fuzz_parsers import Rig

REQUEST = b'POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 13\r\n\r\n{"model":"m"}'


class Broken(dict[str, Any]):
    def get(self, *_: Any) -> Any:
        raise ZeroDivisionError("a secret detail")


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def test_it_is_told_in_general_words_with_the_request_id_w17(rig: Rig) -> None:
    heard: list[ipc.Up] = []
    rig.hub.tell = heard.append
    sound = rig.hub.routes.targets
    rig.hub.routes.targets = Broken()
    wire = rig.feed([REQUEST.replace(b"\r\n\r\n", b"\r\nx-request-id: mine-7\r\n\r\n", 1)])
    head, _, body = wire.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 ")
    assert b"x-request-id: mine-7" in head
    error = json.loads(body)["error"]
    assert (error["type"], error["code"], error["param"]) == ("server_error", "internal_error", None)
    assert "mine-7" in error["message"]
    assert b"secret" not in wire.written
    (lines,) = [message for message in heard if isinstance(message, ipc.LogLines)]
    (line,) = lines.lines
    assert line.level == logging.ERROR
    assert "mine-7" in line.text
    assert "a secret detail" in line.text
    rig.hub.routes.targets = sound
    assert rig.feed([REQUEST]).written.startswith(b"HTTP/1.1 200 ")
