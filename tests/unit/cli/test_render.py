"""What llmgwctl prints: whole pages as text, so that a change of look is seen in review."""

import json

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import as_json_nodes, as_json_replicas, as_json_status
from llmgw_controller.cli.page import WIDTH, Page
from llmgw_controller.cli.views import nodes, replicas, status, why

from . import fleet


def rendered(view, *args, ascii_only=False, **kwargs) -> list[str]:
    page = Page(ascii_only=ascii_only)
    view(page, *args, **kwargs)
    return page.plain().split("\n")


def test_status_page():
    lines = rendered(status.render, fleet.status())
    assert lines[0] == ("lab · leader controller-1, term 3 · data 1 s old · routers 1 of 1 heard · brake off")
    assert lines[1] == ("nodes 2 heard, 0 silent, 0 lost · replicas 2 of 3 ready · in flight 5, held 0")
    text = "\n".join(lines)
    assert "TROUBLE  1" in text
    assert "!! big    cannot be placed: no node of class H100" in text
    assert " * odd/1  idleness unknown" in text
    assert f"  L4  {'█' * 14}{'░' * 14}{'X' * 13}{'·' * 13}" in text
    header = next(line for line in lines if line.startswith("CAPACITY"))
    bar = next(line for line in lines if line.startswith("  L4"))
    assert header.index("TOTAL") + len("TOTAL") == bar.index("  4  25.8 of") + 3, (
        "numbers stand under their titles"
    )
    assert "1 busy  1 idle  1 unhealthy  1 free" in text
    assert "25.8 of 103 GB" in text
    assert "FABRICS     none declared: replicas stay on one node" in text
    assert "  chat/2       1 L4  42 m 00 s  13:50             0.7       -" in text
    assert "chat/3" not in text, "idle for seconds is nobody's news"
    assert "COULD MAKE ROOM  eviction is suggest" in text
    assert "  big  chat/2 could leave for big/1; room in ~20 s; to bring back: 1 m 15 s" in text
    assert "    llmgwctl replica drain chat/2" in text
    assert "UNKNOWN, not idle  odd/1 (engine gauge unreadable)" in text
    assert lines[-1] == "Next: llmgwctl why big · llmgwctl reclaim --plan"


def test_status_in_ascii_has_no_other_glyph():
    page = Page(ascii_only=True)
    status.render(page, fleet.status())
    assert "#" * 14 + "o" * 14 + "X" * 13 + "." * 13 in page.plain()


def test_every_page_fits_the_width():
    pages = [
        rendered(status.render, fleet.status()),
        rendered(nodes.render_gpus, pb.ListDevicesResponse(info=fleet.info(), devices=fleet.devices())),
        rendered(
            replicas.render_replicas,
            pb.ListReplicasResponse(info=fleet.info(), replicas=fleet.replicas()),
            every=True,
        ),
        rendered(replicas.render_models, pb.ListModelsResponse(info=fleet.info(), models=fleet.models())),
    ]
    assert max(len(line) for page in pages for line in page) <= WIDTH


def test_trouble_decides_the_exit_code():
    answer = fleet.status()
    assert status.exit_code(answer) == 1
    del answer.trouble[0]
    assert status.exit_code(answer) == 0, "a note is no trouble"


def test_old_data_is_no_data_and_says_so_first():
    answer = fleet.status()
    answer.info.age_s = 61
    assert status.exit_code(answer) == 2
    assert rendered(status.render, answer)[0].startswith("!! no fresh data: what follows is 1 m 01 s old")
    # Looking back, age is no fault.
    answer.recorded_unix_s = fleet.NOW - 100
    assert status.exit_code(answer) == 1


def test_unknown_idleness_is_a_dash_and_minus_one_only_in_json():
    answer = pb.ListReplicasResponse(info=fleet.info(), replicas=fleet.replicas())
    odd = next(line for line in rendered(replicas.render_replicas, answer, every=True) if "odd/1 " in line)
    assert odd.split()[-3:] == ["-", "-", "-"]
    value = {row["id"]: row for row in as_json_replicas.replicas(answer)["replicas"]}
    assert value["odd/1"]["idle_seconds"] == -1
    assert value["odd/1"]["idleness"] == "unknown"
    assert value["odd/1"]["idle_unknown_reason"] == "engine_gauge_unreadable"
    assert value["odd/1"]["in_flight"] is None
    assert value["chat/2"]["idle_seconds"] == 2520
    assert value["chat/1"]["idle_seconds"] == 0


