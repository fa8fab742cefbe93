"""The calls that change what is to be served."""

import logging

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.activations import OPERATOR_KEEPS_S
from llmgw_controller.changes import MEMORY_WARNING
from llmgw_controller.core.activation import Pending, Ready, Refused, decide
from llmgw_controller.deployment_changes import pin_model, start_model, stop_model
from llmgw_controller.model_changes import apply_models, remove_model
from llmgw_controller.operator.desk import Context, Desk
from llmgw_controller.shipped import shipped_models
from llmgw_kit.errors import Conflict, Unavailable

log = logging.getLogger(__name__)


class Models(Desk):
    """Stored models, and what operators wish of any."""

    async def ApplyModel(self, request: pb.ApplyModelRequest, context: Context) -> pb.ApplyModelResponse:
        """Add or change stored models, all of them or none."""
        texts = [request.model_json, *request.more_model_json]
        with self._changing() as reign:
            answers = await apply_models(reign, texts, dry_run=request.dry_run, strict=request.strict)
        for answer in answers:
            answer.store = self._store_kind
        answers[0].more.extend(answers[1:])
        return answers[0]

    async def RemoveModel(self, request: pb.RemoveModelRequest, context: Context) -> pb.RemoveModelResponse:
        """Remove a stored model; its replicas drain and stop."""
        with self._changing() as reign:
            return await remove_model(reign, request.model, dry_run=request.dry_run)

    async def ListShippedModels(
        self, request: pb.ListShippedModelsRequest, context: Context
    ) -> pb.ListShippedModelsResponse:
        """What this release brings; answered by whoever leads, for it applies them."""
        self._office.require()
        found = [
            pb.ShippedModel(
                name=one.name,
                description=one.description,
                model_json=one.model_json,
                gpu_classes=one.gpu_classes,
            )
            for one in shipped_models()
        ]
        return pb.ListShippedModelsResponse(models=found)

    async def StopModel(self, request: pb.StopModelRequest, context: Context) -> pb.StopModelResponse:
        """Drain a model and let nothing start it."""
        with self._changing() as reign:
            change = await stop_model(reign, request.model, dry_run=request.dry_run)
        return pb.StopModelResponse(change=change)

    async def StartModel(self, request: pb.StartModelRequest, context: Context) -> pb.StartModelResponse:
        """Undo a stop; give what failed another chance."""
        with self._changing() as reign:
            change = await start_model(reign, request.model, dry_run=request.dry_run)
        return pb.StartModelResponse(change=change)

    async def PinModel(self, request: pb.PinModelRequest, context: Context) -> pb.PinModelResponse:
        """Keep what runs of a model, or let it be let go again."""
        with self._changing() as reign:
            change = await pin_model(reign, request.model, pinned=request.pinned, dry_run=request.dry_run)
        return pb.PinModelResponse(change=change)

    async def ActivateModel(
        self, request: pb.ActivateModelRequest, context: Context
    ) -> pb.ActivateModelResponse:
        """Start a cold model, as a request would, and keep asking until it is ready, or for an hour."""
        reign = await self._reign()
        model = self._model(reign, request.model)
        match decide(reign.snapshot(reign.ledger.stored), model.name, reign.tenure.now()):
            case Ready():
                return pb.ActivateModelResponse(outcome="ready")
            case Refused("not_activatable" as code, text, _):
                raise Conflict(text, code=code, next_steps=["set activate_on_demand or replicas in its spec"])
            case Refused("stopped" as code, text, _):
                raise Conflict(text, code=code, next_steps=[f"llmgwctl model start {model.name}"])
            case Refused("no_capacity"):
                outcome, eta_s = "waiting", None
            case Refused(code, text, retry_after_s):
                raise Unavailable(text, code=code, retry_after_s=retry_after_s)
            case Pending(_, _, eta_s):
                outcome = "starting"
        if not request.dry_run:
            with self._changing():
                await reign.activations.ask(frozenset({model.name}), keep_s=OPERATOR_KEEPS_S)
            reign.hints()
            if self._store_kind == "memory":
                log.warning("model %s is activated: %s", model.name, MEMORY_WARNING)
        return pb.ActivateModelResponse(outcome=outcome, eta_s=eta_s)
