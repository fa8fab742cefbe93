"""Bodies of the Hub's protocol: their shapes, their pages, and what is left out."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_mirror.core.hub import At, HeldFile, Offer
from llmgw_mirror.core.hub_requests import Query
from llmgw_mirror.core.hub_rows import (
    commit_rows,
    expanded,
    file_row,
    model_row,
    page,
    path_rows,
    reference_rows,
    search_rows,
    tree_rows,
    when,
)

COMMIT, OTHER, SHA, GIT = "a" * 40, "b" * 40, "1" * 64, "2" * 40
IN_LFS = HeldFile("sub/w.safetensors", SHA, 140_000_000_000, None)
PLAIN = HeldFile("config.json", SHA, 24, GIT)


def offered(*files: HeldFile, repository: str = "org/m", commit: str = COMMIT, at: float = 0.0,
            names: tuple[str, ...] = ("main",)) -> Offer:  # fmt: skip
    held = {file.path: file for file in files}
    return Offer("m", "v", repository, commit, frozenset(names), at, frozenset(held), held, {}, None)


AT = At(COMMIT, (offered(IN_LFS, PLAIN),))


def test_the_sha256_has_two_names_and_the_size_is_the_real_one() -> None:
    sibling = next(row for row in model_row("org/m", AT, blobs=True)["siblings"] if "lfs" in row)
    assert sibling["lfs"]["sha256"] == SHA
    row = file_row(AT, IN_LFS, expand=False)
    assert row["lfs"]["oid"] == SHA
    assert row["size"] == row["lfs"]["size"] == sibling["size"] == IN_LFS.size_bytes
    assert row["oid"] != SHA
    assert len(row["oid"]) == 40
    # As git-lfs writes it: three lines, of which only the size's digits vary.
    pointer = f"oid sha256:{SHA}\nsize {IN_LFS.size_bytes}\n"
    assert row["lfs"]["pointerSize"] == len(pointer) + 43
    assert "xetHash" not in row
    assert file_row(AT, PLAIN, expand=True) == {
        "type": "file", "oid": GIT, "size": 24, "path": "config.json",
        "lastCommit": {"id": COMMIT, "title": "mirrored as m v", "date": "1970-01-01T00:00:00.000Z"},
    }  # fmt: skip


def test_without_blobs_siblings_are_bare_names() -> None:
    assert model_row("org/m", AT)["siblings"] == [
        {"rfilename": "config.json"}, {"rfilename": "sub/w.safetensors"}
    ]  # fmt: skip


def test_what_is_not_known_is_not_there() -> None:
    row = model_row("org/m", AT)
    assert not {"likes", "downloads", "lastModified", "pipeline_tag", "cardData", "config"} & row.keys()
    assert row["author"] == "org"
    assert "author" not in model_row("gpt2", AT)
    assert set(expanded(row, Query.of("expand=sha&expand=likes"))) == {"_id", "id", "modelId", "sha"}


def test_trees() -> None:
    deep = HeldFile("a/b/c.txt", SHA, 1, GIT)
    at = At(COMMIT, (offered(deep, PLAIN, HeldFile("a.txt", SHA, 1, GIT), HeldFile("a/x", SHA, 1, GIT)),))

    def names(folder: str, *, recursive: bool) -> list[tuple[str, str]]:
        return [(r["type"][0], r["path"]) for r in tree_rows(at, folder, recursive=recursive, expand=False)]

    assert names("", recursive=False) == [("d", "a"), ("f", "a.txt"), ("f", "config.json")]
    assert names("", recursive=True) == [
        ("d", "a"), ("f", "a.txt"), ("d", "a/b"), ("f", "a/b/c.txt"), ("f", "a/x"), ("f", "config.json")
    ]  # fmt: skip
    assert names("a", recursive=False) == [("d", "a/b"), ("f", "a/x")]
    assert names("a/b", recursive=True) == [("f", "a/b/c.txt")]
    assert names("b", recursive=True) == []
    found = path_rows(at, ["a", "a/b/", "config.json", "a", "b", ""], expand=False)
    assert [row["path"] for row in found] == ["a", "a/b", "config.json"]


@given(st.sets(st.text("abc/", min_size=1, max_size=6)), st.integers(1, 5))
def test_pages_bring_every_row_once_and_end(paths: set[str], size: int) -> None:
    """H15, from the server's side: no page leads to itself."""
    rows = [{"path": path} for path in sorted(paths)]
    seen, cursor, pages = [], None, 0
    while True:
        shown, cursor = page(rows, cursor, size, key="path")
        seen += shown
        pages += 1
        assert pages <= len(rows) + 1
        if cursor is None:
            break
        assert len(shown) == size
    assert seen == rows


