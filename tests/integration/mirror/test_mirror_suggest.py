"""A proposed entry is one: the controller's own catalog takes it, and what it names is here already."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from llmgw.v1 import mirror_pb2
from llmgw_controller.catalog_file import parse_model
from llmgw_controller.core.catalog import Engine, Model
from llmgw_controller.core.catalog import Source as CatalogSource
from llmgw_kit.errors import Conflict, InvalidRequest, NotFound
from llmgw_mirror.adapters.calls_suggest import SuggestCalls
from llmgw_mirror.core.versions import Source, WeightsState
from tests.unit.mirror.test_mirror_gguf import LLAMA, TEMPLATE, VOCABULARY, gguf

from .scripted import Upstream
from .world import World, content_of, sha256_of, world

FLEET = [mirror_pb2.FleetGpuClass(name="RTX 4090", memory_bytes=24 * 2**30, devices_per_node=2)]
CONFIG = json.dumps(
    {
        "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "num_hidden_layers": 2,
        "num_attention_heads": 4, "hidden_size": 64, "torch_dtype": "float16",
    }
).encode()  # fmt: skip


async def proposed(here: World, model: str, version: str) -> tuple[Model, str]:
    """Through the call, then the controller's parser."""
    calls = SuggestCalls(here.mirror, here.built.readers)
    request = mirror_pb2.SuggestModelRequest(model=model, version=version, fleet=FLEET)
    answer = await calls.SuggestModel(request, cast("Any", None))
    written = yaml.safe_load(answer.catalog_yaml)
    return parse_model(written, source=CatalogSource.STORED, where="suggested"), "\n".join(answer.notes)


def sources_of(model: Model) -> list[Source]:
    """As the controller names them to the mirror."""
    assert model.weights is not None
    return [Source(f.path, f.url, f.sha256, f.size_bytes) for f in model.weights.files]


@pytest.mark.parametrize("name", ["tiny-llama", "Org/Tiny-Llama"])
async def test_an_entry_is_taken_by_the_catalog_and_costs_no_byte(hub: Upstream, here: World, name: str):
    weights = content_of(50_000)
    files = [
        Source("model.safetensors", hub.put("/w", weights), sha256_of(weights), len(weights)),
        Source("config.json", hub.put("/c", CONFIG), companion=True),
        Source("empty.txt", hub.put("/e", b"")),
    ]
    await here.fetch(*files, model=name, version="v1")
    model, notes = await proposed(here, name, "v1")
    assert [profile.engine for profile in model.profiles] == [Engine.VLLM, Engine.SGLANG]
    assert model.profiles[0].context_length == 4096
    assert "LlamaForCausalLM" in notes
    assert model.name == name.lower()
    asked = len(hub.requests)
    assert model.weights is not None
    view = await here.fetch(*sources_of(model), model=model.name, version=model.weights.version)
    assert view.state is WeightsState.PRESENT
    assert len(hub.requests) == asked, "everything was here"


async def test_a_gpu_class_without_memory_is_refused_as_it_is_by_every_call(hub: Upstream, here: World):
    await here.fetch(Source("model.safetensors", hub.put("/w", b"x")), model="tiny", version="v1")
    fleet = [*FLEET, mirror_pb2.FleetGpuClass(name="H100", devices_per_node=8)]
    request = mirror_pb2.SuggestModelRequest(model="tiny", version="v1", fleet=fleet)
    with pytest.raises(InvalidRequest, match="'H100' has no memory_bytes"):
        await SuggestCalls(here.mirror, here.built.readers).SuggestModel(request, cast("Any", None))


async def test_a_gguf_is_read_from_its_own_beginning(hub: Upstream, here: World):
    content = gguf(*LLAMA, VOCABULARY, TEMPLATE) + content_of(10_000)
    await here.fetch(Source("tiny-q4_k_m.gguf", hub.put("/g", content)), model="tiny", version="v1")
    model, notes = await proposed(here, "tiny", "v1")
    assert model.weights is not None
    assert model.weights.entry_file == "tiny-q4_k_m.gguf"
    assert [(p.engine, p.context_length) for p in model.profiles] == [(Engine.LLAMACPP, 8192)]
    assert "quantised as Q4_K_M" in notes


@pytest.mark.parametrize("config", [b"", b"[1]", b'{"a":' * 5000, b"\xff\xfe", b"{}"])
async def test_a_config_that_says_nothing_is_told(hub: Upstream, here: World, config: bytes):
    files = [Source("m.safetensors", hub.put("/w", b"x" * 100)), Source("config.json", hub.put("/c", config))]
    await here.fetch(*files, model="m", version="v1")
    model, notes = await proposed(here, "m", "v1")
    assert model.profiles
    assert "config.json" in notes


async def test_what_is_not_here_or_no_model_is_refused_by_name(hub: Upstream, here: World):
    with pytest.raises(NotFound, match="is not here"):
        await proposed(here, "m", "v1")
    await here.fetch(Source("m.onnx", hub.put("/w", b"x")), model="m", version="v1")
    with pytest.raises(Conflict, match="holds no weights that vllm"):
        await proposed(here, "m", "v1")


async def test_of_a_version_that_is_not_whole_nothing_is_proposed(hub: Upstream, tmp_path: Path):
    async def never(_: Any) -> None:
        await hub.over.wait()

    hub.acts.append(never)
    async with world(tmp_path / "store") as here:
        await here.mirror.fetch("m", "v1", [Source("m.safetensors", hub.put("/w", b"x"))])
        while not hub.requests:
            await asyncio.sleep(0.005)
        with pytest.raises(Conflict, match="of a whole one only"):
            await proposed(here, "m", "v1")
