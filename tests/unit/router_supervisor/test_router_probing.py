"""Health checks: who is asked, that every worker hears of it, and that nothing is suspected for ever."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from llmgw_kit.testing.clock import FakeClock
from llmgw_router.core.choosing.decision import Decision
from llmgw_router.core.learned import Routes
from llmgw_router.core.table import EndpointRow
from llmgw_router.probing import keep_probing
from llmgw_router.supervisor.choices import Choices


def row(name: str) -> EndpointRow:
    return EndpointRow(endpoint_id=name, replica_id=name, group_epoch=1, model="m", host="h", port=1)


@dataclass
class Pool:
    suspects: frozenset[str] = frozenset()
    probe_s: float | None = 2.0
    heard: list[tuple[list[str], list[str]]] = field(default_factory=list)

    def probed(self, alive: Iterable[str], dead: Iterable[str]) -> None:
        self.heard.append((list(alive), list(dead)))


@dataclass
class Probe:
    up: set[str] = field(default_factory=set)
    asked: list[list[str]] = field(default_factory=list)

    async def alive(self, endpoints: Sequence[EndpointRow]) -> frozenset[str]:
        self.asked.append([one.endpoint_id for one in endpoints])
        return frozenset(self.up & {one.endpoint_id for one in endpoints})


@dataclass
class Board:
    routes: Routes


async def test_only_suspects_in_the_table_of_the_moment_are_asked_ho12(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool, probe, clock = Pool(), Probe(), FakeClock()
    board = Board(Routes(endpoints={name: row(name) for name in "ab"}))
    caplog.set_level("INFO")
    task = asyncio.ensure_future(keep_probing(pool, cast(Any, board), probe, clock))
    await clock.advance(2.0)
    assert probe.asked == [], "nobody is suspected"
    pool.suspects = frozenset(("a", "gone"))
    await clock.advance(2.0)
    assert (probe.asked, pool.heard) == ([["a"]], [([], ["a"])])
    # A reload: the new one is asked as well, and the old one still is.
    board.routes = Routes(endpoints={name: row(name) for name in "abc"})
    pool.suspects = frozenset("ac")
    probe.up = {"a"}
    await clock.advance(2.0)
    assert probe.asked[-1] == ["a", "c"]
    assert pool.heard[-1] == (["a"], ["c"])
    assert [record.getMessage() for record in caplog.records] == [
        "endpoint a does not answer its health check",
        "endpoint c does not answer its health check",
        "endpoint a answers its health check again",
    ]
    # Switched off while it runs, and on again.
    pool.probe_s = None
    await clock.advance(60.0)
    assert len(probe.asked) == 2
    pool.probe_s = 1.0
    await clock.advance(7.0)
    assert len(probe.asked) >= 3
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_worker_that_is_gone_suspects_nobody() -> None:
    choices = Choices(2)
    choices.suspected(0, ["a", "b"])
    choices.suspected(1, ["b", "c"])
    assert choices.suspects == {"a", "b", "c"}
    choices.suspected(0, ["b"])
    choices.gone(1)
    choices.gone(7)
    assert choices.suspects == {"b"}


def test_only_the_newest_decisions_are_kept() -> None:
    choices = Choices(2)
    made = [Decision(str(n), "m", "e", "load", 1, None, None, 0, ()) for n in range(5)]
    choices.told(made[:3])
    choices.told(made[3:])
    assert list(choices.decisions) == made[3:]
    choices.keep(1)
    assert list(choices.decisions) == made[4:]
