"""Settings: what is refused, and in which words."""

from pathlib import Path

import pytest

from llmgw_kit.errors import StartupError
from llmgw_kit.settings import effective, load
from llmgw_mirror.composition_finding import tokens_of
from llmgw_mirror.settings import MirrorSettings


def loaded(tmp_path: Path, text: str = "", **flags: object) -> MirrorSettings:
    config = tmp_path / "mirror.yaml"
    config.write_text(text)
    return load(MirrorSettings, config=config, flags=flags, environ={})


def test_defaults_are_those_of_the_architecture(tmp_path: Path) -> None:
    settings = loaded(tmp_path)
    assert str(settings.grpc_address) == "0.0.0.0:7071"
    assert str(settings.http_address) == "0.0.0.0:8071"
    assert str(settings.admin_address) == "127.0.0.1:9093"
    assert settings.metrics_address is None
    assert settings.file_roots == ()


def test_folders_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGW_MIRROR_FILE_ROOTS", "/a:/b/c")
    assert loaded(tmp_path).file_roots == (Path("/a"), Path("/b/c"))


def test_tokens_are_masked(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        "upstream_tokens: {https://hub.example: geheim}\ndsn: postgresql://u:geheim@h/d\n"
        "upstream_proxy: http://u:geheim@proxy:3128\n",
    )
    assert "geheim" not in effective(settings)
    assert "https://hub.example" in effective(settings)


def test_h10_the_registrys_token_is_for_its_origin_alone_and_another_named_for_it_wins(
    tmp_path: Path,
) -> None:
    text = "registry_url: https://hub.example:443/prefix/\nregistry_token: geheim\n"
    settings = loaded(tmp_path, text)
    assert settings.registry_url == "https://hub.example:443/prefix"
    assert "geheim" not in effective(settings)
    assert tokens_of(settings) == {"https://hub.example": "geheim"}
    settings = loaded(tmp_path, text + "upstream_tokens: {https://hub.example: other}\n")
    assert tokens_of(settings) == {"https://hub.example": "other"}
    assert tokens_of(loaded(tmp_path, "registry_token: geheim\n")) == {}


def test_a_mistyped_proxy_is_told_without_its_login(tmp_path: Path) -> None:
    with pytest.raises(StartupError) as refused:
        loaded(tmp_path, "upstream_proxy: u:geheim@proxy:3128\n")
    assert "upstream_proxy" in refused.value.text
    assert "geheim" not in refused.value.text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("parallel_fetch: 3", "parallel_fetches"),
        ("listen: '7071'", "has no host; expected HOST:PORT"),
        ("http_listen: 'host:99999'", "99999"),
        ("file_roots: [models]", "absolute"),
        ("upstream_tokens: {https://hub.example/path: x}", "origin"),
        ("upstream_tokens: {hub.example: x}", "scheme"),
        ("upstream_proxy: proxy:3128", "proxy"),
        ("stall_window_s: 0", "greater than 0"),
        ("registry_url: registry.example", "scheme"),
        ("registry_url: file:///registry", "base URL"),
        ("registry_url: https://user:geheim@registry.example", "login"),
        ("registry_url: https://registry.example/?a=1", "base URL"),
        ("registry_url: https://registry.example:99999", "not a URL"),
        ("registry_timeout_s: 0", "greater than 0"),
    ],
)
def test_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(StartupError) as refused:
        loaded(tmp_path, text + "\n")
    assert says in refused.value.text
