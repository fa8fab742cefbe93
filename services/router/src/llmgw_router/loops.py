"""The supervisor's loops: follow the leading controller, keep its word on disk, note activity.

Each observes, decides by core, acts, and goes on; none of them stands between a client and an engine.
"""

import asyncio
import contextlib
import logging
from dataclasses import replace

from llmgw_kit.addresses import HostPort, parse_host_port
from llmgw_kit.clock import Clock
from llmgw_kit.errors import InvalidRequest, LlmgwError, NotLeader, Unavailable
from llmgw_router.board import Board, Source
from llmgw_router.core.learned import Delta, Gap, Routes, Snapshot, StaleTerm, follow, only_alive
from llmgw_router.core.rotation import Rotation
from llmgw_router.ports import Controllers, MoveOn, Probe, RoutesStore, Session

log = logging.getLogger(__name__)

#: A controller that accepts a stream and says nothing is no leader.
FIRST_MESSAGE_S = 5.0
BACKOFF_FIRST_S = 0.2
#: Part of the failover time that a router adds; a failed look costs a controller next to nothing.
BACKOFF_MOST_S = 1.0
#: At most one write of the kept routes in so long.
KEEP_EVERY_S = 1.0
#: Kept endpoints are asked again this often while no controller is heard.
REPROBE_S = 5.0


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
        self._has_session = asyncio.Event()
        self._told: str | None = None

    @property
    def leader(self) -> HostPort | None:
        """Whom this router follows now; None: nobody."""
        return self._session.address if self._session is not None else None

    @property
    def current(self) -> Session | None:
        """The leader's session, if there is one now."""
        return self._session

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
                self._tell(f"{session.address}: {e}; asking for a snapshot")
            except (LlmgwError, StaleTerm) as e:
                self._tell(f"{session.address}: {e}")
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

    async def _follow(self, session: Session) -> None:
        acknowledging: asyncio.Task[None] | None = None
        async with contextlib.aclosing(session.watch(highest_term=self._known.term)) as messages:
            try:
                while True:
                    try:
                        async with asyncio.timeout(FIRST_MESSAGE_S if acknowledging is None else None):
                            message = await anext(messages)
                    except TimeoutError:
                        raise Unavailable(f"no routes within {FIRST_MESSAGE_S:g} s") from None
                    if isinstance(message, MoveOn):
                        raise _MovedOn(message.leader)
                    self._take(message, first=acknowledging is None)
                    if acknowledging is None:
                        self._lead_found(session)
                        acknowledging = asyncio.create_task(self._acknowledge(session), name="acknowledge")
            finally:
                if acknowledging is not None:
                    acknowledging.cancel()
                    await asyncio.wait([acknowledging])

    def _take(self, message: Snapshot | Delta, *, first: bool) -> None:
        if first and not isinstance(message, Snapshot):
            raise Gap("the stream began without a snapshot")
        self._known = follow(self._known, message)
        self._board.publish(self._known, Source.CONTROLLER)

    def _lead_found(self, session: Session) -> None:
        self._rotation = self._rotation.leads()
        self._session = session
        self._has_session.set()
        self._told = None
        log.info(
            "following controller %s: term %s, version %s, %d endpoints, %d models",
            session.address,
            self._known.term,
            self._known.version,
            len(self._known.endpoints),
            len(self._known.models),
        )

    async def _acknowledge(self, session: Session) -> None:
        wait_s = BACKOFF_FIRST_S
        while True:
            try:
                await session.acknowledge(self._board.acknowledgements())
                reason = "the call ended"
            except LlmgwError as e:
                reason = e.text
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


async def keep_routes(board: Board, store: RoutesStore, clock: Clock) -> None:
    """Write what a controller said to disk, soon after it said so. For ever."""
    async for routes in board.published():
        if board.controller_heard():
            try:
                await asyncio.to_thread(store.save, routes)
            except OSError as e:
                log.error("routes cannot be kept: %s; a restart without a controller would have none", e)
        await clock.sleep(KEEP_EVERY_S)


async def use_kept_routes(kept: Routes, board: Board, probe: Probe, clock: Clock) -> None:
    """Route by kept endpoints that answer, until a controller is heard; then return."""
    rows = list(kept.endpoints.values())
    used: frozenset[str] | None = None
    while not board.controller_heard():
        alive = await probe.alive(rows)
        if board.controller_heard():
            return
        if alive != used:
            used = alive
            log.warning(
                "no controller heard: using routes kept of term %s, version %s; %d of %d endpoints answer",
                kept.term,
                kept.version,
                len(alive),
                len(rows),
            )
            # What the fleet looked like is not kept as news: its age would be a lie.
            board.publish(replace(only_alive(kept, alive), fleet=None), Source.KEPT)
        await clock.sleep(REPROBE_S)
