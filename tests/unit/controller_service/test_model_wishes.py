"""Stop, start and pin: wishes beside the spec, of configured and stored models alike."""

import json
from dataclasses import replace

import pytest

from llmgw_controller.core.activation import Refused, decide
from llmgw_controller.core.availability import Availability, model_state
from llmgw_controller.core.deployments import effective_pinned
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.plan import PutAttempt, PutEvent, PutReplica, Release
from llmgw_controller.core.replica import with_phase
from llmgw_controller.core.routes import routes
from llmgw_controller.core.rows import AttemptRow, Phase, ReplicaRow, Wish
from llmgw_controller.core.view import fleet_view
from llmgw_controller.deployment_changes import pin_model, start_model, stop_model
from llmgw_controller.model_changes import apply_model, apply_models, remove_model
from llmgw_controller.reign import Reign
from llmgw_kit.errors import InvalidRequest, NotFound
from llmgw_kit.ids import ModelId, NodeId, ReplicaId
from llmgw_kit.testing.clock import FakeClock

from .reigns import KEPT, hello, reign_on

TINY = ModelId("tiny")
ONE = ReplicaId("tiny/1")


@pytest.fixture(params=["configured", "stored"])
async def reign(request: pytest.FixtureRequest) -> Reign:
    """One node with the model's one replica placed on it."""
    configured = request.param == "configured"
    reign = await reign_on(FakeClock(), models=(KEPT,) if configured else ())
    if not configured:
        await apply_model(reign, json.dumps(KEPT), dry_run=False)
    await reign.fleet.open(hello())
    await reign._passes.once()
    return reign


def rows(reign: Reign) -> dict[str, ReplicaRow]:
    return {str(key): row for key, row in reign.ledger.stored.replicas.items()}


async def put(reign: Reign, *changes: object) -> None:
    async with reign.ledger.writing():
        await reign.ledger.commit(changes)  # type: ignore[arg-type]


async def failed(reign: Reign) -> None:
    """tiny/1 has been given up, with its exit seen or not."""
    row = rows(reign)["tiny/1"]
    now = reign.tenure.now()
    row = with_phase(replace(row, failures=6), Phase.FAILED, now=now, because="crashed", reason="crashed")
    attempt = AttemptRow(TINY, "default", "L4", row.spec_hash, ONE, (NodeId("n1"),), "crashed", "boom", now)
    await put(reign, PutReplica(row), PutAttempt(attempt))


async def test_a_stopped_model_drains_and_nothing_starts_it_until_it_is_started(reign: Reign) -> None:
    dry = await stop_model(reign, "tiny", dry_run=True)
    assert not reign.ledger.stored.deployments
    assert await stop_model(reign, "tiny", dry_run=False) == dry
    assert (dry.outcome, list(dry.replica_ids)) == ("stopped", ["tiny/1"])
    await reign._passes.once()
    assert {row.wish for row in rows(reign).values()} == {Wish.STOP}

    # Whoever asks is told so, and no activation row stays open.
    snapshot, now = reign.snapshot(reign.ledger.stored), reign.tenure.now()
    assert decide(snapshot, TINY, now) == Refused("stopped", "tiny is stopped by an operator", None)
    state = model_state(snapshot, reign.ledger.catalog.models[TINY], now)
    assert (state.availability, state.reason) == (Availability.UNAVAILABLE, "stopped by an operator")
    await reign.activations.ask(frozenset({TINY}))
    await reign._passes.once()
    assert not reign.ledger.stored.activations
    assert not [row for row in rows(reign).values() if row.wish is Wish.SERVE]
    assert (await stop_model(reign, "tiny", dry_run=False)).outcome == "unchanged"

    # The configuration was never lost.
    assert (await start_model(reign, "tiny", dry_run=False)).outcome == "started"
    assert not reign.ledger.stored.deployments
    await reign._passes.once()
    assert rows(reign)["tiny/2"].wish is Wish.SERVE
    again = await start_model(reign, "tiny", dry_run=False)
    assert (again.outcome, "keeps 1 replica up" in again.text) == ("unchanged", True)


async def test_a_stop_outlives_a_new_spec_and_ends_with_the_model(reign: Reign) -> None:
    await stop_model(reign, "tiny", dry_run=False)
    if TINY not in reign.ledger.stored.models:
        return  # Configuration: a new one comes with another process.
    await apply_model(reign, json.dumps({**KEPT, "replicas": 2}), dry_run=False)
    assert reign.ledger.stored.deployments[TINY].stopped
    await remove_model(reign, "tiny", dry_run=False)
    assert not reign.ledger.stored.deployments


async def test_start_gives_a_failed_replica_another_chance_in_its_place(reign: Reign) -> None:
    await failed(reign)
    row = rows(reign)["tiny/1"]
    # Its exit was seen: the agent lists nothing of it.
    await put(reign, _release(row))
    before = reign.ledger.stored
    dry = await start_model(reign, "tiny", dry_run=True)
    assert reign.ledger.stored == before
    answer = await start_model(reign, "tiny", dry_run=False)
    assert answer == dry
    assert (answer.outcome, list(answer.replica_ids)) == ("started", ["tiny/1"])
    again = rows(reign)["tiny/1"]
    assert (again.phase, again.failures) == (Phase.WANTED, 0)
    assert not reign.ledger.stored.attempts
    await reign._passes.once()
    assert rows(reign)["tiny/1"].phase is Phase.RESERVED


