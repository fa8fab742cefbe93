"""Keeping one session with the leader, for ever. Whatever a controller does, this agent stays."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from llmgw_agent.core.session import Rotation, TermGate
from llmgw_agent.core.words import Hello, Rejected, Welcome
from llmgw_agent.loops.calling import Caller
from llmgw_agent.loops.session import Session, SessionOver
from llmgw_agent.loops.view import SessionInfo, View
from llmgw_agent.loops.waiting import limited
from llmgw_agent.ports import Dial
from llmgw_kit.clock import Clock
from llmgw_kit.lifecycle import cancel_all

log = logging.getLogger(__name__)

#: From Hello to Welcome.
WELCOME_S = 10.0


class Connection:
    """`hello` says what is observed at that moment; `remember_term` keeps the highest over restarts."""

    def __init__(
        self, dial: Dial, rotation: Rotation, gate: TermGate, hello: Callable[[int | None], Hello],
        view: View, clock: Clock, chance: Callable[[], float], remember_term: Callable[[int], None],
        beat_changed: Callable[[float], None],
    ) -> None:  # fmt: skip
        self._dial, self._rotation, self._gate, self._hello = dial, rotation, gate, hello
        self._view, self._clock, self._remember_term = view, clock, remember_term
        self._beat_changed = beat_changed
        self._caller = Caller(self._try, rotation, clock, chance)

    async def run(self) -> None:
        """Never returns."""
        session: Session | None = None
        pause_s = 0.0
        while True:
            if session is None:
                session = self._welcomed(await self._caller.until_welcomed(pause_s=pause_s))
            session, pause_s = await self._keep(session)

    async def _keep(self, session: Session) -> tuple[Session | None, float]:
        """Run a session. Its successor where the controller asked us to move, or fell silent while another
        leads; else None, and how long to wait."""
        running = asyncio.create_task(session.run(), name="session")
        try:
            while True:
                await _first(running, session.moved.wait(), session.pulse.silent.wait())
                if running.done():
                    self._view.set_session(None)
                    return None, self._pause_s(session, running)
                if session.moved.is_set():
                    log.info("controller %s asks to move on", session.welcome.leader_name)
                    self._rotation.redirect(session.move_to, now=self._clock.monotonic_s())
                    # The old stream goes on reporting until the new one stands.
                    call = self._caller.until_welcomed(pause_s=self._caller.spread_s())
                    return self._welcomed(await call), 0.0
                if (other := await self._elsewhere(session, running)) is not None:
                    return other, 0.0
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _elsewhere(self, session: Session, running: "asyncio.Task[None]") -> Session | None:
        """Ask the others while the leader is silent; None: it is back, or its stream has ended."""
        log.warning("controller %s is silent; asking the others", session.welcome.leader_name)
        self._rotation.failed(session.address, now=self._clock.monotonic_s())
        call = self._caller.until_welcomed(pause_s=self._caller.spread_s())
        calling = asyncio.create_task(call, name="elsewhere")
        try:
            await _first(running, calling, session.pulse.back.wait())
            if calling.done():
                return self._welcomed(calling.result())
            return None
        finally:
            if not calling.done():
                await cancel_all(calling)

    def _pause_s(self, session: Session, running: "asyncio.Task[None]") -> float:
        try:
            running.result()
        except SessionOver as e:
            return self._caller.after_session(session.address, e)
        raise AssertionError("a session ended without a reason")

    async def _try(self, address: str) -> Session:
        """One call. Raises LlmgwError or SessionOver."""
        stream = await self._dial(address)
        try:
            hello = self._hello(self._gate.highest)
            await stream.say(None, hello)
            try:
                heard = await limited(stream.hear(), self._clock, WELCOME_S)
            except TimeoutError:
                raise SessionOver(f"no welcome within {WELCOME_S:g} s", code="silent") from None
            if heard is None:
                raise SessionOver("the controller ended the stream before a welcome")
            if isinstance(heard.word, Rejected):
                raise SessionOver(heard.word.text, code=heard.word.code, leader=heard.word.leader_address)
            if not self._gate.admits(heard.term):
                raise SessionOver(
                    f"an old leader: its term is {heard.term}, and term {self._gate.highest} was seen",
                    code="stale_term",
                )
            if not isinstance(heard.word, Welcome):
                raise SessionOver(
                    f"it began with {type(heard.word).__name__} instead of a welcome", code="odd"
                )
        except BaseException:
            await stream.close()
            raise
        return Session(address, stream, heard.term, heard.word, hello, self._view, self._clock)

    def _welcomed(self, session: Session) -> Session:
        welcome = session.welcome
        if session.term != self._gate.highest:
            self._gate = self._gate.after(session.term)
            self._remember_term(session.term)
        self._caller.welcomed()
        self._rotation.answered(session.address)
        self._rotation.learn(welcome.controllers)
        self._beat_changed(welcome.beat_interval_s)
        self._view.set_session(
            SessionInfo(
                session.address,
                welcome.leader_name,
                session.term,
                welcome.session_epoch,
                self._clock.unix_s(),
            )
        )
        log.info(
            "session %d with %s at %s, term %d",
            welcome.session_epoch,
            welcome.leader_name,
            session.address,
            session.term,
        )
        return session


async def _first(*waits: Awaitable[object]) -> None:
    """Until one of them is done. Tasks among them go on; what was no task is given up."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_all(*(task for task, one in zip(tasks, waits, strict=True) if task is not one))
