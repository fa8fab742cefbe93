"""What `model apply` says of a spec that can never fit, and how it refuses one when asked to."""

from __future__ import annotations

import json

import pytest

from llmgw_controller.core.rows import Phase
from llmgw_controller.model_changes import apply_model
from llmgw_controller.reign import Reign
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.testing.clock import FakeClock

from .reigns import KEPT, hello, reign_on

TOO_MANY = {**KEPT, "profiles": [{**KEPT["profiles"][0], "gpus_per_node": 8}]}  # type: ignore[index]
EITHER = {**KEPT, "profiles": [{**TOO_MANY["profiles"][0], "name": "huge"}, *KEPT["profiles"]]}  # type: ignore


@pytest.fixture
async def reign() -> Reign:
    """One node with two L4."""
    made = await reign_on(FakeClock(), models=())
    await made.fleet.open(hello())
    return made


async def test_without_strict_it_is_stored_with_a_warning_and_stays_unplaceable(reign: Reign) -> None:
    answer = await apply_model(reign, json.dumps(TOO_MANY), dry_run=False)
    assert answer.outcome == "created"
    (told,) = [warning for warning in answer.warnings if "never fits" in warning]
    assert told == (
        "profile default needs 1 node with 8 L4 free; of 1 node: fewer GPUs of the class than needed: 1; "
        "as it is it never fits"
    )
    await reign._passes.once()
    (row,) = reign.ledger.stored.replicas.values()
    assert row.phase is Phase.UNPLACEABLE
    assert row.reason is not None and "fewer GPUs of the class than needed" in row.reason


@pytest.mark.parametrize("dry_run", [True, False])
async def test_strict_refuses_and_changes_nothing(reign: Reign, dry_run: bool) -> None:
    with pytest.raises(InvalidRequest, match="tiny can never fit .* 8 L4") as refused:
        await apply_model(reign, json.dumps(TOO_MANY), dry_run=dry_run, strict=True)
    assert refused.value.code == "never_fits"
    assert reign.ledger.stored.models == {}


async def test_strict_lets_pass_what_fits_by_one_profile_or_once_there_is_room(reign: Reign) -> None:
    answer = await apply_model(reign, json.dumps(EITHER), dry_run=False, strict=True)
    assert answer.outcome == "created"
    assert sum("never fits" in warning for warning in answer.warnings) == 1
    await reign._passes.once()
    both = {**KEPT, "name": "second", "replicas": 2}
    await apply_model(reign, json.dumps(both), dry_run=False)
    await reign._passes.once()
    full = {**KEPT, "name": "third"}
    assert (await apply_model(reign, json.dumps(full), dry_run=True, strict=True)).outcome == "created"


async def test_strict_on_a_fleet_that_nobody_knows_refuses_everything() -> None:
    empty = await reign_on(FakeClock(), models=())
    with pytest.raises(InvalidRequest, match="no node is known"):
        await apply_model(empty, json.dumps(KEPT), dry_run=True, strict=True)
    answer = await apply_model(empty, json.dumps(KEPT), dry_run=True)
    assert not any("never fits" in warning for warning in answer.warnings)


async def test_case_29_parallelism_that_does_not_make_up_the_gpus_is_refused_with_the_numbers(
    reign: Reign,
) -> None:
    wrong = {**KEPT["profiles"][0], "nodes": 2, "gpus_per_node": 2, "tensor_parallel": 2}  # type: ignore[index]
    with pytest.raises(InvalidRequest, match="x data_parallel 1 = 2, but nodes 2 x gpus_per_node 2 = 4 GPUs"):
        await apply_model(reign, json.dumps({**KEPT, "profiles": [wrong]}), dry_run=False)
    assert reign.ledger.stored.models == {}