async def test_a_failed_replica_whose_exit_is_not_seen_is_replaced(reign: Reign) -> None:
    await failed(reign)
    await start_model(reign, "tiny", dry_run=False)
    await reign._passes.once()
    assert rows(reign)["tiny/1"].phase is Phase.STOPPING
    assert rows(reign)["tiny/2"].phase is Phase.RESERVED


async def test_backoff_ends_at_once(reign: Reign) -> None:
    row, now = rows(reign)["tiny/1"], reign.tenure.now()
    waiting = with_phase(
        replace(row, failures=3), Phase.BACKOFF, now=now, because="x", reason="x", until=now + 300
    )
    await put(reign, PutReplica(waiting))
    await start_model(reign, "tiny", dry_run=False)
    again = rows(reign)["tiny/1"]
    assert (again.phase, again.failures, again.until) == (Phase.BACKOFF, 0, now)


async def test_a_pin_counts_before_the_spec_and_leaves_no_row_that_says_nothing(reign: Reign) -> None:
    def pinned() -> bool:
        return effective_pinned(reign.ledger.stored, reign.ledger.catalog.models[TINY])

    assert (await pin_model(reign, "tiny", pinned=False, dry_run=False)).outcome == "unchanged"
    assert (await pin_model(reign, "tiny", pinned=True, dry_run=True)).outcome == "pinned"
    assert not pinned()
    await pin_model(reign, "tiny", pinned=True, dry_run=False)
    assert pinned()
    # A stop and a start in between keep the pin.
    await stop_model(reign, "tiny", dry_run=False)
    await start_model(reign, "tiny", dry_run=False)
    assert pinned()
    assert (await pin_model(reign, "tiny", pinned=True, dry_run=False)).outcome == "unchanged"
    assert (await pin_model(reign, "tiny", pinned=False, dry_run=False)).outcome == "unpinned"
    assert not pinned()
    assert not reign.ledger.stored.deployments


async def test_a_pin_of_the_spec_can_be_taken_away() -> None:
    reign = await reign_on(FakeClock(), models=({**KEPT, "pinned": True},))
    answer = await pin_model(reign, "tiny", pinned=False, dry_run=False)
    assert "although its spec pins it" in answer.text
    assert not effective_pinned(reign.ledger.stored, reign.ledger.catalog.models[TINY])
    await pin_model(reign, "tiny", pinned=True, dry_run=False)
    assert not reign.ledger.stored.deployments


async def test_a_stored_model_says_since_when(reign: Reign) -> None:
    snapshot, now = reign.snapshot(reign.ledger.stored), reign.tenure.now()
    (line,) = fleet_view(snapshot, verdicts(snapshot, now), now).models
    told = routes(snapshot, now).models[TINY].created
    stored = TINY in reign.ledger.stored.models
    assert line.created_at == (now if stored else None)
    assert told == (int(now) if stored else None)


async def test_an_unknown_model_is_refused_with_a_next_step(reign: Reign) -> None:
    with pytest.raises(NotFound, match="did you mean 'tiny'") as refused:
        await stop_model(reign, "tiney", dry_run=True)
    assert refused.value.next_steps == ("try: llmgwctl models",)


def _release(row: ReplicaRow) -> object:
    return Release(row.replica_id, tuple(shard.shard_id for shard in row.shards), ())


@pytest.mark.parametrize("nodes", [0, 1])
async def test_what_holds_nothing_is_not_said_to_drain(nodes: int) -> None:
    """Of stop and remove; and what was applied is wanted by its stored spec, not by configuration."""
    reign = await reign_on(FakeClock(), models=())
    await apply_model(reign, json.dumps(KEPT), dry_run=False)
    if nodes:
        await reign.fleet.open(hello())
    await reign._passes.once()
    assert "wanted by its stored spec" in rows(reign)["tiny/1"].story
    leaves = "tiny/1 drains" if nodes else "tiny/1 goes, for it holds no GPU"
    assert f"stopped: {leaves}, and requests" in (await stop_model(reign, "tiny", dry_run=True)).text
    committed: list[str] = []
    commit = reign.ledger.commit

    async def listening(changes: object) -> None:
        committed.extend(one.text for one in changes if isinstance(one, PutEvent))  # type: ignore[attr-defined]
        await commit(changes)  # type: ignore[arg-type]

    reign.ledger.commit = listening  # type: ignore[method-assign]
    await remove_model(reign, "tiny", dry_run=False)
    assert committed == [f"removed; {leaves}"]


@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_dry_run_finds_what_an_apply_finds(dry_run: bool) -> None:
    reign = await reign_on(FakeClock(), models=())
    profile = {**KEPT["profiles"][0], "args": ["\ud800"]}  # type: ignore[index]
    with pytest.raises(InvalidRequest, match="half a character"):
        await apply_model(reign, json.dumps({**KEPT, "profiles": [profile]}), dry_run=dry_run)
    with pytest.raises(InvalidRequest, match="two models are named 'tiny'"):
        await apply_models(reign, [json.dumps(KEPT)] * 2, dry_run=dry_run)
