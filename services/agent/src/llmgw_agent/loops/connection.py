"""Keeping one session with the leader, for ever. Whatever a controller does, this agent stays."""

import asyncio
import logging
from collections.abc import Callable

from llmgw_agent.core.session import Rotation, TermGate, backoff_s
from llmgw_agent.core.words import Hello, Rejected, Welcome
from llmgw_agent.loops.session import Session, SessionOver
from llmgw_agent.loops.view import SessionInfo, View
from llmgw_agent.loops.waiting import limited
from llmgw_agent.ports import Dial
from llmgw_kit.clock import Clock
from llmgw_kit.errors import LlmgwError

log = logging.getLogger(__name__)

#: From Hello to Welcome.
WELCOME_S = 10.0
#: Another agent speaks for this node. Coming back at once would only throw that one out in turn.
FENCED_WAIT_S = 30.0


class Connection:
    """`hello` says what is observed at that moment; `remember_term` keeps the highest over restarts."""

    def __init__(
        self, dial: Dial, rotation: Rotation, gate: TermGate, hello: Callable[[int | None], Hello],
        view: View, clock: Clock, chance: Callable[[], float], remember_term: Callable[[int], None],
        beat_changed: Callable[[float], None],
    ) -> None:  # fmt: skip
        self._dial, self._rotation, self._gate, self._hello = dial, rotation, gate, hello
        self._view, self._clock, self._chance, self._remember_term = view, clock, chance, remember_term
        self._beat_changed = beat_changed
        self._failures = 0

    async def run(self) -> None:
        """Never returns."""
        session: Session | None = None
        while True:
            if session is None:
                session = await self._open()
            session = await self._keep(session)

    async def _keep(self, session: Session) -> Session | None:
        """Run a session; returns its successor when the controller asked us to move, else None."""
        running = asyncio.create_task(session.run(), name="session")
        moved = asyncio.create_task(session.moved.wait())
        try:
            await asyncio.wait({running, moved}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                log.info("controller %s asks to move on", session.welcome.leader_name)
                self._rotation.redirect(session.move_to)
                # The old stream goes on reporting until the new one stands.
                return await self._open()
            self._view.set_session(None)
            await self._over(running)
            return None
        finally:
            moved.cancel()
            running.cancel()
            await asyncio.gather(moved, running, return_exceptions=True)

    async def _over(self, running: "asyncio.Task[None]") -> None:
        try:
            running.result()
        except SessionOver as e:
            log.warning("session over: %s", e)
            if not await self._redirected(e):
                await self._wait(f"session over ({e.code})")

    async def _redirected(self, over: SessionOver) -> bool:
        """True: call again at once."""
        if over.code == "fenced":
            log.error("another agent speaks for this node id; is it running twice? Engines stay untouched")
            await self._clock.sleep(FENCED_WAIT_S)
            return True
        return over.leader is not None and self._rotation.redirect(over.leader)

    async def _open(self) -> Session:
        """Call controllers until one welcomes us."""
        while True:
            address = self._rotation.take()
            try:
                return await self._try(address)
            except SessionOver as e:
                if not await self._redirected(e):
                    await self._wait(f"{address}: {e}")
            except LlmgwError as e:
                leader = getattr(e, "leader_address", None)
                if leader is None or not self._rotation.redirect(leader):
                    await self._wait(f"{address}: {e.text}")

    async def _wait(self, why: str) -> None:
        self._failures += 1
        pause_s = backoff_s(self._failures, self._chance())
        # The first failures of a failover are ordinary; a long silence is worth a louder word.
        level = logging.INFO if self._failures < 5 else logging.WARNING
        log.log(level, "no controller: %s; again in %.1f s; engines go on", why, pause_s)
        await self._clock.sleep(pause_s)

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
        return self._welcomed(
            address, Session(stream, heard.term, heard.word, hello, self._view, self._clock)
        )

    def _welcomed(self, address: str, session: Session) -> Session:
        welcome = session.welcome
        if session.term != self._gate.highest:
            self._gate = self._gate.after(session.term)
            self._remember_term(session.term)
        self._failures = 0
        self._rotation.welcomed()
        self._rotation.learn(welcome.controllers)
        self._beat_changed(welcome.beat_interval_s)
        self._view.set_session(
            SessionInfo(
                address, welcome.leader_name, session.term, welcome.session_epoch, self._clock.unix_s()
            )
        )
        log.info(
            "session %d with %s at %s, term %d",
            welcome.session_epoch,
            welcome.leader_name,
            address,
            session.term,
        )
        return session
