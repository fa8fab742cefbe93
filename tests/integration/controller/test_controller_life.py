"""One controller on a real Postgres, with agents and routers that talk to it over real gRPC."""

import pytest

from llmgw.v1 import agent_pb2, operator_pb2, routing_pb2

from .controller_bench import MODEL, Controllers, until
from .sim_peers import SimAgent, SimRouter

KEPT = {**MODEL, "replicas": 1}


async def test_a_replica_is_placed_started_and_routed_to(controllers: Controllers, migrated_dsn: str) -> None:
    controller = await controllers.start(dsn=migrated_dsn, models=[KEPT]).until_ready()
    async with SimAgent("n1", [controller.address]) as agent, SimRouter([controller.address]) as router:
        (endpoint,) = await router.until_endpoints(1)
        assert endpoint.replica_id == "tiny/1"
        assert endpoint.url == "http://127.0.0.1:21000"
        assert endpoint.node_id == "n1"
        assert endpoint.HasField("credential")
        assert agent.desired is not None
        (wanted,) = agent.desired.shards
        assert wanted.spec.credential == endpoint.credential
        assert (wanted.spec.engine, list(wanted.spec.served_names)) == ("command", ["tiny"])
        assert list(wanted.spec.command) == ["engine", "{port}"]
        assert agent.starts == [wanted.spec.shard_id]
        assert "start_shard" in agent.commands
        status = await controller.status()
        assert [row.replica_id for row in status.replicas] == ["tiny/1"]
        assert status.replicas[0].phase == operator_pb2.REPLICA_PHASE_READY
        assert (status.nodes.heard, status.routers.members) == (1, 1)
        parts = status.capacity[0].parts
        assert status.capacity[0].total == 2
        assert (parts.free, parts.unknown) == (1, 1)
        assert router.fleet is not None
        assert [(c.gpu_class, c.total, c.free) for c in router.fleet.classes] == [("L4", 2, 1)]
        # A router that waits at the door may be let in before the new leader has said that it leads.
        assert "leading" in [event.kind for event in await controller.events()][-2:]


async def test_a_cold_model_is_started_by_a_request_and_once(
    controllers: Controllers, migrated_dsn: str
) -> None:
    import asyncio

    controller = await controllers.start(dsn=migrated_dsn).until_ready()
    async with (
        SimAgent("n1", [controller.address], slow=True) as agent,
        SimRouter([controller.address]) as router,
    ):
        await until("the catalog", lambda: "tiny" in router.models)
        assert router.models["tiny"].availability == routing_pb2.MODEL_AVAILABILITY_COLD
        asking = [asyncio.create_task(router.activate("tiny")) for _ in range(3)]
        await until("one start", lambda: agent.starts)
        await until(
            "starting", lambda: router.models["tiny"].availability == routing_pb2.MODEL_AVAILABILITY_STARTING
        )
        agent.finish()
        answers = await asyncio.gather(*asking)
        for answer in answers:
            assert [message.WhichOneof("body") for message in answer][-1] == "ready"
            assert answer[0].phase.phase in ("placing", "loading")
        await router.until_endpoints(1)
        assert router.version >= answers[0][-1].ready.routes_version
        assert len(agent.starts) == 1


async def test_what_cannot_be_started_is_refused_with_why(
    controllers: Controllers, migrated_dsn: str
) -> None:
    controller = await controllers.start(dsn=migrated_dsn).until_ready()
    async with (
        SimAgent("n1", [controller.address], gpu_class="H100"),
        SimRouter([controller.address]) as router,
    ):
        unknown = await router.activate("nobody")
        assert [message.refused.code for message in unknown] == ["model_not_found"]
        refused = (await router.activate("tiny"))[-1].refused
        assert refused.code == "no_capacity"
        assert "wrong GPU class" in refused.text
        assert refused.HasField("retry_after_s")


async def test_a_removed_replica_drains_before_it_stops(controllers: Controllers, migrated_dsn: str) -> None:
    import json

    controller = await controllers.start(dsn=migrated_dsn, models=[]).until_leading()
    async with (
        SimAgent("n1", [controller.address]) as agent,
        SimRouter([controller.address]) as router,
        controller.operator() as operator,
    ):
        request = operator_pb2.ApplyModelRequest(model_json=json.dumps(KEPT))
        answer = await operator.ApplyModel(request, timeout=5)
        assert (answer.model, answer.outcome, answer.store, list(answer.warnings)) == (
            "tiny",
            "created",
            "postgres",
            [],
        )
        (endpoint,) = await router.until_endpoints(1)
        removed = await operator.RemoveModel(operator_pb2.RemoveModelRequest(model="tiny"), timeout=5)
        assert list(removed.stopping_replica_ids) == ["tiny/1"]
        await until("the route is gone", lambda: not router.endpoints)
        # It was marked draining before it went, for the router and for the agent.
        assert router.drains == {endpoint.endpoint_id}
        assert "drain_shard" in agent.commands
        await until("the engine is gone", lambda: not agent.shards)

        async def nothing_left() -> bool:
            return not (await controller.status()).replicas

        await until("no replica left", nothing_left)


