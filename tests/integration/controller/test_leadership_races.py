"""Two controllers, four routers, real Postgres: the leader is frozen and woken, again and again.

Every row that changes is noted by a trigger, with who changed it and who held the lease in that very
transaction. Controllers have a database user each, so who changed it is not a matter of what they say.
"""

import asyncio
import json
import time
from collections import Counter
from contextlib import AsyncExitStack
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import grpc.aio
import pytest

from llmgw.v1 import operator_pb2
from llmgw_kit.errors import NotLeader

from .controller_bench import MODEL, Controller, Controllers, meant, until
from .sim_peers import SimAgent, SimRouter

TTL_S = 4.0
QUICK = {"lease_ttl_s": TTL_S, "lease_renew_s": 0.5, "lease_retry_s": 0.5, "lease_margin_s": 1.0}
#: The promise, and what a machine that runs many things at once may add.
WITHIN_S = 2.0
SLACK_S = 2.0
ROUNDS = 4

#: All but who announces itself, which a standby does too, and the lease, which is looked at by itself.
_AUDIT = """
CREATE TABLE audit (
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz, who text, tab text, op text, holder text, term bigint
);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit (at, who, tab, op, holder, term)
    SELECT clock_timestamp(), session_user, TG_TABLE_NAME, TG_OP, holder, term FROM controller_lease;
    RETURN NULL;
END $$;
DO $$
DECLARE tab text;
BEGIN
    FOR tab IN SELECT tablename FROM pg_tables WHERE schemaname = 'public'
                  AND tablename NOT IN ('audit', 'controllers', 'schema_migrations') LOOP
        EXECUTE format('CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON %I
                        FOR EACH ROW EXECUTE FUNCTION note()', tab);
    END LOOP;
END $$;
"""


def as_user(dsn: str, user: str) -> str:
    """The same database as another user."""
    split = urlsplit(dsn)
    return urlunsplit(split._replace(netloc=f"{user}:{user}@{split.netloc.rpartition('@')[2]}"))


async def busy(controllers: list[Controller], stop: asyncio.Event) -> Counter[str]:
    """An operator who writes to whoever answers, leader or not, all the time: models, and replicas that are
    to be started anew."""
    outcomes: Counter[str] = Counter()
    number = 0
    while not stop.is_set():
        number += 1
        for controller in controllers:
            request = _model(f"model-{number % 7}", priority=number)
            stop_one = operator_pb2.StopReplicaRequest(replica_id=f"kept-{number % 4}/1")
            try:
                async with controller.operator() as stub:
                    await stub.ApplyModel(request, timeout=1.0)
                    if number % 10 == 0:
                        await stub.StopReplica(stop_one, timeout=1.0)
                outcomes[controller.name] += 1
            except grpc.aio.AioRpcError as e:
                outcomes[e.code().name] += 1
        await asyncio.sleep(0.02)
    return outcomes


@pytest.mark.timeout(240)
async def test_a_leader_frozen_and_woken_many_times_changes_not_one_row(
    controllers: Controllers, migrated_dsn: str
) -> None:
    audit = await asyncpg.connect(migrated_dsn)
    for name in ("race_a", "race_b"):
        exists = await audit.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", name)
        if not exists:
            await audit.execute(f"CREATE ROLE {name} SUPERUSER LOGIN PASSWORD '{name}'")
    await audit.execute(_AUDIT)
    kept = [{**MODEL, "name": f"kept-{number}", "replicas": 1} for number in range(4)]
    pair = [
        controllers.start(name=name, dsn=as_user(migrated_dsn, name), models=kept, **QUICK)
        for name in ("race_a", "race_b")
    ]
    for one in pair:
        await one.until_ready()
    await until("one leads", lambda: _leader(pair))
    addresses = [one.address for one in pair]
    stop = asyncio.Event()
    took: list[float] = []
    async with AsyncExitStack() as opened:
        agents = [
            await opened.enter_async_context(SimAgent(f"n{number}", addresses, gpus=4)) for number in range(3)
        ]
        routers = [
            await opened.enter_async_context(
                SimRouter(addresses, router_id=f"r{number}", incarnation=f"life-{number}")
            )
            for number in range(4)
        ]
        await routers[0].until_endpoints(len(kept))
        writing = asyncio.create_task(busy(pair, stop))
        try:
            for round_ in range(ROUNDS):
                leader = await until("one leads", lambda: _leader(pair))
                other = next(one for one in pair if one is not leader)
                # Something is always under way; where in it the freeze falls is chance.
                await asyncio.sleep(0.3 + 0.05 * round_)
                async with leader.operator() as stub:
                    await stub.GetLeader(operator_pb2.GetLeaderRequest(), timeout=5)
                    await asyncio.to_thread(leader.child.pause)
                    frozen_at = time.monotonic()
                    # What waits for it when it wakes, on a connection that was open before.
                    late = [
                        asyncio.ensure_future(stub.ApplyModel(_model(f"late-{number}"), timeout=20))
                        for number in range(5)
                    ]
                    await other.until_leading(most_s=TTL_S + WITHIN_S + SLACK_S)
                    took.append(time.monotonic() - frozen_at)
                    await asyncio.sleep(0.3)
                    leader.child.resume()
                    told = await asyncio.gather(*late, return_exceptions=True)
                    landed = [e for e in told if not isinstance(e, grpc.aio.AioRpcError)]
                    assert not landed, "written by who leads no longer"
                    assert all(isinstance(meant(e), NotLeader) for e in told), told
                await until("the woken one stands by", lambda one=leader: _stands_by(one))
                await until("all routers follow", lambda: len({router.term for router in routers}) == 1)
                await until("all agents follow", lambda: all(agent.welcome for agent in agents))
        finally:
            stop.set()
        outcomes = await asyncio.wait_for(writing, 60)
        await until("all serve", lambda: len(routers[0].routable()) == len(kept))
    rows = await audit.fetch("SELECT * FROM audit ORDER BY id")
    terms_told = [r["term"] for r in await audit.fetch("SELECT term FROM events ORDER BY event_id")]
    await audit.close()

    wrong = [row for row in rows if row["tab"] != "controller_lease" and row["who"] != row["holder"]]
    assert not wrong, wrong[:5]
    by_who = Counter(row["who"] for row in rows)
    print(
        f"\n{ROUNDS} freezes: takeover after {', '.join(f'{s:.2f}' for s in took)} s (ttl {TTL_S:g} s); "
        f"{len(rows)} row changes noted ({dict(by_who)}), none by who did not lead; "
        f"operator: {dict(outcomes)}"
    )
    # Both led and wrote, or this would show nothing.
    assert min(by_who["race_a"], by_who["race_b"]) > 50
    assert max(took) <= TTL_S + WITHIN_S + SLACK_S
    # Terms only grow: in the lease, in what was written, and in what routers and agents were told.
    terms = [row["term"] for row in rows]
    assert terms == sorted(terms)
    assert terms_told == sorted(terms_told)
    assert terms[-1] >= ROUNDS + 1
    for router in routers:
        told = [term for term, _, _ in router.heard]
        assert told == sorted(told)


def _model(name: str, **more: object) -> operator_pb2.ApplyModelRequest:
    return operator_pb2.ApplyModelRequest(model_json=json.dumps({**MODEL, "name": name, **more}))


async def _leader(pair: list[Controller]) -> Controller | None:
    for one in pair:
        try:
            if (await one.leader()).leading:
                return one
        except grpc.aio.AioRpcError:
            continue
    return None


async def _stands_by(one: Controller) -> bool:
    try:
        return not (await one.leader()).leading
    except grpc.aio.AioRpcError:
        return False
