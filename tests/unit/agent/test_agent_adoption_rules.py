"""What a restarted agent makes of its journal: tables with named cases."""

from dataclasses import replace

import pytest

from llmgw_agent.core.adoption import Facts, Found, Verdict, decide
from llmgw_agent.core.shard import MAY_RUN, Exit, ProcessIdentity, Shard, ShardState
from llmgw_agent.core.spec import ShardSpec, WeightsRef, spec_from_plain, spec_to_plain
from llmgw_kit.ids import DeviceId, ReplicaId, ShardId

S = ShardState
SPEC = ShardSpec(ShardId("s1"), ReplicaId("r1"), 1, "h", "m", "command")
RUNS = Found(100, 5000, leads_session=True, spec_hash="h")
CHILD = Found(101, 5001, leads_session=False)
ENTRY = Shard(SPEC, state=S.SERVING, token="t", process=ProcessIdentity(100, 5000, "boot"))

CASES = {
    "the same process": (ENTRY, Facts("boot", RUNS, (RUNS,)), Verdict.ADOPT, None),
    "the same process, its environment unreadable": (
        ENTRY,
        Facts("boot", replace(RUNS, spec_hash=None)),
        Verdict.ADOPT,
        None,
    ),
    "the same process, another spec": (
        ENTRY,
        Facts("boot", replace(RUNS, spec_hash="x")),
        Verdict.GONE,
        "vanished",
    ),
    "the pid is another process": (
        ENTRY,
        Facts("boot", replace(RUNS, start_ticks=9)),
        Verdict.GONE,
        "vanished",
    ),
    "no such pid": (ENTRY, Facts("boot", None), Verdict.GONE, "vanished"),
    "no such pid, children left": (ENTRY, Facts("boot", None, (CHILD,)), Verdict.SWEEP, "vanished"),
    "another boot, the same numbers": (ENTRY, Facts("later", RUNS), Verdict.GONE, "rebooted"),
    "it was being stopped": (
        replace(ENTRY, state=S.STOPPING, stop_reason="orphan"),
        Facts("boot", None),
        Verdict.GONE,
        "orphan",
    ),
    "launched and not noted": (
        replace(ENTRY, state=S.LAUNCHING, process=None),
        Facts("boot", None, (CHILD, RUNS)),
        Verdict.ADOPT,
        None,
    ),
    "launched, not noted, gone but for a child": (
        replace(ENTRY, state=S.LAUNCHING, process=None),
        Facts("boot", None, (CHILD,)),
        Verdict.SWEEP,
        "vanished",
    ),
    "never launched": (
        replace(ENTRY, state=S.LAUNCHING, process=None),
        Facts("boot", None),
        Verdict.RESUME,
        None,
    ),
    "fetching": (Shard(SPEC, state=S.FETCHING), Facts("boot", None), Verdict.RESUME, None),
    "verifying": (Shard(SPEC, state=S.VERIFYING), Facts("boot", None), Verdict.RESUME, None),
    "stopping and never launched": (
        Shard(SPEC, state=S.STOPPING),
        Facts("boot", None),
        Verdict.GONE,
        "vanished",
    ),
    "exited": (Shard(SPEC, state=S.EXITED, exit=Exit("crashed")), Facts("boot", RUNS), Verdict.KEEP, None),
}


@pytest.mark.parametrize("name", CASES)
def test_verdict(name: str) -> None:
    shard, facts, verdict, reason = CASES[name]
    told = decide(shard, facts)
    assert (told.verdict, told.reason) == (verdict, reason)
    if verdict is Verdict.ADOPT:
        assert told.process is not None
        assert told.process.pid == 100


@pytest.mark.parametrize("state", [state for state in ShardState if state in MAY_RUN])
def test_every_state_with_a_process_is_adopted_as_it_is(state: ShardState) -> None:
    assert decide(replace(ENTRY, state=state), Facts("boot", RUNS)).verdict is Verdict.ADOPT


def test_a_spec_survives_the_journal_whole() -> None:
    spec = replace(
        SPEC, weights=WeightsRef("m", "v", "f.gguf"), ports={"http": 1, "rendezvous": 2}, args=("--a", "b"),
        device_ids=(DeviceId("gpu-0"),), env={"A": "b"}, head_address="h", credential="c",
        stop_after_silence_s=3.0,
    )  # fmt: skip
    assert spec_from_plain(spec_to_plain(spec)) == spec


def test_a_spec_of_a_newer_agent_is_read_as_far_as_it_is_known() -> None:
    plain = spec_to_plain(replace(SPEC, weights=WeightsRef("m", "v")))
    plain["from_the_future"] = 1
    plain["weights"]["also"] = 2
    assert spec_from_plain(plain) == replace(SPEC, weights=WeightsRef("m", "v"))
    with pytest.raises(TypeError):
        spec_from_plain({"shard_id": "s1"})
