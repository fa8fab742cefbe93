"""Models that come with this release: data, checked by the catalog's own schema, without weights.

Weights are named by whoever applies one: which revision, files and checksums is not ours to say.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, TypeAdapter

from llmgw_controller.catalog_file import parse_model
from llmgw_controller.catalog_schema import Word, Written
from llmgw_controller.core.catalog import Engine, Model, Source

#: Stands for the weights while the rest is checked.
_SOME_WEIGHTS = {"version": "any", "entry_file": "any", "files": [{"path": "any", "url": "file:///any"}]}


class ShippedWritten(Written):
    """One entry of models.yaml."""

    name: Word
    description: Annotated[str, Field(min_length=1, max_length=120)]
    #: As its publisher names it.
    published_as: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")]
    format: Literal["safetensors", "gguf"]
    #: As in the catalog, but for name and weights.
    model: dict[str, Any]


@dataclass(frozen=True)
class Shipped:
    name: str
    #: With the publisher's name and the format of the files.
    description: str
    #: A model as `model apply` takes it, but for its weights.
    spec: dict[str, Any]
    model: Model

    @property
    def model_json(self) -> str:
        """The spec as text."""
        return json.dumps(self.spec, ensure_ascii=False)

    @property
    def gpu_classes(self) -> list[str]:
        """Those that its profiles name, in order of preference."""
        return list(dict.fromkeys(profile.gpu_class for profile in self.model.profiles))


@cache
def shipped_models() -> tuple[Shipped, ...]:
    """By name. Raises AssertionError and InvalidRequest for data that is wrong: a bug of the release."""
    text = resources.files(__package__).joinpath("models.yaml").read_text(encoding="utf-8")
    entries = TypeAdapter(list[ShippedWritten]).validate_python(yaml.safe_load(text))
    names = [entry.name for entry in entries]
    assert len(set(names)) == len(names), "two shipped models of one name"
    return tuple(sorted((_shipped(entry) for entry in entries), key=lambda one: one.name))


def _shipped(entry: ShippedWritten) -> Shipped:
    assert not {"name", "weights"} & entry.model.keys(), f"{entry.name}: name and weights stand elsewhere"
    spec = {"name": entry.name, **entry.model}
    model = parse_model(
        {**spec, "weights": _SOME_WEIGHTS}, source=Source.STORED, where=f"shipped model {entry.name}"
    )
    gguf = {profile.engine is Engine.LLAMACPP for profile in model.profiles}
    assert gguf == {entry.format == "gguf"}, f"{entry.name}: llamacpp opens gguf files, and only it"
    description = f"{entry.description}; published as {entry.published_as} ({entry.format})"
    return Shipped(entry.name, description, spec, model)
