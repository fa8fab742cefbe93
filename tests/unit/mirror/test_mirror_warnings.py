"""What will break, told before a byte is fetched."""

from collections.abc import Sequence

import pytest

from llmgw_mirror.core import warnings
from llmgw_mirror.core.file_groups import FileGroup, grouped
from llmgw_mirror.core.listed_files import ListedFile, OddFile
from llmgw_mirror.core.registry_rows import NotAnAnswer, RepositoryListing
from llmgw_mirror.core.warnings import CodeNamed, GpuClass, Warning
from llmgw_mirror.core.weight_index import belongs, compared, named_files, read_index, worth_reading

from .test_mirror_file_groups import listed, split

SHARDS = split("model", 15, "safetensors")
INDEX = "model.safetensors.index.json"
GB = 1_000_000_000


def index_of(names: Sequence[str], path: str = INDEX) -> object:
    return named_files(path, {"metadata": {}, "weight_map": {f"t{n}": name for n, name in enumerate(names)}})


def told_by_index(paths: Sequence[str], names: Sequence[str]) -> list[Warning]:
    """Of the first group."""
    found = grouped(listed(*paths, INDEX))
    index = named_files(INDEX, {"weight_map": {f"t{n}": name for n, name in enumerate(names)}})
    mismatch = compared(index, found[0], set(paths))
    told = warnings.of_group(found[0], safe=[], found=[mismatch] if mismatch else [], unread=[], fleet=[])
    return list(told)


def codes(told: Sequence[Warning]) -> list[str]:
    return [one.code for one in told]


def group(*paths: str, size: int | None = 1000, sha256: str | None = "ab" * 32) -> FileGroup:
    return grouped([ListedFile(path, size, sha256, None if sha256 else "cd" * 20) for path in paths])[0]


def of_group(
    one: FileGroup, others: Sequence[FileGroup] = (), fleet: Sequence[GpuClass] = ()
) -> tuple[Warning, ...]:
    safe = warnings.safe_groups([one, *others])
    return warnings.of_group(one, safe=safe, found=[], unread=[], fleet=fleet)


# Indexes.


def test_an_index_that_names_what_is_there_says_nothing() -> None:
    assert told_by_index(SHARDS, SHARDS) == []


def test_h19_an_index_that_names_30_where_15_exist_is_stale() -> None:
    (told,) = told_by_index(SHARDS, split("model", 30, "safetensors"))
    assert (told.code, told.blocks) == ("stale_index", True)
    assert "names 30 shards" in told.text
    assert "15 other" in told.text


def test_h19_shards_that_the_index_names_and_nobody_uploaded_are_missing() -> None:
    (told,) = told_by_index(split("model", 15, "safetensors", without=(7, 9)), SHARDS)
    assert (told.code, told.blocks) == ("missing_shard", True)
    assert "model-00007-of-00015.safetensors, model-00009-of-00015.safetensors" in told.text


def test_h19_shards_that_the_index_leaves_out_would_be_lost_without_a_word() -> None:
    (told,) = told_by_index(SHARDS, SHARDS[:-1])
    assert (told.code, told.blocks) == ("stale_index", True)
    assert SHARDS[-1] in told.text


@pytest.mark.parametrize(
    "value", [None, [], {}, {"weight_map": {}}, {"weight_map": []}, {"weight_map": {"a": 1}},
              {"weight_map": {"a": "../../etc/passwd"}}, {"weight_map": {"a": "x\0"}}],
)  # fmt: skip
def test_an_index_that_is_none(value: object) -> None:
    with pytest.raises(NotAnAnswer):
        named_files(INDEX, value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"3", b'{"weight_map": {"t": ["a"]}}', b"\xff\xfe", b"[" * 100_000]
)
def test_content_that_is_no_index(content: bytes) -> None:
    with pytest.raises(NotAnAnswer):
        read_index(INDEX, content)


def test_an_index_names_files_of_its_own_folder() -> None:
    index = named_files("sub/model.safetensors.index.json", {"weight_map": {"a": "model-1.safetensors"}})
    assert index.names == {"sub/model-1.safetensors"}


@pytest.mark.parametrize(
    ("index", "paths", "whether"),
    [
        (INDEX, SHARDS, True),
        ("pytorch_model.bin.index.json", SHARDS, False),
        ("model.safetensors.index.fp16.json", split("model.fp16", 2, "safetensors"), True),
        ("model.safetensors.index.fp16.json", SHARDS, False),
        ("consolidated.safetensors.index.json", SHARDS, False),
        ("sub/model.safetensors.index.json", SHARDS, False),
        ("sub/model.safetensors.index.json", split("sub/model", 2, "safetensors"), True),
        ("model.index.json", SHARDS, False),
        (SHARDS[0], SHARDS, False),
    ],
)
def test_which_index_speaks_for_which_group(index: str, paths: list[str], whether: bool) -> None:
    found = grouped(listed(*paths))
    assert belongs(index, found[0]) is whether
    assert worth_reading([index, "config.json"], found) == ((index,) if whether else ())


# One group.


def test_h20_a_gap_blocks_before_a_byte_is_fetched() -> None:
    (told,) = of_group(group("m-Q4_K_M-00001-of-00004.gguf"))
    assert (told.code, told.blocks) == ("split_gap", True)
    assert "2, 3, 4" in told.text


