"""Requests that wait for room at a busy model, and who is let in next. One per worker.

A request is *let in* before an endpoint is chosen: it takes a place at its model's gate, keeps it over
retries, and gives it back when it ends, on whichever path. Who finds a limit reached, or others waiting,
waits in its model's line, and nothing is sent to it meanwhile; the endpoint is chosen when it leaves the
line, from the table of that moment.

No timer belongs to a request: a place that becomes free here is given on in the same turn of the loop, and
while anybody waits one timer of the worker looks for places that became free elsewhere.
"""

from itertools import islice
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Final

from llmgw_router.core import errors
from llmgw_router.core.admission import Line, Ticket, rank, wait_s
from llmgw_router.relay.gates import ROUTER_GATE, Gate
from llmgw_router.relay.heartbeat import prepare
from llmgw_router.relay.ipc import Gates, GateWanted, Queued
from llmgw_router.relay.model_queue import ModelQueue
from llmgw_router.relay.phase import HELD, QUEUED

if TYPE_CHECKING:
    from llmgw_router.core.config import Admission
    from llmgw_router.core.table import ModelRow
    from llmgw_router.relay.endpoint import EngineEndpoint
    from llmgw_router.relay.exchange import Exchange
    from llmgw_router.relay.hub import Hub
    from llmgw_router.relay.slots import Slots

#: How soon a place that another worker has freed, or an endpoint that came back, is noticed.
_LOOK_S: Final = 0.005
#: A free place is left so long to another worker whose turn it is; it takes it in _LOOK_S, or is stuck.
_PATIENCE_S: Final = 0.025
#: Endpoints looked at for one with room; of more, the next look finds another part.
_SCAN: Final = 64


