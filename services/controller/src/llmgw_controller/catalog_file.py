"""Models as people write them, to and from core types. Pure: texts in, models or InvalidRequest out."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from llmgw_controller.catalog_schema import (
    MODEL_NAME,
    FileWritten,
    ModelWritten,
    ProfileWritten,
    WeightsWritten,
)
from llmgw_controller.core.catalog import (
    Engine,
    Model,
    Profile,
    Rollout,
    Source,
    Spread,
    Weights,
    WeightsFile,
)
from llmgw_controller.written import shown
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.ids import ModelId, NodeId
from llmgw_kit.names import did_you_mean
from llmgw_kit.text import printable

_DOC = "docs/catalog.md explains every key"

#: All of one model, as it is stored. Linux takes 2 MiB of arguments and variables, and a node is told of all
#: its replicas in one message.
SPEC_MOST_BYTES = 2**20
#: Of what may still become a model of that size: blanks between keys and escapes are no part of it.
TEXT_MOST_BYTES = 8 * 2**20
#: Of many mistakes so many are told.
TOLD_MOST = 10


def parse_models(written: object, *, where: str) -> list[Model]:
    """The `models:` of a configuration. `where` names the file, for messages.

    Raises InvalidRequest naming the entry, the key, what was given and what was expected."""
    if not isinstance(written, Sequence) or isinstance(written, str):
        raise InvalidRequest(
            f"{where}: models is a {type(written).__name__}; expected a list", next_steps=[_DOC]
        )
    models = [
        parse_model(entry, source=Source.CONFIGURATION, where=f"{where}: models[{position}]")
        for position, entry in enumerate(written)
    ]
    check_names(models, where=where)
    return models


def parse_model(written: object, *, source: Source, where: str) -> Model:
    """One model from a mapping. Raises InvalidRequest with one line a problem."""
    if not isinstance(written, dict):
        raise InvalidRequest(
            f"{where} is a {type(written).__name__}; expected a mapping with name and profiles",
            next_steps=[_DOC],
        )
    name = written.get("name")
    place = f"{where} ({_name_shown(name)})" if isinstance(name, str) else where
    try:
        model = _to_core(ModelWritten.model_validate(written), source)
    except ValidationError as e:
        raise InvalidRequest(f"{place}: {_told(e)}", code="invalid_model", next_steps=[_DOC]) from None
    if (size := len(canonical_json(model).encode())) > SPEC_MOST_BYTES:
        raise InvalidRequest(
            f"{place}: {size} bytes as it is stored; expected at most {SPEC_MOST_BYTES}",
            code="invalid_model",
            next_steps=["let the engine read long texts from a file on its node"],
        )
    return model


def _name_shown(name: str) -> str:
    """As it is where it could be one."""
    return name if MODEL_NAME.fullmatch(name) else shown(name)


def parse_model_json(text: str, *, source: Source, where: str) -> Model:
    """One model from JSON, as `model apply` sends it and the store holds it. Raises InvalidRequest."""
    if len(text) > TEXT_MOST_BYTES:
        raise InvalidRequest(
            f"{where}: {len(text)} characters; expected at most {TEXT_MOST_BYTES}", code="invalid_model"
        )
    try:
        written = json.loads(text, object_pairs_hook=_without_doubles)
    except RecursionError:
        raise InvalidRequest(f"{where} is nested too deeply", code="invalid_model") from None
    except ValueError as e:
        raise InvalidRequest(f"{where} is not JSON: {e}", code="invalid_model") from None
    return parse_model(written, source=source, where=where)


def canonical_json(model: Model) -> str:
    """What the store holds: one text for one meaning, every default written out.

    A later release with other defaults must not change what somebody applied."""
    return json.dumps(_to_written(model).model_dump(exclude_none=True), sort_keys=True, ensure_ascii=False)


def check_names(models: Iterable[Model], *, where: str) -> None:
    """Each name and alias belongs to one model. Raises InvalidRequest naming both that claim it."""
    owners: dict[str, Model] = {}
    for model in models:
        for name in (model.name, *model.aliases):
            other = owners.setdefault(name, model)
            if other is not model and other.name == model.name:
                raise InvalidRequest(
                    f"{where}: two models are named {model.name!r}",
                    next_steps=["give each its own name, or remove one of them"],
                )
            if other is not model:
                raise InvalidRequest(
                    f"{where}: {name!r} belongs to two models, {other.name!r} and {model.name!r}",
                    next_steps=["a client's name must mean one model: rename one of them"],
                )


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {shown(next(name for name in names if names.count(name) > 1))} stands twice")
    return found


_SHAPES: dict[str, type[BaseModel]] = {
    "": ModelWritten, "weights": WeightsWritten, "files": FileWritten, "profiles": ProfileWritten,
}  # fmt: skip


def _told(e: ValidationError) -> str:
    problems = e.errors()
    more = [f"and {len(problems) - TOLD_MOST} more"] if len(problems) > TOLD_MOST else []
    return "; ".join([*(_told_one(problem) for problem in problems[:TOLD_MOST]), *more])


def _told_one(problem: Any) -> str:
    place = problem["loc"]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    path = printable(path, most=200)
    if problem["type"] == "extra_forbidden":
        holder = next((part for part in reversed(place[:-1]) if isinstance(part, str)), "")
        known = _SHAPES[holder].model_fields
        return f"unknown key {path!r}{did_you_mean(str(place[-1]), known)}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{path} is missing"
    if problem["type"] == "value_error":
        return f"{path}: {message}" if path else message
    expected = _EXPECTED.get(problem["type"])
    if expected is not None:
        message = f"expected {expected.format(**problem.get('ctx', {}))}"
    given = problem["input"]
    got = "none" if given in ([], {}) else shown(given)
    return f"{path}: {message}, got {got}"


#: What pydantic says in words of its own, in ours.
_EXPECTED = {
    "too_short": "at least {min_length}",
    "too_long": "at most {max_length}",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "a text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "names with values",
    "model_type": "names with values",
    "model_attributes_type": "names with values",
    "literal_error": "{expected}",
}


def _to_core(written: ModelWritten, source: Source) -> Model:
    weights = None
    if written.weights is not None:
        weights = Weights(
            version=written.weights.version,
            files=tuple(
                WeightsFile(file.path, file.url, file.sha256, file.size_bytes)
                for file in written.weights.files
            ),
            entry_file=written.weights.entry_file,
        )
    return Model(
        name=ModelId(written.name),
        aliases=tuple(written.aliases),
        weights=weights,
        profiles=tuple(_profile(profile) for profile in written.profiles),
        replicas=written.replicas,
        activate_on_demand=written.activate_on_demand,
        hold_timeout_s=written.hold_timeout_s,
        max_held=written.max_held,
        idle_after_s=written.idle_after_s,
        min_residency_s=written.min_residency_s,
        pinned=written.pinned,
        priority=written.priority,
        source=source,
        max_replicas=written.max_replicas,
        spread=Spread(written.spread),
        rollout=Rollout(written.rollout),
        max_unavailable=written.max_unavailable,
        max_held_per_tenant=written.max_held_per_tenant,
    )


def _profile(written: ProfileWritten) -> Profile:
    tensor, pipeline, data = written.parallelism
    return Profile(
        name=written.name,
        engine=Engine(written.engine),
        gpu_class=written.gpu_class,
        nodes=written.nodes,
        gpus_per_node=written.gpus_per_node,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        data_parallel=data,
        memory_bytes=written.memory_bytes,
        context_length=written.context_length,
        args=tuple(written.args),
        env=tuple(sorted(written.env.items())),
        command=tuple(written.command),
        extra_ports=tuple(written.extra_ports),
        ready_path=written.ready_path,
        ready_timeout_s=written.ready_timeout_s,
        drain_timeout_s=written.drain_timeout_s,
        stop_grace_s=written.stop_grace_s,
        stop_after_silence_s=written.stop_after_silence_s,
        min_uptime_s=written.min_uptime_s,
        pool=written.pool,
        node_ids=tuple(NodeId(node) for node in written.node_ids),
        whole_nodes=written.whole_nodes,
        stall_timeout_s=written.stall_timeout_s,
        concurrency=written.concurrency,
    )


def _to_written(model: Model) -> ModelWritten:
    weights = None
    if model.weights is not None:
        weights = WeightsWritten(
            version=model.weights.version,
            files=[
                FileWritten(path=file.path, url=file.url, sha256=file.sha256, size_bytes=file.size_bytes)
                for file in model.weights.files
            ],
            entry_file=model.weights.entry_file,
        )
    return ModelWritten(
        name=model.name,
        aliases=list(model.aliases),
        weights=weights,
        profiles=[_profile_written(profile) for profile in model.profiles],
        replicas=model.replicas,
        activate_on_demand=model.activate_on_demand,
        hold_timeout_s=model.hold_timeout_s,
        max_held=model.max_held,
        idle_after_s=model.idle_after_s,
        min_residency_s=model.min_residency_s,
        pinned=model.pinned,
        priority=model.priority,
        max_replicas=model.max_replicas,
        spread=model.spread.value,
        rollout=model.rollout.value,
        max_unavailable=model.max_unavailable,
        max_held_per_tenant=model.max_held_per_tenant,
    )


def _profile_written(profile: Profile) -> ProfileWritten:
    same = {
        name: getattr(profile, name)
        for name in ProfileWritten.model_fields
        if name not in ("engine", "args", "env", "command", "extra_ports", "node_ids")
    }
    return ProfileWritten(
        **same,
        engine=profile.engine.value,
        args=list(profile.args),
        env=dict(profile.env),
        command=list(profile.command),
        extra_ports=list(profile.extra_ports),
        node_ids=list(profile.node_ids),
    )
