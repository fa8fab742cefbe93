"""What a caller's words choose: whole choices, named so that a name means the same version for good."""

import itertools

import pytest

from llmgw_kit.errors import InvalidRequest, NotFound
from llmgw_mirror.core.choosing import Chosen, choose
from llmgw_mirror.core.file_groups import grouped
from llmgw_mirror.core.listed_files import OddFile
from llmgw_mirror.core.registry_rows import RepositoryListing

from .test_mirror_file_groups import listed, split

COMMIT = "0123456789abcdef" + "0" * 24
PATHS = (
    *split("model", 2, "safetensors"), "pytorch_model.bin", *split("m-Q4_K_M", 3, "gguf"), "m-Q8_0.gguf",
    "config.json", "model.safetensors.index.json", "modeling.py", "picture.png", "big.txt",
)  # fmt: skip
LISTING = RepositoryListing(
    "org/m", COMMIT, tuple(listed(*PATHS)), (OddFile("../x", "it leaves its folder"),), frozenset(PATHS)
)
GROUPS = grouped(LISTING.files)
ALONG = {"config.json", "model.safetensors.index.json", "big.txt"}


def chosen(*names: str, paths: tuple[str, ...] = (), take_code: bool = False) -> Chosen:
    return choose(LISTING, GROUPS, names=names, paths=paths, take_code=take_code)


def test_nothing_named_is_the_preselected_group_with_its_company() -> None:
    found = chosen()
    assert {file.path for file in found.files} == set(split("model", 2, "safetensors"))
    assert {file.path for file in found.along} == ALONG
    assert found.version_name(COMMIT) == "0123456789ab"


def test_h20_one_shard_stands_for_its_split() -> None:
    shards = split("m-Q4_K_M", 3, "gguf")
    for shard in shards:
        assert {file.path for file in chosen(paths=(shard,)).files} == set(shards)


def test_what_is_named_does_not_come_along_besides() -> None:
    found = chosen("gguf-q8_0", paths=("config.json", "picture.png"))
    assert {file.path for file in found.files} == {"m-Q8_0.gguf", "config.json", "picture.png"}
    assert {file.path for file in found.along} == ALONG - {"config.json"}


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (chosen("safetensors"), "0123456789ab"),
        (chosen("gguf-q8_0"), "0123456789ab-gguf-q8_0"),
        (chosen("pytorch", "gguf-q8_0"), "0123456789ab-gguf-q8_0+pytorch"),
        (chosen("gguf-q8_0", "PyTorch", "gguf-q8_0"), "0123456789ab-gguf-q8_0+pytorch"),
        (chosen(take_code=True), "0123456789ab-code"),
        (chosen("gguf-q8_0", paths=("m-Q8_0.gguf",)), "0123456789ab-gguf-q8_0"),
    ],
)
def test_how_a_choice_is_called(found: Chosen, name: str) -> None:
    assert found.version_name(COMMIT) == name


def test_equal_names_are_equal_choices_and_equal_choices_have_their_files_once() -> None:
    """Every choice of at most two groups, two paths and code."""
    named = [group.name for group in GROUPS]
    groups = [*itertools.combinations(named, 1), *itertools.combinations(named, 2), ()]
    paths = [*itertools.combinations(PATHS, 1), *itertools.combinations(PATHS, 2), ()]
    meant: dict[str, set[str]] = {}
    for names, single, take_code in itertools.product(groups, paths, (False, True)):
        found = chosen(*names, paths=single, take_code=take_code)
        files = {file.path for file in found.all_files}
        assert len(files) == len(found.all_files)
        assert meant.setdefault(found.version_name(COMMIT), files) == files, (names, single, take_code)


@pytest.mark.parametrize(
    ("names", "paths", "code", "hint"),
    [
        (("gguf-q4-k-m",), (), "unknown_group", "gguf-q4_k_m"),
        (("zzz",), (), "unknown_group", "safetensors, gguf-q4_k_m"),
        ((), ("modell.py",), "unknown_path", "modeling.py"),
        ((), ("",), "unknown_path", ""),
        ((), ("x" * 100_000,), "unknown_path", ""),
    ],
)
def test_what_is_not_there_is_refused_with_what_is_near(
    names: tuple[str, ...], paths: tuple[str, ...], code: str, hint: str
) -> None:
    with pytest.raises(NotFound) as told:
        chosen(*names, paths=paths)
    assert told.value.code == code
    assert hint in "\n".join(told.value.next_steps)
    assert len(told.value.text) < 500


def test_a_refused_row_is_told_as_that() -> None:
    with pytest.raises(InvalidRequest) as told:
        chosen(paths=("../x",))
    assert "leaves its folder" in told.value.text
