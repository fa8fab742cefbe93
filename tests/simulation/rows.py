"""What must hold of the rows and of what is told of them, held against what is really there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmgw_controller.core.rows import (
    Cause,
    EvictionRow,
    EvictionState,
    Phase,
    ReplicaRow,
    Schedulability,
    Stored,
    Wish,
)
from llmgw_controller.core.view import FleetView
from llmgw_kit.ids import DeviceId, ModelId, NodeId, ReplicaId, RouterId, ShardId
from tests.simulation.checks import REDIAL_S, SLACK_S, STALE_ROUTE_S, Checks, Engine

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

#: A router's word is good for so long, and may be under way for a tick.
WORD_S = 15.0
TWO_WORDS_S = 2 * WORD_S


@dataclass
class RowChecks:
    checks: Checks
    agents: "Sequence[Agent]"
    #: Who has waited for longer needs no more than two reports of every router.
    patience_s: float
    #: Model -> the nodes that one replica needs, and the GPUs on each.
    shapes: Mapping[ModelId, tuple[int, int]]
    routers: tuple[RouterId, ...] = ()
    #: Receipt -> the devices that its victim had.
    _room: dict[str, dict[DeviceId, NodeId]] = field(default_factory=dict)

    def committed(self, before: Stored, after: Stored, decided_at: float) -> None:
        """After each write that landed."""
        moved = [row for key, row in after.replicas.items() if before.replicas.get(key) is not row]
        if moved:
            self._claimed_once(after.replicas.values())
        for row in moved:
            self._one_fabric(row)
            if row.cause is Cause.DEMAND and row.replica_id not in before.replicas:
                self.checks.count("replicas added for a queue")
        self._freed_late(before, after)
        for row in moved:
            old = before.replicas.get(row.replica_id)
            if (
                old is not None
                and old.wish is Wish.SERVE
                and row.wish is not Wish.SERVE
                and row.reason == "idle"
            ):
                self._evidence(row.replica_id, "let go as idle", decided_at)
        for key, receipt in after.evictions.items():
            old_one = before.evictions.get(key)
            if old_one is None:
                self._evicted(before, receipt, decided_at)
            elif old_one.state is not receipt.state:
                self.checks.count(f"evictions for room, {receipt.state.value}")
        self._robbed(before, after, moved)

    def _claimed_once(self, rows: Iterable[ReplicaRow]) -> None:
        taken: dict[tuple[str, object], ShardId] = {}
        for row in rows:
            for shard in row.shards:
                if shard.released:
                    continue
                things: list[object] = [*shard.device_ids, *(port for _, port in shard.ports)]
                for thing in things:
                    other = taken.setdefault((shard.node_id, thing), shard.shard_id)
                    if other != shard.shard_id:
                        self.checks.fail(
                            f"{thing} of {shard.node_id} claimed by {other} and {shard.shard_id}"
                        )

    def _one_fabric(self, row: ReplicaRow) -> None:
        if len(row.shards) < 2:
            return
        fabrics = {agent.row.node_id: agent.row.fabrics for agent in self.agents}
        common = set.intersection(*(set(fabrics[shard.node_id]) for shard in row.shards))
        if not common:
            nodes = [shard.node_id for shard in row.shards]
            self.checks.fail(f"{row.replica_id} lies on {nodes}, which share no fabric")

    def _freed_late(self, before: Stored, after: Stored) -> None:
        """Claims are given up only when the engine is gone, or its node was away long enough to be lost."""
        for key, old in before.replicas.items():
            row = after.replicas.get(key)
            if row is old:
                continue
            kept = {shard.shard_id for shard in row.shards if not shard.released} if row else set()
            for shard in old.shards:
                if shard.released or shard.shard_id in kept:
                    continue
                lives = self.checks.engines.get(shard.shard_id, [])
                if lives and lives[-1].alive and not self.checks.long_away(shard.node_id):
                    self.checks.fail(f"claims of {shard.shard_id} freed while it lives on {shard.node_id}")

    def _evidence(self, replica_id: ReplicaId, how: str, decided_at: float) -> None:
        """Every router there is had said lately what it uses: of a silent one nothing is known."""
        for name in sorted({*self.routers} - self.checks.gone):
            age_s = decided_at - self.checks.word_of(name)
            if age_s > WORD_S + SLACK_S:
                self.checks.fail(f"{replica_id} {how}, {name} not heard for {age_s:.0f} s")

    def _evicted(self, before: Stored, receipt: EvictionRow, decided_at: float) -> None:
        """Nobody used the victim for as long as its model says, or, for who has waited long enough, within
        two reports of every router."""
        self.checks.count("evictions for room")
        victim = receipt.victim_replica_id
        self._evidence(victim, "evicted", decided_at)
        self._unused(victim, decided_at)
        waits = before.replicas.get(receipt.beneficiary_replica_id or ReplicaId(""))
        late = waits is not None and receipt.decided_at - waits.since >= self.patience_s
        idle_s = self.checks.idle_after_s[receipt.victim_model]
        used_s = self.checks.known_use_s(victim, min(idle_s, TWO_WORDS_S) if late else idle_s, decided_at)
        if used_s is not None:
            self.checks.fail(f"{victim} evicted for room, used {used_s:.1f} s before")
        self.checks.nothing_is_known(
            victim, "evicted for room", min(idle_s, TWO_WORDS_S) if late else idle_s, decided_at
        )
        self._room[receipt.eviction_id] = {
            device: shard.node_id
            for shard in before.replicas[victim].shards
            if not shard.released
            for device in shard.device_ids
        }

    def _robbed(self, before: Stored, after: Stored, moved: Sequence[ReplicaRow]) -> None:
        """The room goes to whom it was made for: nobody for whom none was made takes any of it while that one
        waits and fits nowhere else. Where a node has had trouble meanwhile the room may be good for others
        only."""
        # Of several whose room is being made the first comes first, should its own never come free.
        owed = {one.beneficiary_replica_id for one in before.leaving_for.values()}
        for receipt in before.leaving_for.values():
            waits = after.replicas.get(receipt.beneficiary_replica_id or ReplicaId(""))
            if waits is None or waits.wish is not Wish.SERVE or waits.phase is not Phase.UNPLACEABLE:
                continue
            if after.evictions[receipt.eviction_id].state is EvictionState.CANCELLED:
                continue
            room = self._room[receipt.eviction_id]
            # Of a gang any node may be the one that is no good any more.
            gang = self.shapes[receipt.beneficiary_model][0] > 1
            needed = {agent.row.node_id for agent in self.agents} if gang else set(room.values())
            if not all(self._is_well(after, node_id) for node_id in needed):
                continue
            for row in moved:
                taken = [] if row.replica_id in owed else self._taken(before, row, room)
                if taken and not self._fits_now(after, receipt.beneficiary_model):
                    self.checks.fail(
                        f"{taken} of {receipt.victim_replica_id} went to {row.replica_id}, for whom no room "
                        f"was made, and {waits.replica_id} waits"
                    )

    @staticmethod
    def _taken(before: Stored, row: ReplicaRow, room: dict[DeviceId, NodeId]) -> list[DeviceId]:
        """Of this room, by this replica, just now."""
        old = before.replicas.get(row.replica_id)
        had = {one.shard_id for one in old.shards} if old is not None else set()
        return [
            device
            for shard in row.shards
            if not shard.released and shard.shard_id not in had
            for device in shard.device_ids
            if room.get(device) == shard.node_id
        ]

    def _fits_now(self, after: Stored, model: ModelId) -> bool:
        """On what nobody claims, on nodes that are well."""
        nodes, gpus = self.shapes[model]
        claimed = {
            device
            for row in after.replicas.values()
            for shard in row.shards
            if not shard.released
            for device in shard.device_ids
        }
        fitting = [
            agent.row
            for agent in self.agents
            if self._is_well(after, agent.row.node_id)
            if sum(one.device_id not in claimed for one in agent.row.devices) >= gpus
        ]
        if nodes == 1:
            return bool(fitting)
        fabrics = [fabric for row in fitting for fabric in row.fabrics]
        return any(fabrics.count(fabric) >= nodes for fabric in fabrics)

    def _is_well(self, after: Stored, node_id: NodeId) -> bool:
        agent = next(one for one in self.agents if one.row.node_id == node_id)
        now = self.checks.world.now
        return (
            after.nodes[node_id].schedulability is Schedulability.SCHEDULABLE
            and now >= agent.stuck_until
            and not self.checks.away_lately(node_id, STALE_ROUTE_S)
            and all(agent.hardware.usable(one.device_id, now - REDIAL_S) for one in agent.row.devices)
        )

    def _unused(self, replica_id: ReplicaId, decided_at: float) -> None:
        for engine in self.checks.living():
            if engine.replica_id != replica_id:
                continue
            began = self.checks.busy_since(engine.endpoint_id)
            if began is not None and began < decided_at - SLACK_S - WORD_S:
                self.checks.fail(f"{replica_id} evicted, in use for {decided_at - began:.0f} s")

    def seen(self, view: FleetView, agents: "Iterable[Agent]") -> None:
        """What people are told: every device once, and none free that computes."""
        devices = {line.device.device_id: line for line in view.devices}
        known = {node.node_id for node in view.nodes}
        there = [(agent.row.node_id, one) for agent in agents for one in agent.row.devices]
        there = [(node_id, one) for node_id, one in there if node_id in known]
        if len(view.devices) != len(devices) or len(devices) != len(there):
            self.checks.fail(f"{len(view.devices)} devices told, {len(there)} there")
        for of_class in view.capacity:
            parts = of_class.parts
            summed = (
                parts.busy + parts.idle + parts.unknown + parts.starting
                + parts.unhealthy + parts.foreign + parts.cordoned + parts.free
            )  # fmt: skip
            real = sum(one.gpu_class == of_class.gpu_class for _, one in there)
            if not summed == of_class.total == real:
                self.checks.fail(f"{of_class.gpu_class}: parts {parts} of {of_class.total}, {real} there")
        for engine in self.checks.living():
            if self._must_be_known(engine):
                for device_id in engine.device_ids:
                    if devices[device_id].part.value == "free":
                        self.checks.fail(f"{device_id} told to be free, {engine.shard_id} computes there")

    def _must_be_known(self, engine: Engine) -> bool:
        old_enough = self.checks.world.now - engine.started_at > REDIAL_S
        return old_enough and not self.checks.away_lately(engine.node_id, STALE_ROUTE_S)
