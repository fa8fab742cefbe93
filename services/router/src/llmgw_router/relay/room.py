"""Where requests for a model that is not up wait: bounded in number and time, in order of arrival."""

from typing import TYPE_CHECKING

from llmgw_router.core import errors
from llmgw_router.core.admission import share
from llmgw_router.core.table import ModelRow, Waiting, while_cold
from llmgw_router.relay.heartbeat import prepare
from llmgw_router.relay.ipc import ActivationRefused, StartPhase, Unwant, Want
from llmgw_router.relay.phase import HELD

if TYPE_CHECKING:
    from llmgw_router.relay.exchange import Exchange
    from llmgw_router.relay.hub import Hub


def refuse_cold(exchange: "Exchange", model: ModelRow) -> None:
    """No endpoint, and nothing to wait for (W12)."""
    because = f": {model.reason}" if model.reason else ""
    exchange.refuse(
        errors.NO_REPLICA,
        f"No replica of the model `{model.name}` can answer now{because}.",
        retry_after_s=exchange.hub.room.retry_after(model),
    )


class WaitingRoom:
    """Held exchanges by model. Only the worker's own table lets one out towards an endpoint."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._held: dict[str, dict[Exchange, None]] = {}
        #: By model and tenant, where a model bounds what is one tenant's.
        self._of_tenant: dict[tuple[str, str], int] = {}
        self._told: dict[str, int] = {}
        #: Last word of the controller on each start, and when it came.
        self._phases: dict[str, tuple[StartPhase, float]] = {}

    @property
    def models(self) -> list[str]:
        return list(self._held)

    # --- in and out

    def admit(self, exchange: "Exchange", model: ModelRow) -> None:
        """Hold it and, for the first, ask for the model; or refuse it, where there is no room."""
        hub = self._hub
        if exchange.place is not None:
            # It was let in while the model had an endpoint.
            hub.queue.give_back(exchange)
        gate = hub.queue.of(model.name).gate
        if gate.crowded(model.max_held):
            exchange.limit = errors.limit("max_held", model.max_held)
            self._refuse_loading(exchange, model, f"{model.max_held} requests wait for it already (max_held)")
            return
        if not hub.bodies.fits(len(exchange.body)):
            exchange.limit = hub.bodies.named
            self._refuse_loading(
                exchange, model, "the bodies that wait fill their memory (max_waiting_bytes)"
            )
            return
        tenant = None if exchange.key is None else exchange.key.tenant
        most = model.max_held_per_tenant
        if tenant is not None and most is not None:
            count = self._of_tenant.get((model.name, tenant), 0)
            if not most or count >= share(most, hub.workers):
                exchange.limit = errors.limit("max_held_per_tenant", most)
                self._refuse_loading(
                    exchange, model, f"{most} requests of yours wait for it already (max_held_per_tenant)"
                )
                return
            self._of_tenant[model.name, tenant] = count + 1
            exchange.held_tenant = tenant
        waiting = self._held.setdefault(model.name, {})
        waiting[exchange] = None
        gate.wait(1)
        hub.gauge("requests_held", 1)
        exchange.phase = HELD
        exchange.waits = self
        hold_s = exchange.profile.hold_s
        exchange.hold_until = hub.loop.time() + (model.hold_timeout_s if hold_s is None else hold_s)
        prepare(exchange)
        if len(waiting) == 1:
            self._tell(model.name, 1)

    def leave(self, exchange: "Exchange") -> None:
        """It will not wait any longer, for whatever reason."""
        name = exchange.model
        assert name is not None
        waiting = self._held.get(name)
        if waiting is None or exchange not in waiting:
            return
        del waiting[exchange]
        exchange.waits = None
        self._hub.queue.of(name).gate.wait(-1)
        self._hub.gauge("requests_held", -1)
        tenant, exchange.held_tenant = exchange.held_tenant, None
        if tenant is not None:
            left = self._of_tenant[name, tenant] - 1
            if left:
                self._of_tenant[name, tenant] = left
            else:
                del self._of_tenant[name, tenant]
        if not waiting:
            self._forget(name)

    # --- what ends the wait

    def table_changed(self) -> None:
        """Send on what now has an endpoint; answer what nothing can bring up any more."""
        for name in list(self._held):
            target = self._hub.routes.targets.get(name)
            for exchange in list(self._held.get(name, ())):
                if target is None:
                    self.leave(exchange)
                    exchange.refuse(
                        errors.MODEL_NOT_FOUND, f"The model `{name}` was removed while you waited."
                    )
                elif target.endpoints:
                    self.leave(exchange)
                    self._hub.guard(exchange, exchange.dispatch, target.endpoints, target.model)
                elif while_cold(target.model) is Waiting.REFUSE:
                    self.leave(exchange)
                    refuse_cold(exchange, target.model)
        self._hub.queue.table_changed()

    def refuse(self, refusal: ActivationRefused) -> None:
        """The controller will not start it: everybody is told, with its words."""
        for exchange in list(self._held.get(refusal.model, ())):
            self.leave(exchange)
            exchange.refuse(
                errors.MODEL_LOADING,
                f"The model `{refusal.model}` cannot be started now: {refusal.text}",
                code=refusal.code,
                retry_after_s=errors.retry_after(refusal.retry_after_s, default_s=10.0),
            )

    def empty(self) -> None:
        """This worker is leaving: nobody here may go on waiting for it."""
        for waiting in list(self._held.values()):
            for exchange in list(waiting):
                self.leave(exchange)
                exchange.refuse(errors.STOPPING, "This router is stopping; ask again.", retry_after_s=1)

    def expire(self, exchange: "Exchange") -> None:
        """Its time is up."""
        name = exchange.model
        assert name is not None
        target = self._hub.routes.targets.get(name)
        waiting = self._held.get(name, {})
        number = next((at for at, one in enumerate(waiting, 1) if one is exchange), 1)
        many = len(waiting)
        self.leave(exchange)
        if target is None:
            exchange.refuse(errors.MODEL_NOT_FOUND, f"The model `{name}` was removed while you waited.")
            return
        profile = exchange.profile
        if profile.hold_s is None:
            limit_s, whose = target.model.hold_timeout_s, "hold_timeout_s of the model"
            exchange.limit = errors.limit("hold_timeout_s", limit_s)
        else:
            limit_s, whose = profile.hold_s, f"hold_s of the profile `{profile.name}`"
            exchange.limit = errors.limit("hold_s", limit_s, profile.name)
        self._refuse_loading(
            exchange,
            target.model,
            f"was not ready within {limit_s:g} s ({whose}); you were number {number} of {many} who wait",
        )

    # --- what is told of it

    def phase(self, message: StartPhase) -> None:
        """How far a start is, for what is said to who waits. The supervisor knows when it is over: others
        may wait for it in another worker."""
        if message.phase is None:
            self._phases.pop(message.model, None)
        else:
            self._phases[message.model] = (message, self._hub.now)

    def word(self, model: ModelRow) -> str:
        """Where its start is, as far as anybody has said: "loading, ready in about 40 s"."""
        found = self._phases.get(model.name)
        eta_s = self._eta_s(model)
        ready = "" if eta_s is None else f", ready in about {eta_s:.0f} s"
        return (found[0].phase if found is not None and found[0].phase else "loading") + ready

    def _eta_s(self, model: ModelRow) -> float | None:
        """Until ready: by the newest word on this start, else by those before; None: not known."""
        found = self._phases.get(model.name)
        if found is not None and found[0].eta_s is not None:
            return max(0.0, found[0].eta_s - (self._hub.now - found[1]))
        return model.eta_s

    def retry_after(self, model: ModelRow) -> int:
        """`Retry-After` of a refusal: when the model is likely to answer."""
        if model.name in self._phases or model.retry_after_s is None:
            return errors.retry_after(self._eta_s(model), default_s=10.0)
        return errors.retry_after(model.retry_after_s)

    def _refuse_loading(self, exchange: "Exchange", model: ModelRow, why: str) -> None:
        """Being started, but not in time for this request (W11)."""
        exchange.refuse(
            errors.MODEL_LOADING,
            f"The model `{model.name}` is not up ({self.word(model)}), and {why}.",
            retry_after_s=self.retry_after(model),
        )

    def report(self) -> None:
        """Once per sweep: numbers that have changed since they were last told."""
        for name, waiting in self._held.items():
            if self._told.get(name) != len(waiting):
                self._tell(name, len(waiting))
        self._hub.queue.report()

    def _tell(self, name: str, count: int) -> None:
        self._told[name] = count
        self._hub.tell(Want(model=name, waiting=count))

    def _forget(self, name: str) -> None:
        del self._held[name]
        if self._told.pop(name, None) is not None:
            self._hub.tell(Unwant(model=name))
