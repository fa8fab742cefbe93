"""Agents' sessions: epochs, fencing, what is heard, and what each node is told."""

from dataclasses import replace
from typing import Any

import pytest

from llmgw.v1 import agent_pb2 as pb
from llmgw_controller import wire_agent
from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.adapters.store_memory import MemoryStore
from llmgw_controller.core.rows import Phase
from llmgw_controller.fleet import REFUSALS_TOLD, Session
from llmgw_controller.reign import Reign
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.ids import NodeId, ShardId
from llmgw_kit.testing.clock import FakeClock

from .reigns import hello, reign_on

N1 = NodeId("n1")


async def messages(session: Session) -> list[pb.ConnectResponse]:
    """What waits in a session, which ends by this."""
    waiting = []
    reader = session.outbox.messages()
    session_ended = session.outbox.ended
    while session_ended or session.outbox._state is not None or session.outbox._notices:
        try:
            waiting.append(await anext(reader))
        except StopAsyncIteration:
            break
    return waiting


def said(session: Session, epoch: int | None = None, **body: Any) -> pb.ConnectRequest:
    return pb.ConnectRequest(session_epoch=session.epoch if epoch is None else epoch, **body)


def status(shard_id: str, state: Any = pb.SHARD_STATE_SERVING, **more: Any) -> pb.ShardStatus:
    shard = pb.ObservedShard(shard_id=shard_id, replica_id="tiny/1", state=state, probed=True, **more)
    return pb.ShardStatus(shards=[shard])


async def test_each_session_of_a_node_has_a_higher_epoch_also_under_the_next_leader(
    fake_clock: FakeClock,
) -> None:
    lease = MemoryLease(fake_clock)
    store = MemoryStore(lease)
    first = await reign_on(fake_clock, store, lease=lease)
    epochs = [(await first.fleet.open(hello())).epoch for _ in range(2)]
    await lease.release(first.tenure.lease)
    second = await reign_on(fake_clock, store, lease=lease)
    epochs.append((await second.fleet.open(hello())).epoch)
    assert epochs == [1, 2, 3]


async def test_words_of_an_old_session_change_nothing(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock)
    old = await reign.fleet.open(hello())
    new = await reign.fleet.open(hello())
    await reign.fleet.hear(old, said(old, shard_status=status("s1")))
    await reign.fleet.hear(new, said(new, epoch=old.epoch, shard_status=status("s1")))
    assert reign.fleet.heard()[N1].shards == {}
    # The end of the old stream comes late, and must not take the new session away.
    reign.fleet.closed(old)
    assert reign.fleet.heard()[N1].connected
    reign.fleet.closed(new)
    assert not reign.fleet.heard()[N1].connected


@pytest.mark.parametrize(("instance", "event"), [("i1", False), ("i2", True)])
async def test_the_older_of_two_sessions_is_fenced(fake_clock: FakeClock, instance: str, event: bool) -> None:
    reign = await reign_on(fake_clock)
    old = await reign.fleet.open(hello())
    await reign.fleet.open(hello(instance=instance))
    assert [message.reject.code for message in await messages(old)] == ["fenced"]
    kinds = [row.kind for row in await reign.world.store.events(since=None, subject="n1", limit=9)]
    assert ("session_fenced" in kinds) is event


async def test_reports_add_up_and_a_new_hello_replaces_them(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock)
    session = await reign.fleet.open(hello())
    await reign.fleet.hear(session, said(session, shard_status=status("s1")))
    await fake_clock.advance(3)
    await reign.fleet.hear(session, said(session, shard_status=status("s2")))
    heard = reign.fleet.heard()[N1]
    assert heard.shards.keys() == {"s1", "s2"}
    assert heard.heard_at == reign.tenure.now()
    await reign.fleet.open(hello(shards=status("s2").shards))
    assert reign.fleet.heard()[N1].shards.keys() == {"s2"}


