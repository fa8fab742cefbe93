"""What an agent's Hello tells beside what it lists: events, and exits that are certain."""

from llmgw_controller import wire_agent
from llmgw_controller.core.heard import Exit, ShardReport, ShardState
from llmgw_controller.core.plan import Change, PutEvent, Severity
from llmgw_controller.core.rows import NodeRow, ReplicaRow, ShardRow, Stored
from llmgw_kit.ids import ShardId


def arrival_news(
    hello: wire_agent.Hello, known: NodeRow | None, older_instance: str | None, now: float
) -> list[Change]:
    """Events of a node that comes, or comes back; `older_instance` is who is connected under its name yet."""
    node = hello.node_id
    if known is None:
        count = len(hello.inventory.devices)
        return [
            PutEvent(
                now, "node_registered", node, f"{count} GPUs, at {hello.inventory.address}", Severity.INFO
            )
        ]
    if known.boot_id != hello.boot_id:
        # Before the question of two agents: one whose machine lost its power leaves a stream behind too.
        text = "another boot id: its engines died with the old one"
        return [PutEvent(now, "node_rebooted", node, text, Severity.NOTE)]
    if older_instance not in (None, hello.agent_instance):
        text = (
            f"agent {hello.agent_instance} took over from {older_instance}, which was still connected: "
            "two agents may run under one node id"
        )
        return [PutEvent(now, "session_fenced", node, text, Severity.TROUBLE)]
    return []


def exited(row: ReplicaRow, shard: ShardRow, how: Exit) -> ShardReport:
    """As its agent would say it, of an exit that is certain without its word."""
    return ShardReport(
        shard_id=shard.shard_id,
        replica_id=row.replica_id,
        group_epoch=row.group_epoch,
        spec_hash=row.spec_hash,
        state=ShardState.EXITED,
        exit=how,
        pid=None,
        pid_start_ticks=None,
        ports=shard.ports,
        device_ids=shard.device_ids,
        progress=None,
        probed=False,
        running=None,
        running_unknown=None,
        load_s=None,
        adopted=False,
    )


def died_with_boot(
    hello: wire_agent.Hello, known: NodeRow | None, stored: Stored
) -> dict[ShardId, ShardReport]:
    """After a reboot the exits of what the agent does not speak of are certain: no need to wait whether it
    still takes them up. What it does speak of is its own word."""
    if known is None or known.boot_id == hello.boot_id:
        return {}
    ended = Exit(None, None, "rebooted", f"node {hello.node_id} was rebooted")
    return {
        shard.shard_id: exited(row, shard, ended)
        for row in stored.by_node.get(hello.node_id, ())
        for shard in row.shards
        if shard.node_id == hello.node_id and not shard.released and shard.shard_id not in hello.shards
    }
