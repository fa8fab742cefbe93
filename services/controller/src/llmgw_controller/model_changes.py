"""Adding, changing and removing stored models at run time."""

import asyncio
import logging
from collections.abc import Sequence

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.catalog_file import canonical_json, check_names, parse_model_json
from llmgw_controller.changes import memory_warnings
from llmgw_controller.core.catalog import Model, Source
from llmgw_controller.core.claims import rooms
from llmgw_controller.core.placement import never_because
from llmgw_controller.core.plan import (
    Change,
    DropModel,
    ForgetAttempts,
    PutDeployment,
    PutEvent,
    PutModel,
    Severity,
)
from llmgw_controller.core.rollout import is_current
from llmgw_controller.core.roster import goes
from llmgw_controller.core.rows import DeploymentRow, Stored, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_controller.reign import Reign
from llmgw_kit.errors import Conflict, InvalidRequest, NotFound
from llmgw_kit.ids import ModelId
from llmgw_kit.names import did_you_mean

log = logging.getLogger(__name__)

#: Of many stored models, so many are named.
NAMED_MAX = 8


async def apply_model(
    reign: Reign, text: str, *, dry_run: bool, strict: bool = False
) -> pb.ApplyModelResponse:
    """One model; as `apply_models`."""
    (answer,) = await apply_models(reign, [text], dry_run=dry_run, strict=strict)
    return answer


async def apply_models(
    reign: Reign, texts: Sequence[str], *, dry_run: bool, strict: bool = False
) -> list[pb.ApplyModelResponse]:
    """Store all models, or only say what would come of each; one that is refused refuses them all.

    Raises InvalidRequest for what makes no sense and, if `strict`, for what can never fit the known nodes;
    Conflict for a name that the configuration owns."""
    models = [
        parse_model_json(text, source=Source.STORED, where=_where(number, len(texts)))
        for number, text in enumerate(texts, start=1)
    ]
    async with reign.ledger.writing() as stored:
        _names(reign, models)
        snapshot, now = reign.snapshot(stored), reign.tenure.now()
        # In a thread, as a pass decides: renewals must not wait for a large fleet.
        never_fits = await asyncio.to_thread(_never_fits, snapshot, models, now)
        if strict:
            _refuse_what_never_fits(models, never_fits)
        changes: list[Change] = []
        answers: list[pb.ApplyModelResponse] = []
        for model, lines in zip(models, never_fits, strict=True):
            before = reign.ledger.catalog.models.get(model.name)
            new = "changed" if model.name in stored.models else "created"
            outcome = "unchanged" if before == model else new
            warnings = _warnings(reign, stored, before, model, lines)
            answers.append(pb.ApplyModelResponse(model=model.name, outcome=outcome, warnings=warnings))
            if outcome != "unchanged":
                changes += [
                    PutModel(model.name, canonical_json(model), now),
                    PutEvent(now, f"model_{outcome}", model.name, _what(before, model), Severity.INFO),
                ]
        if changes and not dry_run:
            await reign.ledger.commit(changes)
            for answer in (one for one in answers if one.outcome != "unchanged"):
                log.info("model %s %s", answer.model, answer.outcome)
                for warning in memory_warnings(reign):
                    log.warning("model %s: %s", answer.model, warning)
    reign.hints()
    return answers


def _where(number: int, count: int) -> str:
    return "the model" if count == 1 else f"model {number} of {count}"


def _names(reign: Reign, models: Sequence[Model]) -> None:
    configured = {one.name for one in reign.rules.configured}
    for model in models:
        if model.name in configured:
            raise Conflict(
                f"model {model.name} is in the controller's configuration, which wins over what is stored",
                code="configured_model",
                next_steps=["change the configuration file, or apply it under another name"],
            )
    named = {one.name for one in models}
    others = [one for one in reign.ledger.catalog.sorted_models() if one.name not in named]
    check_names([*others, *models], where="the catalog")


def _never_fits(snapshot: Snapshot, models: Sequence[Model], now: float) -> list[list[str]]:
    """Of each model a line for each profile that no waiting and no eviction gives a place on the nodes that
    are known."""
    found = rooms(snapshot, now)
    return [
        [
            f"profile {profile.name} {why}"
            for profile in model.profiles
            if (why := never_because(model, profile, found)) is not None
        ]
        for model in models
    ]