class Queueing:
    """The lines of one worker."""

    def __init__(self, hub: "Hub", slots: "Slots") -> None:
        self._hub = hub
        self._slots = slots
        self._router = Gate(slots, hub.worker, number=ROUTER_GATE)
        self._models: dict[str, ModelQueue] = {}
        self._numbers: dict[str, int] = {}
        #: Those with somebody in line, by name.
        self._waiting: dict[str, ModelQueue] = {}
        self._looking = self._soon = False
        #: Whether there is a limit of ours besides what endpoints say of themselves.
        self.limited = False
        #: Whether what endpoints say of themselves counts.
        self.heeds = True
        self._rules: Admission

    def reconfigure(self, rules: "Admission") -> None:
        """Other limits, from the next request on; who waits is let in by the new ones."""
        self._rules = rules
        self._router.limit = rules.max_in_flight
        # Where there was no limit nothing was counted for the router, and nobody else told of a model.
        self._router.running = sum(queue.gate.running for queue in self._models.values())
        self._router.publish()
        self.heeds = rules.heed_concurrency
        ours = (rules.max_in_flight, rules.max_in_flight_per_model, *rules.model_in_flight.values())
        self.limited = any(limit is not None for limit in ours)
        for name, queue in self._models.items():
            queue.line.age_bound_s = rules.age_bound_s
            queue.gate.limit = rules.model_in_flight.get(name, rules.max_in_flight_per_model)
            queue.gate.publish()
        self._look_soon()

    def of(self, name: str) -> ModelQueue:
        """The model's queue; made when it is first asked for, and kept."""
        queue = self._models.get(name)
        if queue is None:
            rules = self._rules
            limit = rules.model_in_flight.get(name, rules.max_in_flight_per_model)
            gate = Gate(self._slots, self._hub.worker, limit=limit, number=self._numbers.get(name))
            line: Line[Exchange] = Line(age_bound_s=rules.age_bound_s)
            queue = self._models[name] = ModelQueue(name, gate, line)
        if not queue.gate.numbered and not queue.wanted and self._hub.workers > 1:
            queue.wanted = True
            self._hub.tell(GateWanted(model=name))
        return queue

    def numbers(self, message: Gates) -> None:
        """Where models are counted together."""
        for name in message.gone:
            self._numbers.pop(name, None)
            queue = self._models.get(name)
            if queue is not None and queue.left():
                del self._models[name]
            elif queue is not None:
                self.of(name)
        self._numbers.update(message.numbers)
        for name, number in message.numbers.items():
            queue = self._models.get(name)
            if queue is not None and not queue.gate.numbered:
                queue.gate.joined(number)

    # --- in

    def enter(
        self,
        exchange: "Exchange",
        best: "EngineEndpoint",
        endpoints: "tuple[EngineEndpoint, ...]",
        model: "ModelRow",
    ) -> "EngineEndpoint | None":
        """Let it in: returns where it goes, `best` unless that is full. None: it waits, or was refused."""
        if len(endpoints) == 1 and exchange.pinned is None:
            target = self._hub.routes.targets.get(model.name)
            if target is not None and target.endpoints is not endpoints:
                # It goes on with what this one replica holds: no other will do.
                exchange.pinned = best
        if exchange.place:
            # Let in before: it was in line, or is asked for again. Only the endpoint is still open.
            return best if self._has_room(best) else self._roomy(exchange, endpoints) or best
        queue = self._models.get(model.name)
        if queue is None:
            queue = self.of(model.name)
        gate = queue.gate
        waiting = self._waiting
        if (
            (not waiting or queue.name not in waiting)
            and not (gate.peers and gate.others_wait())
            and (gate.limit is None or not gate.full())
            and (self._router.limit is None or not self._router.full())
        ):
            limit = best.row.concurrency
            if limit is None or not self.heeds or best.outstanding() < limit:
                self._take(exchange, queue)
                return best
            other = self._roomy(exchange, endpoints)
            if other is not None:
                self._take(exchange, queue)
                return other
        self._line_up(exchange, queue)
        return None

    def _take(self, exchange: "Exchange", queue: ModelQueue) -> None:
        exchange.place = queue
        gate = queue.gate
        gate.running += 1
        if gate.limit is not None:
            gate.publish()
        if self._router.limit is not None:
            self._router.running += 1
            self._router.publish()

    def give_back(self, exchange: "Exchange") -> None:
        """Its place is free again; who waits for one is let in before the loop turns."""
        queue, exchange.place = exchange.place, None
        assert queue is not None
        gate = queue.gate
        gate.running -= 1
        if gate.limit is not None:
            gate.publish()
        if self._router.limit is not None:
            self._router.running -= 1
            self._router.publish()
        queue.done += 1
        if self._waiting:
            self._look_soon()

    def _has_room(self, endpoint: "EngineEndpoint") -> bool:
        limit = endpoint.row.concurrency
        return limit is None or not self.heeds or endpoint.outstanding() < limit

    def _roomy(
        self, exchange: "Exchange", endpoints: "tuple[EngineEndpoint, ...]"
    ) -> "EngineEndpoint | None":
        """The least loaded of those with room that it may use and nobody avoids; of a part of them where
        there are many. What is pinned to one replica waits in its engine."""
        if exchange.pinned is not None and not exchange.pinned.leaving:
            return exchange.pinned
        hub = self._hub
        pools = exchange.profile.pools
        count = len(endpoints)
        start = int(hub.chance() * count)
        found: EngineEndpoint | None = None
        least = 0
        spare: EngineEndpoint | None = None
        all_avoided = True
        for offset in range(min(count, _SCAN)):
            one = endpoints[(start + offset) % count]
            if pools is not None and one.row.pool not in pools:
                continue
            avoided = one.avoid_until > hub.now
            all_avoided = all_avoided and avoided
            if not self._has_room(one):
                continue
            if avoided:
                spare = one
                continue
            load = one.outstanding() + 1
            if found is None or load * found.weight < least * one.weight:
                found, least = one, load
        # Where nobody is usable all are used: that may work, and waiting surely does not.
        return spare if all_avoided else found

    # --- waiting

    def _line_up(self, exchange: "Exchange", queue: ModelQueue) -> None:
        hub = self._hub
        profile = exchange.profile
        now = monotonic()
        ticket = Ticket(now, profile.priority, None if exchange.key is None else exchange.key.tenant)
        if hub.refusing:
            exchange.refuse(errors.STOPPING, "This router is stopping; ask again.", retry_after_s=1)
            return
        crowd = self._crowd(exchange, queue)
        if crowd is not None:
            last = queue.line.last()
            if last is None or last.profile.priority >= profile.priority:
                queue.refuse(exchange, errors.QUEUE_FULL, f"and {crowd[1]} wait already", *crowd)
                return
            # A backlog of patient work is no wall before the important: its newest makes room.
            self.leave(last)
            queue.refuse(last, errors.QUEUE_FULL, "and more important requests came", *crowd)
        left_s = profile.queue_s
        if profile.total_s is not None:
            left_s = min(left_s, profile.total_s - (hub.now - exchange.started))
        likely_s = wait_s(queue.line.ahead(ticket), queue.pace.per_s(hub.now))
        if left_s <= 0:
            why = "and it may not wait"
        elif likely_s is not None and likely_s > left_s:
            # It would wait in vain, and keep others from being told in time.
            why = f"and its turn would come in about {likely_s:.0f} s"
        else:
            why = None
        if why is not None:
            queue.refuse(exchange, errors.QUEUE_FULL, why, "queue_s", profile.queue_s)
            return
        queue.line.push(exchange, ticket)
        queue.gate.wait(1)
        self._router.wait(1)
        hub.gauge("requests_queued", 1)
        exchange.waits = self
        exchange.queue_began_ns = monotonic_ns()
        if exchange.phase == HELD:
            exchange.held_ns = exchange.queue_began_ns - exchange.started_ns - exchange.queued_ns
        exchange.phase = QUEUED
        exchange.hold_until = hub.loop.time() + profile.queue_s
        prepare(exchange)
        self._waiting[queue.name] = queue
        self._mark(queue, now)
        if queue.told == 0:
            self._tell(queue)
        # Where others wait in another worker it may still be this one's turn.
        self._look_soon()
        self._look_later()

    def _crowd(self, exchange: "Exchange", queue: ModelQueue) -> tuple[str, int] | None:
        """The bound that says that nobody more may wait."""
        rules = self._rules
        if queue.gate.crowded(rules.max_queued_per_model):
            return "max_queued_per_model", rules.max_queued_per_model
        if self._router.crowded(rules.max_queued):
            return "max_queued", rules.max_queued
        if not self._hub.bodies.fits(len(exchange.body)) and rules.max_waiting_bytes is not None:
            return "max_waiting_bytes", rules.max_waiting_bytes
        return None

    def leave(self, exchange: "Exchange") -> None:
        """It waits no longer, for whatever reason."""
        assert exchange.model is not None
        queue = self._models[exchange.model]
        if queue.line.remove(exchange):
            self._left(exchange, queue)

    def _left(self, exchange: "Exchange", queue: ModelQueue) -> None:
        exchange.waits = None
        exchange.queued_ns += monotonic_ns() - exchange.queue_began_ns
        queue.gate.wait(-1)
        self._router.wait(-1)
        self._hub.gauge("requests_queued", -1)
        self._mark(queue, monotonic())
        if not queue.line:
            queue.patient_since = None
            del self._waiting[queue.name]
            self._tell(queue)

    def _mark(self, queue: ModelQueue, now: float) -> None:
        """Let the other workers see whose turn it is here."""
        first = queue.line.first(now)
        ticket = None if first is None else queue.line.ticket_of(first)
        queue.gate.next_is(0 if ticket is None else rank(ticket.priority, int(ticket.at * 1000)))

    # --- out

    def _look_soon(self) -> None:
        if not self._soon and self._waiting:
            self._soon = True
            self._hub.loop.call_soon(self._look)

    def _look_later(self) -> None:
        if not self._looking:
            self._looking = True
            self._hub.loop.call_later(_LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self._looking = False
        self._look()
        if self._waiting:
            self._look_later()

    def _look(self) -> None:
        self._soon = False
        # Whose turn is first gets the router's last place.
        for queue in sorted(self._waiting.values(), key=lambda queue: queue.gate.head):
            self._let_in(queue)

    def _let_in(self, queue: ModelQueue) -> None:
        hub = self._hub
        gate = queue.gate
        while queue.line:
            target = hub.routes.targets.get(queue.name)
            if target is None or not target.endpoints:
                # The table's change has found, or finds, another answer for them.
                return
            now = monotonic()
            if gate.full() or self._router.full():
                queue.patient_since = None
                return
            exchange = self._next(queue, target.endpoints, now)
            if exchange is None:
                queue.patient_since = None
                return
            if gate.after_others(gate.head):
                if queue.patient_since is None:
                    queue.patient_since = now
                if now - queue.patient_since < _PATIENCE_S:
                    return
            queue.patient_since = None
            if exchange is queue.line.first(now):
                queue.line.pop(now)
            else:
                queue.line.remove(exchange)
            self._left(exchange, queue)
            self._take(exchange, queue)
            pinned = exchange.pinned
            endpoints = target.endpoints if pinned is None or pinned.leaving else (pinned,)
            hub.guard(exchange, exchange.dispatch, endpoints, target.model)

    def _next(
        self, queue: ModelQueue, endpoints: "tuple[EngineEndpoint, ...]", now: float
    ) -> "Exchange | None":
        """Whose turn it is among those for whom an endpoint has room."""
        first = queue.line.first(now)
        if first is None or self._roomy(first, endpoints) is not None:
            return first
        if first.profile.pools is not None:
            # Its pools are full; others need not wait for that.
            for exchange in islice(queue.line, _SCAN):
                if exchange.profile.pools != first.profile.pools and self._roomy(exchange, endpoints):
                    return exchange
        return None

    def table_changed(self) -> None:
        """Who waits at a model without an endpoint now waits for it to come up, or is told why not."""
        hub = self._hub
        for name, queue in list(self._waiting.items()):
            target = hub.routes.targets.get(name)
            if target is not None and target.endpoints:
                continue
            for exchange in list(queue.line):
                self.leave(exchange)
                if target is None:
                    exchange.refuse(
                        errors.MODEL_NOT_FOUND, f"The model `{name}` was removed while you waited."
                    )
                else:
                    hub.guard(exchange, exchange.dispatch, target.endpoints, target.model)
        self._look_soon()

    def expire(self, exchange: "Exchange") -> None:
        """Its time in the line is up."""
        assert exchange.model is not None
        queue = self._models[exchange.model]
        before = len(queue.line)
        self.leave(exchange)
        limit = exchange.profile.queue_s
        why = f"and none became free within {limit:g} s, with {before - 1} others waiting"
        queue.refuse(exchange, errors.QUEUE_TIMEOUT, why, "queue_s", limit)

    def empty(self) -> None:
        """This worker is leaving: nobody here may go on waiting."""
        for queue in list(self._waiting.values()):
            for exchange in list(queue.line):
                self.leave(exchange)
                exchange.refuse(errors.STOPPING, "This router is stopping; ask again.", retry_after_s=1)

    def report(self) -> None:
        """Once per sweep: how fast places came free, and numbers that have changed since they were told."""
        now = self._hub.now
        for queue in self._models.values():
            if queue.done:
                queue.pace.note(now, queue.done)
                queue.done = 0
        for queue in self._waiting.values():
            if queue.told != len(queue.line):
                self._tell(queue)

    def _tell(self, queue: ModelQueue) -> None:
        queue.told = len(queue.line)
        self._hub.tell(Queued(model=queue.name, waiting=queue.told))
