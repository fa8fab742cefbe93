"""`demand` asked of a whole leader: each ask of a router is counted once, by how it ended."""

import asyncio
import json

import pytest

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import as_json_room
from llmgw_controller.cli.page import WIDTH, Page
from llmgw_controller.cli.views import demand as view
from llmgw_controller.core.activation import Ready
from llmgw_controller.demand_book import NAMES_MOST, DemandBook
from llmgw_kit.errors import NotFound
from llmgw_kit.lifecycle import cancel_all
from llmgw_kit.testing.clock import FakeClock

from .reigns import KEPT
from .seat import Agent, Router, Seat

COLD = {**KEPT, "replicas": 0, "activate_on_demand": True}


@pytest.fixture
async def seat(fake_clock: FakeClock):
    made = await Seat(fake_clock, COLD).begin()
    yield made
    await made.end()


async def told(seat: Seat, model: str | None = None) -> pb.DemandResponse:
    answer: pb.DemandResponse = await seat.operator.Demand(pb.DemandRequest(model=model), None)
    return answer


def counts(row: pb.DemandRow) -> tuple[int, int, int, int, int]:
    return row.asks, row.waiting_routers, row.served, row.refused, row.given_up


async def test_an_ask_is_open_then_served_and_one_that_nobody_waits_for_is_given_up(seat: Seat) -> None:
    router = await Router(seat).begin()
    await Agent(seat).begin()
    assert list((await told(seat)).rows) == []
    waits = asyncio.create_task(router.ask("tiny", waiting=7))
    await seat.passes(0.5)
    (row,) = (await told(seat)).rows
    assert (counts(row), row.most_waiting) == ((1, 1, 0, 0, 0), 7)
    assert not waits.done()
    await cancel_all(waits)
    await seat.passes(0.5)
    (row,) = (await told(seat)).rows
    assert counts(row) == (1, 0, 0, 0, 1)
    again = asyncio.create_task(router.ask("tiny"))
    await seat.until("ready", lambda: again.done())
    (row,) = (await told(seat)).rows
    assert (counts(row), row.model) == ((2, 0, 1, 0, 1), "tiny")
    assert row.first_asked_unix_s < row.last_asked_unix_s


async def test_a_name_that_is_no_model_is_told_with_the_words_of_its_refusal(seat: Seat) -> None:
    router = await Router(seat).begin()
    await router.ask("gpt-99")
    (row,) = (await told(seat)).rows
    assert counts(row) == (1, 0, 0, 1, 0)
    assert (row.refused_code, row.HasField("availability")) == ("model_not_found", False)
    assert [one.model for one in (await told(seat, "gpt-99")).rows] == ["gpt-99"]
    assert list((await told(seat, "tiny")).rows) == []
    with pytest.raises(NotFound):
        await told(seat, "gpt-98")


def test_the_book_forgets_whoever_was_asked_for_longest_ago_and_says_so() -> None:
    book = DemandBook(0.0)
    with book.asking("waited for", 1, lambda: 1.0):
        for number in range(NAMES_MOST + 9):
            with book.asking(f"made-up-{number}", 1, lambda at=number: 2.0 + at) as asking:
                asking.decision = Ready()
        names = {one.name for one in book.asked}
        assert len(names) == NAMES_MOST
        assert book.forgotten == 10
        assert "waited for" in names
        assert f"made-up-{NAMES_MOST + 8}" in names
        assert "made-up-0" not in names


def page(answer: pb.DemandResponse) -> list[str]:
    made = Page()
    view.render(made, answer)
    lines = made.plain().split("\n")
    assert max(map(len, lines)) <= WIDTH
    return lines


def test_the_page_and_the_json_tell_unknown_as_unknown() -> None:
    info = pb.ViewInfo(cluster="lab", at_unix_s=1_000_000.0, age_s=1.0)
    rows = [
        pb.DemandRow(
            model="a-model-with-a-name-that-is-much-too-long-for-any-table", availability=4, asks=38,
            refused=38, first_asked_unix_s=999_000.0, last_asked_unix_s=999_880.0, refused_code="no_capacity",
            refused_text="needs 2 whole nodes of at least 8 H100; " * 5, refused_unix_s=999_880.0,
        ),
        pb.DemandRow(model="glm", availability=2, held=3, asks=1, waiting_routers=1, eta_s=40),
        pb.DemandRow(model="gpt-99", asks=2, refused=2),
        pb.DemandRow(model="far", availability=4, asks=1, served=1, reason="far: its node is unreachable"),
    ]  # fmt: skip
    answer = pb.DemandResponse(info=info, since_unix_s=990_000.0, rows=rows, held_unknown=True)
    lines = page(answer)
    assert "4 names, 4 not up" in lines[0]
    assert "far: its node is unreachable" in lines
    assert any("a router is not heard" in line for line in lines)
    assert any("starting, ~40 s" in line for line in lines)
    assert any("no such model" in line and line.split("no such model")[1].split()[0] == "-" for line in lines)
    assert lines[-1].startswith("Next: llmgwctl why a-model")
    said = as_json_room.demand(answer)
    json.dumps(said)
    assert [(row["held"], row["availability"]) for row in said["demand"]] == [
        (None, "unavailable"), (3, "starting"), (None, None), (None, "unavailable")
    ]  # fmt: skip
    assert page(pb.DemandResponse(info=info, since_unix_s=990_000.0))[-1].endswith("llmgwctl reclaim --plan")
