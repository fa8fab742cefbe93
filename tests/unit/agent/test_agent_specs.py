"""What a spec must be before anything is begun with it, and what of it crosses the wire."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from llmgw.v1 import agent_pb2 as pb
from llmgw.v1.common_pb2 import WeightsRef as WeightsRefMessage
from llmgw_agent import wire
from llmgw_agent.core.devices import Device, DeviceState, ForeignProcess, Inventory
from llmgw_agent.core.faults import Fault, FaultClass
from llmgw_agent.core.load import Level
from llmgw_agent.core.plan import Wish
from llmgw_agent.core.shard import Exit, ProcessIdentity, Shard, ShardState
from llmgw_agent.core.spec import ShardSpec, WeightsRef, check_spec
from llmgw_agent.core.weights import Held, WeightsKey
from llmgw_agent.core.words import (
    Beat,
    DesiredList,
    DevicesReport,
    DriveReport,
    Hello,
    LogPiece,
    MoveOn,
    Rejected,
    Result,
    Said,
    ShardsReport,
    StartWord,
    StopWord,
    Unreadable,
    WeightsReport,
    Welcome,
)
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.ids import DeviceId, ReplicaId, ShardId

SPEC = ShardSpec(ShardId("s1"), ReplicaId("r1"), 1, "h", "m", "command")
BAD: Mapping[str, Any] = {
    "no id": {"shard_id": ShardId("")},
    "an id that hides": {"shard_id": ShardId(".s")},
    "no engine": {"engine": ""},
    "no hash": {"spec_hash": ""},
    "NUL in the command": {"command": ("a\0",)},
    "NUL in the environment": {"env": {"A": "\0"}},
    "a variable without a name": {"env": {"": "x"}},
    "a variable with =": {"env": {"A=B": "x"}},
    "a credential with a line break": {"credential": "a\nb"},
    "port 0": {"ports": {"http": 0}},
    "port 65536": {"ports": {"http": 65536}},
}


@pytest.mark.parametrize("name", BAD)
def test_specs_that_nothing_can_be_started_from(name: str) -> None:
    check_spec(SPEC)
    with pytest.raises(InvalidRequest):
        check_spec(replace(SPEC, **BAD[name]))


def test_a_rank_binds_what_is_its_own() -> None:
    ports = {"http": 1, "rendezvous": 2, "internal": 3}
    assert replace(SPEC, ports=ports).bound_ports == ports
    assert replace(SPEC, ports=ports, rank=1).bound_ports == {"http": 1, "internal": 3}


FULL = pb.ShardSpec(
    shard_id="s1", replica_id="r1", group_epoch=3, spec_hash="h", model="m", profile="p", engine="vllm",
    served_names=["m", "n"], device_ids=["gpu-0"], ports={"http": 20001},
    weights=WeightsRefMessage(model="w", version="v", entry_file="f"), mirror_urls=["http://x"], rank=1,
    world_size=2, head_address="h", tensor_parallel=2, pipeline_parallel=3, data_parallel=4, context_length=5,
    args=["a"], env={"A": "b"}, command=["c"], ready_path="/r", ready_timeout_s=6, drain_timeout_s=7,
    stop_grace_s=8, stop_after_silence_s=9, credential="c",
)  # fmt: skip


def test_every_field_of_a_spec_crosses_the_wire() -> None:
    spec, refused = wire.spec_from(FULL)
    assert refused is None
    assert spec == ShardSpec(
        shard_id=ShardId("s1"), replica_id=ReplicaId("r1"), group_epoch=3, spec_hash="h", model="m",
        profile="p", engine="vllm", served_names=("m", "n"), device_ids=(DeviceId("gpu-0"),),
        ports={"http": 20001},
        weights=WeightsRef("w", "v", "f"), mirror_urls=("http://x",), rank=1, world_size=2, head_address="h",
        tensor_parallel=2, pipeline_parallel=3, data_parallel=4, context_length=5, args=("a",),
        env={"A": "b"}, command=("c",), ready_path="/r", ready_timeout_s=6, drain_timeout_s=7, stop_grace_s=8,
        stop_after_silence_s=9, credential="c",
    )  # fmt: skip
    assert len(FULL.ListFields()) == len(pb.ShardSpec.DESCRIPTOR.fields), "a new field is read, too"


def test_what_an_older_controller_leaves_out_is_absent_or_a_safe_default() -> None:
    bare, _ = wire.spec_from(pb.ShardSpec(shard_id="s1", engine="command", spec_hash="h"))
    assert (bare.weights, bare.head_address, bare.context_length, bare.ready_path) == (None, None, None, None)
    assert (bare.credential, bare.stop_after_silence_s) == (None, None)
    assert (bare.world_size, bare.tensor_parallel, bare.pipeline_parallel, bare.data_parallel) == (1, 1, 1, 1)
    assert bare.ready_timeout_s > 0
    assert bare.stop_grace_s > 0


def heard(**body: Any) -> object:
    return wire.heard_from(pb.ConnectResponse(term=7, **body)).word


def test_words_of_the_controller() -> None:
    assert wire.heard_from(pb.ConnectResponse(term=7, move_on=pb.MoveOn())).term == 7
    assert heard(move_on=pb.MoveOn(leader_address="a:1")) == MoveOn("a:1")
    assert heard(move_on=pb.MoveOn()) == MoveOn(None)
    welcome = pb.Welcome(session_epoch=1, beat_interval_s=2, leader_name="c", controllers=["a:1"])
    assert heard(welcome=welcome) == Welcome(1, 2.0, "c", ("a:1",))
    assert heard(welcome=pb.Welcome(session_epoch=1)) == Welcome(1, wire.BEAT_S, "", ())
    assert heard(reject=pb.Reject(code="x", text="y")) == Rejected("x", "y", None)
    assert heard(stop_shard=pb.StopShard(command_id="c", shard_id="s")) == StopWord(
        "c", ShardId("s"), "stopped"
    )
    listed = heard(
        desired=pb.Desired(version=3, shards=[pb.WantedShard(spec=FULL, wish=pb.SHARD_WISH_DRAIN)])
    )
    assert isinstance(listed, DesiredList)
    assert [(one.wish, one.spec.shard_id) for one in listed.shards] == [(Wish.DRAIN, "s1")]
    started = heard(start_shard=pb.StartShard(command_id="c", spec=FULL))
    assert isinstance(started, StartWord)


def test_words_it_does_not_understand_are_unreadable_not_guessed_at() -> None:
    assert isinstance(heard(), Unreadable)
    newer = pb.ConnectResponse.FromString(b"\x08\x07\xf2\x07\x00")
    assert isinstance(wire.heard_from(newer).word, Unreadable), "a kind of message from the future"
    wanted = [pb.WantedShard(spec=FULL, wish=pb.SHARD_WISH_RUN), pb.WantedShard(spec=FULL)]
    assert isinstance(heard(desired=pb.Desired(version=1, shards=wanted)), Unreadable), "not half a list"
    nameless = heard(start_shard=pb.StartShard(command_id="c9", spec=pb.ShardSpec()))
    assert isinstance(nameless, Unreadable)
    assert nameless.command_id == "c9"
    listed = [pb.WantedShard(spec=pb.ShardSpec(), wish=pb.SHARD_WISH_RUN)]
    assert isinstance(heard(desired=pb.Desired(version=1, shards=listed)), Unreadable)


def test_one_spec_that_nothing_can_be_started_from_leaves_the_others_of_its_list() -> None:
    """One profile's argument must not make a node deaf to all that it is told."""
    bad = pb.ShardSpec()
    bad.CopyFrom(FULL)
    bad.shard_id, bad.args[0] = "s2", "a\0"
    wishes = [pb.SHARD_WISH_RUN, pb.SHARD_WISH_STOP]
    listed = heard(
        desired=pb.Desired(
            version=1,
            shards=[pb.WantedShard(spec=s, wish=w) for s, w in zip((FULL, bad), wishes, strict=True)],
        )
    )
    assert isinstance(listed, DesiredList)
    good, refused = listed.shards
    assert (good.spec.shard_id, good.wish, good.refused) == ("s1", Wish.RUN, None)
    assert (refused.spec.shard_id, refused.spec.spec_hash, refused.wish) == ("s2", FULL.spec_hash, Wish.STOP)
    assert refused.refused is not None
    assert "NUL" in refused.refused
    started = heard(start_shard=pb.StartShard(command_id="c", spec=bad))
    assert isinstance(started, StartWord)
    assert (started.spec.shard_id, started.refused) == ("s2", refused.refused)


