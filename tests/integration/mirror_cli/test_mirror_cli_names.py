"""Names of versions as a shell offers them, from the mirror that would be asked."""

import os
import subprocess
import sys

from llmgw.v1 import mirror_pb2 as pb
from tests.unit.cli import mirrored


def offered(*words: str, env: dict[str, str] | None = None) -> list[str]:
    """What bash is given for the last of the words."""
    asked = {
        **os.environ, **(env or {}), "_LLMGWCTL_COMPLETE": "bash_complete", "COMP_CWORD": str(len(words)),
        "COMP_WORDS": " ".join(("llmgwctl", *words)),
    }  # fmt: skip
    program = "from llmgw_controller.cli.main import ctl; ctl(prog_name='llmgwctl')"
    ended = subprocess.run(
        [sys.executable, "-c", program], env=asked, capture_output=True, text=True, timeout=60, check=False
    )
    assert not ended.stderr, ended.stderr
    return [line.partition(",")[2] for line in ended.stdout.splitlines() if line]


def test_versions_and_models_are_offered(mirror):
    mirror({"ListVersions": mirrored.versions()})
    assert offered("mirror", "verify", "qwen") == ["qwen3-14b@40c0698"]
    assert offered("mirror", "fetch", "--retry", "mis") == ["mistral-small@5c2e1d0"]
    assert offered("mirror", "versions", "local") == ["local/tiny"]


def test_the_mirror_that_was_typed_is_asked(mirror):
    mirror({"ListVersions": mirrored.versions()})
    address = os.environ["LLMGW_MIRROR"]
    nobody = {"LLMGW_MIRROR": "127.0.0.1:1"}
    assert offered("mirror", "verify", "qwen", env=nobody) == []
    assert offered("mirror", "--mirror", address, "verify", "qwen", env=nobody) == ["qwen3-14b@40c0698"]


def test_a_name_that_could_hurt_a_terminal_is_not_offered(mirror):
    evil = mirrored.version("m\x1b[31m", mirrored.file("a", "present"), name="v1")
    mirror({"ListVersions": pb.ListVersionsResponse(versions=[evil])})
    assert offered("mirror", "verify", "m") == []


def test_addresses_that_cannot_be_read_offer_nothing():
    assert offered("mirror", "verify", "m", env={"LLMGW_MIRROR": "nonsense"}) == []
