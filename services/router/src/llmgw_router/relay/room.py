"""Where requests for a model that is not up wait: bounded in number and time, in order of arrival."""

from typing import TYPE_CHECKING

from llmgw_router.core import errors
from llmgw_router.core.table import ModelRow, Waiting, held_share, while_cold
from llmgw_router.relay.ipc import ActivationRefused, Unwant, Want

if TYPE_CHECKING:
    from llmgw_router.relay.exchange import Exchange
    from llmgw_router.relay.hub import Hub


def refuse_cold(exchange: "Exchange", model: ModelRow) -> None:
    """No endpoint, and nothing to wait for (W12)."""
    because = f": {model.reason}" if model.reason else ""
    exchange.refuse(
        errors.NO_REPLICA,
        f"No replica of the model `{model.name}` can answer now{because}.",
        retry_after_s=_retry_after(model),
    )


def refuse_loading(exchange: "Exchange", model: ModelRow, why: str) -> None:
    """Being started, but not in time for this request (W11)."""
    exchange.refuse(
        errors.MODEL_LOADING,
        f"The model `{model.name}` is loading and {why}.",
        retry_after_s=_retry_after(model),
    )


def _retry_after(model: ModelRow) -> int:
    told = model.eta_s if model.retry_after_s is None else model.retry_after_s
    return errors.retry_after(told, default_s=10.0)


class WaitingRoom:
    """Held exchanges by model. Only the worker's own table lets one out towards an endpoint."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._held: dict[str, dict[Exchange, None]] = {}
        self._told: dict[str, int] = {}

    @property
    def models(self) -> list[str]:
        return list(self._held)

    def admit(self, exchange: "Exchange", model: ModelRow) -> bool:
        """Take one in and, for the first, ask for the model. False: full."""
        waiting = self._held.setdefault(model.name, {})
        if len(waiting) >= held_share(model, self._hub.workers):
            return False
        waiting[exchange] = None
        self._hub.gauge("requests_held", 1)
        if len(waiting) == 1:
            self._tell(model.name, 1)
        return True

    def leave(self, exchange: "Exchange") -> None:
        """It will not wait any longer, for whatever reason."""
        assert exchange.model is not None
        waiting = self._held.get(exchange.model)
        if waiting is None or exchange not in waiting:
            return
        del waiting[exchange]
        self._hub.gauge("requests_held", -1)
        if not waiting:
            self._forget(exchange.model)

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
        assert exchange.model is not None
        target = self._hub.routes.targets.get(exchange.model)
        self.leave(exchange)
        if target is None:
            exchange.refuse(
                errors.MODEL_NOT_FOUND, f"The model `{exchange.model}` was removed while you waited."
            )
        else:
            refuse_loading(exchange, target.model, f"was not ready within {target.model.hold_timeout_s:g} s")

    def report(self) -> None:
        """Once per sweep: numbers that have changed since they were last told."""
        for name, waiting in self._held.items():
            if self._told.get(name) != len(waiting):
                self._tell(name, len(waiting))

    def _tell(self, name: str, count: int) -> None:
        self._told[name] = count
        self._hub.tell(Want(model=name, waiting=count))

    def _forget(self, name: str) -> None:
        del self._held[name]
        if self._told.pop(name, None) is not None:
            self._hub.tell(Unwant(model=name))
