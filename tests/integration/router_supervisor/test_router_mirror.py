"""A router that is configured with a mirror: what stops its start, and what it only warns of (M24)."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmgw_kit import rpc
from llmgw_kit.addresses import HostPort
from llmgw_kit.testing.authority import Authority
from llmgw_kit.testing.ports import free_ports
from llmgw_kit.testing.processes import Cage
from llmgw_kit.tls_watch import Side, WatchedTls

from .process import START_S, metric, running
from .routing_bench import until


def configured(folder: Path, **settings: Any) -> str:
    """A configuration file."""
    endpoints = [{"id": "e", "url": "http://127.0.0.1:1", "models": ["m"]}]
    given = {"endpoints": endpoints, "state_dir": str(folder / "state"), **settings}
    path = folder / "router.yaml"
    path.write_text(yaml.safe_dump(given))
    return str(path)


def serve(folder: Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """`llmgw-router serve` to its end."""
    path = configured(folder, **settings)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")}
    command = [sys.executable, "-m", "llmgw_router.main", "serve", "--config", path]
    return subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False, env=clean)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"mirror": "mirror"}, "has no port; expected HOST:PORT"),
        ({"mirror": "http://mirror:7071"}, "is a URL; expected HOST:PORT"),
        ({"mirror": "mirror:70711"}, "expected a number from 0 to 65535"),
        ({"mirror": "mirror:0"}, "port 0, which nobody can be called at"),
        ({"mirror": "mirror:7071", "mirror_tls_ca": "/no/ca.pem"}, "authority /no/ca.pem cannot be used"),
        ({"mirror": "mirror:7071", "mirror_tls_cert": "/no/c.pem"}, "set mirror_tls_ca too"),
        ({"mirror": "mirror:7071", "mirror_tls_ca": "{ca}", "mirror_tls_cert": "{ca}"}, "key is missing"),
        (
            {"mirror": "m:1", "mirror_tls_ca": "{ca}", "mirror_tls_cert": "{ca}", "mirror_tls_key": "{ca}"},
            "cannot be used",
        ),
    ],
    ids=["syntax", "scheme", "port", "port 0", "no file", "no authority", "no key", "no key in it"],
)
def test_bad_syntax_scheme_port_and_files_stop_the_start(
    tmp_path: Path, settings: dict[str, str], told: str
) -> None:
    ca = Authority(tmp_path / "ca").cert
    ended = serve(tmp_path, **{key: value.replace("{ca}", str(ca)) for key, value in settings.items()})
    assert ended.returncode == 1
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_one_that_is_away_is_warned_of_and_its_return_told_once(cage: Cage, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    ca = Authority(tmp_path / "ca")
    pair = ca.sign("router")
    config = configured(
        tmp_path, mirror=f"127.0.0.1:{port}", mirror_tls_ca=str(ca.cert), mirror_tls_cert=str(pair.cert),
        mirror_tls_key=str(pair.key),
    )  # fmt: skip
    async with running(cage, tmp_path, "--config", config) as router:
        await router.ready()
        await until(
            lambda: "cannot be reached: no connection: connection refused; since" in router.log, "warning"
        )
        assert "next try in" in router.log
        assert await metric(router.admin_url, "llmgw_router_mirror_reachable") == 0
        server = rpc.server()
        health = rpc.Health(server, [])
        tls = WatchedTls(ca.sign("mirror").trusting(ca.cert), Side.SERVER, what="tls")
        rpc.listen(server, HostPort("127.0.0.1", port), flag="--listen", tls=tls)
        await server.start()
        await health.set_serving(True)
        await until(lambda: "is reached again, after" in router.log, "return of the mirror")
        assert await metric(router.admin_url, "llmgw_router_mirror_reachable") == 1
        await server.stop(None)
    assert router.log.count("is reached again") == 1


async def test_a_name_that_nobody_knows_is_no_reason_not_to_serve(cage: Cage, tmp_path: Path) -> None:
    config = configured(tmp_path, mirror="no-such-host.invalid:7071")
    async with running(cage, tmp_path, "--config", config) as router:
        await router.ready()
        await until(lambda: "no-such-host.invalid cannot be resolved" in router.log, "warning")