def test_a_shard_past_the_total_blocks_too() -> None:
    (told,) = of_group(group(*split("model", 2, "safetensors"), "model-00005-of-00002.safetensors"))
    assert (told.code, told.blocks) == ("split_gap", True)
    assert "shard 5 of 2" in told.text


def test_pickles_with_a_safe_twin_are_told_and_alone_they_block() -> None:
    safe = group("model.safetensors")
    (told,) = of_group(group("pytorch_model.bin"), others=[safe])
    assert (told.code, told.blocks) == ("pickle", False)
    assert "safetensors" in told.next_steps[0]
    broken = group("model-00001-of-00002.safetensors")
    for others in ([], [broken]):
        (told,) = of_group(group("pytorch_model.bin"), others=others)
        assert (told.code, told.blocks) == ("pickle_only", True)


def test_files_without_a_published_sum_are_named() -> None:
    (told,) = of_group(group("model.safetensors", sha256=None))
    assert (told.code, told.blocks) == ("no_checksum", False)
    assert "git id" in told.text


def test_an_unknown_size_is_told() -> None:
    assert codes(of_group(group("model.safetensors", size=None), fleet=[GpuClass("a", 1, 1, 1)])) == [
        "odd_size"
    ]


def test_files_that_the_hubs_clients_refuse() -> None:
    assert codes(of_group(group("m.gguf", size=50 * GB))) == []
    assert codes(of_group(group("m.gguf", size=50 * GB + 1))) == ["over_50_gb"]


def test_pieces_to_be_joined_by_hand_block() -> None:
    (told,) = of_group(group("m.gguf-split-a"))
    assert (told.code, told.blocks) == ("pieces", True)


# The fleet.

H200 = GpuClass("h200", 141 * GB, 8, 2)
L40S = GpuClass("l40s", 48 * GB, 2, 1)


@pytest.mark.parametrize(
    ("weights", "fleet", "code", "words"),
    [
        (None, [H200], None, ""),
        (100 * GB, [], None, ""),
        (39 * GB, [L40S], None, ""),
        (41 * GB, [L40S], "several_gpus", "2 devices of l40s"),
        (41 * GB, [L40S, H200], None, ""),
        (81 * GB, [L40S], "fits_no_class", "96.0 GB (l40s)"),
        (500 * GB, [L40S, H200], "several_gpus", "5 devices of h200"),
        (1000 * GB, [H200], "several_nodes", "2 whole nodes of h200"),
        (2000 * GB, [L40S, H200], "fits_no_class", "(h200)"),
    ],
)
def test_weights_against_the_fleet(
    weights: int | None, fleet: list[GpuClass], code: str | None, words: str
) -> None:
    told = warnings.fits(weights, fleet)
    assert (told and told.code) == code
    assert told is None or (words in told.text and not told.blocks)


@pytest.mark.parametrize(
    ("needed", "free", "whether"),
    [(100, 110, False), (101, 110, True), (None, 0, False), (0, 10, False), (0, 5, True)],
)
def test_the_disk_with_ten_bytes_kept_free(needed: int | None, free: int, whether: bool) -> None:
    told = warnings.disk(needed, free, 10)
    assert (told is not None) is whether
    assert told is None or (told.code, told.blocks) == ("disk_too_small", True)


# The repository.


def of_repository(
    grant: bool | None = False, code: CodeNamed | None = None, **fields: object
) -> tuple[Warning, ...]:
    given = {
        "id": "org/m", "commit": "ef" * 20, "files": (), "odd": (), "paths": frozenset(), "gated": None,
    } | fields  # fmt: skip
    listing = RepositoryListing(**given)  # type: ignore[arg-type]
    return warnings.of_repository(listing, asked="org/m", grant=grant, code=code or CodeNamed(needed=False))


@pytest.mark.parametrize("grant", [False, None, True])
def test_a_gated_repository_blocks_where_no_grant_can_be(grant: bool | None) -> None:
    (told,) = of_repository(gated="manual", grant=grant)
    assert (told.code, told.blocks) == ("gated", grant is False)
    assert "manual" in told.text


def test_code_that_config_json_names_is_told_and_left_out() -> None:
    assert codes(of_repository(code=CodeNamed(needed=True))) == ["remote_code"]
    assert of_repository(code=CodeNamed(needed=False), files=tuple(listed("modeling_m.py"))) == ()
    unread = CodeNamed(None, "gated")
    assert codes(of_repository(code=unread, files=tuple(listed("modeling_m.py")))) == ["remote_code"]
    assert of_repository(code=unread) == ()


def test_odd_rows_and_another_name_are_told() -> None:
    odd = tuple(OddFile(f"../{n}", "no") for n in range(6))
    told = of_repository(id="org/new", odd=odd)
    assert codes(told) == ["renamed", "odd_files"]
    assert "and 2 more" in told[1].text


def test_what_is_accepted_does_not_refuse() -> None:
    told = [Warning("a", "", blocks=True), Warning("b", "", blocks=True), Warning("c", "")]
    assert codes(warnings.refusing(told, {"a"})) == ["b"]
