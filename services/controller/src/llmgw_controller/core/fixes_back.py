"""Fixes that take nodes back which an operator had set aside: one, several, or with idle replicas drained.

Each is tried on the pass. Of several nodes only those are named that it takes: the planner chooses among all
that are set aside, and those without which it does as well are left where they are.
"""

from collections.abc import Iterator

from llmgw_controller.core.activity import Verdicts
from llmgw_controller.core.catalog import Profile
from llmgw_controller.core.explain import Explanation, Fit, Reason
from llmgw_controller.core.fix import Fix, ready_in
from llmgw_controller.core.fixes_drain import priced, sets
from llmgw_controller.core.idleness import idle_replicas
from llmgw_controller.core.placement import explain
from llmgw_controller.core.question import Answer, Question, ask, drained, rooms_before, uncordoned
from llmgw_controller.core.regret import prices
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import NodeId, ReplicaId

#: Nodes tried one by one, and of several those tried whether it does without; each costs a pass.
NODES_TRIED = 4

#: Sets of leaving replicas tried beside nodes taken back; each costs four passes.
BOTH_TRIED = 2

_ASIDE = (Reason.CORDONED, Reason.DRAINING)


def taken_back(asked: Question, profile: Profile, told: Explanation, now: float) -> Iterator[Fix]:
    """One node alone."""
    for node_id in nodes_of(told, *_ASIDE)[:NODES_TRIED]:
        if _places(uncordoned(asked, [node_id]), now):
            yield _fix(asked, profile, (node_id,))


def taken_back_together(
    asked: Question, profile: Profile, told: Explanation, verdicts: Verdicts, now: float
) -> Iterator[Fix]:
    """Where no single step helps, which costs more passes: several nodes, and with a drain where not even all
    of them do."""
    aside = nodes_of(told, *_ASIDE)
    several = _several(asked, aside, now) if len(aside) > 1 else ()
    if several:
        yield _fix(asked, profile, several)
    elif aside:
        yield from _with_drain(asked, profile, aside, verdicts, now)


def _several(asked: Question, aside: list[NodeId], now: float) -> tuple[NodeId, ...]:
    """The fewest that help together, as far as leaving out one by one finds them; empty: not even all do."""
    answer = ask(uncordoned(asked, aside), now)
    if answer is None or not answer.placed:
        return ()
    return _spared(asked, _used(answer, aside), now)


def _spared(asked: Question, several: tuple[NodeId, ...], now: float) -> tuple[NodeId, ...]:
    if not _places(uncordoned(asked, several), now):
        return ()
    for node_id in several[:NODES_TRIED]:
        fewer = tuple(one for one in several if one != node_id)
        if fewer and _places(uncordoned(asked, fewer), now):
            several = fewer
    return several


def _used(answer: Answer, aside: list[NodeId]) -> tuple[NodeId, ...]:
    return tuple(sorted({shard.node_id for shard in answer.row.shards} & set(aside)))


def _with_drain(
    asked: Question, profile: Profile, aside: list[NodeId], verdicts: Verdicts, now: float
) -> Iterator[Fix]:
    """All taken back, and idle replicas drained: on those nodes or beside them."""
    opened = uncordoned(asked, aside)
    answer = ask(opened, now)
    if answer is None:
        return
    found = rooms_before(opened, answer, now)
    idle = idle_replicas(asked.snapshot, verdicts)
    told = explain(asked.model, profile, found, evictable=idle)
    if told.fit is not Fit.AFTER_EVICTION:
        return
    costs = prices(asked.snapshot, now)
    for leaving in sets(opened, profile, told, found, verdicts, costs)[:BOTH_TRIED]:
        after = ask(drained(opened, frozenset(leaving), now), now)
        if after is None or not after.placed:
            continue
        needed = _used(after, aside)
        if not needed or not _places(drained(uncordoned(asked, needed), frozenset(leaving), now), now):
            continue
        text = f"take {_named(asked.snapshot, needed)} back and drain {', '.join(leaving)}"
        yield priced(asked, profile, leaving, _commands(needed, leaving), text, costs)
        return


def _commands(node_ids: tuple[NodeId, ...], leaving: tuple[ReplicaId, ...]) -> str:
    """The second is typed only where the first was done."""
    back = f"llmgwctl node uncordon {' '.join(node_ids)}"
    return f"{back} && " + f"llmgwctl replica drain {' '.join(leaving)}"


def _places(asked: Question, now: float) -> bool:
    answer = ask(asked, now)
    return answer is not None and answer.placed


def _fix(asked: Question, profile: Profile, node_ids: tuple[NodeId, ...]) -> Fix:
    load_s = ready_in(asked.snapshot, asked.model, profile)
    command = f"llmgwctl node uncordon {' '.join(node_ids)}"
    return Fix(command, f"take {_named(asked.snapshot, node_ids)} back", 0.0, load_s, 0.0)


def _named(snapshot: Snapshot, node_ids: tuple[NodeId, ...]) -> str:
    """With why each was set aside."""
    told = []
    for node_id in node_ids:
        reason = snapshot.stored.nodes[node_id].reason
        told.append(f"{node_id} (set aside: {reason})" if reason else node_id)
    return f"{', '.join(told[:-1])} and {told[-1]}" if len(told) > 1 else told[0]


def nodes_of(told: Explanation, *reasons: Reason) -> list[NodeId]:
    """Nodes that fell to one of these."""
    return [node_id for one in told.filters if one.reason in reasons for node_id in one.node_ids]