SHARD = Shard(
    SPEC, state=ShardState.SERVING, process=ProcessIdentity(7, 8, "b"), probed=True, running=0, load_s=1.5
)


def test_a_shard_as_it_is_told() -> None:
    told = wire.shard_to(SHARD)
    assert (told.pid, told.pid_start_ticks, told.state, told.probed) == (7, 8, pb.SHARD_STATE_SERVING, True)
    assert told.HasField("running_requests"), "watched and zero is not unknown"
    assert not told.HasField("progress")
    assert not told.HasField("exit")
    unknown = wire.shard_to(replace(SHARD, running=None, running_unknown="why"))
    assert not unknown.HasField("running_requests")
    assert unknown.running_unknown_reason == "why"
    gone = wire.shard_to(replace(SHARD, state=ShardState.EXITED, exit=Exit("crashed", "m", code=0)))
    assert (gone.exit.HasField("code"), gone.exit.code, gone.exit.HasField("signal")) == (True, 0, False)


@pytest.mark.parametrize("state", ShardState)
def test_every_state_has_its_word(state: ShardState) -> None:
    told = wire.shard_to(replace(SHARD, state=state)).state
    assert pb.ShardState.Name(told) == f"SHARD_STATE_{state.name}"


def test_our_words_carry_the_epoch_and_hello_none() -> None:
    device = Device(DeviceId("gpu-0"), 0, "H100", "nvidia", state=DeviceState.MISSING, reason="vanished")
    inventory = Inventory(
        "host", "10.0.0.1", (device,), ("ib",), None, (1, 2), ("command",), (("a", "b"),), 5, None
    )
    held = Held(WeightsKey("m", "v"), 9, complete=True)
    hello = wire.said_to(None, Hello("n", "b", "i", "1", None, inventory, (SHARD,), (held,)))
    assert not hello.HasField("session_epoch")
    assert not hello.hello.HasField("highest_term_seen")
    assert hello.hello.inventory.devices[0].state == pb.DEVICE_STATE_MISSING
    assert not hello.hello.inventory.devices[0].HasField("memory_total_bytes")
    assert not hello.hello.inventory.HasField("disk_free_bytes")
    assert not hello.hello.inventory.HasField("pool")
    said: list[Said] = [
        inventory, DevicesReport((device,)), ShardsReport((SHARD,)), WeightsReport((held,), None),
        Result("c", True, "m"), Beat(1),
    ]  # fmt: skip
    kinds = {wire.said_to(4, one).WhichOneof("body") for one in said}
    assert kinds == {"inventory", "device_health", "shard_status", "weights_status", "command_result", "beat"}
    assert wire.said_to(4, Beat(1)).session_epoch == 4


