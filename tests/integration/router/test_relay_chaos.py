"""Hundreds of exchanges with engines and clients that misbehave by seed, and what must hold of all.

A seed decides what the engine does with a request and what its client does; it travels in the
body. A failure names its seed; put it into SEEDS to see it alone.
"""

import asyncio
import json
import random
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from .harness import QUICK, Client, Router, router
from .upstream import LAST, Connection, Upstream, chunk

SEEDS = range(400)
AT_ONCE = 12
GARBAGE = b"\x00\xff\r\nnot http\r\n\r\n"


@dataclass(frozen=True)
class Plan:
    """What one seed means."""

    events: list[bytes]
    framing: str
    #: clean, or how and where the engine dies.
    end: str
    cut_at: int
    piece: int
    pause_s: float
    #: When the client leaves: after so many bytes; None: it stays.
    leaves_after: int | None
    close: bool

    @property
    def payload(self) -> bytes:
        return b"".join(self.events)


def plan_of(seed: int) -> Plan:
    rng = random.Random(seed)
    events = [
        b"data: " + bytes(rng.choices(b'abc{}":\xc3\xa9 ', k=rng.choice((1, 20, 300, 5000)))) + b"\n\n"
        for _ in range(rng.randrange(1, 12))
    ]
    if rng.random() < 0.7:
        events.append(b"data: [DONE]\n\n")
    framing = rng.choice(("chunked", "chunked", "length", "close"))
    wire = len(_wire(events, framing))
    return Plan(
        events,
        framing,
        end=rng.choices(("clean", "fin", "reset", "garbage"), (60, 15, 15, 10))[0],
        cut_at=rng.randrange(wire),
        piece=rng.choice((1 << 20, 4096, 700, 61)),
        pause_s=rng.choice((0.0, 0.0, 0.001)),
        leaves_after=rng.randrange(1, 2000) if rng.random() < 0.2 else None,
        close=rng.random() < 0.2,
    )


def _wire(events: list[bytes], framing: str) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    payload = b"".join(events)
    if framing == "chunked":
        return head + b"transfer-encoding: chunked\r\n\r\n" + b"".join(map(chunk, events)) + LAST
    if framing == "length":
        return head + b"content-length: %d\r\n\r\n" % len(payload) + payload
    return head + b"connection: close\r\n\r\n" + payload


async def engine(connection: Connection) -> None:
    while True:
        seen = await connection.request()
        plan = plan_of(json.loads(seen.body)["seed"])
        wire = _wire(plan.events, plan.framing)
        if plan.end != "clean":
            wire = wire[: plan.cut_at]
        for at in range(0, len(wire), plan.piece):
            await connection.send(wire[at : at + plan.piece])
            if plan.pause_s:
                await asyncio.sleep(plan.pause_s)
        if plan.end == "garbage":
            await connection.send(GARBAGE)
        if plan.end in ("reset", "garbage"):
            # What was sent is to be relayed: a reset overtakes it otherwise.
            await asyncio.sleep(0.01)
            connection.reset()
            return
        if plan.end == "fin" or plan.framing == "close" or plan.close:
            connection.fin()
            return


async def one(r: Router, seed: int) -> str:
    plan = plan_of(seed)
    async with await r.client() as c:
        c.post(b'{"model":"m","seed":%d}' % seed)
        if plan.leaves_after is not None:
            await asyncio.wait_for(c.reader.read(plan.leaves_after), 10)
            return "left"
        return await judge(c, plan)


async def judge(c: Client, plan: Plan) -> str:
    answer = await c.answer()
    if answer.status != 200:
        # Only an engine that died before a byte of its body may end in this.
        assert answer.status == 502, answer
        assert plan.end != "clean"
        return "refused"
    assert answer.complete
    body = answer.body
    if body == plan.payload:
        # The whole of it, and nothing added; what the engine did after that is nobody's business.
        return "whole"
    marker = body.rfind(b'data: {"error":')
    assert marker >= 0, "neither the whole answer nor an error"
    assert _is_relayed(body[:marker], plan), body[:marker][-80:]
    assert plan.end != "clean" or plan.framing == "close"
    error = json.loads(body[marker + 6 :])["error"]
    assert error["code"] == "stream_interrupted"
    assert await c.ended()
    return "interrupted"


def _is_relayed(relayed: bytes, plan: Plan) -> bool:
    # Up to two line ends before the error event are ours; garbage is payload where the framing says so.
    for ours in range(3):
        theirs = relayed[: len(relayed) - ours]
        if relayed[len(theirs) :].strip(b"\n"):
            return False
        for junk in range(len(GARBAGE) + 1) if plan.end == "garbage" else (0,):
            good = theirs[: len(theirs) - junk]
            if plan.payload.startswith(good) and theirs[len(good) :] == GARBAGE[:junk]:
                return True
    return False


@pytest.mark.parametrize("high_water_bytes", [1024, 256 * 1024])
async def test_what_must_hold_of_every_exchange(tmp_path: Path, high_water_bytes: int) -> None:
    limits = msgspec.structs.replace(QUICK, high_water_bytes=high_water_bytes)
    outcomes: dict[str, int] = {}
    failures: dict[int, BaseException] = {}
    async with (
        Upstream(engine) as a,
        Upstream(engine) as b,
        router(tmp_path, a.port, b.port, limits=limits, workers=2, access_log=True) as r,
    ):
        waiting = list(SEEDS)

        async def caller() -> None:
            while waiting:
                seed = waiting.pop()
                try:
                    outcome = await one(r, seed)
                except Exception as failure:
                    failures[seed] = failure
                else:
                    outcomes[outcome] = outcomes.get(outcome, 0) + 1

        await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
        assert failures == {}
        # Everybody is gone, and so is everything they held.
        await r.until(lambda: r.quiet() and r.pool.totals()["connections_open"] == 0)
        totals = r.pool.totals()
        assert totals["requests_running"] == totals["requests_held"] == 0
        assert totals["refused_internal_error"] == 0
        await r.until(lambda: len(r.heard.records) == len(SEEDS))
        assert all(worker.deaths == 0 for worker in r.pool.workers)
    # The mix was one: else this proves little.
    assert set(outcomes) == {"whole", "interrupted", "left", "refused"}
    assert min(outcomes.values()) >= 5
