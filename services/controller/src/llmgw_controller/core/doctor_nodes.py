"""What the rows say of nodes against what their agents say: shards, engines, inventories, tombstones."""

from collections.abc import Iterator

from llmgw_controller.core.disagreement import Disagreement, Witness, listening
from llmgw_controller.core.heard import NodeHeard, ShardState
from llmgw_controller.core.hearing import report_of
from llmgw_controller.core.plan import Severity
from llmgw_controller.core.rows import Phase, ReplicaRow, ShardRow
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.words import counted, lasting

#: A command, its report and the pass after it are over by then.
SETTLED_S = 30.0

_PLACED = frozenset({Phase.RESERVED, Phase.STARTING, Phase.READY, Phase.DRAINING, Phase.STOPPING})


def of_nodes(snapshot: Snapshot, now: float) -> Iterator[Disagreement]:
    """Of silent nodes nothing: silence is no disagreement."""
    yield from _shards(snapshot, now)
    yield from _strangers(snapshot, now)
    yield from _inventories(snapshot, now)
    yield from _tombstones(snapshot)


def _shards(snapshot: Snapshot, now: float) -> Iterator[Disagreement]:
    """Claims in the rows that no engine on the node stands for, or that it has otherwise."""
    for row in snapshot.stored.sorted_replicas:
        if row.phase not in _PLACED:
            continue
        for shard in row.shards:
            heard = listening(snapshot, shard.node_id, now)
            if shard.released or heard is None or heard.heard_at <= row.since:
                continue
            report = report_of(snapshot, shard)
            if report is None:
                yield _absent(row, shard, heard, now)
            elif report.state is not ShardState.EXITED and (
                set(report.device_ids) != set(shard.device_ids) or dict(report.ports) != dict(shard.ports)
            ):
                yield Disagreement(
                    Severity.TROUBLE,
                    "shard_differs",
                    shard.shard_id,
                    (
                        Witness("database", _holding(shard.device_ids, shard.ports)),
                        Witness(f"agent {shard.node_id}", _holding(report.device_ids, report.ports)),
                    ),
                    row.since,
                    f"nobody repairs this by itself: llmgwctl replica stop {row.replica_id}",
                )


def _absent(row: ReplicaRow, shard: ShardRow, heard: NodeHeard, now: float) -> Disagreement:
    waits = now - row.since
    outcome = {
        Phase.RESERVED: "the database wins: the start is said again every few seconds",
        Phase.STARTING: "the agent wins: the next pass takes it for ended and starts it again",
        Phase.READY: "the agent wins: the next pass takes it for ended and starts it again",
        Phase.DRAINING: "the agent wins: the next pass frees its GPUs",
        Phase.STOPPING: "the agent wins: the next pass frees its GPUs",
    }[row.phase]
    return Disagreement(
        Severity.TROUBLE if waits > SETTLED_S else Severity.NOTE,
        "claim_without_shard",
        shard.shard_id,
        (
            Witness("database", f"{row.phase.value}, holds {counted(len(shard.device_ids), 'GPU')}"),
            Witness(f"agent {shard.node_id}", f"no such shard, said {lasting(now - heard.heard_at)} ago"),
        ),
        row.since,
        outcome,
    )


def _holding(device_ids: tuple[str, ...], ports: tuple[tuple[str, int], ...]) -> str:
    told = ", ".join(sorted(device_ids)) or "no GPU"
    return f"{told}; {', '.join(f'{name} {port}' for name, port in sorted(ports)) or 'no port'}"


def _strangers(snapshot: Snapshot, now: float) -> Iterator[Disagreement]:
    """Engines that run and that no row stands for."""
    known = {shard.shard_id for row in snapshot.stored.sorted_replicas for shard in row.shards}
    stones = {stone.shard_id: stone for stone in snapshot.stored.tombstones}
    for node_id in sorted(snapshot.heard):
        heard = listening(snapshot, node_id, now)
        if heard is None:
            continue
        for shard_id in sorted(heard.shards):
            report = heard.shards[shard_id]
            if report.state is ShardState.EXITED or shard_id in known:
                continue
            stone = stones.get(shard_id)
            pid = f", pid {report.pid}" if report.pid is not None else ""
            database = "given up with its node" if stone else "no such shard"
            yield Disagreement(
                Severity.TROUBLE,
                "engine_without_row",
                shard_id,
                (
                    Witness("database", database),
                    Witness(
                        f"agent {node_id}", f"{report.state.value} on {', '.join(report.device_ids)}{pid}"
                    ),
                ),
                stone.since if stone else None,
                "the database wins: the agent is told to end it; its GPUs stay taken until its exit is seen",
            )


def _inventories(snapshot: Snapshot, now: float) -> Iterator[Disagreement]:
    for node_id, node in sorted(snapshot.stored.nodes.items()):
        heard = listening(snapshot, node_id, now)
        if heard is None:
            continue
        rows = {one.device_id: one for one in node.devices}
        reports = {one.device_id: one for one in heard.devices}
        for device_id in sorted({*rows, *reports}):
            row, report = rows.get(device_id), reports.get(device_id)
            if row is not None and report is not None and row.gpu_class == report.gpu_class:
                continue
            yield Disagreement(
                Severity.TROUBLE if report is None else Severity.NOTE,
                "device_differs",
                device_id,
                (
                    Witness("database", f"a {row.gpu_class}" if row else "no such GPU"),
                    Witness(f"agent {node_id}", f"a {report.gpu_class}" if report else "no such GPU"),
                ),
                None,
                "the agent wins: nothing is placed on what it does not list"
                if report is None
                else "the agent wins: it is counted, and written with its next inventory",
            )


def _tombstones(snapshot: Snapshot) -> Iterator[Disagreement]:
    """Given up, and not yet seen to exit: the node takes no work meanwhile."""
    running = {shard_id for heard in snapshot.heard.values() for shard_id in heard.shards}
    for stone in snapshot.stored.tombstones:
        if stone.node_id in snapshot.heard and stone.shard_id not in running:
            yield Disagreement(
                Severity.NOTE,
                "tombstone",
                stone.shard_id,
                (
                    Witness("database", f"given up with {stone.node_id}, exit not seen"),
                    Witness(f"agent {stone.node_id}", "no such shard"),
                ),
                stone.since,
                "the agent wins: the node takes work again with the next pass",
            )
