"""What comes in is checked before it is stored: places, sizes, addresses, and all that a manifest says."""

import json
from dataclasses import replace
from typing import Any

import pytest

from llmgw_kit.errors import InvalidRequest
from llmgw_mirror import wire
from llmgw_mirror.core.bounds import FILE_MAX_BYTES, VERSION_MAX_BYTES
from llmgw_mirror.core.bundles import Packed as File
from llmgw_mirror.core.bundles import PackedVersion, dump, parse, plan_export
from llmgw_mirror.core.listed_files import file_rows
from llmgw_mirror.core.versions import (
    Proof,
    Repository,
    Source,
    VersionView,
    view_file,
    wish,
)

COMMIT = "a" * 40
W = Source("w", "http://models.test/w")
NAMES_OF_NOTHING = ["x\0y", "../../etc", "a/b/c", "", "x" * 5_000_000, "a b", "\ud800", "a/..", "/a"]


@pytest.mark.parametrize("name", NAMES_OF_NOTHING)
def test_a_place_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="repository"):
        wish("m", "v", [W], now=0, repository=Repository(name, COMMIT))
    with pytest.raises(InvalidRequest, match="hexadecimal"):
        wish("m", "v", [W], now=0, repository=Repository("org/r", name))
    # Of a branch "a/b/c" is a fine name.
    if name != "a/b/c":
        with pytest.raises(InvalidRequest, match="revision"):
            wish("m", "v", [W], now=0, repository=Repository("org/r", COMMIT, name))


@pytest.mark.parametrize(
    "place",
    [
        Repository("org/r", COMMIT, "main"),
        Repository("old", COMMIT),
        Repository("org/r", COMMIT, "refs/pr/1"),
    ],
)
def test_a_place_as_the_registry_names_them_is_taken(place: Repository) -> None:
    assert wish("m", "v", [W], now=0, repository=place).repository == place


def test_sizes_are_those_of_files_and_their_sum_can_be_told() -> None:
    with pytest.raises(InvalidRequest, match="size"):
        wish("m", "v", [replace(W, size_bytes=FILE_MAX_BYTES + 1)], now=0)
    most = VERSION_MAX_BYTES // FILE_MAX_BYTES
    full = [replace(W, path=f"w{n}", size_bytes=FILE_MAX_BYTES) for n in range(most)]
    wish("m", "v", full, now=0)
    with pytest.raises(InvalidRequest, match="together"):
        wish("m", "v", [*full, replace(W, size_bytes=1)], now=0)


def test_addresses_have_a_length_that_can_be_carried() -> None:
    wish("m", "v", [replace(W, url="http://models.test/" + "x" * 8000)], now=0)
    with pytest.raises(InvalidRequest, match="8192"):
        wish("m", "v", [replace(W, url="http://models.test/" + "x" * 8192)], now=0)
    many = [Source(f"w{n}", f"http://models.test/{n:05}" + "x" * 8000) for n in range(2200)]
    with pytest.raises(InvalidRequest, match="together"):
        wish("m", "v", many, now=0)
    for url in ("http://models.test/\ud800", "http://models.test/\0"):
        with pytest.raises(InvalidRequest):
            wish("m", "v", [replace(W, url=url)], now=0)


def test_a_size_in_the_registry_that_no_file_has_is_odd() -> None:
    (file,), _, _ = file_rows([{"rfilename": "w", "size": 2**60}], name="rfilename")
    assert file.size_bytes is None
    assert file.odd is not None


def test_what_is_stored_already_is_told_whatever_it_says() -> None:
    """Of the release before these bounds; one such version must not hide all others."""
    files = [
        view_file(replace(W, path=f"w{n}", size_bytes=2**63 - 1), receipt=None, failure=None, moving=None)
        for n in range(3)
    ]
    odd = [replace(files[0], received_bytes=2**70, size_bytes=2**70, error="\ud800", rate_bytes_s=None)]
    place = Repository("a\ud800", COMMIT, "b\ud800")
    message = wire.version_to(VersionView("m", "v", 0.0, (*files, *odd), place))
    assert not message.HasField("total_bytes")
    assert message.files[0].size_bytes == 2**63 - 1
    assert not message.files[3].HasField("size_bytes")
    assert message.SerializeToString()


def manifest() -> dict[str, Any]:
    packed = File(replace(W, size_bytes=1), "c" * 64, 1, Proof.SHA256)
    version = PackedVersion("m", "v", 1.0, (packed,), Repository("org/r", COMMIT, "main"), ("w",))
    said: dict[str, Any] = json.loads(dump(plan_export("b.tar", [version], since=None)))
    return said


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a JSON value that holds no other."""
    if isinstance(value, dict):
        return [place for key, inner in value.items() for place in places(inner, (*path, key))]
    if isinstance(value, list):
        return [place for n, inner in enumerate(value) for place in places(inner, (*path, n))]
    return [path]


def planted(said: dict[str, Any], path: tuple[Any, ...], value: Any) -> bytes:
    inner: Any = said
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(said).encode()


HOSTILE = [
    "\0", "a\0b", "\ud800", float("nan"), float("inf"), 1e30, -1e14, -1, 2**63, 2**70, 10**400, "x" * 100_000,
    [], {}, True, "",
]  # fmt: skip
#: The one value of them that these may have; and what others wrote into a listing is only shown.
FINE: list[tuple[str, Any]] = [("companion", True), ("format", True)]


@pytest.mark.parametrize("place", places(manifest()), ids=str)
@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: f"{value!r:.12}")
def test_a_manifest_that_lies_is_refused(place: tuple[Any, ...], value: Any) -> None:
    data = planted(manifest(), place, value)
    listed_as = "listing" in place and value in ("", "x" * 100_000)
    if listed_as or any(place[-1] == key and value is fine for key, fine in FINE):
        parse(data)
        return
    with pytest.raises(InvalidRequest):
        parse(data)


def test_the_manifest_itself_is_read() -> None:
    assert parse(json.dumps(manifest()).encode()).created_at == 1.0


def test_what_a_bundle_says_it_holds_can_be_told() -> None:
    """Of its contents, whatever was asked for: sums of a thousand such versions still fit a message."""
    most = VERSION_MAX_BYTES // FILE_MAX_BYTES

    def said(count: int) -> bytes:
        packed = [
            File(replace(W, path=f"w{n}"), f"{n:064}", FILE_MAX_BYTES, Proof.NONE) for n in range(count)
        ]
        return dump(plan_export("b.tar", [PackedVersion("m", "v", 1.0, tuple(packed))], since=None))

    assert len(parse(said(most)).blobs) == most
    with pytest.raises(InvalidRequest, match="together"):
        parse(said(most + 1))
