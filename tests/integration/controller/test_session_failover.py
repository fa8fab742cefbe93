"""The agents' own code against two real controllers: how soon their sessions follow a change of leader."""

import asyncio
import random
import signal
import time
from collections.abc import Callable

import pytest

from llmgw_agent.adapters.stream import dial
from llmgw_agent.core.session import Rotation, TermGate
from llmgw_agent.core.words import Hello
from llmgw_agent.loops.connection import Connection
from llmgw_controller.serving import ANNOUNCE_S
from llmgw_kit.clock import SystemClock
from tests.integration.agent.test_agent_loops import FakeView

from .controller_bench import Controllers, until
from .test_leadership_races import QUICK, SLACK_S, TTL_S, WITHIN_S

AGENTS = 40


class Engineless:
    """A node that runs nothing, whatever it is told."""

    def apply(self, desired: object) -> None:
        return


class View(FakeView):
    node = Engineless()


def agent(number: int, address: str, view: View) -> Connection:
    hello: Callable[[int | None], Hello] = lambda highest: Hello(  # noqa: E731
        f"n{number}", "b", f"i{number}", "0", highest, view.inventory, (), ()
    )
    return Connection(
        dial, Rotation([address]), TermGate(), hello,
        view,  # type: ignore[arg-type]  # a view with no engines behind it
        SystemClock(), random.Random(number).random, lambda _: None, lambda _: None,
    )  # fmt: skip


@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_sessions_follow_a_new_leader_within_ttl_and_two_seconds(
    controllers: Controllers, migrated_dsn: str, how: signal.Signals
) -> None:
    """Case 8. Agents know the first controller only; the second they learn of from its welcome."""
    leader = await controllers.start(dsn=migrated_dsn, models=[], **QUICK).until_leading()
    standby = await controllers.start(dsn=migrated_dsn, models=[], **QUICK).until_ready()
    views = [View() for _ in range(AGENTS)]

    await asyncio.sleep(ANNOUNCE_S + 1)  # then the leader has seen the other's announcement
    tasks = [
        asyncio.create_task(agent(number, str(leader.address), view).run())
        for number, view in enumerate(views)
    ]
    try:
        await until("all have sessions", lambda: all(view.session for view in views))
        old = {view.session.term for view in views if view.session}
        assert len(old) == 1
        await asyncio.sleep(1.5)  # a few beats
        leader.child.send_signal(how)
        gone_at = time.monotonic()
        followed: dict[int, float] = {}
        led_after: float | None = None
        while len(followed) < AGENTS:
            now = time.monotonic() - gone_at
            assert now < TTL_S + WITHIN_S + 15, f"{AGENTS - len(followed)} agents have no session"
            for number, view in enumerate(views):
                if number not in followed and view.session and view.session.term not in old:
                    followed[number] = now
                    led_after = led_after or now
            await asyncio.sleep(0.02)
        last = max(followed.values())
        print(
            f"\n{AGENTS} agents, leader {how.name}: first session of the new leader after {led_after:.2f} s, "
            f"last after {last:.2f} s (ttl {TTL_S:g} s)"
        )
        assert last <= TTL_S + WITHIN_S + SLACK_S
        assert {view.session.address for view in views if view.session} == {str(standby.address)}
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if how is signal.SIGSTOP:
            leader.child.resume()
