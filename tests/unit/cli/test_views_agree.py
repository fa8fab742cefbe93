"""Status, nodes, gpus, replicas, models, JSON and bars of one moment say the same, whatever the fleet."""

import re
from collections import Counter

from hypothesis import HealthCheck, given, settings

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller import wire_nodes, wire_operator, wire_replicas
from llmgw_controller.cli import as_json_status
from llmgw_controller.cli.bars import PARTS, USE_PART, cells, numbers_of
from llmgw_controller.cli.page import WIDTH, Page
from llmgw_controller.cli.views import capacity, nodes, replicas, status
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.risk import risks
from llmgw_controller.core.view import fleet_view
from tests.unit.controller.build import NOW, after
from tests.unit.controller.worlds import fleets

thorough = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def answers(snap):
    """As the calls would give them, from one view."""
    view = fleet_view(snap, verdicts(snap, NOW), NOW)
    about = wire_operator.info(view, cluster="lab", leader_name="c", store="memory", rows_age_s=0.0)
    return (
        wire_operator.status(view, about, risks(snap, NOW)),
        pb.ListNodesResponse(info=about, nodes=[wire_nodes.node(one, NOW) for one in view.nodes]),
        pb.ListDevicesResponse(info=about, devices=[wire_nodes.device(one, NOW) for one in view.devices]),
        pb.ListReplicasResponse(
            info=about, replicas=[wire_replicas.replica(one, NOW) for one in view.replicas]
        ),
        pb.ListModelsResponse(info=about, models=[wire_replicas.model(one, NOW) for one in view.models]),
    )


@thorough
@given(fleets())
def test_every_sum_is_that_of_the_rows(snap):
    whole, listed, gpus, rows, catalog = answers(snap)
    uses = Counter((d.device.gpu_class, USE_PART[d.use]) for d in gpus.devices)
    for row in whole.capacity:
        for part in PARTS:
            assert getattr(row.parts, part.name) == uses.pop((row.gpu_class, part.name), 0)
        assert sum(numbers_of(row.parts)) == row.total
    assert not +uses, "a device of a class that the capacity does not know"
    assert [d.SerializeToString(deterministic=True) for n in listed.nodes for d in n.devices] == [
        d.SerializeToString(deterministic=True) for d in gpus.devices
    ]
    assert list(whole.replicas) == list(rows.replicas)
    assert list(whole.models) == list(catalog.models)
    states = Counter(node.state for node in listed.nodes)
    assert whole.nodes.heard == states[pb.NODE_STATE_READY]
    assert whole.nodes.lost == states[pb.NODE_STATE_LOST]
    assert whole.nodes.heard + whole.nodes.silent + whole.nodes.lost == len(listed.nodes)
    for row in whole.fabrics:
        mine = [n for n in listed.nodes if row.fabric in n.fabrics or (not row.fabric and not n.fabrics)]
        assert row.nodes == len(mine)
        free = [n for n in mine if n.devices and all(d.use == pb.DEVICE_USE_FREE for d in n.devices)]
        assert row.whole_free == len(free)
    held = Counter(d.replica_id for d in gpus.devices if d.HasField("replica_id"))
    for replica in rows.replicas:
        # A missing GPU stays claimed; one that no row and no agent lists any more is nobody's.
        assert held[replica.replica_id] <= replica.gpus or replica.replica_id == "ghost/1"
    value = as_json_status.status(whole, exit_code=status.exit_code(whole))
    assert value["nodes"]["total"] == len(listed.nodes)
    assert value["models"]["total"] == len(catalog.models)
    assert sum(value["models"][word] for word in ("serving", "starting", "cold", "down")) == len(
        catalog.models
    )
    for row in value["capacity"]:
        assert sum(row["parts"].values()) == row["total"]


@thorough
@given(fleets())
def test_every_page_fits_and_its_bars_add_up(snap):
    whole, listed, gpus, rows, catalog = answers(after(snap, reconcile(snap, NOW)))
    for ascii_only in (False, True):
        page = Page(ascii_only=ascii_only)
        status.render(page, whole)
        nodes.render_nodes(page, listed, every=True)
        nodes.render_gpus(page, gpus)
        replicas.render_replicas(page, rows, every=True)
        replicas.render_models(page, catalog)
        text = page.plain()
        assert max(map(len, text.split("\n"))) <= WIDTH
        glyphs = "".join(part.ascii if ascii_only else part.glyph for part in PARTS)
        for row in whole.capacity:
            width = capacity.BAR
            shares = cells(numbers_of(row.parts), width)
            drawn = re.search(rf"(?m)^  {row.gpu_class} +([{re.escape(glyphs)}]+)", text)
            assert drawn is not None
            assert len(drawn[1]) == sum(shares)
            for part, share in zip(PARTS, shares, strict=True):
                assert drawn[1].count(part.ascii if ascii_only else part.glyph) == share