def test_a_cursor_whose_row_is_gone_goes_on_after_it() -> None:
    rows = [{"path": "a"}, {"path": "c"}]
    assert page(rows, "b", 5, key="path") == ([{"path": "c"}], None)


def test_references() -> None:
    offers = [
        offered(PLAIN, names=("main", "v1")), offered(PLAIN, commit=OTHER, names=("refs/pr/3",), at=2.0),
        offered(PLAIN, commit=OTHER, names=("refs/convert/gguf",), at=2.0),
    ]  # fmt: skip
    rows = reference_rows(offers, pull_requests=True)
    assert [row["name"] for row in rows["branches"]] == ["main", "v1"]
    assert rows["converts"] == [{"name": "gguf", "ref": "refs/convert/gguf", "targetCommit": OTHER}]
    assert rows["pullRequests"] == [{"name": "3", "ref": "refs/pr/3", "targetCommit": OTHER}]
    assert "pullRequests" not in reference_rows(offers, pull_requests=False)


def test_commits_are_the_revision_and_what_came_before() -> None:
    offers = [offered(PLAIN, at=1.0), offered(PLAIN, commit=OTHER, at=2.0)]
    assert [row["id"] for row in commit_rows(offers, At(OTHER, (offers[1],)))] == [OTHER, COMMIT]
    assert [row["id"] for row in commit_rows(offers, At(COMMIT, (offers[0],)))] == [COMMIT]


REPOSITORIES = {
    "org/Llama-GGUF": [offered(HeldFile("a.gguf", SHA, 1, None), repository="org/Llama-GGUF", at=3.0)],
    "org/m": [offered(IN_LFS, PLAIN, at=1.0)],
    "gpt2": [offered(PLAIN, repository="gpt2", at=2.0)],
    "org/half": [
        Offer("m", "v", "org/half", COMMIT, frozenset(), 9.0, frozenset({"a"}), {}, {}, None)
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ["gpt2", "org/Llama-GGUF", "org/m"]),
        ("search=llama", ["org/Llama-GGUF"]),
        ("search=gguf+llama", ["org/Llama-GGUF"]),
        ("search=nothing", []),
        ("author=org", ["org/Llama-GGUF", "org/m"]),
        ("author=or", []),
        ("filter=safetensors", ["org/m"]),
        ("filter=gguf&filter=safetensors", []),
        ("filter=text-generation", []),
        ("sort=createdAt", ["org/Llama-GGUF", "gpt2", "org/m"]),
        ("sort=likes", ["gpt2", "org/Llama-GGUF", "org/m"]),
    ],
)
def test_a_search_finds_what_is_whole(query: str, ids: list[str]) -> None:
    assert [row["id"] for row in search_rows(REPOSITORIES, Query.of(query))] == ids


def test_a_bare_row_has_neither_sha_nor_file_names() -> None:
    def row(query: str) -> set[str]:
        return set(search_rows(REPOSITORIES, Query.of(f"search=gpt2&{query}"))[0])

    assert not {"sha", "siblings"} & row("")
    assert {"sha", "siblings"} <= row("full=True")
    assert row("expand=sha") == {"_id", "id", "modelId", "sha"}


def test_times_as_clients_read_them() -> None:
    assert when(1_767_323_045.25) == "2026-01-02T03:04:05.250Z"
    assert len(hashlib.sha1(b"").hexdigest()) == len(model_row("org/m", AT)["sha"])
