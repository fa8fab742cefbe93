"""Rows of the registry: one odd row is odd, the others stand (M20), and no value is believed for its name."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_kit.errors import InvalidRequest
from llmgw_mirror.core.listed_files import file_rows
from llmgw_mirror.core.registry_names import check_repository, check_revision, file_url, info_url
from llmgw_mirror.core.registry_rows import NotAnAnswer, gated_word, has_sizes, listing, parse, search_rows

SHA256, GIT, COMMIT = "ab" * 32, "cd" * 20, "ef" * 20


def sibling(path: str = "model.safetensors", **fields: Any) -> dict[str, Any]:
    row = {
        "rfilename": path, "size": 5_000_000_000, "blobId": GIT,
        "lfs": {"sha256": SHA256, "size": 5_000_000_000, "pointerSize": 135},
    }  # fmt: skip
    return row | fields


def one_file(row: Any, *, name: str = "rfilename") -> Any:
    files, odd, _ = file_rows([row], name=name)
    assert not odd
    return files[0]


# Search.


def test_m20_one_odd_row_leaves_the_other_nineteen() -> None:
    rows: list[Any] = [{"id": f"org/m{n}"} for n in range(19)]
    odd: Any
    for odd in (
        None,
        7,
        "text",
        [],
        {},
        {"id": None},
        {"id": 4},
        {"id": "../x"},
        {"id": "a/b/c"},
        {"id": "\ud800"},
    ):
        found = search_rows([*rows[:7], odd, *rows[7:]], most=100)
        assert [row.id for row in found if row.odd is None] == [row["id"] for row in rows]
        assert found[7].odd is not None
        found[7].odd.encode()
        found[7].id.encode()


def test_a_row_of_odd_values_keeps_what_can_be_read() -> None:
    row = {
        "id": "org/m", "gated": 7, "private": "yes", "downloads": -1, "likes": True, "lastModified": 12,
        "pipeline_tag": ["x"], "library_name": "vllm\x00\x1b[31m", "tags": ["gguf", 4, None, "\ud800", ""],
        "new": {},
    }  # fmt: skip
    found = search_rows([row], most=1)[0]
    assert (found.odd, found.gated, found.private) == (None, "odd", False)
    assert (found.downloads, found.likes, found.modified, found.pipeline_tag) == (None, None, None, None)
    assert found.library is not None
    assert found.library.isprintable()
    assert found.tags[0] == "gguf"
    assert len(found.tags) == 2


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (False, None), (None, None), ("", None), ("auto", "auto"), ("manual", "manual"), (True, "true"),
        ("later\n", "later"), (0, "odd"), (1.5, "odd"), ({"by": "form"}, "odd"), ([], "odd"), ("\x00", "^@"),
    ],
)  # fmt: skip
def test_h16_gated_keeps_its_word_and_is_never_open_by_mistake(value: Any, word: str | None) -> None:
    assert gated_word(value) == word


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 100_000, b"\xff", b"1" * 5000, b'{"a":', b"nul"])
def test_what_is_no_json_is_told(body: bytes) -> None:
    with pytest.raises(NotAnAnswer):
        parse(body)


@pytest.mark.parametrize("value", [b"[],", b"{},", b'{"a":1},', b"1,", b'"",'])
def test_json_of_more_values_than_any_listing_has_is_not_even_read(value: bytes) -> None:
    """12 MB of it would take a gigabyte."""
    body = b"[" + value * (12_000_000 // len(value)) + b"1]"
    tracemalloc.start()
    try:
        with pytest.raises(NotAnAnswer, match="at most 1000000 are read"):
            parse(body)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("value", [None, {}, "x", 3, {"error": "no"}])
def test_what_is_no_list_of_repositories_is_told(value: Any) -> None:
    with pytest.raises(NotAnAnswer):
        search_rows(value, most=5)


def test_no_more_rows_are_read_than_asked_for() -> None:
    assert len(search_rows([{"id": "a/b"}] * 1000, most=21)) == 21


# Sizes and checksums.


def test_the_real_size_is_that_of_lfs() -> None:
    assert one_file(sibling(size=135)).size_bytes == 5_000_000_000
    assert one_file(sibling(size=None)).size_bytes == 5_000_000_000


def test_the_sha256_is_never_the_pointers_git_id() -> None:
    file = one_file(sibling())
    assert (file.sha256, file.git_id) == (SHA256, None)
    tree = {"type": "file", "path": "w.gguf", "oid": GIT, "size": 9, "lfs": {"oid": SHA256, "size": 9000}}
    file = one_file(tree, name="path")
    assert (file.sha256, file.git_id, file.size_bytes) == (SHA256, None, 9000)


def test_outside_lfs_there_is_a_git_id_and_no_sha256() -> None:
    file = one_file(sibling("config.json", lfs=None, size=700))
    assert (file.sha256, file.git_id, file.size_bytes) == (None, GIT, 700)


@pytest.mark.parametrize("size", [126, 131, 137])
def test_a_pointers_size_is_no_size_of_weights(size: int) -> None:
    file = one_file(sibling(lfs=None, size=size))
    assert (file.size_bytes, file.git_id) == (None, None)
    assert "pointer" in file.odd
    assert one_file(sibling("config.json", lfs=None, size=size)).size_bytes == size


@pytest.mark.parametrize("lfs", [{"sha256": SHA256, "size": 135, "pointerSize": 135}, {"sha256": SHA256}])
def test_a_pointers_size_inside_lfs_is_none_either(lfs: dict[str, Any]) -> None:
    file = one_file(sibling(size=135, lfs=lfs | {"pointerSize": 135}))
    assert (file.size_bytes, file.sha256) == (None, SHA256)


@pytest.mark.parametrize("size", [-1, True, 1.5, "12", 2**63, None, [], float("nan")])
def test_an_odd_size_is_unknown_and_told(size: Any) -> None:
    file = one_file(sibling("config.json", lfs=None, size=size))
    assert file.size_bytes is None
    assert file.odd


@pytest.mark.parametrize("sum_", ["", "ab", 5, GIT, "zz" * 32])
def test_an_odd_checksum_is_none_and_told(sum_: Any) -> None:
    file = one_file(sibling(lfs={"sha256": sum_, "size": 9, "pointerSize": 135}))
    assert (file.sha256, file.size_bytes) == (None, 9)
    assert "sha256" in file.odd


# Names.


@pytest.mark.parametrize(
    "path",
    [
        "../x", "a/../../x", "/etc/x", "C:\\x", "a\\b", "x\0y", "x" * 300, "a//b", "./a", "con",
        "aux.safetensors", "x\u202egpj.bin", "\ud800.bin", "a\nb", "", " x", "x.", "a/" * 600 + "x",
    ],
)  # fmt: skip
def test_h17_hostile_names_are_refused_when_they_are_listed(path: str) -> None:
    files, odd, names = file_rows([sibling(path), sibling("config.json")], name="rfilename")
    assert [file.path for file in files] == ["config.json"]
    assert len(odd) == 1
    assert odd[0].why
    odd[0].path.encode()
    assert names is not None
    for name in names:
        name.encode()


def test_of_case_twins_one_stays_and_the_other_is_told() -> None:
    rows = [sibling(path) for path in ("Config.json", "config.json", "README.md", "model.bin")]
    files, odd, _ = file_rows(rows, name="rfilename")
    assert [file.path for file in files] == ["README.md", "config.json", "model.bin"]
    assert [one.path for one in odd] == ["Config.json"]


def test_a_file_that_others_need_as_a_folder_goes() -> None:
    files, odd, _ = file_rows([sibling("onnx"), sibling("onnx/model.onnx")], name="rfilename")
    assert [file.path for file in files] == ["onnx/model.onnx"]
    assert odd[0].path == "onnx"


def test_a_name_listed_twice_stands_once() -> None:
    files, odd, _ = file_rows([sibling("a.bin"), sibling("a.bin", size=1)], name="rfilename")
    assert len(files) == len(odd) == 1


def test_beyond_the_bound_rows_are_told_as_unread() -> None:
    files, odd, names = file_rows([sibling(f"f{n}.json") for n in range(10_020)], name="rfilename")
    assert (len(files), names) == (10_000, None)
    assert odd[-1].path.startswith("20 ")


# A repository.


def info(**fields: Any) -> dict[str, Any]:
    return {"id": "org/m", "sha": COMMIT, "siblings": [sibling()], "gated": "auto"} | fields


def test_a_listing_has_its_commit_and_words() -> None:
    found = listing(info(cardData={"license": "mit"}, safetensors={"total": 7}), asked="org/m")
    assert (found.commit, found.gated, found.license, found.parameters) == (COMMIT, "auto", "mit", 7)
    assert found.paths == frozenset({"model.safetensors"})


@pytest.mark.parametrize("broken", [{"sha": None}, {"sha": "main"}, {"siblings": None}, {"siblings": {}}])
def test_a_listing_without_commit_or_files_is_none(broken: dict[str, Any]) -> None:
    with pytest.raises(NotAnAnswer):
        listing(info(**broken), asked="org/m")


def test_bare_names_have_no_sizes() -> None:
    assert not has_sizes(info(siblings=[{"rfilename": "a"}]))
    assert has_sizes(info())
    assert has_sizes(info(siblings=[]))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_ROW = st.dictionaries(
    st.sampled_from(["rfilename", "path", "size", "lfs", "blobId", "oid", "type", "x"]),
    _JSON | st.fixed_dictionaries({"sha256": _JSON, "oid": _JSON, "size": _JSON, "pointerSize": _JSON}),
)
_REPO = st.dictionaries(
    st.sampled_from(
        [
            "id",
            "modelId",
            "sha",
            "siblings",
            "gated",
            "private",
            "tags",
            "cardData",
            "safetensors",
            "lastModified",
        ]
    ),
    _JSON,
)


@given(st.lists(_ROW | _JSON, max_size=6), st.sampled_from(["rfilename", "path"]))
def test_any_rows_of_files_are_decoded_to_the_end(rows: list[Any], name: str) -> None:
    files, odd, names = file_rows(rows, name=name)
    for file in files:
        assert file.size_bytes is None or 0 <= file.size_bytes < 2**63
    json.dumps([[file.path for file in files], [one.why for one in odd], sorted(names or ())]).encode()


@given(st.lists(_REPO | _JSON, max_size=6))
def test_any_rows_of_repositories_are_decoded_to_the_end(rows: list[Any]) -> None:
    found = search_rows(rows, most=10)
    assert len(found) == len(rows)
    for row in found:
        "".join((row.id, row.odd or "", row.gated or "", row.library or "", *row.tags)).encode()


@given(_REPO | _JSON)
def test_any_answer_is_a_listing_or_none(value: Any) -> None:
    try:
        listing(value, asked="org/m")
    except NotAnAnswer as e:
        str(e).encode()


# What is asked with.


@pytest.mark.parametrize("name", ["gpt2", "org/m", "a.b/c_d-e", "0/1"])
def test_ids_that_are_taken(name: str) -> None:
    assert check_repository(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "a/b/c",
        "../x",
        "a/..",
        "org/m?x",
        "org/m#",
        "a b",
        "org/",
        "-x",
        "org/\n",
        "ä",
        "x" * 97,
        "a..b",
    ],
)
def test_ids_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_repository(name)


@pytest.mark.parametrize("name", ["main", "refs/pr/1", "v1.0", COMMIT, "feature/ü"])
def test_revisions_that_are_taken(name: str) -> None:
    assert check_revision(name) == name


@pytest.mark.parametrize(
    "name", ["", "..", "a..b", "a b", "/x", "x/", "-x", "a\0b", "x" * 201, "a?b", "a.lock", ".", "a//b"]
)
def test_revisions_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_revision(name)


def test_a_revision_is_one_segment_and_a_path_keeps_its_slashes() -> None:
    assert info_url("http://r.test/hub", "org/m", "refs/pr/1").endswith(
        "/hub/api/models/org/m/revision/refs%2Fpr%2F1?blobs=true"
    )
    url = file_url("http://r.test", "org/m", COMMIT, "sub dir/100%?#.bin")
    assert url == f"http://r.test/org/m/resolve/{COMMIT}/sub%20dir/100%25%3F%23.bin"
