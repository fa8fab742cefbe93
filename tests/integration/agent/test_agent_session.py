"""Rules of the session: who is obeyed, who is called next, and that engines never suffer from it."""

import asyncio

import pytest

from llmgw.v1 import agent_pb2 as pb
from llmgw_kit.testing.ports import free_ports
from tests.integration.agent.agent_bench import (
    Agents,
    controller,
    ctl,
    eventually,
    read_json,
    scripted_engine,
    start_ticks,
)

RUN, DRAIN, STOP = pb.SHARD_WISH_RUN, pb.SHARD_WISH_DRAIN, pb.SHARD_WISH_STOP
SERVING, EXITED = pb.SHARD_STATE_SERVING, pb.SHARD_STATE_EXITED


async def test_a_standby_is_followed_to_the_leader_it_names(agents: Agents) -> None:
    async with controller() as leader, controller(standby_of=leader.address) as standby:
        agents.start(standby.address)
        await eventually(lambda: leader.links, "a session with the leader")
        assert standby.calls >= 1


async def test_a_reject_that_names_the_leader_is_followed_too(agents: Agents) -> None:
    async with controller() as leader, controller() as standby:
        reject = pb.Reject(code="not_leader", text="stands by", leader_address=leader.address)
        standby.refuse = lambda _: pb.ConnectResponse(term=0, reject=reject)
        agents.start(standby.address)
        await eventually(lambda: leader.links, "a session with the leader")


async def test_unknown_leaders_and_dead_addresses_are_passed_over_in_turn(agents: Agents) -> None:
    async with controller() as leader, controller(standby_of="") as lost:
        agents.start(f"127.0.0.1:{free_ports(1)[0]}", lost.address, leader.address)
        await eventually(lambda: leader.links, "a session with the third")


async def test_all_controllers_gone_changes_nothing_and_a_new_one_is_found(
    agents: Agents,
) -> None:
    port = free_ports(1)[0]
    async with controller() as leader:
        agents.start(leader.address, f"127.0.0.1:{port}")
        spec = scripted_engine("s1")
        leader.want((spec, RUN))
        before = await leader.in_state("s1", SERVING)
    assert (await ctl(spec))["pid"] == before.pid
    async with controller(term=2) as successor:
        # The successor is only known by what it says of itself, once the agent was led there.
        async with controller(standby_of=successor.address, listen_port=port):
            await eventually(lambda: successor.links, "a session with the successor")
        told = successor.link.hello
        assert told.highest_term_seen == 1
        assert [(s.shard_id, s.pid, s.state) for s in told.shards] == [("s1", before.pid, SERVING)]
        assert not told.shards[0].adopted, "the agent itself never went away"


async def test_an_old_leader_is_refused_also_by_the_agents_next_life(agents: Agents) -> None:
    async with controller(term=7) as leader:
        first = agents.start(leader.address)
        spec = scripted_engine("s1")
        leader.want((spec, RUN))
        shard = await leader.in_state("s1", SERVING)
        assert read_json(agents.data / "state" / "term.json") == {"term": 7}
        first.kill()
        await first.wait(10)
    async with controller(term=6) as stale:
        stale.want()
        second = agents.start(stale.address)
        await eventually(lambda: stale.calls >= 2, "it was called and left again")
        assert "old leader" in second.tail(30)
        assert start_ticks(shard.pid) == shard.pid_start_ticks, "its empty list was not obeyed"
        stale.term = 7
        await eventually(lambda: stale.links and stale.link.beats > 1, "the same term is fine")
        assert stale.link.hello.highest_term_seen == 7


async def test_a_message_under_a_lower_term_ends_the_session_unobeyed(agents: Agents) -> None:
    async with controller(term=3) as leader:
        agents.start(leader.address)
        spec = scripted_engine("s1")
        leader.want((spec, RUN))
        shard = await leader.in_state("s1", SERVING)
        leader.link.say(term=2, stop_shard=pb.StopShard(command_id="c", shard_id="s1", reason="stopped"))
        await eventually(lambda: len(leader.links) > 1 and leader.link.beats > 2, "a new session")
        assert start_ticks(shard.pid) == shard.pid_start_ticks
        assert leader.shards["s1"].state == SERVING


async def test_a_shard_started_by_a_command_is_not_taken_for_an_orphan(agents: Agents) -> None:
    async with controller() as leader:
        agents.start(leader.address)
        leader.want()
        await eventually(lambda: leader.links and leader.link.beats, "a session")
        spec = scripted_engine("s1")
        leader.link.say(start_shard=pb.StartShard(command_id="c1", spec=spec))
        shard = await leader.in_state("s1", SERVING)
        beats = leader.link.beats
        await eventually(lambda: leader.link.beats > beats + 3, "the list is looked at again and again")
        assert start_ticks(shard.pid) == shard.pid_start_ticks
        leader.link.say(stop_shard=pb.StopShard(command_id="c2", shard_id="s1", reason="stopped"))
        assert (await leader.in_state("s1", EXITED)).exit.reason == "stopped"
        beats = leader.link.beats
        await eventually(lambda: leader.link.beats > beats + 3, "it is not started again")
        assert leader.shards["s1"].state == EXITED


