"""Whether what is kept is whole, told by the same code as before the fetch."""

import json
from pathlib import Path

import pytest

from llmgw_mirror.core.versions import Source, WeightsState

from .scripted import Upstream
from .world import World, world


async def kept(at: World, hub: Upstream, files: dict[str, bytes]) -> list[tuple[str, bool, str]]:
    """What is told of a version of these files, all of them fetched."""
    sources = [Source(path, hub.put(f"/{n}", content)) for n, (path, content) in enumerate(files.items())]
    assert (await at.fetch(*sources)).state is WeightsState.PRESENT
    (one,) = await at.built.keepers.keeping.versions()
    return [(told.code, told.blocks, told.text) for told in one.warnings]


def index_of(*names: str) -> bytes:
    return json.dumps({"weight_map": {f"t{n}": name for n, name in enumerate(names)}}).encode()


async def test_h20_one_shard_of_four_is_told_of_a_version_that_has_it(tmp_path: Path, hub: Upstream) -> None:
    async with world(tmp_path) as at:
        ((code, blocks, text),) = await kept(at, hub, {"m-00001-of-00004.gguf": b"x"})
    # It is here already: nothing is left to be refused.
    assert (code, blocks) == ("split_gap", False)
    assert "missing of 4: 2, 3, 4" in text


@pytest.mark.parametrize(
    ("index", "shards"),
    [
        ("model.safetensors.index.json", "model-0000{}-of-00002.safetensors"),
        ("unet/model.safetensors.index.fp16.json", "model.fp16-0000{}-of-00002.safetensors"),
    ],
)
async def test_h19_a_shard_that_an_index_names_and_the_version_lacks(
    tmp_path: Path, hub: Upstream, index: str, shards: str
) -> None:
    """Of a variant too, whose index has the variant's name behind its own."""
    folder = index.rpartition("/")[0]
    first, second = (f"{folder}/{shards.format(n)}".lstrip("/") for n in (1, 2))
    said = index_of(shards.format(1), shards.format(2))
    async with world(tmp_path) as at:
        ((code, blocks, text),) = await kept(at, hub, {index: said, first: b"x"})
    assert (code, blocks) == ("missing_shard", False)
    assert second in text
    assert "this version" in text


async def test_h19_an_index_that_is_older_than_its_shards(tmp_path: Path, hub: Upstream) -> None:
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    async with world(tmp_path) as at:
        files = {"model.safetensors.index.json": index_of(names[0]), **dict.fromkeys(names, b"x")}
        ((code, blocks, text),) = await kept(at, hub, files)
    assert (code, blocks) == ("stale_index", False)
    assert names[1] in text


async def test_a_whole_version_and_an_index_of_what_was_not_chosen_say_nothing(
    tmp_path: Path, hub: Upstream
) -> None:
    """Indexes come along as small files do, whatever was chosen."""
    async with world(tmp_path) as at:
        index = {"model.safetensors.index.json": index_of("model-00001-of-00001.safetensors")}
        assert await kept(at, hub, {"m-00001-of-00001.gguf": b"x", **index}) == []


async def test_an_index_that_cannot_be_read_is_told(tmp_path: Path, hub: Upstream) -> None:
    async with world(tmp_path) as at:
        files = {"model.safetensors.index.json": b"[" * 10_000, "model.safetensors": b"x"}
        ((code, blocks, text),) = await kept(at, hub, files)
    assert (code, blocks) == ("index_unread", False)
    assert "model.safetensors.index.json" in text
