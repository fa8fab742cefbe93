"""Operators' wishes on a model beside its spec: stop, start, pin. Configured and stored ones alike."""

from collections.abc import Sequence
from dataclasses import replace

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.changes import commit, memory_warnings
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.deployments import effective_pinned, second_chance, wish_of
from llmgw_controller.core.plan import PutDeployment
from llmgw_controller.core.roster import goes
from llmgw_controller.core.rows import Wish
from llmgw_controller.core.words import counted
from llmgw_controller.reign import Reign
from llmgw_kit.errors import NotFound
from llmgw_kit.names import did_you_mean


async def stop_model(reign: Reign, name: str, *, dry_run: bool) -> pb.ModelChange:
    """Its replicas drain, and nothing starts it until `start`. Raises NotFound."""
    async with reign.ledger.writing() as stored:
        model = _model(reign, name)
        wish, now = wish_of(stored, model.name), reign.tenure.now()
        if wish.stopped:
            return _answer(reign, model, "unchanged", f"{model.name} is stopped already")
        serving = sorted(
            row.replica_id
            for row in stored.replicas.values()
            if row.model == model.name and row.wish is Wish.SERVE
        )
        leaves = goes(stored.replicas[replica_id] for replica_id in serving) or "none runs"
        text = f"{model.name} is stopped: {leaves}, and requests for it are refused"
        if not dry_run:
            row = replace(wish, stopped=True, changed_at=now)
            await commit(reign, "model", model.name, "model_stopped", "by operator", PutDeployment(row))
    reign.hints()
    return _answer(reign, model, "stopped", f"{text}; to undo: llmgwctl model start {model.name}", serving)


async def start_model(reign: Reign, name: str, *, dry_run: bool) -> pb.ModelChange:
    """Undo `stop`, and give what had failed another chance at once. Raises NotFound."""
    async with reign.ledger.writing() as stored:
        model = _model(reign, name)
        wish, now = wish_of(stored, model.name), reign.tenure.now()
        forgiven, renewed = second_chance(stored, model.name, now)
        if not wish.stopped and not forgiven:
            text = f"{model.name} is not stopped, and no start of it has failed; {_next(model)}"
            return _answer(reign, model, "unchanged", text)
        parts = ["it is stopped no longer"] if wish.stopped else []
        if forgiven:
            parts.append("its failed starts are forgotten")
        if renewed:
            parts.append(f"{', '.join(renewed)} {'tries' if len(renewed) == 1 else 'try'} again now")
        text = f"{model.name} is started: {', '.join(parts)}; {_next(model)}"
        if not dry_run:
            row = replace(wish, stopped=False, changed_at=now)
            why = f"by operator: {', '.join(parts)}"
            await commit(reign, "model", model.name, "model_started", why, PutDeployment(row), *forgiven)
    reign.hints()
    return _answer(reign, model, "started", text, renewed)


async def pin_model(reign: Reign, name: str, *, pinned: bool, dry_run: bool) -> pb.ModelChange:
    """Keep what runs of it whatever happens, or let it be let go again. Raises NotFound."""
    async with reign.ledger.writing() as stored:
        model = _model(reign, name)
        if effective_pinned(stored, model) is pinned:
            text = f"{model.name} is pinned already" if pinned else f"{model.name} is not pinned"
            return _answer(reign, model, "unchanged", text)
        outcome = "pinned" if pinned else "unpinned"
        if pinned:
            text = f"{model.name} is pinned: what runs of it is never evicted and never let go as idle"
        else:
            idle_s = model.idle_after_s
            when = "may be evicted" if idle_s is None else f"may leave after {idle_s:.0f} s idle"
            spec = ", although its spec pins it" if model.pinned else ""
            text = f"{model.name} is not pinned any more{spec}: what runs of it {when}"
        if not dry_run:
            # What the spec says anyway needs no row.
            said = None if model.pinned is pinned else pinned
            row = replace(wish_of(stored, model.name), pinned=said, changed_at=reign.tenure.now())
            await commit(reign, "model", model.name, f"model_{outcome}", "by operator", PutDeployment(row))
    reign.hints()
    return _answer(reign, model, outcome, text)


def _model(reign: Reign, name: str) -> Model:
    model = reign.ledger.catalog.resolve(name)
    if model is None:
        raise NotFound(
            f"no model {name} in the catalog{did_you_mean(name, reign.ledger.catalog.models)}",
            code="model_not_found",
            next_steps=["try: llmgwctl models"],
        )
    return model


def _next(model: Model) -> str:
    if model.replicas:
        return f"its spec keeps {counted(model.replicas, 'replica')} up"
    if model.activate_on_demand:
        return f"a request starts it, or llmgwctl model activate {model.name}"
    return "its spec keeps none up and lets no request start it"


def _answer(
    reign: Reign, model: Model, outcome: str, text: str, replica_ids: Sequence[str] = ()
) -> pb.ModelChange:
    return pb.ModelChange(
        model=model.name, outcome=outcome, text=text, replica_ids=replica_ids, warnings=memory_warnings(reign)
    )
