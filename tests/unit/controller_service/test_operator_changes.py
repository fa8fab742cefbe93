"""What an operator changes by hand, on memory: rows, events, and what is refused."""

import asyncio

import pytest

from llmgw_controller.core.rows import Phase, Schedulability, Wish
from llmgw_controller.node_changes import cordon_node, uncordon_node
from llmgw_controller.reign import Reign
from llmgw_controller.replica_changes import drain_replica, stop_replica
from llmgw_kit.errors import InvalidRequest, NotFound
from llmgw_kit.ids import NodeId, ReplicaId
from llmgw_kit.testing.clock import FakeClock

from .reigns import KEPT, hello, reign_on

HAS = ("tiny has tiny/1 (reserved, n1)", "try: llmgwctl replicas --model tiny")


@pytest.fixture
async def reign() -> Reign:
    """One node, and the model's one replica placed on it and not taken up yet."""
    reign = await reign_on(FakeClock())
    await reign.fleet.open(hello())
    assert await reign._passes.once() == "changed"
    assert reign.ledger.stored.replicas[ReplicaId("tiny/1")].phase is Phase.RESERVED
    return reign


async def told(reign: Reign, subject: str) -> list[tuple[str, str]]:
    rows = await reign.world.store.events(since=None, subject=subject, limit=100)
    return [(row.kind, row.text) for row in reversed(rows)]


async def test_a_dry_run_says_the_same_and_changes_nothing(reign: Reign) -> None:
    before = reign.ledger.stored
    dry = await drain_replica(reign, "tiny/1", dry_run=True)
    assert reign.ledger.stored == before
    assert (await drain_replica(reign, "tiny/1", dry_run=False)) == dry
    assert (dry.outcome, dry.gpus, dry.another) == ("stopping", 1, True)
    row = reign.ledger.stored.replicas[ReplicaId("tiny/1")]
    assert (row.wish, row.phase, row.reason) == (Wish.STOP, Phase.RESERVED, "drained by operator")
    assert ("leaving", "drained by operator") in await told(reign, "tiny/1")


async def test_what_goes_is_replaced_by_the_next_pass(reign: Reign) -> None:
    await stop_replica(reign, "tiny/1", dry_run=False)
    await reign._passes.once()
    rows = reign.ledger.stored.replicas
    assert rows[ReplicaId("tiny/1")].phase is Phase.STOPPING
    assert rows[ReplicaId("tiny/2")].phase is Phase.RESERVED
    again = await stop_replica(reign, "tiny/1", dry_run=False)
    assert (again.outcome, again.text) == ("unchanged", "tiny/1 is leaving already (stopped by operator)")


@pytest.mark.parametrize(
    ("name", "said", "steps"),
    [
        ("tiny/9", "no replica tiny/9", HAS),
        ("tiny", "no replica tiny", HAS),
        ("tony/1", "no replica tony/1 (did you mean 'tiny/1'?)", ("try: llmgwctl replicas",)),
    ],
)  # fmt: skip
async def test_an_unknown_replica_is_answered_with_those_there_are(
    reign: Reign, name: str, said: str, steps: tuple[str, ...]
) -> None:
    for change in (drain_replica, stop_replica):
        with pytest.raises(NotFound) as refused:
            await change(reign, name, dry_run=True)
        assert (refused.value.text, refused.value.next_steps) == (said, steps)


async def test_a_model_without_a_replica_says_so() -> None:
    reign = await reign_on(FakeClock(), models=({**KEPT, "replicas": 0},))
    with pytest.raises(NotFound) as refused:
        await drain_replica(reign, "tiny/1", dry_run=False)
    assert refused.value.next_steps[0] == "tiny has no replica now"


async def test_a_cordon_keeps_what_runs_and_takes_nothing_new(reign: Reign) -> None:
    answer = await cordon_node(reign, "n1", "driver update, by mara")
    assert (answer.outcome, list(answer.replica_ids)) == ("cordoned", ["tiny/1"])
    assert answer.text == "n1 is cordoned: nothing new is placed there; tiny/1 stays"
    assert "no database is configured" in answer.warnings[0]
    assert ("cordoned", "by operator: driver update, by mara") in await told(reign, "n1")
    await reign._passes.once()
    assert reign.ledger.stored.replicas[ReplicaId("tiny/1")].phase is Phase.RESERVED

    before = reign.ledger.stored
    again = await cordon_node(reign, "n1", None)
    assert (again.outcome, again.text) == ("unchanged", "n1 is cordoned already")
    assert reign.ledger.stored == before

    await stop_replica(reign, "tiny/1", dry_run=False)
    await reign._passes.once()
    assert reign.ledger.stored.replicas[ReplicaId("tiny/2")].phase is Phase.UNPLACEABLE

    back = await uncordon_node(reign, "n1")
    assert (back.outcome, back.text) == ("uncordoned", "n1 takes work again")
    await reign._passes.once()
    assert reign.ledger.stored.replicas[ReplicaId("tiny/2")].phase is Phase.RESERVED
    assert (await uncordon_node(reign, "n1")).outcome == "unchanged"


async def test_a_change_by_hand_brings_the_next_pass_sooner(reign: Reign) -> None:
    async def hinted() -> None:
        """The clock stands, so that only a hint ends the wait."""
        async with asyncio.timeout(5):
            await reign.hints.wait(reign.world.clock, 3600)

    await hinted()  # Of the session that was opened.
    await drain_replica(reign, "tiny/1", dry_run=False)
    await hinted()
    await cordon_node(reign, "n1", None)
    await hinted()
    await uncordon_node(reign, "n1")
    await hinted()


async def test_a_cordon_outlives_the_agents_session(reign: Reign) -> None:
    await cordon_node(reign, "n1", None)
    await reign.fleet.open(hello(instance="i2"))
    assert reign.ledger.stored.nodes[NodeId("n1")].schedulability is Schedulability.CORDONED


async def test_a_node_that_is_unknown_and_a_reason_that_is_no_line_are_refused(reign: Reign) -> None:
    with pytest.raises(NotFound, match="no node n2"):
        await cordon_node(reign, "n2", None)
    with pytest.raises(NotFound, match="no node n2"):
        await uncordon_node(reign, "n2")
    for reason in ("two\nlines", "x" * 201):
        with pytest.raises(InvalidRequest, match="no single line"):
            await cordon_node(reign, "n1", reason)
