"""What must not grow with the fleet, as counts; what it takes in time is measured by `make bench-fleet`."""

from pathlib import Path

from tests.bench.fleet import fleet

from .controller_bench import until

NODES = 12
#: Far more than passes, renewals and announcements need meanwhile.
BEATS = 600


async def test_beats_cost_no_transaction_and_connections_stay_few(tmp_path: Path) -> None:
    async with fleet(tmp_path, nodes=NODES, models=6, replicas=2, beat_s=0.05) as running:
        leader = await running.leader()

        async def ready() -> bool:
            return sum(row.ready for row in (await leader.status()).models) == running.wanted

        await until("all are ready", ready)
        transactions = running.transactions()
        said = sum(agent.beats for agent in running.agents)
        await until("beats came", lambda: sum(agent.beats for agent in running.agents) >= said + BEATS)
        assert running.transactions() - transactions < BEATS / 4
        assert running.connections() <= 10