async def test_a_beat_alone_is_no_reason_for_a_pass(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock)
    session = await reign.fleet.open(hello())
    reign.hints._event.clear()
    await fake_clock.advance(1)
    await reign.fleet.hear(session, said(session, beat=pb.Beat(sequence=1)))
    assert not reign.hints._event.is_set()
    await reign.fleet.hear(session, said(session, shard_status=status("s1")))
    assert reign.hints._event.is_set()


async def test_a_refused_command_is_an_event_once(fake_clock: FakeClock) -> None:
    """Case 7: a word that does not get through is told."""
    reign = await reign_on(fake_clock, models=())
    session = await reign.fleet.open(hello())

    async def refuses(session: Session, *texts: str) -> list[str]:
        for text in texts:
            result = pb.CommandResult(command_id="9", accepted=False, message=text)
            await reign.fleet.hear(session, said(session, command_result=result))
        await passed(reign)
        rows = await reign.world.store.events(since=None, subject="n1", limit=900)
        return [
            row.text.removeprefix("refused what it was told: ")
            for row in reversed(rows)
            if row.kind == "command_refused"
        ]

    told = ["no such shard", "held under another spec"]
    # Two shards that are refused take turns for as long as both are wanted.
    assert await refuses(session, "no such shard", *told * 5) == told
    again = await reign.fleet.open(hello())
    assert await refuses(again, "no such shard") == [*told, "no such shard"], "another session, another word"
    many = [f"shard {number} is none" for number in range(200)]
    assert len(await refuses(again, *many)) <= 3 + REFUSALS_TOLD, (
        "a node has no say over how many rows there are"
    )


async def test_a_new_inventory_is_written(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock)
    session = await reign.fleet.open(hello())
    inventory = pb.Inventory(management_address="10.0.0.9", fabrics=["ib-1"])
    await reign.fleet.hear(session, said(session, inventory=inventory))
    row = (await reign.world.store.load()).nodes[N1]
    assert (row.address, row.fabrics, row.devices, row.engine_ports) == ("10.0.0.9", ("ib-1",), (), None)
    assert row.session_epoch == session.epoch


def gpu(device_id: str = "n1-0", gpu_class: str = "L4", **more: Any) -> pb.Device:
    return pb.Device(device_id=device_id, index=0, gpu_class=gpu_class, state=pb.DEVICE_STATE_HEALTHY, **more)


def inventory(address: str = "a", **more: Any) -> dict[str, pb.Inventory]:
    return {"inventory": pb.Inventory(management_address=address, **more)}


#: Names that cannot stand in a row, a command or a page.
UNNAMEABLE: dict[str, dict[str, Any]] = {
    "address with NUL": inventory("10.0.0.1\0"),
    "address of two lines": inventory("10.0.0.1\n10.0.0.2"),
    "fabric with NUL": inventory(fabrics=["ib\0"]),
    "pool with an escape": inventory(pool="\x1b[31mred"),
    "device with NUL": inventory(devices=[gpu("GPU-\0")]),
    "class with NUL": inventory(devices=[gpu(gpu_class="L4\0")]),
    "endless class": inventory(devices=[gpu(gpu_class="L" * 1000)]),
    "health of a device with NUL": {"device_health": pb.DeviceHealth(devices=[gpu("GPU-\0")])},
    "shard with NUL": {"shard_status": status("a\0")},
    "index beyond a row's": inventory(
        devices=[pb.Device(device_id="d", index=2**32 - 1, gpu_class="L4", state=pb.DEVICE_STATE_HEALTHY)]
    ),
    "epoch beyond a row's": {"shard_status": status("a", group_epoch=2**64 - 1)},
    "port that is none": {"shard_status": status("a", ports={"http": 65536})},
    "port with NUL": {"shard_status": status("a", ports={"http\0": 1})},
}