async def test_an_older_list_after_a_newer_one_is_dropped(agents: Agents) -> None:
    async with controller() as leader:
        agents.start(leader.address)
        spec = scripted_engine("s1")
        leader.want()
        leader.want((spec, RUN))
        shard = await leader.in_state("s1", SERVING)
        leader.link.say(desired=pb.Desired(version=1))
        beats = leader.link.beats
        await eventually(lambda: leader.link.beats > beats + 3, "time passes")
        assert start_ticks(shard.pid) == shard.pid_start_ticks


async def test_a_list_with_a_word_it_does_not_know_is_not_half_obeyed(agents: Agents) -> None:
    async with controller() as leader:
        agents.start(leader.address)
        spec = scripted_engine("s1")
        leader.want((spec, RUN))
        shard = await leader.in_state("s1", SERVING)
        leader.want((scripted_engine("s2"), 9))
        beats = leader.link.beats
        await eventually(lambda: leader.link.beats > beats + 3, "time passes")
        assert start_ticks(shard.pid) == shard.pid_start_ticks
        assert "s2" not in leader.shards


async def test_one_spec_that_nothing_can_be_started_from_is_refused_and_the_others_are_obeyed(
    agents: Agents,
) -> None:
    async with controller() as leader:
        agents.start(leader.address)
        good, bad, later = (scripted_engine(name) for name in ("s1", "s2", "s3"))
        bad.command.append("a\0")
        later.env["A"] = "\0"
        leader.want((good, RUN), (bad, RUN))
        await leader.in_state("s1", SERVING)
        told = await leader.in_state("s2", EXITED)
        assert (told.exit.reason, told.group_epoch) == ("refused", bad.group_epoch)
        assert "NUL" in told.exit.message
        leader.link.say(start_shard=pb.StartShard(command_id="c1", spec=later))
        assert (await leader.in_state("s3", EXITED)).exit.reason == "refused"
        (answer,) = await eventually(lambda: leader.link.results, "an answer")
        assert (answer.command_id, answer.accepted) == ("c1", False)
        # Its model left the catalog: what remains of the spec is enough to end it by.
        bare = pb.ShardSpec(
            shard_id="s1", replica_id=good.replica_id, group_epoch=good.group_epoch, spec_hash=good.spec_hash
        )
        leader.want((bare, STOP))
        await leader.in_state("s1", EXITED)
        beats = leader.link.beats
        await eventually(lambda: leader.link.beats > beats + 3, "time passes")
        leader.want()
        await eventually(
            lambda: not list((agents.data / "state").glob("**/s*.json")), "and all of them are let go"
        )


async def test_move_on_opens_the_new_session_before_it_leaves_the_old(agents: Agents) -> None:
    async with controller(term=4) as old, controller(term=5) as new:
        agents.start(old.address)
        spec = scripted_engine("s1")
        old.want((spec, RUN))
        await old.in_state("s1", SERVING)
        refused = pb.Reject(code="not_leader", text="not yet")
        new.refuse = lambda _: pb.ConnectResponse(term=5, reject=refused)
        old.refuse = lambda _: pb.ConnectResponse(term=4, reject=refused)
        old.link.say(move_on=pb.MoveOn(leader_address=new.address))
        await eventually(lambda: new.calls >= 1, "the new one is called")
        beats = old.link.beats
        await eventually(lambda: old.link.beats > beats + 1, "the old one is still spoken to")
        new.refuse = None
        await eventually(lambda: new.links and new.link.beats > 1, "a session with the new one")
        await eventually(lambda: not old.link.open, "the old stream is closed")
        assert new.link.hello.shards[0].state == SERVING


async def test_move_on_to_an_older_leader_is_not_followed(agents: Agents) -> None:
    async with controller(term=5) as current, controller(term=4) as older:
        agents.start(current.address)
        await eventually(lambda: current.links, "a session")
        current.link.say(move_on=pb.MoveOn(leader_address=older.address))
        await eventually(lambda: older.calls >= 1, "the older one was called")
        # Back to the one with the higher term.
        await eventually(
            lambda: len(current.links) == 2 and current.link.beats > 1, "a session with the current"
        )
        assert older.links == [] or older.link.beats == 0


async def test_a_fenced_agent_leaves_engines_alone(agents: Agents) -> None:
    async with controller() as leader:
        process = agents.start(leader.address)
        spec = scripted_engine("s1")
        leader.want((spec, RUN))
        shard = await leader.in_state("s1", SERVING)
        leader.link.say(reject=pb.Reject(code="fenced", text="another agent instance connected"))
        await eventually(lambda: "another agent speaks for this node id" in process.tail(40), "it says so")
        assert start_ticks(shard.pid) == shard.pid_start_ticks


