"""What `llmgwctl node drain` prints: what it comes to, and each replica once."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.node import render_drain
from llmgw_controller.cli.page import WIDTH, Page

CHANGE = pb.NodeChange(
    node_id="n1", outcome="draining", replica_ids=["chat/1", "coder/2"],
    text="n1 is drained: nothing new is placed there; 2 replicas: 1 moves, 1 stays until room is found",
    warnings=["no database is configured"],
)  # fmt: skip
STEPS = [
    pb.NodeDrainStep(replica_id="chat/1", outcome="moves", text="its successor starts on n2; then it drains"),
    pb.NodeDrainStep(
        replica_id="coder/2", outcome="stays until room is found", text="no room elsewhere: " + "x y " * 40
    ),
]


def printed(*, dry_run: bool) -> list[str]:
    page = Page()
    render_drain(page, pb.DrainNodeResponse(change=CHANGE, steps=STEPS), dry_run=dry_run)
    lines = page.plain().split("\n")
    assert all(len(line) <= WIDTH for line in lines)
    return lines


def test_each_replica_is_named_once_below_what_it_comes_to():
    lines = printed(dry_run=False)
    for name in ("chat/1", "coder/2"):
        assert sum(line.count(name) for line in lines) == 1
    assert lines[0].startswith("n1 is drained")
    assert lines[-2:] == [" * no database is configured", "next: llmgwctl replicas --watch"]


def test_a_dry_run_says_so_first_and_there_is_nothing_to_watch():
    lines = printed(dry_run=True)
    assert lines[0].startswith("dry run: n1 is drained")
    assert not any("next:" in line for line in lines)
