"""Several models or replicas in one call: all of it is done, or nothing is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.rows import Wish
from llmgw_kit.errors import Conflict, InvalidRequest, LlmgwError, NotFound
from llmgw_kit.ids import ReplicaId
from llmgw_kit.testing.clock import FakeClock

from .reigns import KEPT
from .seat import Agent, Seat

COLD = {**KEPT, "replicas": 0}
ONE, TWO, THREE = ({**COLD, "name": name} for name in ("one", "two", "three"))
HUGE = {**TWO, "profiles": [{**KEPT["profiles"][0], "gpus_per_node": 8}]}  # type: ignore[index]
ODD = {**TWO, "replicas": "many"}


@pytest.fixture
async def seat() -> AsyncIterator[Seat]:
    """One node with two L4, and two replicas of `tiny` on it."""
    made = await Seat(FakeClock(), {**KEPT, "replicas": 2}).begin()
    await Agent(made).begin()
    await made.passes(12)
    yield made
    await made.end()


async def applied(seat: Seat, *models: dict[str, Any], **asked: bool) -> pb.ApplyModelResponse:
    first, *more = [json.dumps(one) for one in models]
    request = pb.ApplyModelRequest(model_json=first, more_model_json=more, **asked)
    return await seat.operator.ApplyModel(request, None)


@pytest.mark.parametrize(
    ("models", "asked", "error", "told"),
    [
        ([ONE, ODD, THREE], {}, InvalidRequest, "model 2 of 3"),
        ([ONE, HUGE, THREE], {"strict": True}, InvalidRequest, "two can never fit"),
        ([ONE, KEPT, THREE], {}, Conflict, "tiny is in the controller's configuration"),
        ([ONE, TWO, ONE], {}, InvalidRequest, "'one'"),
        ([ONE, {**TWO, "aliases": ["three"]}, THREE], {}, InvalidRequest, "'three' belongs to two models"),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
async def test_one_model_that_is_refused_keeps_all_from_being_stored(
    seat: Seat, models: Any, asked: Any, error: type[LlmgwError], told: str, dry_run: bool
) -> None:
    with pytest.raises(error, match=told):
        await applied(seat, *models, dry_run=dry_run, **asked)
    assert seat.reign.ledger.stored.models == {}


async def test_models_are_stored_by_one_commit_and_told_one_by_one(seat: Seat) -> None:
    dry = await applied(seat, ONE, TWO, THREE, dry_run=True)
    assert seat.reign.ledger.stored.models == {}
    before = len(await seat.told())
    answer = await applied(seat, ONE, TWO, THREE)
    assert answer == dry
    assert [(one.model, one.outcome, one.store) for one in (answer, *answer.more)] == [
        (name, "created", "memory") for name in ("one", "two", "three")
    ]
    assert list(seat.reign.ledger.stored.models) == ["one", "two", "three"]
    assert (await seat.told())[before:].count("model_created") == 3
    again = await applied(seat, ONE, {**TWO, "aliases": ["zwei"]})
    assert (again.outcome, again.more[0].outcome) == ("unchanged", "changed")


@pytest.mark.parametrize(("kind", "wish"), [("Drain", Wish.DRAIN), ("Stop", Wish.STOP)])
async def test_replicas_are_let_go_together_or_none_of_them(seat: Seat, kind: str, wish: Wish) -> None:
    call, request = getattr(seat.operator, f"{kind}Replica"), getattr(pb, f"{kind}ReplicaRequest")
    rows = seat.reign.ledger.stored.replicas
    with pytest.raises(NotFound, match="no replica tiny/9"):
        await call(request(replica_id="tiny/1", more_replica_ids=["tiny/9", "tiny/2"]), None)
    assert seat.reign.ledger.stored.replicas == rows
    both = request(replica_id="tiny/1", more_replica_ids=["tiny/2", "tiny/1"], dry_run=True)
    dry = await call(both, None)
    assert seat.reign.ledger.stored.replicas == rows
    both.dry_run = False
    answer = await call(both, None)
    assert answer == dry
    assert [one.replica_id for one in (answer.change, *answer.more)] == ["tiny/1", "tiny/2", "tiny/1"]
    assert answer.more[1].outcome == "unchanged", "the same once more"
    left = seat.reign.ledger.stored.replicas
    assert {left[ReplicaId(name)].wish for name in ("tiny/1", "tiny/2")} == {wish}