@pytest.mark.parametrize(
    "body",
    [
        {"shard_status": pb.ShardStatus(shards=[pb.ObservedShard(shard_id="s", replica_id="r")])},
        {"device_health": pb.DeviceHealth(devices=[pb.Device(device_id="n1-0", gpu_class="L4")])},
        {"inventory": pb.Inventory()},
        {"inventory": pb.Inventory(management_address="a", engine_ports=pb.PortRange(first=9, last=1))},
        *UNNAMEABLE.values(),
    ],
    ids=["shard state", "device state", "no address", "port range", *UNNAMEABLE],
)
async def test_what_makes_no_sense_is_refused_and_changes_nothing(fake_clock: FakeClock, body: Any) -> None:
    reign = await reign_on(fake_clock)
    session = await reign.fleet.open(hello())
    before = reign.fleet.heard()[N1]
    with pytest.raises(InvalidRequest):
        await reign.fleet.hear(session, said(session, **body))
    assert reign.fleet.heard()[N1] == before


@pytest.mark.parametrize("missing", ["node_id", "boot_id", "agent_instance"])
def test_a_hello_that_says_too_little_is_refused(missing: str) -> None:
    message = pb.Hello(node_id="n", boot_id="b", agent_instance="i")
    message.ClearField(missing)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=missing):
        wire_agent.hello(message)


@pytest.mark.parametrize("name", ["node_id", "boot_id", "agent_instance"])
@pytest.mark.parametrize("bad", ["n\0", "n\nm", " n", "x" * 1000])
def test_a_hello_whose_names_are_none_is_refused(name: str, bad: str) -> None:
    named = {"node_id": "n", "boot_id": "b", "agent_instance": "i", name: bad}
    message = pb.Hello(**named, inventory=pb.Inventory(management_address="a"))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=f"{name} .* is no name"):
        wire_agent.hello(message)


async def test_what_an_engine_printed_last_is_told_whatever_it_was(fake_clock: FakeClock) -> None:
    """One NUL in an engine's last line ended each leader's term in turn: the store refuses it."""
    ugly, clean = "\x1b[31mlost\x1b[0m GPU \0 at 10%\r20%", "lost GPU \ufffd at 10%\n20%"
    reign = await reign_on(fake_clock)
    session = await reign.fleet.open(hello())
    await passed(reign)
    shard = (await messages(session))[0].desired.shards[0].spec
    observed = pb.ObservedShard(
        shard_id=shard.shard_id, replica_id=shard.replica_id, state=pb.SHARD_STATE_EXITED,
        exit=pb.ShardExit(reason="crashed\0", message="x" * 9000 + ugly), probe_error=ugly,
        engine_version=ugly, running_unknown_reason=ugly,
    )  # fmt: skip
    await reign.fleet.hear(session, said(session, shard_status=pb.ShardStatus(shards=[observed])))
    broken = gpu(
        "n1-1", vendor=ugly, driver_version=ugly, reason=ugly, notes=[ugly],
        foreign=[pb.ForeignProcess(pid=1, name=ugly, user=ugly)],
        fault=pb.DeviceFault(fault_class=pb.FAULT_CLASS_FATAL, reason=ugly, text=ugly),
    )  # fmt: skip
    await reign.fleet.hear(session, said(session, device_health=pb.DeviceHealth(devices=[broken])))
    held = pb.WeightsStatus(weights=[pb.HeldWeights(model="m\0", version="v", error=ugly)])
    await reign.fleet.hear(session, said(session, weights_status=held))
    result = pb.CommandResult(command_id="9", accepted=False, message=ugly)
    await reign.fleet.hear(session, said(session, command_result=result))
    heard = reign.fleet.heard()[N1]
    report = heard.shards[ShardId(shard.shard_id)]
    assert report.exit is not None
    assert (report.exit.reason, report.exit.message[-len(clean) :]) == ("crashed\ufffd", clean)
    assert len(report.exit.message) == wire_agent.LAST_WORDS_MOST
    assert (report.probe_error, report.engine_version, report.running_unknown) == (clean,) * 3
    device = heard.devices[1]
    assert device.fault is not None
    assert (device.vendor, device.driver_version, device.reason, device.notes) == (clean,) * 3 + ((clean,),)
    assert (device.foreign[0].name, device.foreign[0].user) == (clean, clean)
    assert (device.fault.reason, device.fault.text) == (clean, clean)
    assert (heard.weights[0].model, heard.weights[0].error) == ("m\ufffd", clean)
    await passed(reign)
    events = await reign.world.store.events(since=None, subject=None, limit=99)
    assert any(event.text == f"refused what it was told: {clean}" for event in events)
    assert not any("\0" in event.text or "\x1b" in event.text for event in events)


