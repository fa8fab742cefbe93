"""Planted bugs: each breaks one rule of the real core for as long as the block lasts.

A checker that no bug can trip is worth nothing; `test_plants.py` runs seeds under each until it is caught.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from llmgw_controller.core import (
    apply,
    capacity,
    exits,
    groups,
    idleness,
    lease,
    nodes,
    placement,
    placing,
    reach,
    reconcile,
    replica,
    scale,
    staying,
    view,
    watching,
)
from llmgw_controller.core.activity import Busy, Idle
from llmgw_controller.core.capacity import Part
from llmgw_controller.core.claims import Use
from llmgw_controller.core.drains import DrainEnd
from llmgw_controller.core.explain import Spot
from llmgw_controller.core.heard import Exit
from llmgw_controller.core.hearing import Brake
from llmgw_controller.core.plan import DropRouter, PutLoad
from llmgw_controller.core.rows import Cause, LoadRecord, Phase, ReplicaRow, ShardRow, Stored, Wish
from llmgw_kit.ids import ModelId
from tests.simulation import agent
from tests.simulation import controller as simulated

_EXIT_OF = exits.exit_of
_RESERVE = placing._reserve
_VERDICT = idleness.verdict
_PARTS = capacity.parts
_DEVICE_LINE = capacity.device_line
_NODE = view._node
_START = agent.Agent._start


def _silence_is_exit(snapshot: Any, row: Any, shard: Any) -> Exit | None:
    """An unreachable node's engines count as gone: their devices go to others, and the replica moves."""
    seen = _EXIT_OF(snapshot, row, shard)
    if seen is None:
        heard = snapshot.heard.get(shard.node_id)
        now = max((one.heard_at for one in snapshot.heard.values()), default=0.0)
        if heard is not None and now - heard.heard_at > snapshot.intervals.unreachable_after_s:
            return Exit(None, None, "node_lost", "silent")
    return seen


def _only_flushes_count(_: Any, activity: Any, __: Any) -> str | None:
    """Routers that are silent, or have not sent their maps again, are not asked after."""
    return "watch_restarted" if activity.watching_since is None else None


def _any_phase(row: Any, snapshot: Any, now: float) -> bool:
    return bool(row.shards) and row.phase in (Phase.STARTING, Phase.READY)


@contextmanager
def planted(name: str) -> Iterator[None]:
    """One of `PLANTS`; "fence off" is a switch of the simulated store and is not here."""
    with ExitStack() as stack:
        for target, attribute, instead in PLANTS[name]:
            stack.enter_context(patch.object(target, attribute, instead))
        yield


def _spot_ignoring_claims(room: Any, ask: Any) -> Any:
    some = [device for device in room.devices if device.use is not Use.UNHEALTHY]
    return Spot(room.node.node_id, tuple(device.device_id for device in some[: ask.gpus_on(room)]))


def _lowest_ports(room: Any, ask: Any) -> tuple[tuple[str, int], ...]:
    return tuple((f"p{number}", 20000 + number) for number in range(3))


def _reserve_unchecked(stored: Stored, row: ReplicaRow) -> Stored:
    return replace(stored, replicas={**stored.replicas, row.replica_id: row})


def _reserve_configured(draft: Any, row: ReplicaRow, *rest: Any) -> None:
    if row.cause is Cause.CONFIGURATION:
        _RESERVE(draft, row, *rest)


def _idle_though_busy(snapshot: Any, row: Any, now: float) -> Any:
    found = _VERDICT(snapshot, row, now)
    return Idle(1000.0, never_asked=False) if isinstance(found, Busy) else found


def _without_the_unhealthy(lines: Any) -> Any:
    return _PARTS([line for line in lines if line.part is not Part.UNHEALTHY])


def _claimed_is_free(*given: Any) -> Any:
    line = _DEVICE_LINE(*given)
    return replace(line, part=Part.FREE) if line.part is Part.STARTING else line


