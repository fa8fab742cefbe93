"""What an agent is told of one shard."""

from llmgw_controller.core.rows import Phase, ShardRow
from llmgw_controller.wire_agent import shard_spec
from llmgw_kit.ids import DeviceId, NodeId, ShardId
from tests.unit.controller.build import model, replica


def shard(rank: int, **ports: int) -> ShardRow:
    """On a node of its own."""
    return ShardRow(
        shard_id=ShardId(f"m/1.1.{rank}"), node_id=NodeId(f"n{rank}"), rank=rank,
        device_ids=(DeviceId("d0"),), ports=tuple(sorted(ports.items())),
    )  # fmt: skip


def test_ranks_meet_at_the_port_of_their_head() -> None:
    head = shard(0, http=20000, rendezvous=20001)
    member = shard(1, http=20000, rendezvous=20007, internal=20008)
    row = replica(model("m"), 1, Phase.STARTING, head, member)
    assert dict(shard_spec(row, head, None, {}, ()).ports) == {"http": 20000, "rendezvous": 20001}
    told = shard_spec(row, member, None, {}, ())
    assert dict(told.ports) == {"http": 20000, "rendezvous": 20001, "internal": 20008}
