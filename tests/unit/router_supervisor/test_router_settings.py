"""Settings of the router: flag over environment over file, and what is refused before anything is opened."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from llmgw_kit.errors import StartupError
from llmgw_kit.settings import effective, load
from llmgw_router.main import cli
from llmgw_router.settings import RouterSettings, check, with_flag_endpoints


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("LLMGW_ROUTER_"):
            monkeypatch.delenv(name)


def made(
    tmp_path: Path, file: object = None, *, endpoints: Sequence[str] = (), **flags: object
) -> RouterSettings:
    config = None
    if file is not None:
        config = tmp_path / "router.yaml"
        config.write_text(file if isinstance(file, str) else yaml.safe_dump(file))
    settings = with_flag_endpoints(load(RouterSettings, config=config, flags=flags), endpoints)
    check(settings)
    return settings


def test_endpoints_of_flags_add_to_those_of_the_file_in_both_forms(tmp_path: Path) -> None:
    file = {
        "endpoints": [
            {"id": "a", "url": "http://h:1/", "models": ["m"], "weight": 3, "credential": "s3cret"},
            "b=http://h:2=m,n",
        ]
    }
    settings = made(tmp_path, file, endpoints=["c=http://h:3=n"])
    assert [(e.endpoint_id, e.port, e.models, e.weight) for e in settings.static_endpoints()] == [
        ("a", 1, ("m",), 3),
        ("b", 2, ("m", "n"), 1),
        ("c", 3, ("n",), 1),
    ]
    assert settings.static_endpoints()[0].credential == "s3cret"
    assert "s3cret" not in effective(settings)


def test_a_flag_beats_the_environment_beats_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = {"drain_s": 1, "connect_s": 2, "idle_s": 3, "controller": "c:1"}
    monkeypatch.setenv("LLMGW_ROUTER_CONNECT_S", "20")
    monkeypatch.setenv("LLMGW_ROUTER_DRAIN_S", "10")
    settings = made(tmp_path, file, drain_s=100.0)
    assert (settings.drain_s, settings.connect_s, settings.idle_s) == (100, 20, 3)


def test_a_secret_that_cannot_be_used_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(StartupError) as caught:
        made(tmp_path, controller="c:1", redis_url="http://:s3cret@h")
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in effective(made(tmp_path, controller="c:1", redis_url="redis://:s3cret@h"))


def test_endpoints_of_the_environment_are_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGW_ROUTER_ENDPOINTS", '["a=http://h:1=m"]')
    assert [e.endpoint_id for e in made(tmp_path).static_endpoints()] == ["a"]
    monkeypatch.setenv("LLMGW_ROUTER_ENDPOINTS", "a=http://h:1=m")
    with pytest.raises(StartupError, match="LLMGW_ROUTER_ENDPOINTS is not JSON"):
        made(tmp_path)


REFUSED: dict[str, tuple[object, Sequence[str], dict[str, object], str]] = {
    "nothing to serve": (None, [], {}, "nothing to serve"),
    "empty file": ("", [], {}, "nothing to serve"),
    "endpoint and controller flags": (None, ["a=http://h:1=m"], {"controller": "c:1"}, "exclude each other"),
    "endpoint in the file and controller flag": (
        {"endpoints": ["a=http://h:1=m"]},
        [],
        {"controller": "c:1"},
        "exclude each other",
    ),
    "bad endpoint flag": (None, ["a=http://h:1"], {}, "--endpoint 'a=http://h:1'"),
    "bad endpoint in the file": ({"endpoints": ["a=http://h:1"]}, [], {}, "router.yaml: endpoints.0"),
    "unknown key of an endpoint": (
        {"endpoints": [{"id": "a", "url": "http://h:1", "models": ["m"], "wieght": 2}]},
        [],
        {},
        "endpoints.0.wieght",
    ),
    "id in the file and on the command line": (
        {"endpoints": ["a=http://h:1=m"]},
        ["a=http://h:2=m"],
        {},
        "id a is used twice",
    ),
    "unknown key names the nearest": (
        {"endpoint": []},
        [],
        {},
        "unknown key 'endpoint' (did you mean 'endpoints'?)",
    ),
    "file is no mapping": ("- a", [], {}, "expected `key: value`"),
    "open without keys": (None, ["a=http://h:1=m"], {"listen": "0.0.0.0:8080"}, "refusing to listen"),
    "open without keys, by a controller": (None, [], {"controller": "c:1", "listen": "*:8080"}, "refusing"),
    "listen without port": (None, ["a=http://h:1=m"], {"listen": "localhost"}, "--listen"),
    "controller without port": (None, [], {"controller": "c"}, "--controller"),
    "no Redis URL": (None, [], {"controller": "c:1", "redis_url": "h:6379"}, "no Redis URL"),
    "no workers": (None, ["a=http://h:1=m"], {"workers": 0}, "--workers"),
    "no state folder in a file": ({"state_dirr": "/x"}, [], {}, "did you mean 'state_dir'"),
}


@pytest.mark.parametrize(("file", "endpoints", "flags", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_a_reason(
    tmp_path: Path, file: object, endpoints: Sequence[str], flags: dict[str, object], says: str
) -> None:
    with pytest.raises(StartupError) as caught:
        made(tmp_path, file, endpoints=endpoints, **flags)
    assert says in "\n".join(caught.value.lines())


LISTENS: dict[str, tuple[dict[str, object], str]] = {
    "by default loopback only": ({}, "127.0.0.1:8080"),
    "insecure opens the default": ({"insecure": True}, "0.0.0.0:8080"),
    "explicit loopback": ({"listen": "localhost:9"}, "localhost:9"),
    "IPv6 loopback": ({"listen": "[::1]:9"}, "[::1]:9"),
    "explicit and insecure": ({"listen": "*:9", "insecure": True}, "*:9"),
}


@pytest.mark.parametrize(("flags", "address"), LISTENS.values(), ids=LISTENS.keys())
def test_where_it_listens(tmp_path: Path, flags: dict[str, object], address: str) -> None:
    assert str(made(tmp_path, endpoints=["a=http://h:1=m"], **flags).client_address) == address


def test_the_metrics_listener_is_off_and_admin_on_loopback(tmp_path: Path) -> None:
    settings = made(tmp_path, controller="a:1, b:2")
    assert settings.metrics_address is None
    assert str(settings.admin_address) == "127.0.0.1:9090"
    assert [str(a) for a in settings.controllers] == ["a:1", "b:2"]


def test_two_routers_of_one_machine_have_different_names_and_folders(tmp_path: Path) -> None:
    settings = made(tmp_path, controller="a:1")
    assert settings.named(8080) != settings.named(8081)
    assert settings.state_folder(8080) != settings.state_folder(8081)


def test_print_config_shows_what_is_there_before_it_says_what_is_missing() -> None:
    ended = CliRunner().invoke(cli, ["serve", "--print-config"])
    assert ended.exit_code == 1
    assert "listen: 127.0.0.1:8080" in ended.stdout
    assert "nothing to serve" in ended.stderr
