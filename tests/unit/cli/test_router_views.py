"""`llmgwctl router list`: what is printed of members that are heard, half heard and gone."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.page import WIDTH, Page
from llmgw_controller.cli.router import render_routers, routers_json

NOW = 1_800_000_000.0

ANSWER = pb.ListRoutersResponse(
    info=pb.ViewInfo(cluster="lab", at_unix_s=NOW, age_s=2, leader_name="c", term=3, store="postgres"),
    routers=[
        pb.RouterRow(
            router_id="router-b", incarnation="x", seen_unix_s=NOW - 90_000, report_age_s=3, watching=True,
            applied_version=412, in_flight=7, held=2,
        ),
        pb.RouterRow(router_id="router-c", incarnation="y", seen_unix_s=NOW - 500, held=0),
        pb.RouterRow(
            router_id="router-a", incarnation="z", seen_unix_s=NOW - 60, report_age_s=1, watching=False,
            in_flight=0, held=0, crashed_unix_s=NOW - 60,
        ),
    ],
)  # fmt: skip


def test_who_is_gone_comes_first_and_the_last_line_says_what_to_type():
    page = Page()
    render_routers(page, ANSWER)
    assert page.plain().splitlines() == [
        "data 2 s old · 3 routers, 2 heard",
        "    ROUTER    REPORT  WATCHES  APPLIED  IN FLIGHT  HELD  JOINED",
        "!!  router-c       -  no             -          -     0  8 m 20 s ago",
        " *  router-a     1 s  no             -          0     0  1 m 00 s ago",
        "    router-b     3 s  yes          412          7     2  25 h 00 m ago",
        "router-a: came back 1 m 00 s ago without a goodbye; that counts as an ask",
        "Nothing counts as idle without the word of every member.",
        "Next, if it will not come back: llmgwctl router forget router-c",
    ]
    assert max(map(len, page.plain().splitlines())) <= WIDTH


def test_without_a_router_it_says_what_one_needs():
    page = Page()
    render_routers(page, pb.ListRoutersResponse(info=ANSWER.info))
    assert page.plain().splitlines()[1].startswith("no router has joined")


def test_the_json_has_null_for_what_is_unknown():
    found = routers_json(ANSWER)
    assert (found["schema"], found["exit_code"]) == ("llmgw.routers/1", 1)
    rows = {row["id"]: row for row in found["routers"]}
    assert rows["router-c"] | {"joined": ""} == {
        "id": "router-c", "incarnation": "y", "joined": "", "report_age_seconds": None, "watching": False,
        "applied_version": None, "crashed": None, "in_flight": None, "held": 0, "gone": True,
    }  # fmt: skip
    assert rows["router-b"]["gone"] is False
