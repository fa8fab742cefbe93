"""One difference between what two witnesses say; told by `llmgwctl doctor`."""

from collections.abc import Sequence
from dataclasses import dataclass

from llmgw_controller.core.heard import NodeHeard
from llmgw_controller.core.hearing import NodeState, node_state
from llmgw_controller.core.plan import Severity
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.words import counted
from llmgw_kit.ids import NodeId

#: Of one kind, so many subjects are named in one line.
NAMED_MOST = 3


@dataclass(frozen=True)
class Witness:
    #: "database", "agent NODE", "router ID", "engine SHARD", "redis", "controller NAME".
    who: str
    says: str


@dataclass(frozen=True)
class Disagreement:
    severity: Severity
    kind: str
    subject: str
    witnesses: tuple[Witness, ...]
    #: Term clock; None: nobody knows since when.
    since: float | None
    #: Which side will win, and by when; or what to type.
    outcome: str


#: Told in `status` by a line of their own.
TOLD_ELSEWHERE = frozenset({"config_differs", "device_differs", "engine_without_row"})

#: For `status`, where nobody knows the witnesses yet: what each of the others means, of one subject.
MEANS = {
    "router_not_watching": "this router has no connection to the leader",
    "router_behind": "this router has not taken up the newest routes: it may still ask what has left",
    "claim_without_shard": "GPUs are kept for this engine, and its node's agent says that it does not run",
    "shard_differs": "this engine runs on other GPUs or ports than were given to it",
    "row_differs": "the leader decides on something else than stands in the database",
}


@dataclass(frozen=True)
class Told:
    """What disagrees, in a line of `status`."""

    subject: str
    text: str
    since: float | None


def told(found: Sequence[Disagreement]) -> tuple[Told, ...]:
    """A line a kind, of those that are trouble: what it means, and what comes of it or what to do."""
    kinds: dict[str, list[Disagreement]] = {}
    for one in found:
        if one.severity is Severity.TROUBLE and one.kind not in TOLD_ELSEWHERE:
            kinds.setdefault(one.kind, []).append(one)
    return tuple(_told(kind, ones) for kind, ones in kinds.items())


def _told(kind: str, ones: Sequence[Disagreement]) -> Told:
    since = min((one.since for one in ones if one.since is not None), default=None)
    text = f"{MEANS.get(kind, kind.replace('_', ' '))}; {ones[0].outcome}"
    if len(ones) == 1:
        return Told(ones[0].subject, text, since)
    others = ", ".join(one.subject for one in ones[1:NAMED_MOST]) + (
        ", ..." if len(ones) > NAMED_MOST else ""
    )
    return Told(ones[0].subject, f"{text} (the same of {counted(len(ones) - 1, 'other')}: {others})", since)


def listening(snapshot: Snapshot, node_id: NodeId, now: float) -> NodeHeard | None:
    """What a node in reach says; None: it is silent, which is no disagreement."""
    node = snapshot.stored.nodes.get(node_id)
    heard = snapshot.heard.get(node_id)
    if node is None or heard is None or not heard.connected:
        return None
    return heard if node_state(snapshot, node, now) is NodeState.READY else None
