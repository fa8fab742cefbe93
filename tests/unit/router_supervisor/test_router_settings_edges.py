"""Settings of both edges: TLS towards engines, and browsers in front."""

import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from llmgw_kit.errors import StartupError
from llmgw_kit.settings import load
from llmgw_router.core.endpoints import static_table
from llmgw_router.main import cli
from llmgw_router.settings import RouterSettings, check


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pem")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "ca.key")
    words = ("openssl", "req", "-x509", *key, "-out", "ca.pem", "-subj", "/CN=ca")
    subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=30)
    return folder / "ca.pem"


def written(tmp_path: Path, **file: object) -> Path:
    path = tmp_path / "router.yaml"
    path.write_text(yaml.safe_dump(file))
    return path


def endpoint(**more: object) -> dict[str, object]:
    return {"id": "a", "url": "https://10.0.0.5:8443/base/", "models": ["m"], **more}


def test_what_is_trusted_reaches_workers_and_rows(tmp_path: Path, pem: Path) -> None:
    engine = endpoint(ca=str(pem), server_name="gpu1.internal")
    file = written(
        tmp_path, endpoints=[engine], upstream_ca=str(pem), cors_origins=["https://app.example", "*"]
    )
    settings = load(RouterSettings, config=file, flags={})
    check(settings)
    config = settings.worker_config()
    assert (config.upstream_tls.ca, config.upstream_tls.cert) == (str(pem), None)
    assert config.cors_origins == ("https://app.example", "*")
    ((row,), _) = static_table(settings.static_endpoints())
    assert (row.tls, row.tls_ca, row.tls_name) == (True, str(pem), "gpu1.internal")
    assert (row.host, row.port, row.base_path) == ("10.0.0.5", 8443, "/base")


def test_unwritten_nothing_is_trusted_but_the_system_and_no_page_allowed(tmp_path: Path) -> None:
    settings = load(RouterSettings, config=written(tmp_path, endpoints=[endpoint()]), flags={})
    check(settings)
    assert settings.worker_config().upstream_tls.ca is None
    assert settings.worker_config().cors_origins == ()
    ((row,), _) = static_table(settings.static_endpoints())
    assert (row.tls, row.tls_ca, row.tls_name) == (True, None, None)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ({"upstream_ca": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
        ({"endpoints": [endpoint(ca="/nowhere/own.pem")]}, "/nowhere/own.pem"),
        ({"upstream_key": "/nowhere/key.pem"}, "without upstream_cert"),
        ({"cors_origins": ["app.example"]}, "is no origin"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_start(tmp_path: Path, file: dict[str, object], said: str) -> None:
    settings = load(RouterSettings, config=written(tmp_path, **{"endpoints": [endpoint()], **file}), flags={})
    with pytest.raises(StartupError, match=said):
        check(settings)


def test_authorities_of_a_plain_endpoint_are_a_mistake(tmp_path: Path, pem: Path) -> None:
    engine = endpoint(url="http://10.0.0.5:8000", ca=str(pem))
    with pytest.raises(StartupError, match="plain http"):
        load(RouterSettings, config=written(tmp_path, endpoints=[engine]), flags={})


def test_all_of_them_are_printed(tmp_path: Path, pem: Path) -> None:
    file = written(tmp_path, endpoints=[endpoint(ca=str(pem))], upstream_ca=str(pem), cors_origins=["*"])
    printed = CliRunner().invoke(cli, ["serve", "--config", str(file), "--print-config"])
    assert printed.exit_code == 0, printed.output
    shown = yaml.safe_load(printed.stdout)
    assert (shown["upstream_ca"], shown["cors_origins"]) == (str(pem), ["*"])
    assert shown["endpoints"][0]["ca"] == str(pem)
