"""A spec that no message carries fails its own replica; the leader and everything else go on."""

from dataclasses import replace
from typing import Any

import pytest

from llmgw.v1 import agent_pb2 as pb
from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.adapters.store_memory import MemoryStore
from llmgw_controller.catalog_file import canonical_json, parse_models
from llmgw_controller.core.plan import PutModel
from llmgw_controller.core.rows import Phase
from llmgw_controller.reign import Reign
from llmgw_kit.ids import ModelId
from llmgw_kit.testing.clock import FakeClock

from .reigns import KEPT, hello, reign_on

BAD: dict[str, Any] = {**KEPT, "name": "bad"}


async def with_a_bad_one(clock: FakeClock, **profile: Any) -> Reign:
    """`tiny` and `bad` of the configuration; of the latter the profile is what no schema let in."""
    reign = await reign_on(clock, models=(KEPT, BAD))
    models = []
    for model in parse_models([KEPT, BAD], where="test"):
        if model.name == "bad":
            model = replace(model, profiles=(replace(model.profiles[0], **profile),))
        models.append(model)
    reign.ledger._configured = models
    return reign


@pytest.mark.parametrize(
    ("profile", "field"),
    [
        ({"context_length": 10**12}, "context_length is 1000000000000"),
        ({"tensor_parallel": -1}, "tensor_parallel is -1"),
        ({"args": ("--x", "\udcff")}, "args"),
        ({"ready_timeout_s": "soon"}, "ready_timeout_s is 'soon'"),
    ],
    ids=str,
)
async def test_one_spec_that_cannot_be_told_fails_its_replica_alone(
    fake_clock: FakeClock, profile: dict[str, Any], field: str
) -> None:
    reign = await with_a_bad_one(fake_clock, **profile)
    session = await reign.fleet.open(hello())
    await reign._passes.once()
    rows = {row.model: row for row in reign.ledger.stored.replicas.values()}
    assert rows[ModelId("tiny")].phase is Phase.RESERVED
    bad = rows[ModelId("bad")]
    # With the field: "Value out of range" alone says nothing of a spec with thirty numbers.
    assert f"model bad cannot be told to its agent: {field}" in str(bad)
    assert "correct its spec: in the configuration file" in str(bad)
    assert all(shard.released for shard in bad.shards)
    # It is tried again as any failed start is, and given up in the end; the leader lives.
    for _ in range(40):
        await fake_clock.advance(60.0)
        await reign.fleet.hear(session, pb.ConnectRequest(session_epoch=session.epoch, beat=pb.Beat()))
        await reign._passes.once()
    bad = next(row for row in reign.ledger.stored.replicas.values() if row.model == "bad")
    assert bad.phase is Phase.FAILED
    assert "cannot be told" in str(bad)


async def test_a_stored_model_beyond_the_bounds_is_left_out(fake_clock: FakeClock) -> None:
    """As an earlier release let it in."""
    lease = MemoryLease(fake_clock)
    store = MemoryStore(lease)
    reign = await reign_on(fake_clock, store, lease=lease)
    (good,) = parse_models([BAD], where="test")
    text = canonical_json(good).replace(
        '"engine": "command"', '"context_length": 1000000000000, "engine": "command"'
    )
    assert "1000000000000" in text
    await store.commit(reign.tenure.term, [PutModel(ModelId("bad"), text, 0.0)])
    await reign.fleet.open(hello())
    await reign._passes.once()
    assert reign.ledger.not_understood == ("bad",)
    assert {row.model for row in reign.ledger.stored.replicas.values()} == {"tiny"}