def _refuse_what_never_fits(models: Sequence[Model], never_fits: Sequence[Sequence[str]]) -> None:
    for model, lines in zip(models, never_fits, strict=True):
        if len(lines) == len(model.profiles):
            raise InvalidRequest(
                f"model {model.name} can never fit the nodes that are known: {'; '.join(lines)}",
                code="never_fits",
                next_steps=[
                    "what there is: llmgwctl gpus",
                    "without --strict it is stored all the same",
                ],
            )


def _warnings(
    reign: Reign, stored: Stored, before: Model | None, model: Model, never_fits: list[str]
) -> list[str]:
    found = memory_warnings(reign)
    if model.weights is not None and not reign.rules.mirror_urls:
        found.append("no mirror is configured: only nodes that hold the weights already can start it")
    if stored.nodes:
        found += [f"{line}; as it is it never fits" for line in never_fits]
    replaced = sum(
        row.model == model.name and row.wish is Wish.SERVE and not is_current(row, model)
        for row in stored.replicas.values()
    )
    if before is not None and replaced:
        found.append(f"another spec: {replaced} running replica{'s are' if replaced > 1 else ' is'} replaced")
    return found


def _stored_ones(stored: Stored) -> str:
    if not stored.models:
        return "no model is stored; those of the configuration are changed in its file: llmgwctl models"
    names = sorted(stored.models)
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"stored: {', '.join(names[:NAMED_MAX])}{more}; all: llmgwctl models"


def _what(before: Model | None, model: Model) -> str:
    profiles = ", ".join(profile.name for profile in model.profiles)
    wanted = f"{model.replicas} replica{'' if model.replicas == 1 else 's'} wanted"
    return f"{'stored anew' if before else 'stored'} by operator: {wanted}, profiles {profiles}"


async def remove_model(reign: Reign, name: str, *, dry_run: bool) -> pb.RemoveModelResponse:
    """Remove a stored model, or only say what would stop. Raises NotFound and Conflict."""
    async with reign.ledger.writing() as stored:
        model = ModelId(name)
        if model not in stored.models:
            _refuse(reign, stored, name)
        hidden = model in reign.ledger.catalog.shadowed
        stopping = (
            []
            if hidden
            else sorted(
                row.replica_id
                for row in stored.replicas.values()
                if row.model == model and row.wish is Wish.SERVE
            )
        )
        if not dry_run:
            leaves = goes(stored.replicas[replica_id] for replica_id in stopping)
            text = f"removed; {leaves}" if leaves else "removed"
            changes: list[Change] = [DropModel(model)]
            if not hidden:
                # Wishes and judgements were of this model: another of its name starts without them.
                changes += _forgotten(stored, model, reign.tenure.now())
            event = PutEvent(reign.tenure.now(), "model_removed", name, text, Severity.INFO)
            await reign.ledger.commit([*changes, event])
            log.info("model %s removed", name)
            if reign.world.store.kind == "memory":
                log.warning("model %s is removed from memory only: no database is configured", name)
    reign.hints()
    return pb.RemoveModelResponse(stopping_replica_ids=stopping)


def _forgotten(stored: Stored, model: ModelId, now: float) -> list[Change]:
    changes: list[Change] = []
    if model in stored.deployments:
        changes.append(PutDeployment(DeploymentRow(model, stopped=False, pinned=None, changed_at=now)))
    if any(attempt.model == model for attempt in stored.attempts):
        changes.append(ForgetAttempts(model))
    return changes


def _refuse(reign: Reign, stored: Stored, name: str) -> None:
    model = reign.ledger.catalog.resolve(name)
    if model is None:
        raise NotFound(
            f"no stored model {name}{did_you_mean(name, stored.models)}",
            code="model_not_found",
            next_steps=[_stored_ones(stored)],
        )
    if model.name != name:
        raise InvalidRequest(
            f"{name} is an alias of {model.name}", next_steps=[f"llmgwctl model remove {model.name}"]
        )
    raise Conflict(
        f"model {name} comes from the controller's configuration",
        code="configured_model",
        next_steps=["remove it from the configuration file and restart the controllers"],
    )
