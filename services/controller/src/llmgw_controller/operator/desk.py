"""What every operator's call shares: who leads, one view of one moment, and the words for a wrong name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.view import FleetView
from llmgw_controller.office import Office
from llmgw_controller.ports import Fenced
from llmgw_controller.reign import Reign
from llmgw_controller.whole_status import about, viewed
from llmgw_kit.errors import InvalidRequest, LlmgwError, NotFound
from llmgw_kit.names import did_you_mean

#: grpc.aio's generics exist in its type stubs only, and no method here looks at it.
Context = Any

#: The end of the year 9999, beyond which no store has a date. Unix seconds.
LAST_MOMENT_S = 253_402_300_799.0

#: A leader reads its rows within milliseconds; who asks just then waits for that.
VIEW_WAIT_S = 2.0


def moment(request: Any, field: str) -> float | None:
    """A time of a request in unix seconds, None where it has none. Raises InvalidRequest for what is no time:
    a store would fail on it, and that would look like a bug."""
    if not request.HasField(field):
        return None
    given = float(getattr(request, field))
    # Also false for what is no number.
    if not 0 <= given <= LAST_MOMENT_S:
        raise InvalidRequest(f"{field} is {given:g}; expected unix seconds from 0 to {LAST_MOMENT_S:.0f}")
    return given


class Desk:
    """Base of the calls' parts."""

    def __init__(self, office: Office, *, store_kind: str, config_hash: str) -> None:
        self._office = office
        self._store_kind = store_kind
        self._config_hash = config_hash

    async def _reign(self) -> Reign:
        """The present term, its rows read. Raises Conflict with the leader's address, and Unavailable."""
        reign = self._office.require()
        await reign.ledger.until_known(VIEW_WAIT_S)
        return reign

    async def _view(self) -> tuple[Reign, FleetView]:
        reign = await self._reign()
        return reign, await viewed(reign)

    def _info(self, reign: Reign, view: FleetView) -> pb.ViewInfo:
        return about(reign, view)

    def _model(self, reign: Reign, name: str) -> Model:
        model = reign.ledger.catalog.resolve(name)
        if model is None:
            raise self._no_model(reign, name)
        return model

    def _no_model(self, reign: Reign, name: str) -> LlmgwError:
        known = reign.ledger.catalog.models
        return NotFound(
            f"no model {name} in the catalog{did_you_mean(name, known)}",
            code="model_not_found",
            next_steps=["try: llmgwctl models"],
        )

    @contextmanager
    def _changing(self) -> Iterator[Reign]:
        """The term to write in; a write that meets the fence means: ask the new leader."""
        reign = self._office.require()
        try:
            yield reign
        except Fenced:
            raise self._office.not_leading() from None
