"""The lab's pure parts: its layout, what it makes of answers, and what it tells to paste."""

import ast
import json
from pathlib import Path

import pytest

from llmgw.v1 import agent_pb2, operator_pb2
from llmgw_kit.errors import LlmgwError, StartupError, Unavailable
from llmgw_lab import ask, checks, config, models, watch, words
from llmgw_lab.layout import CONTROLLERS, DEFAULT_PORTS, Layout, lab_nodes

LAYOUT = Layout(Path("/lab"), DEFAULT_PORTS)


def test_the_documented_ports_are_the_defaults_and_each_can_be_moved() -> None:
    assert checks.chosen_ports({})["router"] == 8080
    moved = checks.chosen_ports({"LAB_ROUTER_PORT": "18080", "LAB_CONTROLLER_2_ADMIN_PORT": "18081"})
    assert (moved["router"], moved["controller-2-admin"]) == (18080, 18081)


@pytest.mark.parametrize("given", ["", "zero", "0", "65536", "-1"])
def test_a_bad_port_names_its_variable_and_value(given: str) -> None:
    with pytest.raises(StartupError, match=rf"LAB_ROUTER_PORT={given}: expected a port between 1 and 65535"):
        checks.chosen_ports({"LAB_ROUTER_PORT": given})


def test_two_listeners_on_one_port_are_told_apart() -> None:
    with pytest.raises(StartupError, match="router and mirror would share port 7071"):
        checks.chosen_ports({"LAB_ROUTER_PORT": "7071"})


def test_the_nodes_of_one_machine_never_lease_the_same_port() -> None:
    ranges = [range(node.engine_ports[0], node.engine_ports[1] + 1) for node in lab_nodes()]
    assert not set(ranges[0]) & set(ranges[1])
    assert all(20_000 <= port <= 24_999 for ports in ranges for port in ports)


def test_everything_listens_on_loopback() -> None:
    made = [
        config.router(LAYOUT, dsn="postgresql://127.0.0.1/x", redis_url="redis://127.0.0.1:1/0"),
        config.mirror(LAYOUT, dsn="postgresql://127.0.0.1/x", models=[]),
        config.agent(LAYOUT, lab_nodes()[0]),
        config.controller(LAYOUT, "controller-1", dsn="d", redis_url="r", models=[]),
    ]
    listens = [
        str(value)
        for one in made
        for key, value in (one.settings | dict(one.environment)).items()
        if key.lower().endswith("listen")
    ]
    assert len(listens) == 8
    assert all(value.startswith("127.0.0.1:") for value in listens)


def test_both_controllers_read_the_same_file() -> None:
    one, two = (config.controller(LAYOUT, part, dsn="d", redis_url="r", models=[]) for part in CONTROLLERS)
    assert (one.file, one.settings) == (two.file, two.settings)
    assert one.environment != two.environment


@pytest.mark.parametrize(
    ("status", "retry_after", "body", "kind", "text"),
    [
        (503, "3", '{"error": {"message": "loading"}}', Unavailable, "the router answered 503: loading"),
        (503, None, "plain words", LlmgwError, "the router answered 503: plain words"),
        (404, "3", '{"error": {"message": "no model x"}}', LlmgwError, "the router answered 404: no model x"),
        (500, None, "", LlmgwError, "the router answered 500: no explanation"),
    ],
)
def test_refusals_keep_the_routers_words(
    status: int, retry_after: str | None, body: str, kind: type[LlmgwError], text: str
) -> None:
    error = ask.refusal(status, retry_after, body)
    assert type(error) is kind
    assert error.text == text


def test_an_error_event_in_the_stream_is_an_error() -> None:
    assert ask.texts_of({"choices": [{"delta": {"content": "a"}}, {"delta": {}}]}) == ["a"]
    assert ask.texts_of({"choices": [], "usage": {}}) == []
    with pytest.raises(LlmgwError, match="the stream broke off: engine died"):
        ask.texts_of({"error": {"message": "engine died"}})


@pytest.mark.parametrize("model", ["smollm2", "tiny"])
def test_what_is_to_be_pasted_can_be_pasted(model: str) -> None:
    text = words.paste(LAYOUT, model)
    python = text.split("<<'EOF'\n")[1].split("\nEOF")[0]
    ast.parse(python)
    assert json.loads(text.split("-d '")[1].split("'")[0]) == ask.question(model)
    assert "http://127.0.0.1:8080/v1" in python


def test_the_line_of_a_cold_start_says_where_it_is() -> None:
    assert watch.described([]) == "asked for; nothing placed yet"
    shard = operator_pb2.ShardRow(
        node_id="lab-1",
        observed=agent_pb2.ObservedShard(state=agent_pb2.SHARD_STATE_FETCHING, progress=0.42),
    )
    row = operator_pb2.ReplicaRow(
        replica_id="smollm2/1", phase=operator_pb2.REPLICA_PHASE_STARTING, shards=[shard]
    )
    assert watch.described([row]) == "smollm2/1 starting · lab-1 fetching 42%"


def test_the_catalog_entry_carries_the_checksum(tmp_path: Path) -> None:
    tiny = models.tiny_model(tmp_path)
    entry = models.catalog_entry(tiny, env={"A": "b"})
    roots = config.mirror(LAYOUT, dsn="d", models=[entry, {"name": "x"}]).settings["file_roots"]
    assert roots == [str(tmp_path)]
    (file,) = entry["weights"]["files"]
    assert (file["sha256"], file["size_bytes"]) == (tiny.sha256, tiny.path.stat().st_size)
    assert file["url"] == tiny.path.as_uri()
    # The bytes are the same at every run, so the version's name is too.
    assert tiny.sha256.startswith("4ba1d83ed5ea")
