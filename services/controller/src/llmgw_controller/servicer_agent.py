"""AgentService: one stream a node, from Hello to its end."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from llmgw.v1 import agent_pb2 as pb
from llmgw.v1 import agent_pb2_grpc
from llmgw_controller import wire_agent
from llmgw_controller.fleet import Session
from llmgw_controller.office import Office
from llmgw_controller.ports import Fenced
from llmgw_controller.reign import Reign
from llmgw_kit.errors import InvalidRequest, LlmgwError, Unavailable
from llmgw_kit.lifecycle import cancel_all

log = logging.getLogger(__name__)

#: A stream on which nobody says who they are is closed.
HELLO_TIMEOUT_S = 10.0


class AgentServicer(agent_pb2_grpc.AgentServiceServicer):
    """Leader-only: a standby that held an agent's stream would hold a node the leader cannot command."""

    def __init__(self, office: Office, *, hello_timeout_s: float = HELLO_TIMEOUT_S) -> None:
        self._office = office
        self._hello_timeout_s = hello_timeout_s

    async def Connect(
        self, request_iterator: AsyncIterator[pb.ConnectRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ConnectResponse]:
        """Hello, Welcome, Desired, then both ways until one side ends it."""
        reign = self._office.require()
        hello = wire_agent.hello(await self._first(request_iterator))
        term = reign.tenure.term
        if hello.highest_term_seen is not None and hello.highest_term_seen > term:
            self._office.leadership.seen(hello.highest_term_seen)
            yield _reject(term, "stale_term", f"term {hello.highest_term_seen} was seen, this is term {term}")
            return
        try:
            session = await reign.fleet.open(hello)
        except Fenced:
            raise self._office.not_leading() from None
        log.info("%s connected, session %d, %d shards", session.node_id, session.epoch, len(hello.shards))
        reading = asyncio.create_task(
            self._read(reign, session, request_iterator), name=f"words of {session.node_id}"
        )
        beating = asyncio.create_task(self._beat(reign, session), name=f"beat to {session.node_id}")
        try:
            yield self._welcome(reign, session)
            async for message in session.outbox.messages():
                yield message
        finally:
            reign.fleet.closed(session)
            await cancel_all(reading, beating)
            log.info("%s disconnected, session %d", session.node_id, session.epoch)

    async def _beat(self, reign: Reign, session: Session) -> None:
        """So that an agent can tell a leader that is frozen, or cut off, from one with nothing to say. Each
        session has its own phase, and beats pile up on no stream that is not read."""
        for sequence in itertools.count(1):
            await reign.world.clock.sleep(reign.rules.beat_interval_s)
            if reign.tenure.may_act() and not session.outbox.waiting:
                message = pb.ConnectResponse(term=reign.tenure.term, beat=pb.Beat(sequence=sequence))
                session.outbox.notice(message)

    async def _first(self, requests: AsyncIterator[pb.ConnectRequest]) -> pb.Hello:
        try:
            async with asyncio.timeout(self._hello_timeout_s):
                message = await anext(requests)
        except TimeoutError:
            raise InvalidRequest(f"no Hello within {self._hello_timeout_s:g} s", code="no_hello") from None
        except StopAsyncIteration:
            raise InvalidRequest("the stream ended before its Hello", code="no_hello") from None
        if message.WhichOneof("body") != "hello":
            raise InvalidRequest(
                f"the first message is {message.WhichOneof('body')}, not hello", code="no_hello"
            )
        return message.hello

    def _welcome(self, reign: Reign, session: Session) -> pb.ConnectResponse:
        return pb.ConnectResponse(
            term=reign.tenure.term,
            welcome=pb.Welcome(
                session_epoch=session.epoch,
                beat_interval_s=reign.rules.beat_interval_s,
                leader_name=reign.name,
                controllers=[one.address for one in reign.world.controllers()],
            ),
        )

    async def _read(self, reign: Reign, session: Session, requests: AsyncIterator[pb.ConnectRequest]) -> None:
        """Until the agent ends its side; a message that makes no sense ends the session with a word."""
        last = None
        try:
            async for message in requests:
                try:
                    await reign.fleet.hear(session, message)
                except Unavailable as e:
                    # What was heard counts; what could not be written of it, the next pass writes.
                    log.warning("%s: %s; to be written later", session.node_id, e.text)
        except LlmgwError as e:
            log.warning("%s: %s; its session ends", session.node_id, e.text)
            last = _reject(reign.tenure.term, e.code, e.text)
        finally:
            session.outbox.end(last)


def _reject(term: int, code: str, text: str) -> pb.ConnectResponse:
    return pb.ConnectResponse(term=term, reject=pb.Reject(code=code, text=text))
