"""Settings about the Hub's clients: what is taken from the environment, and what is refused at the start."""

from pathlib import Path

import pytest

from llmgw_kit.errors import StartupError
from llmgw_kit.settings import load
from llmgw_mirror.settings import MirrorSettings

REGISTRY = "registry_url: http://registry.invalid\n"


def loaded(tmp_path: Path, text: str = "") -> MirrorSettings:
    config = tmp_path / "mirror.yaml"
    config.write_text(text)
    return load(MirrorSettings, config=config, flags={}, environ={})


def test_nothing_is_pulled_unless_an_operator_says_so(tmp_path: Path) -> None:
    assert loaded(tmp_path, REGISTRY).pull_through == ()


def test_patterns_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGW_MIRROR_PULL_THROUGH", "org/*, other/m,")
    assert loaded(tmp_path, REGISTRY).pull_through == ("org/*", "other/m")


def test_there_must_be_a_registry_to_pull_from(tmp_path: Path) -> None:
    with pytest.raises(StartupError) as refused:
        loaded(tmp_path, "pull_through: ['org/*']\n")
    assert "pull_through" in refused.value.text
    assert "set registry_url as well" in refused.value.text


@pytest.mark.parametrize("prefix", ["hub", "/hub/", "/a b", "/a//b", "/{x}"])
def test_prefixes_that_are_none(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(StartupError) as refused:
        loaded(tmp_path, f"hub_prefix: '{prefix}'\n")
    assert "hub_prefix" in refused.value.text


@pytest.mark.parametrize("prefix", ["", "/hub", "/a/b.c"])
def test_prefixes(tmp_path: Path, prefix: str) -> None:
    assert loaded(tmp_path, f"hub_prefix: '{prefix}'\n").hub_prefix == prefix
