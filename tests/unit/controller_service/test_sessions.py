"""Agents' sessions: epochs, fencing, what is heard, and what each node is told."""

from typing import Any

import pytest

from llmgw.v1 import agent_pb2 as pb
from llmgw_controller import wire_agent
from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.adapters.store_memory import MemoryStore
from llmgw_controller.fleet import Session
from llmgw_controller.reign import Reign
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.ids import NodeId
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
    for text in ("no such shard", "no such shard", "held under another spec"):
        result = pb.CommandResult(command_id="9", accepted=False, message=text)
        await reign.fleet.hear(session, said(session, command_result=result))
    await passed(reign)
    rows = await reign.world.store.events(since=None, subject="n1", limit=9)
    assert [row.text for row in reversed(rows) if row.kind == "command_refused"] == [
        "refused what it was told: no such shard",
        "refused what it was told: held under another spec",
    ]


async def test_a_new_inventory_is_written(fake_clock: FakeClock) -> None:
    reign = await reign_on(fake_clock)
    session = await reign.fleet.open(hello())
    inventory = pb.Inventory(management_address="10.0.0.9", fabrics=["ib-1"])
    await reign.fleet.hear(session, said(session, inventory=inventory))
    row = (await reign.world.store.load()).nodes[N1]
    assert (row.address, row.fabrics, row.devices, row.engine_ports) == ("10.0.0.9", ("ib-1",), (), None)
    assert row.session_epoch == session.epoch


@pytest.mark.parametrize(
    "body",
    [
        {"shard_status": pb.ShardStatus(shards=[pb.ObservedShard(shard_id="s", replica_id="r")])},
        {"device_health": pb.DeviceHealth(devices=[pb.Device(device_id="n1-0", gpu_class="L4")])},
        {"inventory": pb.Inventory()},
        {"inventory": pb.Inventory(management_address="a", engine_ports=pb.PortRange(first=9, last=1))},
    ],
    ids=["shard state", "device state", "no address", "port range"],
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