async def test_a_reading_that_cannot_be_is_unknown(fake_clock: FakeClock) -> None:
    """All ones is what drivers say for "not available"; no row holds it, and no machine has it."""
    reign = await reign_on(fake_clock)
    session = await reign.fleet.open(hello())
    odd = gpu("n1-1", memory_total_bytes=2**64 - 1, memory_used_bytes=2**64 - 1, temperature_celsius=40)
    await reign.fleet.hear(session, said(session, device_health=pb.DeviceHealth(devices=[odd])))
    used = {"n1-0": 2**64 - 1, "n1-1": 5}
    report = status("s1", load_s=-1.0, fetch_s=float("nan"), warm_up_s=2.5, memory_used_bytes=used)
    await reign.fleet.hear(session, said(session, shard_status=report))
    heard = reign.fleet.heard()[N1]
    device, shard = heard.devices[1], heard.shards[ShardId("s1")]
    assert (device.memory_total_bytes, device.memory_used_bytes, device.temperature_celsius) == (
        None,
        None,
        40,
    )
    assert (shard.load_s, shard.fetch_s, shard.warm_up_s) == (None, None, 2.5)
    assert shard.memory_used_bytes == (("n1-1", 5),)


def test_what_a_node_answers_is_made_printable_and_a_log_left_as_it_is() -> None:
    piece = pb.LogPiece(command_id="c", data=b"\x1b[31m\0", error="a\0")
    report = pb.BenchmarkReport(command_id="c", level=pb.BenchmarkLevel(failure="a\0"))
    silent = pb.LogPiece(command_id="c")
    for reply in (piece, report, silent):
        wire_agent.clean_answer(reply)
    assert (piece.data, piece.error, report.level.failure) == (b"\x1b[31m\0", "a\ufffd", "a\ufffd")
    assert not silent.HasField("error")
    assert not report.HasField("error")


async def passed(reign: Reign) -> None:
    """One pass, as the loop does it."""
    await reign._passes.once()


async def test_desired_is_sent_when_it_changes_and_only_then(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock)
    await passed(reign)
    session = await reign.fleet.open(hello())
    empty, *rest = await messages(session)
    assert (list(empty.desired.shards), rest) == ([], [])
    await passed(reign)
    first = await messages(session)
    assert [message.WhichOneof("body") for message in first] == ["desired", "start_shard"]
    desired, start = first[0].desired, first[1].start_shard
    assert desired.version == 2
    assert desired.shards[0].spec == start.spec
    assert start.spec.credential
    assert start.spec.ports["http"] == 20000
    await passed(reign)
    assert await messages(session) == []


async def test_a_start_that_its_agent_refuses_is_a_failed_start(fake_clock: FakeClock) -> None:
    """RESERVED has no end by itself: it waits for the agent's word, and this is one."""
    reign = await reign_on(fake_clock)
    session = await reign.fleet.open(hello())
    await passed(reign)
    shard = (await messages(session))[0].desired.shards[0].spec
    refused = pb.ObservedShard(
        shard_id=shard.shard_id, replica_id=shard.replica_id, group_epoch=shard.group_epoch,
        spec_hash=shard.spec_hash, state=pb.SHARD_STATE_EXITED,
        exit=pb.ShardExit(reason="refused", message="shard tiny/1.1.0: a NUL byte in its command"),
    )  # fmt: skip
    await reign.fleet.hear(session, said(session, shard_status=pb.ShardStatus(shards=[refused])))
    await passed(reign)
    stored = await reign.world.store.load()
    (row,) = stored.replicas.values()
    assert (row.phase, row.failures) == (Phase.BACKOFF, 1)
    assert row.reason == "refused: shard tiny/1.1.0: a NUL byte in its command"
    assert [one.reason for one in stored.attempts] == ["refused"]