UGLY, CLEAN = "v\0 \ud800 \x1b[31m\u00e9", "v\ufffd \ufffd \u00e9"


def test_whatever_engines_and_kernels_say_of_themselves_crosses_the_wire() -> None:
    """Half a character in an engine's answer, or in a file's name, ended the agent: no message carries it."""
    one = replace(
        SHARD, probe_error=UGLY, running_unknown=UGLY, engine_version=UGLY, exit=Exit(UGLY, "x" * 9000 + UGLY)
    )
    m = wire.shard_to(one)
    assert (m.probe_error, m.running_unknown_reason, m.engine_version, m.exit.reason) == (CLEAN,) * 4
    assert m.exit.message.endswith(f"x{CLEAN}")
    assert len(m.exit.message) < 9000
    user = ForeignProcess(7, UGLY, UGLY, None)
    device = replace(
        Device(DeviceId("gpu-0"), 0, "H100", "nvidia"), foreign=(user,), notes=(UGLY,), reason=UGLY,
        driver_version=UGLY, fault=Fault(FaultClass.FATAL, UGLY, UGLY, 1.0),
    )  # fmt: skip
    d = wire.device_to(device)
    assert (d.foreign[0].name, d.foreign[0].user, list(d.notes), d.reason) == (CLEAN, CLEAN, [CLEAN], CLEAN)
    assert (d.driver_version, d.fault.reason, d.fault.text) == (CLEAN, CLEAN, CLEAN)
    assert wire.held_to(Held(WeightsKey("m", "v"), 1, False, error=UGLY)).error == CLEAN
    assert wire.said_to(1, Result("c", False, UGLY)).command_result.message == CLEAN
    assert wire.said_to(1, LogPiece("c", b"\0", error=UGLY)).log_piece.error == CLEAN
    level = Level(1, 1, 1, 1.0, 1, (), (), failure=UGLY)
    said = wire.said_to(1, DriveReport("c", level=level, end=True, error=UGLY)).benchmark_report
    assert (said.error, said.level.failure) == (CLEAN, CLEAN)
    assert not wire.held_to(Held(WeightsKey("m", "v"), 1, False)).HasField("error")
