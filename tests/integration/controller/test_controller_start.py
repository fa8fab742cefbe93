"""How a controller starts, or says why it cannot, and what it says without a database."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import yaml

from llmgw.v1 import operator_pb2
from llmgw_kit.errors import Conflict, InvalidRequest, NotFound
from llmgw_kit.testing.ports import free_ports

from .controller_bench import MODEL, Controllers, meant, until
from .sim_peers import SimAgent, SimRouter

#: Of a command that only reads its settings; imports take most of it.
QUICK_S = 30


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`llmgw-controller ...` to its end."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")}
    return subprocess.run(
        [sys.executable, "-m", "llmgw_controller.main", *arguments],
        capture_output=True, text=True, timeout=QUICK_S, check=False, env={**clean, **(env or {})},
    )  # fmt: skip


def config(folder: Path, **values: Any) -> str:
    """A configuration file."""
    path = folder / "controller.yaml"
    path.write_text(yaml.safe_dump(values))
    return str(path)


def test_a_dsn_that_is_none_is_told_at_once(tmp_path: Path) -> None:
    grpc_port, admin_port = free_ports(2)
    path = config(
        tmp_path, listen=f"127.0.0.1:{grpc_port}", admin_listen=f"127.0.0.1:{admin_port}", dsn="mysql://x"
    )
    ended = run("serve", "--config", path)
    assert ended.returncode != 0
    assert "dsn is not a Postgres address" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_a_hangup_ends_no_controller(controllers: Controllers) -> None:
    """It reads the TLS files towards a mirror again; here there are none, and the log says so."""
    controller = await controllers.start().until_ready()
    controller.child.send_signal(signal.SIGHUP)
    await until("the log says so", lambda: "nothing is read again" in controller.child.tail())
    assert controller.child.code is None


def test_a_taken_port_is_named_also_when_the_other_shares_it(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (other,) = free_ports(1)
        for listen, admin, flag in ((port, other, "--listen"), (other, port, "--admin-listen")):
            path = config(tmp_path, listen=f"127.0.0.1:{listen}", admin_listen=f"127.0.0.1:{admin}")
            ended = run("serve", "--config", path)
            assert ended.returncode != 0
            assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
            assert f"{flag} HOST:PORT" in ended.stderr


def test_a_silent_postgres_is_tried_told_each_time_and_given_up(tmp_path: Path) -> None:
    grpc_port, admin_port, nobody = free_ports(3)
    path = config(
        tmp_path,
        listen=f"127.0.0.1:{grpc_port}",
        admin_listen=f"127.0.0.1:{admin_port}",
        dsn=f"postgresql://u:geheim@127.0.0.1:{nobody}/d",
        dsn_give_up_s=2,
    )
    began = time.monotonic()
    ended = run("serve", "--config", path)
    assert ended.returncode != 0
    assert time.monotonic() - began < QUICK_S
    assert ended.stderr.count("trying again in") >= 2
    assert "did not answer for" in ended.stderr
    assert "geheim" not in ended.stderr


def test_print_config_masks_secrets_and_flags_win(tmp_path: Path) -> None:
    path = config(tmp_path, dsn="postgresql://u:geheim@h/d", listen="127.0.0.1:1", cluster="file")
    ended = run(
        "serve", "--config", path, "--listen", "127.0.0.1:2", "--print-config",
        env={"LLMGW_CONTROLLER_CLUSTER": "environment", "LLMGW_CONTROLLER_LISTEN": "127.0.0.1:3"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    shown = yaml.safe_load(ended.stdout)
    assert (shown["listen"], shown["cluster"], shown["dsn"]) == ("127.0.0.1:2", "environment", "********")


async def test_without_a_database_it_works_and_says_so(controllers: Controllers) -> None:
    controller = await controllers.start().until_ready()
    await controller.until_leading()
    async with (
        SimAgent("n1", [controller.address]) as agent,
        SimRouter([controller.address]) as router,
        controller.operator() as operator,
    ):
        kept = {**MODEL, "name": "kept", "replicas": 1}
        answer = await operator.ApplyModel(
            operator_pb2.ApplyModelRequest(model_json=json.dumps(kept)), timeout=5
        )
        assert (answer.outcome, answer.store) == ("created", "memory")
        assert any("kept in memory" in warning for warning in answer.warnings)
        await router.until_endpoints(1)
        assert len(agent.starts) == 1
        assert (await controller.status()).info.store == "memory"
    log = controller.child.log.read_text()
    assert "NO DATABASE" in log
    assert "kept in memory" in log


async def test_agents_and_routers_follow_from_memory_to_a_database(
    controllers: Controllers, migrated_dsn: str
) -> None:
    """Terms start anew with a new store; who has seen higher ones is caught up with, not lost."""
    first = await controllers.start().until_ready()
    async with SimAgent("n1", [first.address], term=900) as agent, SimRouter([first.address]) as router:
        await until("both follow", lambda: agent.welcome is not None and agent.term == router.term > 900)
        first.child.stop()
        again = await controllers.start(
            dsn=migrated_dsn, listen=str(first.address), admin_listen=str(first.admin)
        ).until_ready()
        term = agent.term
        await until("both follow", lambda: agent.welcome is not None and agent.term == router.term > term)
        assert again.child.code is None


async def test_models_are_applied_changed_and_refused_by_name(
    controllers: Controllers, migrated_dsn: str
) -> None:
    controller = await controllers.start(dsn=migrated_dsn).until_ready()
    await controller.until_leading()

    async def apply(model: dict[str, Any], *, dry_run: bool = False) -> operator_pb2.ApplyModelResponse:
        async with controller.operator() as operator:
            request = operator_pb2.ApplyModelRequest(model_json=json.dumps(model), dry_run=dry_run)
            return await operator.ApplyModel(request, timeout=5)

    async def names() -> list[str]:
        async with controller.operator() as operator:
            return [row.model for row in (await operator.ListModels(operator_pb2.ListModelsRequest())).models]

    stored = {**MODEL, "name": "stored"}
    assert (await apply(stored, dry_run=True)).outcome == "created"
    assert await names() == ["tiny"]
    assert (await apply(stored)).outcome == "created"
    assert (await apply(stored)).outcome == "unchanged"
    assert (await apply({**stored, "max_held": 7})).outcome == "changed"
    assert await names() == ["stored", "tiny"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await apply(MODEL)
    assert isinstance(meant(caught.value), Conflict)
    assert "configuration" in meant(caught.value).text
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await apply({**stored, "name": "other", "aliases": ["tiny"]})
    assert "'tiny' belongs to two models" in meant(caught.value).text
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await apply({**stored, "colour": "red"})
    assert isinstance(meant(caught.value), InvalidRequest)
    async with controller.operator() as operator:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await operator.RemoveModel(operator_pb2.RemoveModelRequest(model="stord"), timeout=5)
        assert isinstance(meant(caught.value), NotFound)
        assert "did you mean 'stored'" in meant(caught.value).text
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await operator.RemoveModel(operator_pb2.RemoveModelRequest(model="tiny"), timeout=5)
        assert isinstance(meant(caught.value), Conflict)
    # It survives a restart, and then configuration of the same name wins and an event tells (M16).
    controller.child.stop()
    again = await controllers.start(dsn=migrated_dsn, models=[MODEL, {**stored, "max_held": 9}]).until_ready()
    await again.until_leading()
    async with again.operator() as operator:
        rows = {
            row.model: row for row in (await operator.ListModels(operator_pb2.ListModelsRequest())).models
        }
    assert rows["stored"].source == "configuration"
    assert "model_shadowed" in [event.kind for event in await again.events()]
    assert any(one.kind == "model_shadowed" for one in (await again.status()).trouble)
