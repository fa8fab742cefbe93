"""Following the leading controller: found, listened to, doubted when it falls silent, and left.

Nothing here forgets an endpoint because a controller is gone; routing goes on with what is known.
"""

import asyncio
import contextlib
import logging

from llmgw_kit.addresses import HostPort, parse_host_port
from llmgw_kit.clock import Clock
from llmgw_kit.errors import InvalidRequest, LlmgwError, NotLeader, Unavailable
from llmgw_kit.lifecycle import cancel_all
from llmgw_router.board import Board, Source
from llmgw_router.core.learned import Delta, Gap, Routes, Snapshot, StaleTerm, follow
from llmgw_router.core.rotation import Rotation
from llmgw_router.core.words import counted
from llmgw_router.ports import Controllers, MoveOn, Session

log = logging.getLogger(__name__)

#: A controller that accepts a stream and says nothing is no leader.
FIRST_MESSAGE_S = 5.0
BACKOFF_FIRST_S = 0.2
#: Part of the failover time that a router adds; a failed look costs a controller next to nothing.
BACKOFF_MOST_S = 1.0
PING_EVERY_S = 3.0
#: One lost answer is a hiccup.
MISSED_PINGS = 2


class LeaderFollower:
    """Finds the leader, keeps a route stream to it, and lends the session to who calls the leader."""

    def __init__(
        self, controllers: Controllers, addresses: tuple[HostPort, ...], board: Board, clock: Clock
    ) -> None:
        self._controllers = controllers
        self._rotation = Rotation(addresses=addresses)
        self._board = board
        self._clock = clock
        #: Everything heard or kept; what a change must follow.
        self._known = Routes()
        self._session: Session | None = None
        self._last_leader: HostPort | None = None
        self._has_session = asyncio.Event()
        self._told: str | None = None
        #: Ends the present stream when an exception is put in; None: no stream.
        self._doubt: asyncio.Future[None] | None = None

    @property
    def leader(self) -> HostPort | None:
        """Whom this router follows now; None: nobody."""
        return self._session.address if self._session is not None else None

    async def goodbye(self, *, activity_lost: bool) -> None:
        """Tell the leader that this router leaves, and whether its last activity reached nobody. After `run`
        was cancelled: a route stream opened later would make it a member again."""
        address = self._last_leader
        if address is None:
            return
        for _ in range(2):
            session = self._controllers.open(address)
            try:
                await session.goodbye(activity_lost=activity_lost)
                return
            except NotLeader as e:
                moved = _address(e.leader_address)
                if moved is None or moved == address:
                    log.warning("nobody leads to take the goodbye; this router will be missed: %s", e.text)
                    return
                address = moved
            except LlmgwError as e:
                log.warning("the goodbye did not arrive, so this router will be missed: %s", e.text)
                return
            finally:
                await session.close()

    def recall(self, kept: Routes) -> None:
        """Begin from kept routes: their term is the lowest that will be believed."""
        self._known = kept

    async def session(self) -> Session:
        """The leader's session, as soon as there is one."""
        while self._session is None:
            await self._has_session.wait()
        return self._session

    async def run(self) -> None:
        """For ever."""
        wait_s = BACKOFF_FIRST_S
        while True:
            session = self._controllers.open(self._rotation.current)
            pause, heard = True, False
            try:
                await self._follow(session)
            except NotLeader as e:
                hints = self._rotation.hints_followed
                self._rotation = self._rotation.pointed(_address(e.leader_address))
                pause = self._rotation.hints_followed <= hints
                if pause:
                    self._tell(f"{session.address} stands by: {e.text}")
                else:
                    log.info("controller %s stands by for %s", session.address, self._rotation.current)
            except _MovedOn as e:
                log.info("controller %s is stopping", session.address)
                self._rotation = self._rotation.pointed(e.leader)
            except Gap as e:
                log.info("controller %s: %s; asking for a snapshot", session.address, e)
            except StaleTerm as e:
                self._tell(f"{session.address}: {e}")
                self._rotation = self._rotation.failed()
            except LlmgwError as e:
                self._tell("; ".join(e.lines()))
                self._rotation = self._rotation.failed()
            finally:
                heard = self._session is session
                self._session = None
                self._has_session.clear()
                await session.close()
            if heard:
                wait_s = BACKOFF_FIRST_S
            if pause:
                await self._clock.sleep(wait_s)
                wait_s = min(wait_s * 2, BACKOFF_MOST_S)

    def doubt(self, session: Session, error: LlmgwError) -> None:
        """Another call to this session was told that it does not lead: look for the leader anew."""
        if session is self._session and self._doubt is not None and not self._doubt.done():
            self._doubt.set_exception(error)

    async def _follow(self, session: Session) -> None:
        """Until the stream ends, the controller falls silent, or is doubted; always raises."""
        doubt = self._doubt = asyncio.get_running_loop().create_future()
        consuming = asyncio.create_task(self._consume(session), name=f"routes of {session.address}")
        try:
            await asyncio.wait({consuming, doubt}, return_when=asyncio.FIRST_COMPLETED)
            if doubt.done():
                doubt.result()
            await consuming
        finally:
            self._doubt = None
            doubt.cancel()
            consuming.cancel()
            # Its error, if it has one too, is no news beside the one that ended this.
            await asyncio.gather(consuming, return_exceptions=True)

    async def _consume(self, session: Session) -> None:
        companions: list[asyncio.Task[None]] = []
        async with contextlib.aclosing(session.watch(highest_term=self._known.term)) as messages:
            try:
                while True:
                    try:
                        async with asyncio.timeout(None if companions else FIRST_MESSAGE_S):
                            message = await anext(messages)
                    except TimeoutError:
                        raise Unavailable(
                            f"{session.address} sent no routes in {FIRST_MESSAGE_S:g} s"
                        ) from None
                    if isinstance(message, MoveOn):
                        raise _MovedOn(message.leader)
                    self._take(message, first=not companions)
                    if not companions:
                        self._lead_found(session)
                        companions = [
                            asyncio.create_task(self._acknowledge(session), name="acknowledge"),
                            asyncio.create_task(self._ping(session), name="ping controller"),
                        ]
            finally:
                await cancel_all(*companions)

    async def _ping(self, session: Session) -> None:
        # A route stream is silent while nothing changes, and a frozen controller keeps its connections:
        # without a question of our own, the standby that took over would be found half a minute late.
        missed = 0
        while True:
            await self._clock.sleep(PING_EVERY_S)
            try:
                await session.ping()
                missed = 0
            except LlmgwError as e:
                missed += 1
                if missed >= MISSED_PINGS:
                    self.doubt(session, e)
                    return

    def _take(self, message: Snapshot | Delta, *, first: bool) -> None:
        if first and not isinstance(message, Snapshot):
            raise Gap("the stream began without a snapshot")
        self._known = follow(self._known, message)
        self._board.publish(self._known, Source.CONTROLLER)

    def _lead_found(self, session: Session) -> None:
        self._rotation = self._rotation.leads()
        self._session = session
        self._last_leader = session.address
        self._has_session.set()
        self._told = None
        log.info(
            "following controller %s: term %s, version %s, %s, %s",
            session.address,
            self._known.term,
            self._known.version,
            counted(len(self._known.endpoints), "endpoint"),
            counted(len(self._known.models), "model"),
        )

    async def _acknowledge(self, session: Session) -> None:
        wait_s = BACKOFF_FIRST_S
        while True:
            try:
                await session.acknowledge(self._board.acknowledgements())
                reason = "the call ended"
            except LlmgwError as e:
                reason = e.text
                if isinstance(e, NotLeader):
                    self.doubt(session, e)
            log.debug("acknowledgements to %s: %s; again in %.1f s", session.address, reason, wait_s)
            await self._clock.sleep(wait_s)
            wait_s = min(wait_s * 2, BACKOFF_MOST_S)

    def _tell(self, text: str) -> None:
        # The same trouble again is not news; while it lasts there is an attempt each second.
        if text != self._told:
            self._told = text
            log.warning("no leading controller: %s. Routing goes on with what is known", text)


class _MovedOn(Exception):
    def __init__(self, leader: HostPort | None) -> None:
        super().__init__("move on")
        self.leader = leader


def _address(text: str | None) -> HostPort | None:
    if not text:
        return None
    try:
        return parse_host_port(text, what="leader address")
    except InvalidRequest:
        # A hint that cannot be read is no hint: the list is gone through.
        return None
