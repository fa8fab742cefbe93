"""Processes on the seats of a pool: started, succeeded when they die, and ended.

A worker that dies takes nothing along but the connections it held: its listening socket stays open here, so
that what queues there meanwhile is served by its successor. One that dies again and again loses the socket
until the next try, because the others should get those connections then.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from llmgw_router.relay import ipc
from llmgw_router.supervisor.leaving import Leaving
from llmgw_router.supervisor.link import WorkerProcess
from llmgw_router.supervisor.ports import Address, Reservation, address_of, listen_beside, reserve
from llmgw_router.supervisor.seat import Seat

logger = logging.getLogger(__name__)

#: A life this long forgives the deaths before it.
_SETTLED_S = 30.0
_BACKOFF_FIRST_S = 0.1
_BACKOFF_MOST_S = 5.0
#: From here on a dead worker's socket is closed until it is back.
_DEATHS_KEEPING_SOCKET = 1


class Lives:
    """`welcome` gives what a new worker is told, in this order; `heard` gets what it says; `gone` is told of
    its end, and returns how many requests went with it."""

    def __init__(
        self,
        seats: Sequence[Seat],
        *,
        slots_fd: int,
        backlog: int,
        monotonic: Callable[[], float],
        welcome: Callable[[Seat], Iterable[ipc.Down]],
        heard: Callable[[Seat, ipc.Up], None],
        gone: Callable[[Seat], int],
    ) -> None:
        self._seats = seats
        self._slots_fd = slots_fd
        self._backlog = backlog
        self._monotonic = monotonic
        self._welcome = welcome
        self._heard = heard
        self._gone = gone
        self._reserved: Reservation | None = None
        self._leaving = Leaving()
        self._stopping = False

    @property
    def addresses(self) -> list[Address]:
        """Where clients connect; the real ports when 0 was asked for. Empty where nothing is reserved."""
        return [address_of(sock) for sock in self._reserved.sockets] if self._reserved else []

    def reserve(self, host: str, port: int) -> None:
        """Take the client port. Raises PortTaken."""
        self._reserved = reserve(host, port)

    async def begin(self) -> None:
        """Start a process on every seat."""
        for seat in self._seats:
            await self._spawn(seat)

    async def end(self, word: ipc.Down, *, within_s: float) -> None:
        """Tell all of them to go with `word`; who has not within the time is killed."""
        self._stopping = True
        # Our copies first: a socket that still listens here would go on filling a queue nobody serves.
        for seat in self._seats:
            _close_listeners(seat)
            if seat.respawn is not None:
                seat.respawn.cancel()
            if seat.process is not None:
                seat.process.send(word)
        processes = [seat.process for seat in self._seats if seat.process is not None]
        await self._leaving.wait(processes, within_s)
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def hasten(self, word: ipc.Down, *, within_s: float) -> None:
        """Bring an end that has begun nearer; begins none."""
        if self._stopping:
            for seat in self._seats:
                if seat.process is not None:
                    seat.process.send(word)
            self._leaving.within(within_s)

    def kill(self) -> None:
        """SIGKILL all of them, waiting for nothing."""
        self._stopping = True
        for seat in self._seats:
            if seat.process is not None:
                seat.process.kill()

    async def _spawn(self, seat: Seat) -> None:
        if not seat.listeners:
            assert self._reserved is not None
            seat.listeners = [listen_beside(sock, backlog=self._backlog) for sock in self._reserved.sockets]
        seat.serving.clear()
        seat.spawned_at = self._monotonic()
        seat.process = await WorkerProcess.spawn(
            slots_fd=self._slots_fd,
            listeners=seat.listeners,
            on_message=lambda message: self._heard(seat, message),
            on_exit=lambda returncode: self._exited(seat, returncode),
        )
        for message in self._welcome(seat):
            seat.process.send(message)

    def _exited(self, seat: Seat, returncode: int) -> None:
        pid = seat.process.pid if seat.process else None
        seat.process = None
        seat.serving.clear()
        lost = self._gone(seat)
        if self._stopping:
            return
        seat.deaths += 1
        lived_s = self._monotonic() - seat.spawned_at
        seat.recent_deaths = 1 if lived_s >= _SETTLED_S else seat.recent_deaths + 1
        delay_s = min(_BACKOFF_MOST_S, _BACKOFF_FIRST_S * 2.0 ** (seat.recent_deaths - 1))
        if seat.recent_deaths > _DEATHS_KEEPING_SOCKET:
            _close_listeners(seat)
        logger.error(
            "relay worker %d (pid %s) ended with %d after %.1f s, %d requests lost; next one in %.1f s",
            seat.worker,
            pid,
            returncode,
            lived_s,
            lost,
            delay_s,
        )
        seat.respawn = asyncio.get_running_loop().create_task(self._respawn(seat, delay_s))

    async def _respawn(self, seat: Seat, delay_s: float) -> None:
        while True:
            await asyncio.sleep(delay_s)
            try:
                await self._spawn(seat)
            except OSError as error:
                # Out of descriptors or processes: as likely to pass as a crash is.
                delay_s = _BACKOFF_MOST_S
                logger.error(
                    "relay worker %d cannot be started: %s; next try in %.1f s", seat.worker, error, delay_s
                )
            else:
                return


def _close_listeners(seat: Seat) -> None:
    for sock in seat.listeners:
        sock.close()
    seat.listeners = []
