"""The model's name out of a request's body, whatever kind of body that is; big ones in steps."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from llmgw_router.core import multipart
from llmgw_router.core.body import BodyRefused, NeedsSteps, model_of, sole_model, with_model
from llmgw_router.core.choosing import prompts
from llmgw_router.core.errors import BAD_FORM
from llmgw_router.core.heartbeat import streams
from llmgw_router.core.routes import JSON, Content
from llmgw_router.core.scan import BIG_BYTES, Found, Steps, scan
from llmgw_router.core.scan import with_model as with_model_at
from llmgw_router.relay.phase import OVER

if TYPE_CHECKING:
    from llmgw_router.relay.exchange import Exchange

#: What is done with the name.
GoOn = Callable[["Exchange", str], None]

#: Where the name stands, in a body for which that is known: a big one, or a form with its boundary.
Spot = Found | tuple[bytes, multipart.FormModel]


def read_model(exchange: "Exchange", go_on: "GoOn") -> None:
    """Find the model and go on with it; or refuse. At once, or after some turns of the loop."""
    entry = exchange.entry
    assert entry is not None
    body = exchange.body
    try:
        if entry.content is JSON:
            content_type = None
        else:
            content_type = _content_type(exchange.head)
            if entry.content is Content.EITHER and not multipart.is_form(content_type):
                content_type = None
        if content_type is not None:
            boundary = multipart.boundary_of(content_type)
            if len(body) > BIG_BYTES:
                _step(exchange, multipart.scan(body, boundary), go_on, boundary)
                return
            found = multipart.model_of(body, boundary)
            exchange.spot = (boundary, found)
            name = found.name
        elif len(body) > BIG_BYTES:
            _step(exchange, scan(body), go_on)
            return
        else:
            if type(body) is not bytes:
                body = bytes(body)
            said = prompts.opened(body) if exchange.hub.choosing.opens(entry.path) else None
            if said is None or said.model is None:
                name = model_of(body)
            else:
                # One decoding for both questions.
                name = sole_model(body, said.model)
                exchange.said = said
    except NeedsSteps:
        _step(exchange, scan(body), go_on)
        return
    except BodyRefused as refused:
        exchange.refuse(refused.kind, str(refused))
        return
    go_on(exchange, name)


def rename(exchange: "Exchange", name: str) -> None:
    """Put the catalog's name where the client wrote an alias; no other byte changes."""
    spot = exchange.spot
    if spot is None:
        exchange.body = with_model(bytes(exchange.body), name)
    elif isinstance(spot, Found):
        exchange.body, exchange.spot = with_model_at(exchange.body, spot, name)
    else:
        exchange.body = multipart.with_model(exchange.body, *spot, name)
        exchange.spot = None


def asks_for_stream(exchange: "Exchange") -> bool:
    """Whether its JSON body asks for an event stream. A big one is not read again for that."""
    spot = exchange.spot
    return spot.stream if isinstance(spot, Found) else streams(exchange.body)


def _step(exchange: "Exchange", steps: "Steps | multipart.Steps", go_on: GoOn, boundary: bytes = b"") -> None:
    if exchange.phase == OVER:
        # Its client has left meanwhile, or its time was up.
        return
    try:
        next(steps)
    except StopIteration as done:
        found: Found | multipart.FormModel = done.value
        exchange.spot = found if isinstance(found, Found) else (boundary, found)
        exchange.hub.guard(exchange, go_on, exchange, found.name)
    except BodyRefused as refused:
        exchange.refuse(refused.kind, str(refused))
    else:
        exchange.hub.loop.call_soon(exchange.hub.guard, exchange, _step, exchange, steps, go_on, boundary)


def _content_type(head: list[bytes]) -> bytes:
    values = [line.partition(b":")[2].strip() for line in head if line[:13].lower() == b"content-type:"]
    if len(values) > 1:
        raise BodyRefused(BAD_FORM, "The Content-Type header is given more than once.")
    return values[0] if values else b""