def test_gpus_name_the_missing_one_and_add_up():
    lines = rendered(nodes.render_gpus, pb.ListDevicesResponse(info=fleet.info(), devices=fleet.devices()))
    text = "\n".join(lines)
    assert "MISSING" in text
    assert "!! xid_79" in text
    assert "2 = 1 missing + 1 free" in text


def test_json_of_every_view_is_json():
    listed = pb.ListDevicesResponse(info=fleet.info(), devices=fleet.devices())
    for value in (as_json_status.status(fleet.status(), exit_code=1), as_json_nodes.gpus(listed)):
        again = json.loads(json.dumps(value))
        assert again["schema"].startswith("llmgw.")
        assert again["leader"] == {"name": "controller-1", "term": 3}


def test_why_says_what_is_in_the_way():
    answer = pb.WhyResponse(
        info=fleet.info(),
        model="chat",
        verdict=pb.WHY_VERDICT_FITS_AFTER_EVICTION,
        now="2 of 2 ready",
        profiles=[
            pb.WhyProfile(
                profile="l4",
                verdict=pb.WHY_VERDICT_FITS_AFTER_EVICTION,
                needs="1 node with 2 L4",
                nodes_considered=2,
                filters=[pb.WhyFilter(reason="not enough free", count=2, node_ids=["n1", "n2"])],
                near_misses=[
                    pb.WhyNearMiss(node_id="n1", free=0, needed=2, text="chat/2 is idle and holds 1")
                ],
                fix="llmgwctl replica drain chat/2",
                cheapest=pb.WhyFix(
                    command="llmgwctl replica drain chat/2", text="drain chat/2", reload_s=75.0
                ),
            )
        ],
    )
    text = "\n".join(rendered(why.render, answer))
    assert "does not fit now. It fits after one eviction." in text
    assert "-2  not enough free" in text
    assert "CHEAPEST FIX  drain chat/2" in text
    assert "not measured  until chat serves" in text
    assert "~1 m 15 s     to bring back what leaves" in text
    assert why.exit_code(answer) == 10


def test_a_reason_names_its_model_once():
    rows = fleet.models()
    rows[1].reason = "big: no node of class H100"
    lines = rendered(replicas.render_models, pb.ListModelsResponse(info=fleet.info(), models=rows))
    assert "big: no node of class H100" in lines


def test_an_empty_fleet_is_told_what_comes_first():
    """Nothing is there yet: each page says how something gets there, and no table stands without a row."""
    info = fleet.status().info
    lines = rendered(status.render, pb.GetStatusResponse(info=info))
    assert lines[-1] == "Next: llmgwctl nodes · llmgwctl model shipped"
    lines = rendered(replicas.render_shards, pb.ListReplicasResponse(info=info))
    assert lines[1:] == ["no engine runs and none is being started; see: llmgwctl replicas"]


def test_what_a_probe_was_answered_is_one_short_text_and_a_replica_held_back_no_trouble():
    html = "/health answers 501: <!DOCTYPE HTML>\n" + "   <p>Unsupported method</p>\n" * 40
    rows = [
        pb.ReplicaRow(replica_id="big/1", phase=pb.REPLICA_PHASE_STARTING, probe_error=html),
        pb.ReplicaRow(
            replica_id="big/2", phase=pb.REPLICA_PHASE_BACKOFF, until_unix_s=fleet.NOW + 1800,
            reason="held back by an operator in the place of big/0",
        ),
        pb.ReplicaRow(replica_id="big/3", phase=pb.REPLICA_PHASE_BACKOFF, restarts=2, until_unix_s=fleet.NOW),
    ]  # fmt: skip
    answer = pb.ListReplicasResponse(info=fleet.status().info, replicas=rows)
    lines = rendered(replicas.render_replicas, answer, every=True)
    assert sum("Unsupported" in line for line in lines) <= 3
    (held,) = [line for line in lines if "big/2" in line and "held" not in line]
    assert held.startswith(" * big/2")
    assert "waits" in held
    (failing,) = [line for line in lines if "big/3" in line]
    assert failing.startswith("!! big/3")
    assert "BACKOFF" in failing
