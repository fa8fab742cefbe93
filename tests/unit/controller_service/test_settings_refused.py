"""Settings that cannot work are refused before a port is opened, each with what to do."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from llmgw_controller.main import cli
from llmgw_controller.settings import ControllerSettings, config_hash
from llmgw_kit.addresses import HostPort
from llmgw_kit.settings import load

MODEL: dict[str, Any] = {
    "name": "tiny",
    "profiles": [{"engine": "command", "gpu_class": "L4", "command": ["engine", "{port}"]}],
}

MIRROR = {"mirror": "mirror:7071", "mirror_url": "http://mirror:8071"}

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key names the nearest": ({"reconcile_intervall_s": 1}, "'reconcile_interval_s'?"),
    "an unknown key of a model": ({"models": [{**MODEL, "replica": 1}]}, "(did you mean 'replicas'?)"),
    "parallelism that is not its GPUs": (
        {"models": [{**MODEL, "profiles": [{**MODEL["profiles"][0], "tensor_parallel": 4}]}]},
        "= 4, but nodes 1 x gpus_per_node 1 = 1 GPUs",
    ),
    "two models of one name": ({"models": [MODEL, MODEL]}, "two models are named 'tiny'"),
    "an address without its port": ({"listen": "127.0.0.1"}, "has no port; expected HOST:PORT"),
    "a mirror with a scheme": (
        {"mirror": "http://mirror:7071", "mirror_url": "http://mirror:8071"}, "expected HOST:PORT",
    ),
    "a mirror URL of another scheme": (
        {"mirror": "mirror:7071", "mirror_url": "ftp://mirror:8071"}, "expected http://HOST:PORT",
    ),
    "a mirror URL with a bad port": ({"mirror": "m:1", "mirror_url": "http://m:99999"}, "Port out of range"),
    "a mirror URL without a port": ({"mirror": "mirror:7071", "mirror_url": "http://mirror"}, "has no port"),
    "a mirror at no port": (
        {"mirror": "mirror:0", "mirror_url": "http://mirror:8071"}, "port 0, which nobody can be called at",
    ),
    "a mirror at no host": (
        {"mirror": "*:7071", "mirror_url": "http://mirror:8071"}, "'*' is no host that can be called",
    ),
    "a mirror's certificate without its authority": (
        {**MIRROR, "mirror_tls_cert": "/tls.crt", "mirror_tls_key": "/tls.key"}, "set mirror_tls_ca too",
    ),
    "TLS files towards the mirror that are not there": (
        {**MIRROR, "mirror_tls_ca": "/no/ca.pem"}, "authority /no/ca.pem cannot be used: No such file",
    ),
    "TLS files towards no mirror": (
        {"mirror_tls_ca": "/etc/ssl/certs/ca-certificates.crt"}, "mirror_tls_ca is set, but no mirror",
    ),
    "a mirror URL with port 0": ({**MIRROR, "mirror_url": "http://m:0"}, "port 0"),
    "half a mirror": ({"mirror": "mirror:7071"}, "mirror is set, mirror_url is not"),
    "a lease without room for a retry": ({"lease_ttl_s": 4}, "lease timings leave no room for a retry"),
    "one late beat": ({"beat_interval_s": 10}, "one late beat would make a node unreachable"),
    "lost before unreachable": ({"lost_after_s": 10}, "is not after unreachable_after_s"),
    "a redis that is none": ({"redis_url": "http://x"}, "expected redis://HOST:PORT/NUMBER"),
    "a pooler in the lease's way": (
        {"dsn": "postgresql://x", "pooler": "transaction"}, "the lease must not go through a pooler",
    ),
    "a dsn file that is missing": ({"dsn_file": "/nonexistent"}, "dsn_file /nonexistent cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize(("values", "told"), BAD.values(), ids=BAD)
def test_what_cannot_work_is_refused(tmp_path: Path, values: dict[str, Any], told: str) -> None:
    path = tmp_path / "controller.yaml"
    path.write_text(yaml.safe_dump(values))
    ended = CliRunner().invoke(cli, ["serve", "--config", str(path), "--print-config"])
    assert ended.exit_code != 0
    assert ended.stderr.startswith("error: ")
    assert told in ended.stderr


def settings(**values: Any) -> ControllerSettings:
    return load(ControllerSettings, config=None, flags=values, environ={})


@pytest.mark.parametrize(
    ("values", "bound", "advertised", "name"),
    [
        ({"advertise": "ctl-1:7070"}, HostPort("0.0.0.0", 7070), "ctl-1:7070", "ctl-1"),
        ({}, HostPort("127.0.0.1", 7071), "127.0.0.1:7071", "{host}-7071"),
        ({}, HostPort("0.0.0.0", 7070), "{host}:7070", "{host}"),
        ({"name": "boss"}, HostPort("*", 1), "{host}:1", "boss"),
        ({"advertise": "[::1]:7"}, HostPort("*", 7), "[::1]:7", "{host}-7"),
    ],
)
def test_where_others_reach_us_and_what_we_are_called(
    monkeypatch: pytest.MonkeyPatch, values: Any, bound: HostPort, advertised: str, name: str
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node-7")
    made = settings(**values)
    address = made.advertised(bound)
    assert str(address) == advertised.format(host="node-7")
    assert made.named(address) == name.format(host="node-7")


def test_the_configuration_hash_follows_the_catalog_and_not_the_addresses() -> None:
    plain = settings(models=[MODEL])
    moved = settings(models=[MODEL], listen="127.0.0.1:1", log_level="debug")
    other = settings(models=[{**MODEL, "max_held": 1}])
    hashes = [config_hash(one, one.configured(None)) for one in (plain, moved, other)]
    assert hashes[0] == hashes[1] != hashes[2]
