"""The pages of a fleet of 24 nodes, whole: trouble first, bars that add up, nothing wider than a terminal."""

import json
from collections import Counter
from pathlib import Path

import pytest

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import as_json_nodes, as_json_status
from llmgw_controller.cli.bars import PARTS
from llmgw_controller.cli.page import NARROWEST, WIDTH, Page
from llmgw_controller.cli.views import fabrics, nodes, replicas, status, why

from . import big_fleet

PAGES = Path(__file__).parent / "pages"


def page(name: str, *, ascii_only: bool = False, width: int = WIDTH) -> str:
    made = Page(ascii_only=ascii_only, width=width)
    match name:
        case "status":
            status.render(made, big_fleet.status())
        case "fabrics":
            fabrics.render(made, big_fleet.status(), big_fleet.nodes())
        case "nodes":
            nodes.render_nodes(made, big_fleet.nodes(), every=False)
        case "gpus":
            nodes.render_gpus(made, big_fleet.devices("h100-03"))
        case "replicas":
            replicas.render_replicas(made, big_fleet.replicas(), every=False)
        case "models":
            replicas.render_models(made, big_fleet.models())
        case "why":
            why.render(made, big_fleet.why_of("llama-405b"))
        case "why-cold":
            why.render(made, big_fleet.why_of("gemma-3-27b"))
    return made.plain() + "\n"


NAMES = ("status", "fabrics", "nodes", "gpus", "replicas", "models", "why", "why-cold")


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_as_reviewed(name):
    """A change of look shows in the diff of a file; to accept it, write the new page there."""
    assert page(name) == (PAGES / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [NARROWEST, 90])
def test_on_a_narrow_terminal_no_line_is_wider_than_it(name, width):
    """Lines that the terminal breaks stand under no column any more."""
    assert [line for line in page(name, width=width).split("\n") if len(line) > width] == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_is_wider_than_a_terminal(name, ascii_only):
    assert max(map(len, page(name, ascii_only=ascii_only).split("\n"))) <= WIDTH


@pytest.mark.parametrize("name", NAMES)
def test_ascii_bars_hold_no_block_glyph(name):
    assert not set("█░▒▓·") & set(page(name, ascii_only=True).replace(" · ", ""))


def test_trouble_stands_before_everything_that_can_be_counted():
    text = page("status")
    order = [text.index(word) for word in ("TROUBLE", "CAPACITY", "FABRICS", "MODELS", "NOBODY", "Next:")]
    assert order == sorted(order)
    lines = text.split("\n")
    first = lines.index("TROUBLE  4") + 1
    marks = [line[:2] for line in lines[first:] if line[:2] in ("!!", " *")]
    assert marks == sorted(marks, key="!! *".index), "troubles before notes"


def test_every_number_of_the_status_is_that_of_the_tables():
    answer, listed = big_fleet.status(), big_fleet.nodes()
    devices = [device for node in listed.nodes for device in node.devices]
    for row in answer.capacity:
        mine = Counter(d.use for d in devices if d.device.gpu_class == row.gpu_class)
        assert sum(mine.values()) == row.total == sum(getattr(row.parts, part.name) for part in PARTS)
        assert mine[pb.DEVICE_USE_FREE] == row.parts.free
    assert sum(m.gpus for m in answer.models) == sum(r.gpus for r in answer.replicas)
    claimed = [d for d in devices if d.HasField("replica_id")]
    assert len(claimed) == sum(r.gpus for r in answer.replicas)


def test_json_has_the_stable_names_and_its_parts_add_up():
    value = json.loads(json.dumps(as_json_status.status(big_fleet.status(), exit_code=1)))
    assert value["schema"] == "llmgw.status/1"
    assert value["cluster"] == "lab-eu"
    assert value["leader"] == {"name": "controller-1", "term": 41}
    assert value["nodes"] == {"total": 24, "heard": 23, "silent": 1, "lost": 0}
    assert (value["brake"], value["exit_code"]) == (False, 1)
    for row in value["capacity"]:
        assert list(row["parts"]) == [part.name for part in PARTS]
        assert sum(row["parts"].values()) == row["total"]
    ib1, ib2, none = value["fabrics"]
    assert ib2["largest_fit"] == {"nodes": 1, "gpus_per_node": 8, "class": "H100"}
    assert ib2["largest_fit_if_idle_left"] == {"nodes": 2, "gpus_per_node": 8, "class": "H100"}
    assert (ib1["class"], none["id"]) == ("H200", None)
    assert value["models"]["serving"] == 13
    assert value["models"]["down"] == 2
    assert value["node_loss"]["nodes"] == value["node_loss"]["spare"] + len(value["node_loss"]["risks"])
    by_id = {row["id"]: row for row in value["replicas"]}
    assert (by_id["phi-4/1"]["idle_seconds"], by_id["phi-4/1"]["idleness"]) == (-1, "unknown")
    assert (by_id["deepseek-v3/1"]["idle_seconds"], by_id["qwen3-8b/2"]["idle_seconds"]) == (0, 11400)
    kinds = {(one["kind"], one["subject"]) for one in value["trouble"]}
    assert {("node_unreachable", "h100-05"), ("unplaceable", "llama-405b")} <= kinds


def test_gpus_in_json_name_faults_and_strangers():
    value = as_json_nodes.gpus(big_fleet.devices("h100-06"))
    (stranger,) = [row["foreign"] for row in value["gpus"] if row["foreign"]]
    assert (stranger[0]["pid"], stranger[0]["user"]) == (48211, "mkraus")
    gone = next(row for row in as_json_nodes.gpus(big_fleet.devices("h100-03"))["gpus"] if row["index"] == 5)
    assert (gone["state"], gone["fault"]["reason"], gone["use"]) == ("MISSING", "xid_79", "unhealthy")
    assert gone["since"] == "2026-11-30T12:04:33Z"


def test_the_nearest_miss_is_fields_and_not_only_a_sentence():
    """A script had to read it out of the text of the trouble."""
    told = as_json_status.status(big_fleet.status(), exit_code=1)["trouble"]
    near = {one["subject"]: one["near_miss"] for one in told}
    assert near["llama-405b"] == {
        "fabric": "ib-2",
        "node": "h100-07",
        "free": 6,
        "of": 8,
        "evict": ["qwen3-8b/2"],
        "nodes_needed": 2,
        "nodes_found": 1,
    }
    assert near["h100-05"] is None
    facts = {one["subject"]: (one["reason"], one["lost_in_seconds"], one["holds_gpus"]) for one in told}
    assert facts["h100-05"] == (None, 172.0, 8)
    assert facts["l40s-04:2"] == ("xid_48", None, None)
