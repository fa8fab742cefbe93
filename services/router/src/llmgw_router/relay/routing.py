"""Where a request goes: who asks, which path it is, which model it names. One way for every route (HO30)."""

from time import monotonic_ns
from typing import TYPE_CHECKING

from llmgw_router.core import errors
from llmgw_router.core.keys import KeyRow, may_use
from llmgw_router.core.paths import BadPath
from llmgw_router.core.profiles import ProfileRefused, choose
from llmgw_router.core.routes import HELD, RESPONSES
from llmgw_router.relay.access import is_guarded
from llmgw_router.relay.cors import preflight, shown
from llmgw_router.relay.held import ask_holder, continued_at
from llmgw_router.relay.reading import read_model, rename
from llmgw_router.relay.slots import COUNTER

if TYPE_CHECKING:
    from llmgw_router.relay.exchange import Exchange

_COLD = COUNTER["cold_requests"]
#: Characters of a name that stands for nothing, in the access log.
_SHOWN_NAME = 128


def route(exchange: "Exchange") -> None:
    """The request is here whole: decide what it is, and send it on its way."""
    hub = exchange.hub
    exchange.started = hub.now
    exchange.started_ns = monotonic_ns()
    if exchange.request_id is None:
        exchange.request_id = hub.new_id()
    if hub.tracer is not None:
        hub.tracer.begin(exchange)
    if exchange.refusal is not None:
        exchange.refuse(*exchange.refusal, retry_after_s=2 if exchange.refusal[0].status == 503 else None)
        return
    try:
        exchange.normalise()
    except BadPath as error:
        exchange.refuse(errors.BAD_REQUEST, f"The request target is invalid: {error}.")
        return
    if (
        hub.access.required
        and (exchange.dialect is not None or is_guarded(exchange.path))
        and not _let_in(exchange)
    ):
        return
    entry = exchange.entry
    if (
        exchange.origin is not None
        and exchange.method == b"OPTIONS"
        and (entry or exchange.path[:4] == b"/v1/")
    ):
        exchange.answer_at_once(204, shown(preflight(exchange, entry), exchange.origin))
        return
    if entry is None:
        hub.counters[_COLD] += 1
        exchange.send(hub.cold, exchange.started_ns)
        return
    if exchange.method not in entry.methods:
        exchange.refuse(
            errors.METHOD_NOT_ALLOWED,
            f"{exchange.method.decode()} is not allowed for {exchange.path.decode('latin-1')}; "
            f"use {entry.allow.decode()}.",
            allow=entry.allow,
        )
        return
    if exchange.content_encoding is not None:
        exchange.refuse(
            errors.CONTENT_ENCODING, "Compressed request bodies are not supported; send identity."
        )
        return
    if hub.refusing:
        exchange.refuse(errors.STOPPING, "This router is stopping; ask again.", retry_after_s=1)
        return
    if entry.content is HELD:
        ask_holder(exchange)
    else:
        read_model(exchange, named)


def named(exchange: "Exchange", name: str) -> None:
    """The model that the request names is known: find what stands for it."""
    hub = exchange.hub
    target = hub.routes.targets.get(name)
    key = exchange.key
    if target is None or (key is not None and not may_use(key, name, target.model.name)):
        # Not allowed reads as unknown, to the letter: whether a model exists is not told (W04).
        exchange.alias = name[:_SHOWN_NAME]
        if not hub.routes.known:
            exchange.refuse(errors.STARTING, "This router has no routes yet; ask again.", retry_after_s=1)
            return
        exchange.refuse(
            errors.MODEL_NOT_FOUND, f"The model `{name}` does not exist or you do not have access to it."
        )
        return
    model = target.model
    exchange.model = model.name
    if name != model.name:
        rename(exchange, model.name)
        exchange.alias = name
    if exchange.asked_profile is not None or exchange.key is not None or hub.config.model_profiles:
        try:
            exchange.profile = choose(
                hub.config, model=model.name, key=exchange.key, asked=exchange.asked_profile
            )
        except ProfileRefused as refused:
            exchange.refuse(errors.BAD_PROFILE, str(refused))
            return
    endpoints = target.endpoints
    if exchange.dialect is RESPONSES:
        holder = continued_at(exchange, target)
        if holder is not None:
            endpoints = (holder,)
    exchange.dispatch(endpoints, model)


def _let_in(exchange: "Exchange") -> bool:
    """Find out who asks; refused are those of whom nobody can say that they may."""
    found = exchange.hub.access.check(exchange)
    if found is None or isinstance(found, KeyRow):
        exchange.key = found
        return True
    if exchange.method == b"OPTIONS":
        # A browser's question about a request, which it asks without credentials (W48).
        return True
    exchange.refuse(*found, retry_after_s=2 if found[0].status == 503 else None)
    return False
