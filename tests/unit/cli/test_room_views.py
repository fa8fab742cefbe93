"""What `llmgwctl reclaim` and `llmgwctl evictions` print, as text and as JSON."""

import json

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import as_json_room
from llmgw_controller.cli.page import WIDTH, Page
from llmgw_controller.cli.views import evictions, reclaim

from . import fleet


def lines(view, *args, **kwargs) -> list[str]:
    page = Page()
    view(page, *args, **kwargs)
    found = page.plain().split("\n")
    assert all(len(line) <= WIDTH for line in found), max(found, key=len)
    return found


def found(**changes) -> pb.ReclaimResponse:
    plain = pb.ReclaimResponse(
        info=fleet.info(), gpus=4, gpu_hours=584.0,
        holdings=[
            pb.IdleHolding(
                replica_id="command-a/1", model="command-a", gpu_class="H100", gpus=4, idle_s=525_600,
                last_asked_unix_s=fleet.NOW - 525_600, gpu_hours=584.0, reload_s=96,
            ),
            pb.IdleHolding(
                replica_id="a-model-with-a-name-that-is-much-too-long-for-any-table/12", model="m",
                gpu_class="RTX PRO 6000", gpus=8, idle_s=11_400, never_asked=True, gpu_hours=25.3,
                kept_because="residency",
                kept_text="ready for 3 h 10 m; stays for 6 h 50 m more", kept_until_unix_s=fleet.NOW + 24_600,
            ),
            pb.IdleHolding(
                replica_id="qwen3-8b/2", model="qwen3-8b", gpu_class="H100", gpus=2, idle_s=20, gpu_hours=0.0,
                kept_because="used_lately", kept_text="idle for 20 s of 1 h 00 m",
            ),
        ],
        unknown=[pb.UnknownHolding(replica_id=f"p-{i}/1", reason="router_silent", gpus=2) for i in range(8)],
    )  # fmt: skip
    for name, value in changes.items():
        plain.ClearField(name)
        getattr(plain, name).extend(value) if isinstance(value, list) else setattr(plain, name, value)
    return plain


def test_a_plan_shows_what_may_go_what_stays_and_what_is_unknown_apart():
    text = lines(reclaim.render, found(), applied=False, again="llmgwctl reclaim --apply")
    assert text[0] == "data 1 s old · 1 replica may go: 4 GPUs, 584 GPU-hours unasked for"
    (row,) = [line for line in text if line.startswith("command-a/1")]
    assert row.split()[1:3] == ["4", "H100"]
    assert "1 m 36 s" in row
    assert any("ready for 3 h 10 m" in line for line in text)
    assert not any("qwen3-8b/2" in line for line in text), "idle for seconds is nobody's news"
    (unknown,) = [line for line in text if line.startswith("UNKNOWN, not idle  ")]
    assert unknown.endswith("router silent: p-0/1, p-1/1, p-2/1, p-3/1, p-4/1, p-5/1 and 2 more (16 GPUs)"), (
        unknown
    )
    assert text[-1] == "Next: llmgwctl reclaim --apply"


def test_nothing_to_let_go_says_so():
    empty = found(holdings=[], unknown=[], gpus=0, gpu_hours=0.0)
    text = lines(reclaim.render, empty, applied=False, again="x")
    assert text[0] == "data 1 s old · nothing may go"
    assert text[-1] == "Next: llmgwctl status"


def test_apply_tells_each_change():
    change = pb.ReplicaChange(
        replica_id="command-a/1", outcome="draining", text="command-a/1 drains: …", gpus=4
    )
    text = lines(reclaim.render, found(changes=[change]), applied=True, again="x")
    assert text[0] == "data 1 s old · 1 replica with 4 GPUs let go"
    assert text[1] == "  command-a/1 drains: …"


def test_the_json_of_a_plan_keeps_unknown_apart_and_names_its_schema():
    said = json.loads(json.dumps(as_json_room.reclaim(found(), applied=False)))
    assert said["schema"] == "llmgw.reclaim/1"
    first, second, _ = said["holdings"]
    assert (first["replica"], first["may_go"], first["kept_because"]) == ("command-a/1", True, None)
    assert (second["may_go"], second["kept_because"]) == (False, "residency")
    assert {one["idleness"] for one in said["holdings"]} == {"idle"}
    assert {one["idleness"] for one in said["unknown"]} == {"unknown"}
    assert said["applied"] is False


def receipt(**changes) -> pb.EvictionRow:
    plain = pb.EvictionRow(
        eviction_id="qwen3-8b/2@7", victim_replica_id="qwen3-8b/2", victim_model="qwen3-8b",
        beneficiary_model="llama-405b", beneficiary_replica_id="llama-405b/1", decided_unix_s=fleet.NOW - 600,
        state="done", text="qwen3-8b/2 made room for llama-405b/1 in 21 s", gpus=2, idle_s=11_400,
        evidence=["router r1: report 2 s old, 0 in flight", "idle 3 h 10 m, asked before that"],
        predicted_free_s=20, real_free_s=21, reload_s=75,
    )  # fmt: skip
    plain.MergeFrom(pb.EvictionRow(**changes))
    return plain


def shown(*rows: pb.EvictionRow) -> pb.ListEvictionsResponse:
    return pb.ListEvictionsResponse(info=fleet.info(), evictions=rows)


def test_receipts_tell_who_left_for_whom_and_on_what_evidence():
    rows = shown(
        receipt(),
        receipt(regretted_unix_s=fleet.NOW - 10),
        receipt(state="draining"),
        receipt(state="failed"),
    )
    text = lines(evictions.render, rows)
    assert text[0] == "data 1 s old · 4 evictions, newest first · 1 regretted"
    assert [line.split()[-1] for line in text[2:6]] == ["done", "regretted", "aside", "failed"]
    assert any(line.strip() == "router r1: report 2 s old, 0 in flight" for line in text)


def test_no_receipts_names_the_next_step():
    assert "llmgwctl reclaim --plan" in lines(evictions.render, shown())[1]


def test_the_json_of_receipts_has_null_for_what_is_unknown():
    bare = receipt()
    for name in ("predicted_free_s", "real_free_s", "reload_s"):
        bare.ClearField(name)
    said = as_json_room.evictions(shown(bare))
    assert said["schema"] == "llmgw.evictions/1"
    (one,) = said["evictions"]
    assert (one["predicted_free_seconds"], one["reload_seconds"], one["regretted"]) == (None, None, None)
    assert (one["victim"], one["for"], one["idle_seconds"]) == ("qwen3-8b/2", "llama-405b/1", 11_400)
