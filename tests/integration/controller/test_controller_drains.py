"""Drains and the membership of routers on a real Postgres, over a change of leader."""

import json

import asyncpg

from llmgw.v1 import operator_pb2

from .controller_bench import MODEL, Controller, Controllers, until
from .sim_peers import SimAgent, SimRouter
from .test_operator_commands import ctl

SLOW = {**MODEL, "replicas": 1, "profiles": [{**MODEL["profiles"][0], "drain_timeout_s": 300}]}

SINCE = "SELECT since FROM replicas WHERE replica_id = 'tiny/1'"


async def replica(controller: Controller, name: str) -> operator_pb2.ReplicaRow | None:
    rows = (await controller.status()).replicas
    return next((row for row in rows if row.replica_id == name), None)


async def asked(dsn: str, query: str) -> object:
    """One value from the database."""
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def test_a_drain_goes_on_under_the_next_leader(controllers: Controllers, migrated_dsn: str) -> None:
    """Cases 8 and 12: kill -9 of the leader in the middle; nothing is restarted, and nothing cut short."""
    first = await controllers.start(dsn=migrated_dsn, models=[SLOW]).until_leading()
    second = await controllers.start(dsn=migrated_dsn, models=[SLOW]).until_ready()
    addresses = [first.address, second.address]
    async with SimAgent("n1", addresses) as agent, SimRouter(addresses) as router:
        (endpoint,) = await router.until_endpoints(1)
        (shard,) = agent.shards.values()
        router.acknowledges = False
        code, _, _ = await ctl(first, "replica", "drain", "tiny/1")
        assert code == 0
        await until("it is marked", lambda: endpoint.endpoint_id in router.drains)
        since = await asked(migrated_dsn, SINCE)
        before = await replica(first, "tiny/1")
        assert before is not None
        await until("its successor", lambda: [e.replica_id for e in router.routable()] == ["tiny/2"])
        shard.running_requests = 1
        agent.tell(shard)

        first.child.kill()
        await second.until_leading()
        await until("its agent and its router", lambda: router.leader == second.address and agent.welcome)
        await until("it is still told", lambda: endpoint.endpoint_id in router.endpoints)

        async def still() -> bool:
            row = await replica(second, "tiny/1")
            return row is not None and row.phase == operator_pb2.REPLICA_PHASE_DRAINING

        await until("it drains under the second leader", still)
        after = await replica(second, "tiny/1")
        assert after is not None
        assert await asked(migrated_dsn, SINCE) == since, "its time did not begin anew"
        assert after.reason == before.reason == "drained by operator"
        assert router.endpoints[endpoint.endpoint_id].draining
        assert len(agent.starts) == 2

        shard.running_requests = 0
        agent.tell(shard)
        router.acknowledges = True
        router.acknowledge()
        await until("its engine has ended", lambda: shard.shard_id not in agent.shards)

        async def gone() -> bool:
            return await replica(second, "tiny/1") is None

        await until("it is gone", gone)
        kinds = [event.kind for event in await second.events()]
        assert "drain_cut" not in kinds
        assert [row.replica_id for row in router.routable()] == ["tiny/2"]


async def test_a_router_that_died_is_listed_and_forgotten(
    controllers: Controllers, migrated_dsn: str
) -> None:
    controller = await controllers.start(dsn=migrated_dsn, models=[SLOW]).until_leading()
    async with SimAgent("n1", [controller.address]), SimRouter([controller.address]) as router:
        async with SimRouter([controller.address], router_id="router-2") as other:
            await other.until_endpoints(1)
            await router.until_endpoints(1)
            code, out, _ = await ctl(controller, "router", "list", "--output", "json")
            said = json.loads(out)
            assert (code, said["schema"]) == (0, "llmgw.routers/1")
            assert [(row["id"], row["watching"]) for row in said["routers"]] == [
                ("router-1", True), ("router-2", True),
            ]  # fmt: skip
            code, _, err = await ctl(controller, "router", "forget", "router-2")
            assert code == 1
            assert "router router-2 lives: it watches the routes now" in err

        # The second has gone without a goodbye.
        async def seen() -> bool:
            return (await ctl(controller, "router", "list"))[0] == 1

        await until("it is missed", seen)
        _, out, _ = await ctl(controller, "router", "list")
        assert "!!  router-2" in out
        assert out.strip().endswith("llmgwctl router forget router-2")
        code, dry, _ = await ctl(controller, "router", "forget", "router-2", "--dry-run")
        assert (code, dry.startswith("dry run: router router-2 is a member no longer")) == (0, True)
        code, _, _ = await ctl(controller, "router", "forget", "router-2")
        assert code == 0
        code, _, err = await ctl(controller, "router", "forget", "router-2")
        assert code == 64
        assert "no router router-2 is a member" in err
        assert (await ctl(controller, "router", "list"))[0] == 0
        assert "router_forgotten" in [event.kind for event in await controller.events()]
        # What it did not live to say counts as an ask, also for the next leader.
        floor = "SELECT now() - since < interval '1 minute' FROM idleness_floor"
        assert await asked(migrated_dsn, floor) is True
