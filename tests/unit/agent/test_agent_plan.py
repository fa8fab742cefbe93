"""Desired against held: every combination by name, and that a second pass is empty."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.core.plan import (
    Action,
    Confirm,
    DeclareAbsent,
    Drain,
    Forget,
    Refuse,
    Start,
    Stop,
    Wanted,
    Wish,
    plan,
)
from llmgw_agent.core.shard import Exit, Shard, ShardState
from llmgw_agent.core.spec import ShardSpec
from llmgw_kit.ids import ReplicaId, ShardId

S = ShardState
ONE = ShardId("s1")
SPEC = ShardSpec(ONE, ReplicaId("r1"), group_epoch=2, spec_hash="h", model="m", engine="command")
NEWER = replace(SPEC, group_epoch=3, spec_hash="h3")
OLDER = replace(SPEC, group_epoch=1, spec_hash="h1")
ALIVE = [state for state in S if state not in (S.STOPPING, S.EXITED)]
UNLAUNCHED = (S.FETCHING, S.VERIFYING, S.LAUNCHING)


def held(state: ShardState) -> dict[ShardId, Shard]:
    return {ONE: Shard(SPEC, state=state, exit=Exit("crashed") if state is S.EXITED else None)}


def wanted(wish: Wish, spec: ShardSpec = SPEC) -> list[Wanted]:
    return [Wanted(spec, wish)]


def test_nothing_held_nothing_wanted() -> None:
    assert plan({}, []) == ()


def test_a_wanted_shard_that_is_not_here_is_started() -> None:
    assert plan({}, wanted(Wish.RUN)) == (Start(SPEC),)


def test_a_wanted_shard_that_nothing_can_be_started_from_is_refused() -> None:
    assert plan({}, [Wanted(SPEC, Wish.RUN, "no engine")]) == (Refuse(SPEC, "no engine"),)
    assert plan({}, [Wanted(SPEC, Wish.STOP, "no engine")]) == (DeclareAbsent(SPEC),)
    replaced = [Wanted(NEWER, Wish.RUN, "no engine")]
    assert plan(held(S.EXITED), replaced) == (Forget(ONE), Refuse(NEWER, "no engine"))
    # What runs was started from a spec that was fine; its model may have left the catalog since.
    assert plan(held(S.SERVING), [Wanted(SPEC, Wish.DRAIN, "no engine")]) == (Drain(ONE),)
    assert plan(held(S.SERVING), [Wanted(SPEC, Wish.RUN, "no engine")]) == ()


@pytest.mark.parametrize("wish", [Wish.DRAIN, Wish.STOP])
def test_an_end_wished_of_what_is_not_here_is_declared(wish: Wish) -> None:
    assert plan({}, wanted(wish)) == (DeclareAbsent(SPEC),)


@pytest.mark.parametrize("state", S)
def test_run(state: ShardState) -> None:
    expected = (Confirm(ONE),) if state in UNLAUNCHED else ()
    assert plan(held(state), wanted(Wish.RUN)) == expected


@pytest.mark.parametrize("state", S)
def test_drain(state: ShardState) -> None:
    already = (S.DRAINING, S.STOPPING, S.EXITED)
    assert plan(held(state), wanted(Wish.DRAIN)) == (() if state in already else (Drain(ONE),))


@pytest.mark.parametrize("state", S)
def test_stop(state: ShardState) -> None:
    assert plan(held(state), wanted(Wish.STOP)) == ((Stop(ONE, "stopped"),) if state in ALIVE else ())


@pytest.mark.parametrize("state", S)
def test_absent(state: ShardState) -> None:
    expected = {S.EXITED: (Forget(ONE),), S.STOPPING: ()}
    assert plan(held(state), []) == expected.get(state, (Stop(ONE, "orphan"),))


@pytest.mark.parametrize("state", ALIVE)
def test_a_newer_spec_of_a_living_shard_ends_the_old_one_first(state: ShardState) -> None:
    assert plan(held(state), wanted(Wish.RUN, NEWER)) == (Stop(ONE, "replaced"),)


def test_a_newer_spec_of_an_exited_shard_starts_anew() -> None:
    assert plan(held(S.EXITED), wanted(Wish.RUN, NEWER)) == (Forget(ONE), Start(NEWER))
    assert plan(held(S.EXITED), wanted(Wish.STOP, NEWER)) == (Forget(ONE), DeclareAbsent(NEWER))


@pytest.mark.parametrize("state", S)
def test_an_older_spec_is_an_older_word(state: ShardState) -> None:
    assert plan(held(state), wanted(Wish.RUN, OLDER)) == ()


def test_order_is_that_of_ids_whatever_the_order_of_the_list() -> None:
    specs = [replace(SPEC, shard_id=ShardId(name)) for name in ("b", "a", "c")]
    assert [
        a.spec.shard_id for a in plan({}, [Wanted(s, Wish.RUN) for s in specs]) if isinstance(a, Start)
    ] == [
        "a",
        "b",
        "c",
    ]


def carried_out(now: dict[ShardId, Shard], actions: tuple[Action, ...]) -> dict[ShardId, Shard]:
    """The simplest honest world: each action comes about."""
    for action in actions:
        match action:
            case Start(spec):
                now = now | {spec.shard_id: Shard(spec, state=S.SERVING)}
            case DeclareAbsent(spec) | Refuse(spec):
                now = now | {spec.shard_id: Shard(spec, state=S.EXITED)}
            case Forget(shard_id):
                now = {k: v for k, v in now.items() if k != shard_id}
            case Drain(shard_id):
                now = now | {shard_id: replace(now[shard_id], state=S.DRAINING)}
            case Stop(shard_id):
                now = now | {shard_id: replace(now[shard_id], state=S.EXITED)}
            case Confirm(shard_id):
                now = now | {shard_id: replace(now[shard_id], state=S.SERVING)}
    return now


IDS = st.sampled_from([ShardId(name) for name in "abcd"])
EPOCHS = st.integers(1, 2)


def spec_of(shard_id: ShardId, epoch: int) -> ShardSpec:
    return replace(SPEC, shard_id=shard_id, group_epoch=epoch, spec_hash=f"h{epoch}")


@given(
    st.dictionaries(IDS, st.tuples(st.sampled_from(S), EPOCHS)),
    st.dictionaries(IDS, st.tuples(st.sampled_from(Wish), EPOCHS)),
)
def test_passes_come_to_rest(
    here: dict[ShardId, tuple[ShardState, int]], wish: dict[ShardId, tuple[Wish, int]]
) -> None:
    now = {k: Shard(spec_of(k, epoch), state=state) for k, (state, epoch) in here.items()}
    desired = [Wanted(spec_of(k, epoch), w) for k, (w, epoch) in wish.items()]
    for _ in range(3):
        now = carried_out(now, plan(now, desired))
    # What was stopping is still about to exit; everything else has nothing left to do.
    assert plan(now, desired) == ()
    for shard_id, shard in now.items():
        if shard_id not in wish:
            assert shard.state is S.STOPPING


@pytest.mark.parametrize("state", list(S))
def test_beside_a_later_group_of_its_replica_nothing_of_an_earlier_one_is_started(state: ShardState) -> None:
    late = replace(OLDER, shard_id=ShardId("s0"))
    here = held(state)
    assert Start(late) not in plan(here, [Wanted(SPEC, Wish.RUN), Wanted(late, Wish.RUN)])
    other = replace(late, replica_id=ReplicaId("r2"))
    assert Start(other) in plan(here, [Wanted(SPEC, Wish.RUN), Wanted(other, Wish.RUN)])
    # Nor where the later one has yet to be started, whichever of the two comes first by name.
    both = [Wanted(SPEC, Wish.RUN), Wanted(late, Wish.RUN)]
    assert plan({}, both) == (Start(SPEC),)
    # That it is not here is said all the same.
    assert DeclareAbsent(late) in plan(here, [Wanted(SPEC, Wish.RUN), Wanted(late, Wish.STOP)])
