"""What a cold model is doing, for the line that is shown while its first request is held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from llmgw.v1 import agent_pb2, operator_pb2
from llmgw_lab.operator import Operator

POLL_S = 0.5


async def tell(addresses: Sequence[str], model: str, say: Callable[[str], None]) -> None:
    """Say what the model's replicas do, until cancelled. Silence of the controllers is passed over: this
    is for the eye, and the request itself tells of failures."""
    async with Operator(addresses) as operator:
        while True:
            replicas = await operator.replicas(model)
            if replicas is not None:
                say(described(replicas))
            await asyncio.sleep(POLL_S)


def described(replicas: Sequence[operator_pb2.ReplicaRow]) -> str:
    """One line: the phase, and what the node is at."""
    if not replicas:
        return "asked for; nothing placed yet"
    replica = replicas[0]
    phase = _word(operator_pb2.ReplicaPhase.Name(replica.phase), "REPLICA_PHASE_")
    parts = [f"{replica.replica_id} {phase}"]
    if replica.HasField("reason"):
        parts.append(replica.reason)
    for shard in replica.shards:
        if not shard.HasField("observed"):
            continue
        doing = _word(agent_pb2.ShardState.Name(shard.observed.state), "SHARD_STATE_")
        done = f" {shard.observed.progress:.0%}" if shard.observed.HasField("progress") else ""
        parts.append(f"{shard.node_id} {doing}{done}")
    return " · ".join(parts)


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()
