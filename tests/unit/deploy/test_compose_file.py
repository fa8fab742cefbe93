"""deploy/compose.yaml against what the services read; an unknown variable would be ignored silently."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmgw_agent.settings import AgentSettings
from llmgw_controller.settings import ControllerSettings
from llmgw_kit.settings import ServiceSettings, load
from llmgw_mirror.settings import MirrorSettings
from llmgw_router.settings import RouterSettings, check

DSN_SECRET = "/run/secrets/postgres_dsn"
DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
SETTINGS: dict[str, type[ServiceSettings]] = {
    "router": RouterSettings,
    "controller": ControllerSettings,
    "mirror": MirrorSettings,
    "agent": AgentSettings,
}


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def own_services() -> list[tuple[str, dict[str, Any]]]:
    """Compose service and its definition, for ours."""
    return [(name, made) for name, made in compose()["services"].items() if name.split("-")[0] in SETTINGS]


@pytest.mark.parametrize(("name", "definition"), own_services())
def test_every_variable_is_a_setting_of_its_service(name: str, definition: dict[str, Any]) -> None:
    kind = name.split("-")[0]
    prefix = f"LLMGW_{kind.upper()}_"
    # CONFIG names the file; it is read by the command line, before there are settings.
    known = {"config", *SETTINGS[kind].model_fields}
    for variable in definition["environment"]:
        assert variable.startswith(prefix), f"{name}: {variable} is nobody's setting"
        field = variable.removeprefix(prefix).lower()
        assert field in known or field.removesuffix("_file") in known, f"{name}: no setting {field!r}"


@pytest.mark.parametrize(("name", "definition"), own_services())
def test_the_variables_are_accepted_together(
    name: str, definition: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kind = name.split("-")[0]
    (tmp_path / "dsn").write_text("postgresql://llmgw:secret@postgres:5432/llmgw")
    config = None
    for variable, value in definition["environment"].items():
        if variable.endswith("_CONFIG"):
            config = DEPLOY / "lab.yaml"
        else:
            monkeypatch.setenv(variable, str(tmp_path / "dsn") if value == DSN_SECRET else value)
            assert value != DSN_SECRET or definition["secrets"] == ["postgres_dsn"]
    settings = load(SETTINGS[kind], config=config, flags={})
    if isinstance(settings, RouterSettings):
        check(settings)
        assert settings.records_usage
    if isinstance(settings, ControllerSettings):
        assert settings.dsn_text() == "postgresql://llmgw:secret@postgres:5432/llmgw"
        assert {model.name for model in settings.configured(config)} == {"smollm2", "tiny"}


def test_the_example_of_an_environment_names_every_variable_with_its_default() -> None:
    used = dict(re.findall(r"\$\{(LLMGW_\w+):-([^}]*)\}", (DEPLOY / "compose.yaml").read_text()))
    shown = dict(re.findall(r"^#(LLMGW_\w+)=(.*)$", (DEPLOY / ".env.example").read_text(), re.MULTILINE))
    assert used == shown


def test_one_base_serves_all_four_images() -> None:
    """A stack pulls one base, and a stand-in for it serves all."""
    root = DEPLOY.parent
    bases = {
        line.split()[1]
        for dockerfile in root.glob("services/*/Dockerfile")
        for line in dockerfile.read_text().splitlines()
        if line.startswith("FROM ") and ":" in line.split()[1]
    }
    assert bases == {"python:3.11-slim-bookworm"}