async def test_settled_exits_are_forgotten(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock)
    session = await reign.fleet.open(hello())
    gone = status("old.1.0", pb.SHARD_STATE_EXITED, exit=pb.ShardExit(reason="stopped"))
    await reign.fleet.hear(session, said(session, shard_status=gone))
    await reign.fleet.hear(session, said(session, shard_status=status("stray.1.0")))
    await passed(reign)
    # The stray one still runs: it is remembered until its exit is seen.
    assert reign.fleet.heard()[N1].shards.keys() == {"stray.1.0"}


async def test_a_replica_whose_model_left_the_catalog_is_named_but_not_startable(
    fake_clock: FakeClock,
) -> None:
    lease = MemoryLease(fake_clock)
    store = MemoryStore(lease)
    first = await reign_on(fake_clock, store, lease=lease)
    session = await first.fleet.open(hello())
    await passed(first)
    shard = (await messages(session))[0].desired.shards[0].spec
    observed = status(shard.shard_id).shards
    await lease.release(first.tenure.lease)
    second = await reign_on(fake_clock, store, lease=lease, models=())
    await passed(second)
    again = await second.fleet.open(hello(shards=observed))
    (message,) = await messages(again)
    (wanted,) = message.desired.shards
    assert (wanted.spec.shard_id, wanted.spec.engine, wanted.spec.stop_grace_s) == (shard.shard_id, "", 20.0)


async def test_a_shard_that_is_missing_after_the_list_was_applied_is_not_there(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock)
    session = await reign.fleet.open(replace(hello(), tells_applied=True))
    await passed(reign)
    (shard_id,) = session.listed[session.desired_version]
    assert reign.fleet.heard()[N1].answered == frozenset(), "it has answered nothing yet"

    async def complete(version: int, *names: str) -> frozenset[ShardId] | None:
        shards = [one for name in names for one in status(name).shards]
        report = pb.ShardStatus(shards=shards, complete_after=version)
        await reign.fleet.hear(session, said(session, shard_status=report))
        return reign.fleet.heard()[N1].answered

    await reign.fleet.hear(session, said(session, shard_status=status(shard_id)))
    assert reign.fleet.heard()[N1].answered == frozenset(), "part of the truth is no answer"
    assert await complete(session.desired_version - 1) == frozenset(), "a list that nobody sent"
    assert await complete(session.desired_version) == {shard_id}
    assert reign.fleet.heard()[N1].shards == {}
    assert await complete(session.desired_version, shard_id) == {shard_id}
    assert reign.fleet.heard()[N1].shards.keys() == {shard_id}
    await reign.fleet.open(replace(hello(), tells_applied=True))
    assert reign.fleet.heard()[N1].answered == frozenset(), "another session has answered nothing"
    await reign.fleet.open(hello())
    assert reign.fleet.heard()[N1].answered is None, "an earlier release never will"


async def test_an_exit_stays_seen_when_the_agent_has_forgotten_it(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock)
    session = await reign.fleet.open(replace(hello(), tells_applied=True))
    await passed(reign)
    (shard_id,) = session.listed[session.desired_version]
    ended = status(shard_id, pb.SHARD_STATE_EXITED)
    await reign.fleet.hear(session, said(session, shard_status=ended))
    report = pb.ShardStatus(complete_after=session.desired_version)
    await reign.fleet.hear(session, said(session, shard_status=report))
    assert reign.fleet.heard()[N1].shards.keys() == {shard_id}
