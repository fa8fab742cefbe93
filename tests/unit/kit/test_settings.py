"""Settings: who wins, and what is said about what cannot be."""

from pathlib import Path

import pytest
import yaml
from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from llmgw_kit.errors import StartupError
from llmgw_kit.settings import ServiceSettings, effective, load, read_yaml


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="LLMGW_SAMPLE_", frozen=True, extra="forbid")

    listen: str = "0.0.0.0:1"
    drain_s: float = Field(30.0, gt=0, description="seconds")
    port: int = 1
    dsn: SecretStr | None = None


@pytest.fixture
def file(tmp_path):
    def write(text: str):
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return path

    return write


def test_flag_beats_environment_beats_file_beats_default(file, monkeypatch):
    config = file("listen: from-file\ndrain_s: 5\n")
    monkeypatch.setenv("LLMGW_SAMPLE_LISTEN", "from-environment")
    assert load(Settings, config=config, flags={"listen": "from-flag"}).listen == "from-flag"
    assert load(Settings, config=config, flags={"listen": None}).listen == "from-environment"
    monkeypatch.delenv("LLMGW_SAMPLE_LISTEN")
    assert load(Settings, config=config, flags={}).listen == "from-file"
    assert load(Settings, config=config, flags={}).drain_s == 5
    assert load(Settings, config=None, flags={}).listen == "0.0.0.0:1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listn: x\n", "unknown key 'listn' (did you mean 'listen'?)"),
        ("- a\n", "holds a list; expected `key: value` lines"),
        ("a: [\n", "is not YAML"),
        ("drain_s: -1\n", "drain_s: Input should be greater than 0 (given -1)"),
    ],
)
def test_a_bad_file_is_told_with_its_name(file, text, said):
    config = file(text)
    with pytest.raises(StartupError) as refused:
        load(Settings, config=config, flags={})
    assert said in refused.value.text
    assert str(config) in refused.value.text


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"listen: caf\xe9\n", "is not UTF-8: byte 0xe9 at 11"),
        (b"drain_s: 2027-02-30\n", "is not YAML: day"),
        (b"listen: " + b"[" * 5000, "is nested too deeply"),
        (b"port: !!int ''\n", "is not YAML"),
        (b"port: !!bool maybe\n", "is not YAML"),
        (b"port: !!timestamp noon\n", "is not YAML"),
        (b"port: 0x\n? {a: 1}\n: 2\n", "is not YAML"),
    ],
    ids=[
        "not UTF-8",
        "no such day",
        "nested",
        "an empty number",
        "no truth",
        "no time",
        "a mapping as a key",
    ],
)
def test_whatever_a_file_holds_is_told_with_its_name(tmp_path, data, said):
    """A typo in a file that is read again while a service runs must be nothing but an error of the file."""
    config = tmp_path / "config.yaml"
    config.write_bytes(data)
    with pytest.raises(StartupError) as refused:
        load(Settings, config=config, flags={})
    assert said in refused.value.text
    assert str(config) in refused.value.text


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(StartupError, match=r"cannot be read: No such file"):
        load(Settings, config=tmp_path / "none.yaml", flags={})


def test_a_kubernetes_service_link_is_recognised(monkeypatch):
    monkeypatch.setenv("LLMGW_SAMPLE_PORT", "tcp://10.0.0.1:8080")
    with pytest.raises(StartupError, match=r"looks like a Kubernetes service link"):
        load(Settings, config=None, flags={})


def test_a_bad_flag_and_a_bad_variable_are_named(monkeypatch):
    with pytest.raises(StartupError, match=r"^--drain-s: .*given 'soon'"):
        load(Settings, config=None, flags={"drain_s": "soon"})
    monkeypatch.setenv("LLMGW_SAMPLE_DRAIN_S", "later")
    with pytest.raises(StartupError, match=r"^environment LLMGW_SAMPLE_DRAIN_S: "):
        load(Settings, config=None, flags={})


def test_secrets_are_masked(monkeypatch):
    monkeypatch.setenv("LLMGW_SAMPLE_DSN", "postgresql://u:hush@h/d")
    shown = effective(load(Settings, config=None, flags={}))
    assert "hush" not in shown
    assert "dsn: '********'" in shown


def test_what_is_printed_says_what_each_is_for_and_can_be_read_back():
    shown = effective(load(Settings, config=None, flags={}))
    assert "# seconds\ndrain_s: 30.0\nport: 1\n" in shown
    assert yaml.safe_load(shown) == {"listen": "0.0.0.0:1", "drain_s": 30.0, "port": 1, "dsn": None}


@pytest.mark.parametrize(
    ("text", "key", "lines"),
    [
        ("name: a\nname: b\n", "name", "1 and 2"),
        ("tables:\n  x: {a: 1, b: 2, a: 3}\n", "a", "2 and 2"),
        ("tables:\n- deep:\n    k: 1\n    k: 1\n", "k", "3 and 4"),
    ],
    ids=["top", "flow", "deep"],
)
def test_a_key_that_stands_twice_is_refused_with_both_lines(
    tmp_path: Path, text: str, key: str, lines: str
) -> None:
    """YAML takes the last one in silence: what stands above would look as if it counted."""
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(StartupError, match=f"key '{key}' stands twice in one mapping, in lines {lines}"):
        read_yaml(path, known={"name": 1, "tables": 1})


def test_a_merged_mapping_may_be_written_over(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: &base {a: 1, b: 2}\ntables: [&over {<<: *base, b: 3}, {<<: *over, b: 4}]\n")
    assert read_yaml(path, known={"name": 1, "tables": 1})["tables"] == [{"a": 1, "b": 3}, {"a": 1, "b": 4}]


class Shapes(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="LLMGW_SHAPES_", frozen=True, extra="forbid")

    table: dict[str, int] = Field(default_factory=dict)
    many: tuple[str, ...] = ()
    word: str = ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("table: 3\n", "table: expected a table of `key: value` lines (given 3)"),
        ("many:\n", "many: expected a list (given null)"),
        ("word: 2027-01-31\n", "(given 2027-01-31)"),
        ("word: true\n", "(given true)"),
    ],
    ids=["table", "list", "date", "boolean"],
)
def test_a_wrong_shape_is_told_in_the_words_of_the_file(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(StartupError) as caught:
        load(Shapes, config=path, flags={})
    assert says in str(caught.value)
