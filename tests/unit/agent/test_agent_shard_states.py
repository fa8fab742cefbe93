"""The whole table of a shard's states, enumerated."""

import itertools

import pytest

from llmgw_agent.core.shard import TABLE, Event, Exit, InvalidTransition, Shard, ShardState, exited, step
from llmgw_agent.core.spec import ShardSpec
from llmgw_kit.ids import ReplicaId, ShardId

SPEC = ShardSpec(ShardId("s1"), ReplicaId("r1"), 1, "h", "m", "command")
S, E = ShardState, Event

#: Rows are states, columns events in order of Event; "-" is refused.
EXPECTED = {
    S.FETCHING: "verifying - - - - stopping stopping exited",
    S.VERIFYING: "- fetching launching - - stopping stopping exited",
    S.LAUNCHING: "- - - loading - stopping stopping exited",
    S.LOADING: "- - - - serving draining stopping exited",
    S.SERVING: "- - - - - draining stopping exited",
    S.DRAINING: "- - - - - - stopping exited",
    S.STOPPING: "- - - - - - - exited",
    S.EXITED: "- - - - - - - -",
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(S, E)))
def test_every_pair(state: ShardState, event: Event) -> None:
    told = EXPECTED[state].split()[list(E).index(event)]
    shard = Shard(SPEC, state=state, story=("before",))
    if told == "-":
        with pytest.raises(InvalidTransition, match=r"s1: .* in .*story: before"):
            step(shard, event, because="test")
    else:
        after = step(shard, event, because="test")
        assert after.state.value == told
        assert after.story[-1].endswith("test")


def test_no_way_leads_back_to_serving_and_none_out_of_exited() -> None:
    into_serving = {state for (state, _), after in TABLE.items() if after is S.SERVING}
    assert into_serving == {S.LOADING}
    into_loading = {state for (state, _), after in TABLE.items() if after is S.LOADING}
    assert into_loading == {S.LAUNCHING}, "a draining shard is never revived"
    assert not [state for state, _ in TABLE if state is S.EXITED]


def test_an_exit_forgets_what_only_a_living_engine_has() -> None:
    shard = Shard(SPEC, state=S.SERVING, running=3, probed=True, load_s=1.5)
    gone = exited(shard, Exit("crashed", code=1))
    assert (gone.running, gone.running_unknown, gone.progress) == (None, None, None)
    assert (gone.load_s, gone.exit) == (1.5, Exit("crashed", code=1))


def test_the_story_stays_short() -> None:
    shard = Shard(SPEC, state=S.FETCHING)
    for _ in range(30):
        shard = step(shard, E.WEIGHTS_HERE, because="x")
        shard = step(shard, E.WEIGHTS_CORRUPT, because="x")
    assert len(shard.story) == 20
