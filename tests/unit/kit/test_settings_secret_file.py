"""A setting whose value stands in a file that an environment variable names."""

from pathlib import Path

import pytest
from pydantic import SecretStr
from pydantic_settings import SettingsConfigDict

from llmgw_kit.errors import StartupError
from llmgw_kit.settings import ServiceSettings, effective, load


class Sample(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="LLMGW_SAMPLE_")
    dsn: SecretStr | None = None
    name: str = "unnamed"


def sample(config: Path | None = None) -> Sample:
    return load(Sample, config=config, flags={})


def test_the_value_is_read_without_its_line_end_and_stays_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dsn").write_text("postgresql://u:p@h/d\n")
    monkeypatch.setenv("LLMGW_SAMPLE_DSN_FILE", str(tmp_path / "dsn"))
    settings = sample()
    assert settings.dsn is not None
    assert settings.dsn.get_secret_value() == "postgresql://u:p@h/d"
    assert "u:p" not in effective(settings)


def test_the_plain_variable_wins_and_the_yaml_file_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "name").write_text("from the named file")
    (tmp_path / "config.yaml").write_text("name: from yaml")
    monkeypatch.setenv("LLMGW_SAMPLE_NAME_FILE", str(tmp_path / "name"))
    assert sample(tmp_path / "config.yaml").name == "from the named file"
    monkeypatch.setenv("LLMGW_SAMPLE_NAME", "from the variable")
    assert sample(tmp_path / "config.yaml").name == "from the variable"


def test_a_missing_file_is_a_startup_fault_that_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMGW_SAMPLE_DSN_FILE", str(tmp_path / "absent"))
    with pytest.raises(StartupError, match="LLMGW_SAMPLE_DSN_FILE.*absent.*No such file"):
        sample()
