"""A registry that says anything at all: every call ends with an answer or a told error, and nothing else."""

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.v1 import mirror_pb2
from llmgw_kit.errors import LlmgwError
from llmgw_mirror import wire_registry
from llmgw_mirror.fetching_repository import Order

from .finding_world import Looking, looking_in
from .hub_registry import HubRegistry, hub_registry
from .scripted import status

SEEDS = range(60)
WORDS: list[Any] = [
    None, True, False, 0, -1, 2**63, 1e308, 135, "", "x", "../x", "model.safetensors", "\ud800", "a\0b",
    "main", "ab" * 32, "cd" * 20, [], {}, "auto", "n" * 5000, "model-00001-of-99999.gguf",
    "modèle.bin", "org/m",
]  # fmt: skip
KEYS = (
    "id", "modelId", "sha", "siblings", "gated", "cardData", "safetensors", "rfilename", "size", "lfs",
    "sha256", "oid", "blobId", "path", "type", "tags", "lastModified", "license", "total", "weight_map",
    "auto_map", "pointerSize", "error",
)  # fmt: skip


def anything(chance: random.Random, depth: int = 4) -> Any:
    kind = chance.random()
    if depth == 0 or kind < 0.4:
        return chance.choice(WORDS)
    if kind < 0.6:
        return [anything(chance, depth - 1) for _ in range(chance.randrange(5))]
    return {chance.choice(KEYS): anything(chance, depth - 1) for _ in range(chance.randrange(8))}


def spoiled(value: Any, chance: random.Random) -> Any:
    """The same, with something else in some places."""
    if chance.random() < 0.08:
        return anything(chance, 2)
    if isinstance(value, dict):
        return {key: spoiled(one, chance) for key, one in value.items() if chance.random() > 0.03}
    if isinstance(value, list):
        return [spoiled(one, chance) for one in value]
    return value


@pytest.fixture
async def hub() -> AsyncIterator[HubRegistry]:
    async with hub_registry() as made:
        files = {f"model-{n:05}-of-00003.safetensors": b"w" * 500 for n in (1, 2, 3)}
        made.add("org/m", files | {"config.json": b"{}", "model.safetensors.index.json": b"{}"})
        yield made


@pytest.fixture
async def at(hub: HubRegistry, tmp_path: Path) -> AsyncIterator[Looking]:
    async with looking_in(hub, tmp_path) as made:
        yield made


@pytest.mark.parametrize("whole", [True, False])
async def test_whatever_the_registry_says_is_an_answer_or_a_told_error(
    at: Looking, hub: HubRegistry, whole: bool
) -> None:
    repo = hub.repos["org/m"]
    answered = 0
    for seed in SEEDS:
        chance = random.Random(seed)
        info = repo.info(repo.branches["main"], blobs=True)
        for path, said in (("/api/models", [info, info]), ("/api/models/org/m/revision/main", info)):
            body = json.dumps(anything(chance) if whole else spoiled(said, chance)).encode()
            hub.on(path, *[status(chance.choice([200] * 9 + [404, 403]), body)] * 2)
        try:
            found, _ = await at.finding.search("m")
            for one in found:
                wire_registry.found_to(one).SerializeToString()
            look = await at.finding.look("org/m", None)
            wire_registry.look_to(look).SerializeToString()
            ordered = await at.fetching.preview(Order("org/m", accepted=frozenset({"remote_code"})))
            wire_registry.ordered_to(ordered).SerializeToString()
            answered += 1
        except LlmgwError as e:
            assert e.text.isprintable(), (seed, e.text)
            assert len(e.text) < 2000, (seed, e.text)
        hub.scripts.clear()
    assert list(at.here.store.versions.iterdir()) == []
    assert whole or answered > 5, "some of what is spoiled a little must still be of use"
    assert isinstance(
        at.finding.state() and wire_registry.state_to(at.finding.state()), mirror_pb2.GetRegistryResponse
    )
