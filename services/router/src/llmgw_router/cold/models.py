"""`/v1/models` as OpenAI shapes it (W59). Pure; never depends on an engine being up."""

from typing import Any

from llmgw_router.core.learned import CatalogEntry, Routes
from llmgw_router.core.table import Availability

OWNER = "llmgw"


def model_objects(routes: Routes, *, first_seen: int) -> dict[str, dict[str, Any]]:
    """Every name a client may ask for -> its model object, aliases included, sorted by name.

    `status` is ours: ready, starting, cold or unavailable. `first_seen` (unix seconds) stands in for a
    date that nobody told, since OpenAI's clients expect a number."""
    ready = {
        name
        for row in routes.endpoints.values()
        if not row.draining
        for name in (row.model, *row.also_models)
    }
    objects: dict[str, dict[str, Any]] = {}
    for name, entry in routes.models.items():
        objects[name] = _object(name, entry, ready=name in ready, first_seen=first_seen)
    for name, entry in sorted(routes.models.items()):
        for alias in entry.row.aliases:
            if alias not in objects:
                objects[alias] = {**objects[name], "id": alias, "alias_of": name}
    return dict(sorted(objects.items()))


def _object(name: str, entry: CatalogEntry, *, ready: bool, first_seen: int) -> dict[str, Any]:
    availability = entry.row.availability
    if ready:
        availability = Availability.READY
    elif availability is Availability.READY:
        # Its endpoint left a moment ago: what the table says beats the catalog's word.
        availability = Availability.COLD if entry.row.activatable else Availability.UNAVAILABLE
    made: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": first_seen if entry.created is None else entry.created,
        "owned_by": OWNER,
        "status": availability.value,
    }
    if not ready and entry.row.reason is not None:
        made["status_reason"] = entry.row.reason
    if not ready and entry.row.eta_s is not None:
        made["eta_seconds"] = entry.row.eta_s
    return made
