"""Whatever others wrote, no page, no error and no line of the CLI lets a terminal obey it."""

import re

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import bench, capacity, router, terminal, weights
from llmgw_controller.cli.page import WIDTH, Column, Page, table
from llmgw_controller.cli.views import (
    doctor,
    events,
    evictions,
    fabrics,
    nodes,
    reclaim,
    replicas,
    status,
    why,
)
from llmgw_kit.errors import LlmgwError
from llmgw_kit.lifecycle import print_error
from llmgw_kit.text import in_one_line

from . import fleet

#: Colour, a forged line, the bell, a title, C1, and the override that turns text round.
EVIL = "x\x1b[31m\nerror: forged\r\x07\x1b]0;t\x07\x9b2J\u202eabc\tz"
BAD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def fill(message: Message, depth: int = 5) -> Message:
    """Every text of it evil, no list empty, every number as it is and every kind told."""
    for field in message.DESCRIPTOR.fields:
        repeated = field.is_repeated
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if field.message_type.GetOptions().map_entry or depth == 0:
                continue
            if repeated:
                rows = getattr(message, field.name)
                if not rows:
                    rows.add()
                for row in rows:
                    fill(row, depth - 1)
            else:
                fill(getattr(message, field.name), depth - 1)
        elif field.type == FieldDescriptor.TYPE_ENUM and not repeated and not getattr(message, field.name):
            setattr(message, field.name, 1)
        elif field.type == FieldDescriptor.TYPE_STRING:
            if repeated:
                del getattr(message, field.name)[:]
                getattr(message, field.name).extend([EVIL, EVIL])
            else:
                setattr(message, field.name, EVIL)
    return message


def benchmarks() -> pb.ListBenchmarksResponse:
    return pb.ListBenchmarksResponse(info=fleet.info(), runs=[pb.BenchmarkRun(run_id=1)])


VIEWS = {
    "status": (lambda page, a: status.render(page, a), fleet.status),
    "gpus": (
        lambda page, a: nodes.render_gpus(page, a),
        lambda: pb.ListDevicesResponse(info=fleet.info(), devices=fleet.devices()),
    ),
    "nodes": (
        lambda page, a: nodes.render_nodes(page, a, every=True),
        lambda: pb.ListNodesResponse(info=fleet.info()),
    ),
    "replicas": (
        lambda page, a: replicas.render_replicas(page, a, every=True),
        lambda: pb.ListReplicasResponse(info=fleet.info(), replicas=fleet.replicas()),
    ),
    "shards": (
        lambda page, a: replicas.render_shards(page, a),
        lambda: pb.ListReplicasResponse(info=fleet.info(), replicas=fleet.replicas()),
    ),
    "models": (
        lambda page, a: replicas.render_models(page, a),
        lambda: pb.ListModelsResponse(info=fleet.info(), models=fleet.models()),
    ),
    "why": (lambda page, a: why.render(page, a), lambda: pb.WhyResponse(info=fleet.info())),
    "events": (
        lambda page, a: events.render(page, a, since=None),
        lambda: pb.ListEventsResponse(info=fleet.info()),
    ),
    "evictions": (
        lambda page, a: evictions.render(page, a),
        lambda: pb.ListEvictionsResponse(info=fleet.info()),
    ),
    "reclaim": (
        lambda page, a: reclaim.render(page, a, applied=False, again="llmgwctl reclaim --apply"),
        lambda: pb.ReclaimResponse(info=fleet.info()),
    ),
    "fabrics": (
        lambda page, a: fabrics.render(page, a, pb.ListNodesResponse(info=fleet.info())),
        fleet.status,
    ),
    "doctor": (
        lambda page, a: doctor.render(page, [], a, LlmgwError(EVIL)),
        lambda: pb.DoctorResponse(info=fleet.info()),
    ),
    "routers": (
        lambda page, a: router.render_routers(page, a),
        lambda: pb.ListRoutersResponse(info=fleet.info()),
    ),
    "weights": (
        lambda page, a: weights.render_list(page, a),
        lambda: pb.ListWeightsResponse(info=fleet.info()),
    ),
    "bench": (lambda page, a: bench.render_list(page, a), benchmarks),
    "capacity": (
        lambda page, a: capacity.render_capacity(page, a),
        lambda: pb.CapacityResponse(info=fleet.info()),
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_no_view_of_an_evil_fleet_holds_a_control(name):
    render, make = VIEWS[name]
    page = Page()
    render(page, fill(make()))
    text = page.plain()
    assert "^[" in text, "the evil reached the page"
    assert not BAD.search(text.replace("\n", ""))
    assert not any(line.startswith("error: forged") for line in text.split("\n"))


@pytest.mark.parametrize("name", VIEWS)
def test_no_view_of_an_evil_fleet_is_drawn_with_a_control(name):
    render, make = VIEWS[name]
    page = Page()
    render(page, fill(make()))
    assert not any(BAD.search(line) for line in page.styled()), "stdout is no terminal here: no colours"


def test_an_error_is_lines_that_begin_with_error_once(capsys):
    print_error(LlmgwError(EVIL, next_steps=[f"try: llmgwctl why {EVIL}"]))
    err = capsys.readouterr().err
    assert not BAD.search(err.replace("\n", ""))
    assert [line.startswith("error: ") for line in err.splitlines()].count(True) == 1


def test_prose_of_an_error_is_broken_and_a_command_is_not(capsys):
    command = "try: llmgwctl model apply --shipped a-model --weights " + "w" * 80
    print_error(LlmgwError("word " * 60, next_steps=["step " * 60, command]), width=WIDTH)
    lines = capsys.readouterr().err.splitlines()
    assert f"  {command}" in lines
    assert all(len(line) <= WIDTH for line in lines if "llmgwctl" not in line)


def test_a_line_that_is_no_page_is_harmless_too(capsys):
    terminal.say("\x1b[31mred\u202e")
    assert capsys.readouterr().out == "^[[31mred<U+202E>\n"


def test_half_a_character_can_be_printed():
    assert in_one_line("\udcff\n") == "<U+DCFF>^J"


def test_free_columns_go_to_cells_that_were_cut():
    page = Page()
    table(page, [Column("A", most=4), Column("B", most=4), Column("C")], [("a" * 20, "b" * 90, "c")])
    (_, row) = page.plain().split("\n")
    assert row.startswith("a" * 20 + "  b")
    assert "…" in row
    assert len(row) == WIDTH