def _silence_is_no_trouble(row: Any, snapshot: Any, now: float) -> bool:
    return row.wish is Wish.SERVE and row.phase is Phase.READY


def _one_fewer(*given: Any) -> Any:
    line = _NODE(*given)
    return replace(line, devices=line.devices[1:])


def _idle_enough(model: Any, asker: Any) -> float:
    return 0.0


def _start_at_the_first_port(self: agent.Agent, row: ReplicaRow, shard: ShardRow) -> None:
    _START(self, row, replace(shard, ports=(("http", 20000),)))


def _time_is_all(snapshot: Any, row: Any, shard: Any) -> Exit | None:
    """Ten seconds without a word of it are an exit, whatever its agent has read."""
    heard = snapshot.heard.get(shard.node_id)
    if heard is not None:
        snapshot = replace(snapshot, heard={shard.node_id: replace(heard, answered=None)})
    return _EXIT_OF(snapshot, row, shard)


def _load_each_pass(draft: Any) -> None:
    draft.change(PutLoad(LoadRecord(ModelId("kept"), "p", "L4", 1.0, draft.now)))


#: Name -> what is replaced in the core while it is planted.
PLANTS: dict[str, list[tuple[Any, str, Any]]] = {
    "unknown is idle": [(idleness, "_watch_broken", _only_flushes_count)],
    "busy is idle": [(idleness, "verdict", _idle_though_busy)],
    "silence is exit": [(groups, "exit_of", _silence_is_exit), (exits, "exit_of", _silence_is_exit)],
    "any phase is routed to": [(reach, "is_routable", _any_phase)],
    "no learning window": [(replica, "is_learning", lambda *_: False)],
    "drains are not waited for": [(groups, "end_of_drain", lambda *_: DrainEnd.DRAINED)],
    "claims are not looked at": [
        (placement, "_spot", _spot_ignoring_claims),
        (apply, "_reserve", _reserve_unchecked),
    ],
    "ports are not looked at": [
        (placement, "_ports", _lowest_ports),
        (apply, "_reserve", _reserve_unchecked),
    ],
    "fabrics are not looked at": [(placement, "groups", lambda _, __, nodes: [list(nodes)])],
    "who asks is not placed": [(placing, "_reserve", _reserve_configured)],
    "unhealthy devices are in no part": [(capacity, "parts", _without_the_unhealthy)],
    "what starts holds nothing": [(view, "device_line", _claimed_is_free)],
    "a pass never rests": [(reconcile, "repeat", _load_each_pass)],
    "lost commands stay lost": [
        (simulated.Controller, "_send_desired", lambda _: None),
        (reconcile, "repeat", lambda _: None),
    ],
    "silent nodes are routed to": [(reach, "is_routable", _silence_is_no_trouble)],
    "a device is forgotten": [(view, "_node", _one_fewer)],
    "tombstones stay": [(nodes, "_gone", lambda *_: False)],
    "an agent gives its own ports": [(agent.Agent, "_start", _start_at_the_first_port)],
    "nobody may act": [(lease, "may_act", lambda *_, **__: False)],
    "nobody makes room": [(reconcile, "begin", lambda *_: None)],
    "room that was made is anybody's": [(placing, "keep_room", lambda _, found, __: (found, {}))],
    "used a moment ago is no matter": [(staying, "idle_needed_s", _idle_enough)],
    "time is an exit": [(groups, "exit_of", _time_is_all), (exits, "exit_of", _time_is_all)],
    "a start may wait for ever": [(groups, "given_up", lambda *_: None)],
    "nobody looks twice": [(watching, "watch", lambda before, *_: before)],
    "what was added stays": [(scale, "_retire", lambda *_: None)],
    "goodbyes are all the same": [
        (simulated.Controller, "_after_goodbye", lambda _, name, **__: [DropRouter(name)])
    ],
    "old sessions are listened to": [(simulated.Controller, "_is_open", lambda *_: True)],
    "nobody is ever lost": [(nodes, "brake", lambda *_: Brake(1, 1, on=True))],
}
