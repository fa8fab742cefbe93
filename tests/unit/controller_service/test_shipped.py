"""Models that come with the release: each is what the catalog takes, once its weights are named."""

import json

import pytest

from llmgw_controller.catalog_file import canonical_json, check_names, parse_model_json
from llmgw_controller.core.catalog import Engine, Source
from llmgw_controller.shipped import Shipped, ShippedWritten, shipped_models

#: Classes as agents report them (`gpu_class_of`): a misspelt one would fit nowhere.
CLASSES = {"H100", "H200", "L40S", "L4", "RTX 4090"}
FILE = {"path": "model.gguf", "url": "https://weights.example/model.gguf", "sha256": "0" * 64}
WEIGHTS = {"version": "r1", "entry_file": "model.gguf", "files": [FILE]}


@pytest.mark.parametrize("one", shipped_models(), ids=lambda one: one.name)
def test_with_weights_it_is_a_model(one: Shipped) -> None:
    spec = json.loads(one.model_json)
    assert "weights" not in spec, "no file list and no checksum is made up"
    text = json.dumps({**spec, "weights": WEIGHTS})
    model = parse_model_json(text, source=Source.STORED, where="shipped")
    assert parse_model_json(canonical_json(model), source=Source.STORED, where="again") == model
    assert model.name == one.name
    assert model.replicas == 0, "applying one starts nothing"
    assert model.idle_after_s is not None
    assert set(one.gpu_classes) <= CLASSES
    for profile in model.profiles:
        assert profile.engine is not Engine.COMMAND
        assert profile.context_length is not None
        # Tensor parallelism of these architectures is a power of two.
        assert profile.tensor_parallel in (1, 2, 4, 8, 16)


def test_all_of_them_can_stand_in_one_catalog() -> None:
    models = [one.model for one in shipped_models()]
    check_names(models, where="shipped")
    assert 8 <= len(models) <= 14
    assert {profile.engine for model in models for profile in model.profiles} == {
        Engine.VLLM,
        Engine.SGLANG,
        Engine.LLAMACPP,
    }
    assert any(profile.nodes > 1 for model in models for profile in model.profiles)


@pytest.mark.parametrize(
    "wrong",
    [{"published_as": "nobody"}, {"format": "pickle"}, {"extra": 1}, {"description": ""}],
    ids=["publisher", "format", "unknown key", "no words"],
)
def test_the_schema_of_an_entry_refuses_what_is_none(wrong: dict[str, object]) -> None:
    right = {"name": "m", "description": "d", "published_as": "a/b", "format": "gguf", "model": {}}
    ShippedWritten.model_validate(right)
    with pytest.raises(ValueError, match="validation error"):
        ShippedWritten.model_validate(right | wrong)
