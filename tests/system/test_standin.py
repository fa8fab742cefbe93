"""What the stand-ins say where they cannot work: loud, with the next step. Needs no container engine."""

from pathlib import Path

import pytest
from standin import bases
from standin.docker import Docker, EngineError, call
from standin.engine import engine


def program(folder: Path, name: str, script: str) -> None:
    """Put a program on a PATH of our own."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_without_any_engine_the_error_says_what_to_install(path: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(EngineError, match="no container engine is installed; try: .*docker.io"),
        engine(tmp_path),
    ):
        raise AssertionError("unreachable: there is no engine")


def test_an_apt_of_another_release_points_to_the_public_images(path: Path) -> None:
    program(path, "apt-get", "echo http://mirror.invalid/ubuntu/ noble main")
    with pytest.raises(EngineError, match="docker pull python:3.11-slim-bookworm"):
        bases.debian_sources()


def test_the_mirrors_are_those_of_this_machine_and_only_main(path: Path) -> None:
    lines = (
        "http://mirror.invalid/debian/ bookworm main",
        "http://mirror.invalid/debian/ bookworm contrib",
        "http://mirror.invalid/other/ nodistro main",
        "http://mirror.invalid/security/ bookworm-security main",
    )
    program(path, "apt-get", "\n".join(f"echo {line}" for line in lines))
    assert bases.debian_sources().splitlines() == [
        "deb http://mirror.invalid/debian/ bookworm main",
        "deb http://mirror.invalid/security/ bookworm-security main",
    ]


def test_pulled_public_images_are_used_as_they_are(path: Path) -> None:
    # Present, and without our label: nothing is asked of apt, which is not even on this PATH.
    program(path, "docker", "exit 0")
    assert bases.ensure_bases(Docker()) == ()


def test_a_hanging_command_is_named_with_its_last_words(path: Path) -> None:
    program(path, "slow", "echo almost there\nexec /bin/sleep 60")
    with pytest.raises(EngineError, match=r"slow now\n  did not end within 0.5 s\n    almost there"):
        call(["slow", "now"], timeout_s=0.5)
