"""What an operator may do to one running router, and ask of it. Behind the admin listener.

Every call changes what it was asked to change or raises and changes nothing. All of it is of this process:
the fleet is the controller's, and `llmgwctl` speaks to that.
"""

import logging
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from llmgw_kit.errors import InvalidRequest, NotFound
from llmgw_kit.names import did_you_mean
from llmgw_kit.settings import effective
from llmgw_router.adapters.access_log import fields_of
from llmgw_router.core.table import EndpointRow
from llmgw_router.reload import Outcome, Reloader
from llmgw_router.router import Router
from llmgw_router.supervisor.asking import RunningNow

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Drained:
    """What a drain, or its undoing, has come to."""

    #: Endpoints in the table that it is about now.
    endpoints: tuple[str, ...]
    in_flight: int
    #: Models that no request can reach any more.
    without_endpoint: tuple[str, ...]


class Operations:
    """For the admin pages; they turn LlmgwError into answers."""

    def __init__(self, router: Router, reloader: Reloader) -> None:
        self.router = router
        self.reloader = reloader

    # --- change

    def drain_endpoint(self, name: str, *, undo: bool) -> Drained:
        """Give it no new requests, whatever the table says, until undone. Raises NotFound, InvalidRequest."""
        board = self.router.board
        rows = board.routes.endpoints
        marks = board.marks
        if undo and name not in marks.endpoints:
            raise InvalidRequest(f"endpoint {name!r} is not drained by an operator", next_steps=_HOW_TO_SEE)
        if not undo and name not in rows:
            raise NotFound(f"no endpoint {name!r}{did_you_mean(name, rows)}", next_steps=_HOW_TO_SEE)
        board.mark(marks.with_endpoint(name, undo=undo))
        log.warning("endpoint %s is %s by an operator", name, "taken back" if undo else "drained")
        return self._drained([row for row in rows.values() if row.endpoint_id == name])

    def drain_replica(self, name: str, *, undo: bool) -> Drained:
        """The same for every endpoint of a replica, those of later group epochs included."""
        board = self.router.board
        marks = board.marks
        mine = [row for row in board.routes.endpoints.values() if row.replica_id == name]
        if undo and name not in marks.replicas:
            raise InvalidRequest(f"replica {name!r} is not drained by an operator", next_steps=_HOW_TO_SEE)
        if not undo and not mine:
            raise NotFound(
                f"no replica {name!r}{did_you_mean(name, board.replica_ids)}", next_steps=_HOW_TO_SEE
            )
        board.mark(marks.with_replica(name, undo=undo))
        log.warning("replica %s is %s by an operator", name, "taken back" if undo else "drained")
        return self._drained(mine)

    def drain_router(self, *, undo: bool) -> Drained:
        """Readiness off, so that balancers turn away; who still comes is served. SIGTERM then ends it."""
        self.router.set_aside = not undo
        log.warning("this router is %s by an operator", "ready again" if undo else "not ready any more")
        return self._drained(list(self.router.board.routes.endpoints.values()), lost=False)

    def _drained(self, rows: list[EndpointRow], *, lost: bool = True) -> Drained:
        names = {row.endpoint_id for row in rows}
        running = sum(at.in_flight for row, at in self.router.pool.activity() if row.endpoint_id in names)
        models = {model for row in rows for model in (row.model, *row.also_models)} if lost else set()
        board = self.router.board
        reachable = {
            model
            for row in board.routes.endpoints.values()
            if not board.marks.on(row).draining
            for model in (row.model, *row.also_models)
        }
        return Drained(
            endpoints=tuple(sorted(names)),
            in_flight=running,
            without_endpoint=tuple(sorted(models - reachable)),
        )

    async def reload(self) -> Outcome:
        """Read the settings again, as SIGHUP does."""
        return await self.reloader.reload("an operator")

    # --- ask

    async def running(self) -> RunningNow:
        return await self.router.pool.running()

    def explain(self, request_id: str) -> dict[str, Any]:
        """What is still known of finished requests with this id, the newest first. Raises NotFound."""
        records = [fields_of(one) for one in reversed(self.router.recent) if one.request_id == request_id]
        decisions = [
            msgspec.structs.asdict(one)
            for one in self.router.pool.choices.decisions
            if one.request_id == request_id
        ]
        if not records and not decisions:
            raise NotFound(
                f"nothing is kept of request {request_id!r}",
                next_steps=[
                    "finished ones are, the newest few thousand, where access_log is on or they were traced",
                    "choices are, where choosing.keep_decisions says how many",
                    "what runs now: GET /admin/requests",
                ],
            )
        return {"request_id": request_id, "requests": records, "choices": decisions}

    def config(self) -> dict[str, Any]:
        """The settings in force, masked, and what became of the last attempt to change them."""
        reloader = self.reloader
        return {
            "file": None if reloader.source.path is None else str(reloader.source.path),
            "loaded_at_unix_s": reloader.loaded_at_unix_s,
            "reloads": {"succeeded": reloader.succeeded, "failed": reloader.failed},
            "last_reload": None if reloader.last is None else msgspec.to_builtins(reloader.last),
            "settings": yaml.safe_load(effective(reloader.current)),
        }


_HOW_TO_SEE = ["see them: GET /admin/routes"]
