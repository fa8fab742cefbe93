"""Weights on the nodes as the controller sees them: users, holders, where they are of use, full disks."""

from dataclasses import replace

import pytest

from llmgw_controller.core.catalog import Weights, WeightsFile
from llmgw_controller.core.heard import HeldWeights
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.rows import Phase, Schedulability
from llmgw_controller.core.view import fleet_view
from llmgw_controller.core.weights_held import holders, size_of, useful_on, users_on, weights_lines
from llmgw_kit.ids import NodeId, ShardId
from tests.unit.controller.build import GIB, NOW, heard, model, node, profile, replica, shard, snapshot

N1, N2 = NodeId("n1"), NodeId("n2")
M = model("m")


def held(version: str = "v1", *shards: str, size: int = 5, **changes: object) -> HeldWeights:
    plain = HeldWeights("m", version, size, complete=True, shard_ids=tuple(ShardId(one) for one in shards))
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_users_are_those_the_agent_names_and_those_just_placed():
    """The agent knows what each engine was started from; the rows know who is about to start."""
    old, placed = shard("m/1", "n1", 0), shard("m/2", "n1", 1)
    rows = [replica(M, 1, Phase.READY, old), replica(M, 2, Phase.RESERVED, placed)]
    words = [heard(node("n1"), (), weights=(held("v1"), held("v0", "m/1.1.0")))]
    snap = snapshot([M], [node("n1")], [rows[1]], words)
    assert users_on(snap, N1, "m", "v1") == ("m/2",)
    assert users_on(snap, N1, "m", "v0") == ("m/1",), "its row is gone, its engine is not"
    assert users_on(snap, N2, "m", "v1") == ()


def test_a_replica_of_an_older_spec_does_not_use_the_new_version():
    newer = replace(M, weights=replace(M.weights, version="v2"))
    row = replica(M, 1, Phase.READY, shard("m/1", "n1", 0))
    snap = snapshot([newer], [node("n1")], [row])
    assert users_on(snap, N1, "m", "v2") == ()


def test_a_released_shard_uses_nothing():
    part = replace(shard("m/1", "n1", 0), released=True)
    words = [heard(node("n1"), (), weights=(held(),))]
    snap = snapshot([M], [node("n1")], [replica(M, 1, Phase.BACKOFF, part)], words)
    assert users_on(snap, N1, "m", "v1") == ()


def test_a_line_says_who_holds_uses_and_wants_it():
    nodes = [node("n1"), node("n2")]
    words = [
        heard(nodes[0], (), weights=(held("v0", size=3), held("v1")), disk_free_bytes=7),
        heard(nodes[1], (), weights=(held("v1", complete=False, fetching=True, progress=0.5),)),
    ]
    snap = snapshot([M], nodes, [], words)
    lines = weights_lines(snap)
    assert [(one.node_id, one.held.version, one.wanted, one.disk_free_bytes) for one in lines] == [
        ("n1", "v0", False, 7), ("n1", "v1", True, 7), ("n2", "v1", True, None),
    ]  # fmt: skip
    assert holders(snap, "m", "v1") == (N1, N2)
    assert holders(snap, "m", "v9") == ()


def test_weights_go_to_nodes_that_could_run_the_model_full_or_cordoned_ones_too():
    nodes = [
        node("full", 1), node("free"), node("other", gpu_class="H100"), node("small", 1),
        node("aside", pool="lab"), node("cordoned", schedulability=Schedulability.CORDONED), node("silent"),
    ]  # fmt: skip
    one = model("m", profile(gpus_per_node=1))
    busy = replica(one, 1, Phase.READY, shard("m/1", "full", 0))
    words = [heard(each) for each in nodes if each.node_id != "silent"]
    snap = snapshot([one], nodes, [busy], words)
    assert useful_on(snap, one, NOW) == ("cordoned", "free", "full", "small")
    two = model("m", profile(gpus_per_node=2))
    assert useful_on(replace(snap, catalog=snapshot([two]).catalog), two, NOW) == ("cordoned", "free")


def test_a_version_has_its_published_size_else_that_of_a_whole_copy():
    files = (WeightsFile("a", "u", None, 10), WeightsFile("b", "u", None, 20))
    snap = snapshot([M], [node("n1")], [], [heard(node("n1"), (), weights=(held(size=7),))])
    assert size_of(snap, M.name, Weights("v1", files, None)) == 30
    assert size_of(snap, M.name, Weights("v1", (*files, WeightsFile("c", "u", None, None)), None)) == 7
    assert size_of(snap, M.name, Weights("v2", (), None)) is None


def sized(size: int | None, **changes: object):
    return model("m", weights=Weights("v1", (WeightsFile("w", "u", None, size),), None), **changes)


@pytest.mark.parametrize(
    ("size", "free", "here", "noted"),
    [
        (10 * GIB, 9 * GIB, (), True),
        (10 * GIB, 10 * GIB, (), False),
        (10 * GIB, None, (), False),  # unknown is not full
        (None, 0, (), False),  # nor is an unknown size too large
        (10 * GIB, 9 * GIB, (held(size=10 * GIB),), False),  # it is there already
        (10 * GIB, 9 * GIB, (held(size=10 * GIB, complete=False),), True),
    ],
)
def test_a_disk_without_room_for_what_is_wanted_is_noted(size, free, here, noted):
    one = sized(size)
    snap = snapshot([one], [node("n1")], [], [heard(node("n1"), (), disk_free_bytes=free, weights=here)])
    view = fleet_view(snap, verdicts(snap, NOW), NOW)
    found = [trouble for trouble in view.trouble if trouble.kind == "disk_pressure"]
    assert bool(found) is noted
    if noted:
        assert found[0].text.startswith("9.66 GB of disk free; m v1 needs 10.7 GB and is not there")
        assert found[0].fix == "llmgwctl weights list --node n1"


def test_a_full_disk_says_what_could_go():
    spare = (held("v0", size=4 * GIB), held("v00", "m/9.1.0", size=2 * GIB))
    snap = snapshot(
        [sized(10 * GIB)], [node("n1")], [], [heard(node("n1"), (), disk_free_bytes=GIB, weights=spare)]
    )
    (found,) = [
        one for one in fleet_view(snap, verdicts(snap, NOW), NOW).trouble if one.kind == "disk_pressure"
    ]
    assert found.text.endswith("; 4.29 GB there are wanted by nobody"), "what an engine maps is no spare"


def test_a_disk_of_another_class_is_not_judged_by_models_it_never_runs():
    one = sized(10 * GIB, profiles=(profile(gpu_class="H100"),))
    snap = snapshot([one], [node("n1")], [], [heard(node("n1"), (), disk_free_bytes=1)])
    assert [t for t in fleet_view(snap, verdicts(snap, NOW), NOW).trouble if t.kind == "disk_pressure"] == []