async def test_only_a_profile_that_asks_for_it_stops_after_silence(agents: Agents) -> None:
    async with controller() as leader:
        agents.start(leader.address)
        steady = scripted_engine("s1")
        nervous = scripted_engine("s2", stop_after_silence_s=0.5)
        leader.want((steady, RUN), (nervous, RUN))
        pids = [(await leader.in_state(name, SERVING)).pid for name in ("s1", "s2")]
        beats = leader.link.beats
        await eventually(lambda: leader.link.beats > beats + 5, "a quiet session is not silence")
        assert start_ticks(pids[1]) is not None
        address = leader.address
    await eventually(lambda: start_ticks(pids[1]) is None, "the nervous one ends")
    assert start_ticks(pids[0]) is not None
    async with controller(listen_port=int(address.rpartition(":")[2])) as again:
        gone = await again.in_state("s2", EXITED)
        assert gone.exit.reason == "silence"


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("LLMGW_AGENT_CONTROLLER", "nowhere", "has no port"),
        ("LLMGW_AGENT_ENGINE_PORTS", "30000-40000", "overlap the kernel's ephemeral range"),
        ("LLMGW_AGENT_ENGINE_PORTS", "5-4", "the first not above the last"),
        ("LLMGW_AGENT_MANAGEMENT_INTERFACE", "eth77", "no network interface 'eth77'"),
        ("LLMGW_AGENT_DEVICES", '[{"id": "a", "gpu_class": "X"}, {"id": "a", "gpu_class": "X"}]', "twice: a"),
        ("LLMGW_AGENT_INVENTORY", "nvidia", "NVIDIA management library cannot be used"),
        ("LLMGW_AGENT_DATA_DIR", "/proc/llmgw", "cannot be used"),
        ("LLMGW_AGENT_ADMIN_LISTEN", "tcp://10.0.0.1:80", "Kubernetes service link"),
    ],
)
async def test_a_start_that_cannot_work_says_so_and_ends(
    agents: Agents, variable: str, value: str, said: str
) -> None:
    drop = {"LLMGW_AGENT_MANAGEMENT_ADDRESS": ""} if "INTERFACE" in variable else {}
    environment = agents.environment(LLMGW_AGENT_CONTROLLER="127.0.0.1:9") | {variable: value}
    environment = {name: text for name, text in environment.items() if name not in drop}
    process = agents.spawn_with(environment)
    assert await process.wait(30) == 1
    assert said in process.tail()
    assert "Traceback" not in process.tail(40)


async def test_a_taken_admin_port_is_named(agents: Agents) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    process = agents.start("127.0.0.1:9", LLMGW_AGENT_ADMIN_LISTEN=f"127.0.0.1:{port}")
    assert await process.wait(30) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in process.tail()
    assert "--admin-listen" in process.tail()
    server.close()


async def test_an_unknown_key_in_the_file_names_the_nearest(agents: Agents) -> None:
    config = agents.folder / "agent.yaml"
    config.write_text("node_idd: x\n")
    status, out = await agents.run("serve", "--config", str(config))
    assert status == 1
    assert "did you mean 'node_id'" in out


async def test_complete_reports_say_which_list_they_follow(agents: Agents) -> None:
    """Also when there is nothing to list: that a shard is missing is all the evidence there may be."""
    async with controller() as leader:
        agents.start(leader.address)
        await eventually(lambda: leader.links and leader.link.beats > 2, "beats before any list")
        assert leader.link.hello.tells_applied
        assert leader.link.complete == [], "without a list there is nothing to answer"
        leader.want()
        await eventually(lambda: (leader.version, []) in leader.link.complete, "an answer to the empty list")
        leader.want((scripted_engine("s1"), RUN))
        await eventually(lambda: (leader.version, ["s1"]) in leader.link.complete, "an answer to the next")
        assert all("s1" in names for version, names in leader.link.complete if version == leader.version)


async def test_a_late_start_of_an_earlier_group_is_refused(agents: Agents) -> None:
    async with controller() as leader:
        agents.start(leader.address)
        spec = scripted_engine("r1.3.0", replica_id="r1", group_epoch=3)
        leader.want((spec, RUN))
        await leader.in_state("r1.3.0", SERVING)
        late = scripted_engine("r1.2.0", replica_id="r1", group_epoch=2)
        leader.link.say(start_shard=pb.StartShard(command_id="late", spec=late))
        result = await eventually(lambda: leader.link.results, "an answer")
        assert not result[0].accepted
        assert "r1.2.0 is of an earlier group of r1 than r1.3.0" in result[0].message
        assert "r1.2.0" not in leader.shards
