"""One connection that goes wrong costs the others nothing: sweeps, drains, asking in turn."""

import logging

import pytest

from llmgw_router.relay import ipc, phase, running
from llmgw_router.relay.exchange import Exchange
from llmgw_router.relay.held import ask_next
from llmgw_router.relay.stopping import Stopping
from llmgw_router.relay.sweep import sweep

from .test_relay_pausing import HEAD
from .test_steps_at_the_rim import LONG_AGO_S, Bench, ClientWire, connecting, forever
from .test_steps_at_the_rim import running as exchange_of


class Spoiled:
    """Stands where a number should be."""

    def __getattr__(self, name: str) -> None:
        raise ZeroDivisionError


def errors_told(bench: Bench) -> int:
    bench.hub.flush()
    batches = [one for one in bench.heard if isinstance(one, ipc.LogLines)]
    return sum(line.level == logging.ERROR for batch in batches for line in batch.lines)


async def test_a_sweep_goes_on_behind_a_connection_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting(monkeypatch, forever)
    bench = Bench()
    asked = [bench.ask() for _ in range(3)]
    for client, _ in asked:
        exchange_of(client)[0].started -= LONG_AGO_S
    bad, _ = asked[1]
    exchange_of(bad)[0].profile = Spoiled()  # type: ignore[assignment]
    sweep(bench.hub)
    assert [b"deadline_exceeded" in wire.written for _, wire in asked] == [True, False, True]
    # The one that failed is ended, and has given back what it held.
    assert asked[1][1].closing
    assert bad not in bench.hub.connections
    assert bench.in_flight() == 0
    assert errors_told(bench) == 1


async def test_a_drain_cuts_those_behind_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting(monkeypatch, forever)
    bench = Bench()
    asked = [bench.ask() for _ in range(3)]
    ended: list[int] = []
    stopping = Stopping(bench.hub, [], ended.append)
    kept = Exchange.stop_upstream
    bad = asked[1][0].current

    def stops(exchange: Exchange, *args: object) -> None:
        if exchange is bad:
            raise ZeroDivisionError
        kept(exchange, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Exchange, "stop_upstream", stops)
    stopping._deadline()
    assert [b"stopping" in wire.written or wire.closing for _, wire in asked] == [True, True, True]
    assert bench.in_flight() == 0
    assert errors_told(bench) >= 1


async def test_silent_connections_part_behind_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    clients = []
    for _ in range(3):
        bench.pool()
        client, wire = bench.ask()
        assert client.current is not None
        client.current.client_left()
        clients.append((client, wire))
    monkeypatch.setattr(clients[1][1], "can_write_eof", lambda: 1 / 0)
    for client, _ in clients:
        client._deaf = True
    monkeypatch.setattr(ClientWire, "can_write_eof", lambda self: False)
    Stopping(bench.hub, [], lambda code: None)._part()
    assert all(wire.closing for _, wire in clients)


async def test_who_has_left_meanwhile_is_not_asked_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of the slots may be another's by then."""
    connecting(monkeypatch, forever)
    bench = Bench(4)
    client, _ = bench.ask()
    exchange, first = exchange_of(client)
    others = [one for one in bench.hub.routes.endpoints() if one is not first]
    exchange.asking = list(others)
    rows = [first.row, others[0].row]
    bench.hub.routes.apply(ipc.TableUpdate(endpoints=tuple(rows), seq=2))
    assert ask_next(exchange)
    assert exchange.endpoint is others[0]
    assert not ask_next(exchange)
    # In the same way where one has failed.
    exchange.asking = [others[1], others[2]]
    assert exchange.another(others[0]) is None
    client.connection_lost(None)
    assert [one.in_flight for one in (first, *others)] == [0, 0, 0, 0]


@pytest.mark.parametrize(("code", "alive"), [(b"400", True), (b"422", True), (b"500", False)])
async def test_ho25_an_error_that_blames_the_request_passes_a_trial(code: bytes, alive: bool) -> None:
    """HO25: an engine that judges a request is there. One that fails again stays aside."""
    bench = Bench(1)
    upstream = bench.pool()
    endpoint = upstream.endpoint
    hub = bench.hub
    client, wire = bench.ask()
    exchange = client.current
    assert exchange is not None
    engine = exchange_of(client)[1]
    assert engine is endpoint
    engine.ejected, engine.trial = True, exchange
    hub.warden.out.add(engine)
    event = b'data: {"error":{"message":"no","code":%b}}\n\n' % code
    upstream.data_received(HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
    assert wire.written.startswith(b"HTTP/1.1 " + code)
    assert engine.ejected is not alive
    assert bench.in_flight() == 0


def test_every_phase_has_a_word_of_its_own() -> None:
    phases = [value for name, value in vars(phase).items() if name.isupper()]
    assert sorted(running._WORDS) == sorted(phases)
    assert len(set(running._WORDS.values())) == len(phases)
    assert running._WORDS[phase.QUEUED] == "queued"


async def test_the_first_byte_limit_of_pages_is_told_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """HO13: a limit is named as the settings call it, and no profile sets this one."""
    connecting(monkeypatch, forever)
    bench = Bench()
    client, wire = bench.ask()
    exchange, _ = exchange_of(client)
    exchange.phase = phase.WAITING
    exchange.dialect = None
    exchange.since -= LONG_AGO_S
    sweep(bench.hub)
    assert b"x-llmgw-limit: cold_first_byte_s=60\r\n" in wire.written
    assert b"cold_first_byte_s" in wire.written.partition(b"\r\n\r\n")[2]
    assert b"profile" not in wire.written
