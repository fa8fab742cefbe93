"""The end of a client: what it had running is given back and counted, and then it is gone."""

import pytest

from llmgw_router.relay.exchange import Exchange

from .test_one_for_all import errors_told
from .test_steps_at_the_rim import Bench


async def test_the_last_clients_end_is_counted_before_the_worker_goes() -> None:
    """A drain ends with the last connection: what that one had running is told first."""
    bench = Bench()
    bench.pool()
    client, _ = bench.ask()
    seen: list[tuple[int, int, int]] = []
    bench.hub.draining = True
    bench.hub.on_quiet = lambda: seen.append(
        (bench.count("client_gone"), bench.count("requests_running"), bench.in_flight())
    )
    client.connection_lost(None)
    assert seen == [(1, 0, 0)]


async def test_a_client_that_fails_to_leave_is_gone_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.pool()
    client, _ = bench.ask()
    with monkeypatch.context() as patched:
        patched.setattr(Exchange, "client_left", lambda self: 1 / 0)
        client.connection_lost(None)
    assert bench.hub.connections == set()
    assert bench.in_flight() == 0
    assert errors_told(bench) == 1
