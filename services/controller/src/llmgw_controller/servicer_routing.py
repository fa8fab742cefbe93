"""RoutingService: what routers watch, acknowledge and ask for."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from llmgw.v1 import routing_pb2 as pb
from llmgw.v1 import routing_pb2_grpc
from llmgw_controller import wire_routing
from llmgw_controller.core.activation import NO_CAPACITY, Decision, Pending, Refused, decide
from llmgw_controller.core.plan import (
    Change,
    DropRouter,
    PutEvent,
    PutRouter,
    RaiseIdleFloor,
    Severity,
)
from llmgw_controller.core.rows import RouterRow
from llmgw_controller.core.state import EvictionPolicy
from llmgw_controller.office import Office
from llmgw_controller.ports import Fenced
from llmgw_controller.reign import Reign
from llmgw_controller.routes_board import Acknowledged
from llmgw_kit.errors import InvalidRequest, LlmgwError
from llmgw_kit.ids import RouterId

log = logging.getLogger(__name__)

#: A leader reads its rows within milliseconds; who asks just then waits for that.
READ_WAIT_S = 2.0


class RoutingServicer(routing_pb2_grpc.RoutingServiceServicer):
    """Leader-only."""

    def __init__(self, office: Office) -> None:
        self._office = office

    async def WatchRoutes(
        self, request: pb.WatchRoutesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchRoutesResponse]:
        """A snapshot, then deltas, until the term ends. Watching makes a router a member."""
        reign = self._office.require()
        router_id = _named(request.router_id, request.incarnation)
        term = reign.tenure.term
        if request.HasField("highest_term_seen") and request.highest_term_seen > term:
            self._office.leadership.seen(request.highest_term_seen)
            raise self._refused(LlmgwError(f"term {request.highest_term_seen} was seen, this is term {term}"))
        try:
            await self._join(reign, router_id, request.incarnation)
        except Fenced as e:
            raise self._refused(e) from None
        log.info("router %s watches (version %s)", router_id, request.version)
        watcher = reign.board.watch(router_id, request.incarnation)
        try:
            async for message in reign.board.messages(watcher):
                yield message
            yield self._move_on(reign)
        finally:
            reign.board.leave(watcher)
            log.info("router %s watches no longer", router_id)

    async def _join(self, reign: Reign, router_id: RouterId, incarnation: str) -> None:
        async with reign.ledger.writing() as stored:
            known = stored.routers.get(router_id)
            if known is not None and known.incarnation == incarnation:
                return
            now = reign.tenure.now()
            changes: list[Change] = [
                # Another incarnation without a goodbye between: the earlier one is proven dead now, and what
                # it picked in its last tick died with it.
                PutRouter(RouterRow(router_id, incarnation, now, crashed_at=now if known else None))
            ]
            if known is not None:
                # Its row may go before what it has lost is long ago.
                changes.append(RaiseIdleFloor(now))
            if known is None:
                changes.append(PutEvent(now, "router_joined", router_id, "watches the routes", Severity.INFO))
            elif router_id in reign.board.watching:
                text = "another router opened a stream under this id while the first was connected"
                changes.append(PutEvent(now, "router_doubled", router_id, text, Severity.TROUBLE))
            else:
                text = "came back without a goodbye: its earlier life counts as an ask"
                changes.append(PutEvent(now, "router_restarted", router_id, text, Severity.NOTE))
            await reign.ledger.commit(changes)

    def _move_on(self, reign: Reign) -> pb.WatchRoutesResponse:
        message = pb.WatchRoutesResponse(term=reign.tenure.term, version=reign.board.version)
        message.move_on.SetInParent()
        refusal = self._office.not_leading()
        if refusal.leader_address is not None:
            message.move_on.leader_address = refusal.leader_address
        return message

    async def Acknowledge(
        self,
        request_iterator: AsyncIterator[pb.AcknowledgeRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> pb.AcknowledgeResponse:
        """A router's newest word on the table, again and again. What is said of another term is dropped."""
        async for request in request_iterator:
            reign = self._office.require()
            router_id = _named(request.router_id, request.incarnation)
            if request.term != reign.tenure.term:
                continue
            word = Acknowledged(request.incarnation, request.version, frozenset(request.drained_endpoint_ids))
            if reign.board.acknowledge(router_id, word):
                reign.hints()
        return pb.AcknowledgeResponse()

    async def Activate(
        self, request: pb.ActivateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ActivateResponse]:
        """Phases until it is ready or refused. While the stream is open the model counts as asked for."""
        reign = self._office.require()
        # Before the first reading a stored model is not in the catalog: routers ask again in the moment
        # that a leader is new, and would hand "no such model" on to whoever waits.
        await reign.ledger.until_known(READ_WAIT_S)
        model = reign.ledger.catalog.resolve(request.model)
        if model is None:
            refused = Refused("model_not_found", f"{request.model} is not in the catalog", None)
            with reign.activations.demand.asking(request.model, request.waiting, reign.tenure.now) as asking:
                asking.decision = refused
                yield self._told(reign, refused)
            return
        said: pb.ActivateResponse | None = None
        with (
            reign.activations.demand.asking(model.name, request.waiting, reign.tenure.now) as asking,
            reign.activations.waiting(model.name, RouterId(request.router_id), request.waiting),
        ):
            while True:
                if self._office.reign is not reign:
                    raise self._office.not_leading()
                next_pass = reign.activations.next_pass()
                decision = decide(reign.snapshot(reign.ledger.stored), model.name, reign.tenure.now())
                if isinstance(decision, Pending) and model.name not in reign.ledger.stored.activations:
                    try:
                        await reign.activations.ask(frozenset({model.name}))
                    except Fenced:
                        raise self._office.not_leading() from None
                    reign.hints()
                if _may_get_room(reign, decision) and reign.activations.comes_again(model.name):
                    # Somebody may leave for it: no refusal before a pass has seen that it is asked for.
                    try:
                        await reign.activations.ask(frozenset({model.name}))
                    except Fenced:
                        raise self._office.not_leading() from None
                    reign.hints()
                    # The first of two may have decided on the rows before that.
                    await next_pass.wait()
                    if self._office.reign is reign:  # Of a term that is over no pass will come.
                        await reign.activations.next_pass().wait()
                    continue
                message = self._told(reign, decision)
                # Before it is told: who has heard the end may close the stream in the same moment.
                asking.decision = None if isinstance(decision, Pending) else decision
                if message != said:
                    said = message
                    yield message
                if not isinstance(decision, Pending):
                    return
                await next_pass.wait()

    def _told(self, reign: Reign, decision: Decision) -> pb.ActivateResponse:
        return wire_routing.activation(decision, term=reign.tenure.term, routes_version=reign.board.version)

    async def Goodbye(
        self, request: pb.GoodbyeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GoodbyeResponse:
        """A router that stops on purpose is a member no longer."""
        reign = self._office.require()
        router_id = _named(request.router_id, request.incarnation)
        try:
            async with reign.ledger.writing() as stored:
                known = stored.routers.get(router_id)
                # A later incarnation may have joined already: then this goodbye is old news.
                if known is not None and known.incarnation == request.incarnation:
                    now = reign.tenure.now()
                    lost = request.activity_lost
                    text = "said goodbye" + ("; what it used last reached nobody" if lost else "")
                    changes: list[Change] = [
                        DropRouter(router_id),
                        PutEvent(
                            now, "router_left", router_id, text, Severity.NOTE if lost else Severity.INFO
                        ),
                    ]
                    if lost:
                        changes.append(RaiseIdleFloor(now))
                    await reign.ledger.commit(changes)
                    reign.board.forget(router_id)
        except Fenced as e:
            raise self._refused(e) from None
        reign.hints()
        return pb.GoodbyeResponse()

    def _refused(self, e: LlmgwError) -> LlmgwError:
        log.info("refused: %s", e.text)
        return self._office.not_leading()


def _may_get_room(reign: Reign, decision: Decision) -> bool:
    """It is refused for want of room, which others may make."""
    makes_room = reign.rules.intervals.eviction is EvictionPolicy.ON
    return makes_room and isinstance(decision, Refused) and decision.code == NO_CAPACITY


def _named(router_id: str, incarnation: str) -> RouterId:
    if not router_id or not incarnation:
        raise InvalidRequest("router_id and incarnation must be set", code="nameless_router")
    return RouterId(router_id)