async def test_an_unhealthy_device_is_neither_used_nor_free(
    controllers: Controllers, migrated_dsn: str
) -> None:
    controller = await controllers.start(dsn=migrated_dsn).until_ready()
    async with SimAgent("n1", [controller.address]) as agent:
        await agent.until_welcome()
        agent.say(
            device_health=agent_pb2.DeviceHealth(devices=[agent.device(1, agent_pb2.DEVICE_STATE_UNHEALTHY)])
        )

        async def seen() -> bool:
            capacity = (await controller.status()).capacity
            return bool(capacity) and capacity[0].parts.unhealthy == 1

        await until("the unhealthy device", seen)
        parts = (await controller.status()).capacity[0].parts
        assert (parts.free, parts.unhealthy) == (1, 1)


async def test_a_crashed_engine_is_started_again_under_a_new_epoch(
    controllers: Controllers, migrated_dsn: str
) -> None:
    controller = await controllers.start(dsn=migrated_dsn, models=[KEPT], backoff_base_s=0.2).until_ready()
    async with SimAgent("n1", [controller.address]) as agent, SimRouter([controller.address]) as router:
        (first,) = await router.until_endpoints(1)
        agent.crash(agent.starts[0])
        await until("another start", lambda: len(agent.starts) == 2)
        (second,) = await router.until_endpoints(1)
        assert second.group_epoch == first.group_epoch + 1
        assert second.endpoint_id != first.endpoint_id
        assert second.credential != first.credential
        # The old address is in quarantine: a stale router must not meet the new engine there.
        assert second.url != first.url


async def test_a_second_agent_under_one_node_id_fences_the_first(
    controllers: Controllers, migrated_dsn: str
) -> None:
    controller = await controllers.start(dsn=migrated_dsn).until_ready()
    async with SimAgent("n1", [controller.address], instance="a") as first:
        await first.until_welcome()
        epoch = first.welcome.session_epoch if first.welcome else 0
        async with SimAgent("n1", [controller.address], instance="b") as second:
            await second.until_welcome()
            assert second.welcome is not None
            assert second.welcome.session_epoch > epoch
            await until("the first is told", lambda: first.rejects)
            assert first.rejects[0].code == "fenced"
            kinds = [event.kind for event in await controller.events()]
            assert "session_fenced" in kinds
            # The late end of the first session must not mark the node as gone.
            assert (await controller.status()).nodes.heard == 1


@pytest.mark.parametrize("replaced", [False, True])
async def test_router_membership_follows_watch_and_goodbye(
    controllers: Controllers, migrated_dsn: str, replaced: bool
) -> None:
    controller = await controllers.start(dsn=migrated_dsn).until_ready()
    async with SimRouter([controller.address]) as router:
        await until("a snapshot", lambda: router.version)
        assert (await controller.status()).routers.members == 1
        if not replaced:
            await router.goodbye()
            assert (await controller.status()).routers.members == 0
            return
    async with SimRouter([controller.address], incarnation="life-2") as again:
        await until("a snapshot", lambda: again.version)
        assert (await controller.status()).routers.members == 1
        assert "router_restarted" in [event.kind for event in await controller.events()]


async def test_a_controller_without_a_database_takes_up_what_runs_when_it_is_back(
    controllers: Controllers,
) -> None:
    """Its rows died with it. Agents would end what is on nobody's list, and load it all again."""
    kept = {**MODEL, "replicas": 1}
    controller = await controllers.start(models=[kept]).until_ready()
    addresses = [controller.address]
    async with SimAgent("n1", addresses) as agent, SimRouter(addresses) as router:
        (before,) = await router.until_endpoints(1)
        (shard_id,) = agent.shards
        # Something that no catalog knows, as of a model that is not configured any more.
        agent.shards["old/1.4.0"] = agent_pb2.ObservedShard(
            shard_id="old/1.4.0", replica_id="old/1", group_epoch=4, spec_hash="x",
            state=agent_pb2.SHARD_STATE_SERVING, probed=True, device_ids=["n1-gpu1"], ports={"http": 21050},
        )  # fmt: skip
        router.tables.clear()
        controller.child.kill()
        await controller.child.wait(10)
        again = controllers.start(models=[kept], listen=str(controller.address), learning_window_s=6.0)
        await again.until_leading()
        await until("the agent is back", lambda: agent.welcome is not None)
        await until("the router is back", lambda: router.leader is not None)

        async def adopted() -> bool:
            return "adopted" in [event.kind for event in await again.events()]

        await until("it is taken up", adopted)
        await until("its routes are told", lambda: router.version >= 1 and router.routable())
        assert [row.endpoint_id for row in router.routable()] == [before.endpoint_id]
        assert agent.starts == [shard_id], "it was never started again"
        # At no moment was it missing from the table.
        assert all(before.endpoint_id in table for table in router.tables)
        # What nobody can take up is ended when the window is over, and not before.
        await until("the stranger is ended", lambda: "old/1.4.0" not in agent.shards)
        assert [row.endpoint_id for row in router.routable()] == [before.endpoint_id]
