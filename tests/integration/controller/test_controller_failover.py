"""Two controllers on one Postgres: one leads, one stands by, and what happens when the leader goes."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import grpc.aio
import pytest

from llmgw.v1 import agent_pb2, agent_pb2_grpc, operator_pb2, operator_pb2_grpc, routing_pb2, routing_pb2_grpc
from llmgw_kit import rpc
from llmgw_kit.errors import NotLeader
from llmgw_kit.testing.embedded import EmbeddedPostgres
from llmgw_kit.testing.processes import Cage

from .controller_bench import MODEL, Controller, Controllers, meant, until
from .sim_peers import SimAgent, SimRouter

KEPT = {**MODEL, "replicas": 1}
TTL_S = 4.0
QUICK = {"lease_ttl_s": TTL_S, "lease_renew_s": 0.5, "lease_retry_s": 0.5, "lease_margin_s": 1.0}
#: Of a machine that runs many things at once; the promise itself is ttl + 2 s.
SLACK_S = 3.0


async def two(controllers: Controllers, dsn: str, **settings: Any) -> tuple[Controller, Controller]:
    """A leader and a standby."""
    leader = controllers.start(dsn=dsn, **QUICK, **settings)
    await leader.until_ready()
    await leader.until_leading()
    standby = await controllers.start(dsn=dsn, **QUICK, **settings).until_ready()
    return leader, standby


async def test_a_standby_refuses_and_names_the_leader(controllers: Controllers, migrated_dsn: str) -> None:
    leader, standby = await two(controllers, migrated_dsn)
    channel = rpc.channel(standby.address)

    async def first_of(call: Any) -> None:
        async for _ in call:
            return

    async def hello() -> AsyncIterator[agent_pb2.ConnectRequest]:
        yield agent_pb2.ConnectRequest(hello=agent_pb2.Hello(node_id="n", boot_id="b", agent_instance="i"))

    routing = routing_pb2_grpc.RoutingServiceStub(channel)
    refused = [
        first_of(agent_pb2_grpc.AgentServiceStub(channel).Connect(hello())),
        first_of(routing.WatchRoutes(routing_pb2.WatchRoutesRequest(router_id="r", incarnation="i"))),
        first_of(routing.Activate(routing_pb2.ActivateRequest(router_id="r", model="tiny"))),
        standby.status(),
    ]
    for call in refused:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        error = meant(caught.value)
        assert isinstance(error, NotLeader)
        assert error.leader_address == str(leader.address)
    async with standby.operator() as operator:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await operator.ApplyModel(operator_pb2.ApplyModelRequest(model_json=json.dumps(MODEL)), timeout=5)
    assert isinstance(meant(caught.value), NotLeader)
    await channel.close()
    answer = await standby.leader()
    assert (answer.leading, answer.leader_address, answer.name) == (False, str(leader.address), standby.name)
    # Both can take over: leadership is no readiness.
    assert leader.ready()[0]
    assert standby.ready()[0]


async def test_controllers_of_different_configuration_are_trouble(
    controllers: Controllers, migrated_dsn: str
) -> None:
    leader, standby = await two(controllers, migrated_dsn)
    async with SimAgent("n1", [leader.address]) as agent:
        await until("both are known", lambda: agent.welcome is not None)
        assert not [one for one in (await leader.status()).trouble if one.kind == "config_differs"]
        standby.child.stop()
        other = await controllers.start(dsn=migrated_dsn, models=[], name="other", **QUICK).until_ready()

        async def told() -> list[str]:
            return [one.text for one in (await leader.status()).trouble if one.kind == "config_differs"]

        (text,) = await until("the trouble", told)
        assert "(other)" in text
        assert f"({leader.name})" in text
        # An agent that comes now is told of both.
    async with SimAgent("n2", [leader.address]) as late:
        await late.until_welcome()
        assert late.welcome is not None
        assert sorted(late.welcome.controllers) == sorted([str(leader.address), str(other.address)])


async def test_kill_9_of_the_leader_restarts_nothing(controllers: Controllers, migrated_dsn: str) -> None:
    leader, standby = await two(controllers, migrated_dsn, models=[KEPT])
    addresses = [leader.address, standby.address]
    async with SimAgent("n1", addresses) as agent, SimRouter(addresses) as router:
        (before,) = await router.until_endpoints(1)
        term = router.term
        router.tables.clear()
        leader.child.kill()
        died = time.monotonic()
        await standby.until_leading(most_s=TTL_S + 2 + SLACK_S)
        took_s = time.monotonic() - died
        assert took_s < TTL_S + 2 + SLACK_S
        await until("the agent follows", lambda: agent.welcome is not None)
        await until("the router follows", lambda: router.term > term)
        await until("the new leader has looked", lambda: router.version >= 1)
        # Some passes of the new leader, with everybody heard.
        await asyncio.sleep(1.0)
        assert list(router.endpoints.values()) == [before]
        assert len(agent.starts) == 1
        # The endpoint was never taken from the table, not even for a moment.
        assert all(before.endpoint_id in table for table in router.tables)
        status = await standby.status()
        assert status.info.term == router.term == agent.term
        assert (status.nodes.heard, len(status.replicas)) == (1, 1)


async def test_a_clean_stop_hands_over_sooner_than_the_ttl(
    controllers: Controllers, migrated_dsn: str
) -> None:
    leader, standby = await two(controllers, migrated_dsn, models=[KEPT])
    addresses = [leader.address, standby.address]
    async with SimAgent("n1", addresses) as agent, SimRouter(addresses) as router:
        await router.until_endpoints(1)
        term = router.term
        leader.child.send_signal(signal.SIGTERM)
        began = time.monotonic()
        await standby.until_leading(most_s=TTL_S)
        assert time.monotonic() - began < TTL_S
        assert await leader.child.wait(15) == 0
        await until("both follow", lambda: agent.welcome is not None and router.term > term)
        assert len(agent.starts) == 1
        # Told to move on, not cut off.
        assert (term, "move_on") in [(t, what) for t, _, what in router.heard]
        assert not agent.rejects


async def test_a_leader_frozen_past_its_lease_writes_nothing_after_it_wakes(
    controllers: Controllers, migrated_dsn: str
) -> None:
    leader, standby = await two(controllers, migrated_dsn)
    async with SimAgent("n1", [leader.address, standby.address]) as agent:
        await agent.until_welcome()
        # A connection that is open before the freeze, so that a write waits inside it.
        channel = rpc.channel(leader.address)
        stub = operator_pb2_grpc.OperatorServiceStub(channel)
        old = (await stub.GetLeader(operator_pb2.GetLeaderRequest(), timeout=5)).term
        await asyncio.to_thread(leader.child.pause)
        await standby.until_leading(most_s=TTL_S + 2 + SLACK_S)
        # What waits for the frozen one when it wakes: an operator's write, and a pass that is long due.
        request = operator_pb2.ApplyModelRequest(model_json=json.dumps({**MODEL, "name": "late"}))
        write = stub.ApplyModel(request, timeout=20)
        await asyncio.sleep(0.3)
        leader.child.resume()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await write
        assert isinstance(meant(caught.value), NotLeader)
        await channel.close()
        answer = await leader.leader()
        assert not answer.leading
        connection = await asyncpg.connect(migrated_dsn)
        try:
            assert await connection.fetchval("SELECT count(*) FROM models") == 0
            terms = [r["term"] for r in await connection.fetch("SELECT term FROM events ORDER BY event_id")]
        finally:
            await connection.close()
        # Landed terms never go back.
        assert terms == sorted(terms)
        assert terms[0] == old < terms[-1]
        await until(
            "the agent follows the new leader", lambda: agent.welcome is not None and agent.term > old
        )
        # It stands by again and says whom to ask.

        async def names_the_other() -> bool:
            return (await leader.leader()).leader_address == str(standby.address)

        await until("the woken one names the leader", names_the_other)


async def test_postgres_away_ends_leading_but_not_the_process(
    controllers: Controllers, cage: Cage, tmp_path: Path
) -> None:
    """Case 15: the store's trouble stops no engine and takes no route."""
    async with EmbeddedPostgres(cage, tmp_path / "pg") as server:
        controller = await controllers.start(dsn=server.dsn(), models=[KEPT], **QUICK).until_ready()
        async with SimAgent("n1", [controller.address]) as agent, SimRouter([controller.address]) as router:
            (before,) = await router.until_endpoints(1)
            term = router.term
            await asyncio.to_thread(server.kill)

            async def leads_no_more() -> bool:
                return not (await controller.leader()).leading

            await until("leading ends", leads_no_more, most_s=TTL_S + SLACK_S)
            assert controller.child.code is None
            await server.restart()
            await controller.until_leading()
            await until("all follow", lambda: agent.welcome is not None and router.term > term)
            assert list(router.endpoints.values()) == [before]
            assert len(agent.starts) == 1
            # The routes a router had in the meantime were those it knew: it was told nothing else.
            assert router.tables[-1] == {before.endpoint_id}
