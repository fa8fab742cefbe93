"""What a bundle holds, what may be one, and where its bytes lie."""

import io
import json
import tarfile
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_kit.errors import Conflict, InvalidRequest
from llmgw_mirror.core.bundle_layout import BLOCK, END, header, layout, manifest_size
from llmgw_mirror.core.bundles import (
    Blob,
    Manifest,
    Packed,
    PackedVersion,
    check_bundle_name,
    clash,
    dump,
    lacking,
    pack,
    parse,
    plan_export,
)
from llmgw_mirror.core.versions import Proof, Receipt, Repository, Source, Wish

A, B, C = "a" * 64, "b" * 64, "c" * 64
COMMIT = "1" * 40


def version(name: str = "m", **content: str) -> PackedVersion:
    """Files by name with their content; each content has as many bytes as its first digit says."""
    files = tuple(
        Packed(Source(f"{path}.bin", f"http://up.test/{path}", sha256), sha256, size_of(sha256), Proof.SHA256)
        for path, sha256 in sorted(content.items())
    )
    return PackedVersion(name, "v1", 1.5, files, Repository("org/m", COMMIT, "main"), ("x.bin", "y.bin"))


def size_of(sha256: str) -> int:
    return int(sha256[0], 16) * 100


ONE = plan_export("one.tar", [version(x=A, y=B)], since=None)


def test_content_of_two_versions_goes_in_once() -> None:
    made = plan_export("b.tar", [version("m", x=A, y=B), version("n", x=B, z=C)], since=None)
    assert [blob.sha256 for blob in made.blobs] == [A, B, C]
    assert (made.since, made.elsewhere) == (None, ())


def test_a_later_bundle_leaves_out_what_the_earlier_one_brings() -> None:
    made = plan_export("two.tar", [version("m", x=A, z=C)], since=ONE)
    assert (made.blobs, made.since, made.elsewhere) == ((Blob(C, size_of(C)),), "one.tar", (A,))
    # A third one builds on all that the second one leaves a store with, not on its own bytes alone.
    third = plan_export("three.tar", [version("m", x=A)], since=made)
    assert (third.blobs, third.elsewhere, third.since) == ((), (A,), "two.tar")
    assert lacking(made, frozenset({A})) == ()
    assert lacking(made, frozenset({B})) == (A,)


def test_one_that_shares_nothing_with_the_earlier_one_builds_on_none() -> None:
    assert plan_export("two.tar", [version("m", z=C)], since=ONE).since is None


@pytest.mark.parametrize(
    "manifest",
    [ONE, plan_export("two.tar", [version("m", x=A, z=C)], since=ONE)],
    ids=["whole", "built on another"],
)
def test_what_is_written_is_read_again(manifest: Manifest) -> None:
    assert parse(dump(manifest)) == manifest
    assert dump(parse(dump(manifest))) == dump(manifest)


def test_the_same_versions_make_the_same_bytes_whenever_they_are_exported() -> None:
    again = plan_export("one.tar", [version(x=A, y=B)], since=None)
    assert (again, again.digest(), ONE.created_at) == (ONE, ONE.digest(), 1.5)
    assert plan_export("one.tar", [version(x=A)], since=None).digest() != ONE.digest()


def test_a_version_that_is_not_whole_is_not_packed() -> None:
    wish = Wish("m", "v1", 0.0, (Source("x.bin", "http://up.test/x"), Source("y.bin", "http://up.test/y")))
    with pytest.raises(Conflict, match="y.bin is not here") as refused:
        pack(wish, {"x.bin": Receipt(A, 1, Proof.NONE, 0.0)}, None)
    assert refused.value.code == "not_whole"


def test_a_signature_does_not_travel() -> None:
    wish = Wish("m", "v1", 0.0, (Source("x.bin", "http://up.test/x?sig=secret#s"),))
    packed = pack(wish, {"x.bin": Receipt(A, 1, Proof.NONE, 0.0)}, None)
    made = plan_export("b.tar", [packed], since=None)
    assert b"secret" not in dump(made)
    assert packed.files[0].source.url == "http://up.test/x"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "a/b", "a\\b", "../up", "a\0b", "x" * 121, "a b", "ä", "a.partial", "a.sha256",
     "a.manifest.json", "-rf", "a."],
)  # fmt: skip
def test_a_name_that_is_no_file_name_everywhere_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="refused"):
        check_bundle_name(name)


def test_usual_names_are_taken() -> None:
    assert check_bundle_name("models-2026-11.tar") == "models-2026-11.tar"


def _broken(change: Any) -> bytes:
    said = json.loads(dump(ONE))
    change(said)
    return json.dumps(said).encode()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda said: said.update(format=2), "format 2"),
        (lambda said: said.update(versions=[]), "holds 0 versions"),
        (lambda said: said.pop("blobs"), "cannot be read"),
        (lambda said: said["versions"][0]["files"][0].update(path="../x"), "part '..'"),
        (lambda said: said["versions"][0]["files"][0].update(path="/x"), "absolute"),
        (lambda said: said["versions"][0].update(model="a\\b"), "refused"),
        (lambda said: said["versions"][0]["files"][0].update(url="bundle:one.tar/x"), "scheme"),
        (lambda said: said["versions"][0]["files"][0].update(content="A" * 64), "no sha256"),
        (lambda said: said["versions"][0]["files"][0].update(bytes=-1), "no size"),
        (lambda said: said["versions"][0]["files"][0].update(bytes=7), "two sizes"),
        (lambda said: said["versions"][0]["files"].pop(), "other content"),
        (lambda said: said["blobs"].append(said["blobs"][0]), "twice"),
        (lambda said: said["elsewhere"].append(C), "other content"),
        (lambda said: said["versions"][0]["repository"].update(commit="main"), "40 hexadecimal"),
    ],
)
def test_a_hostile_manifest_is_refused_by_what_is_wrong(change: Any, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        parse(_broken(change))


@given(st.binary(max_size=200))
def test_no_bytes_get_past_as_a_manifest(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse(data)


def _file_of(manifest: Manifest) -> bytes:
    out = b""
    for member in layout(manifest).members:
        assert len(out) == member.offset
        content = member.data if member.sha256 is None else b"x" * member.size_bytes
        out += member.header + content + member.padding
        assert len(out) == member.end
    return out + END


def test_any_tar_reads_it() -> None:
    whole = _file_of(ONE)
    assert len(whole) == layout(ONE).size_bytes
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        names = [entry.name for entry in tar.getmembers()]
        assert names == ["manifest.json", "manifest.json.sha256", f"blobs/sha256/{A}", f"blobs/sha256/{B}"]
        assert [entry.size for entry in tar.getmembers()][2:] == [size_of(A), size_of(B)]
        described = tar.extractfile("manifest.json")
        assert described is not None
        assert parse(described.read()) == ONE
    assert manifest_size(whole[:BLOCK]) == len(dump(ONE))


@given(st.lists(st.integers(0, 2**41), min_size=1, max_size=5))
def test_the_offsets_are_those_of_the_bytes(sizes: list[int]) -> None:
    """Also beyond 8 GiB, where a size needs a record of its own."""
    digests = [f"{number:064x}" for number in range(len(sizes))]
    blobs = tuple(Blob(digest, size) for digest, size in zip(digests, sizes, strict=True))
    files = tuple(
        Packed(Source(f"{n}.bin", "http://up.test/x"), blob.sha256, blob.size_bytes, Proof.NONE)
        for n, blob in enumerate(blobs)
    )
    made = Manifest("b.tar", 0.0, (PackedVersion("m", "v", 0.0, files),), blobs)
    at = 0
    for member in layout(made).members:
        assert member.offset == at
        assert member.start % BLOCK == 0
        at += len(member.header) + (member.size_bytes + BLOCK - 1) // BLOCK * BLOCK
    assert layout(made).content_end == at


@pytest.mark.parametrize("size", [0, 8 * 2**30 - 1, 8 * 2**30, 2**42])
def test_headers_say_their_size_to_any_tar(size: int) -> None:
    read = tarfile.TarFile.open(fileobj=io.BytesIO(header("blobs/x", size, 7)), mode="r:")
    entry = read.next()
    assert entry is not None
    assert (entry.name, entry.size) == ("blobs/x", size)


@pytest.mark.parametrize("block", [b"", bytes(BLOCK), b"x" * BLOCK, header("other.json", 3, 0)])
def test_what_does_not_begin_like_a_bundle_is_none(block: bytes) -> None:
    assert manifest_size(block) is None


def test_a_version_of_that_name_with_other_content_clashes() -> None:
    packed = version(x=A, y=B)
    same = [file.source for file in packed.files]
    assert clash(packed, same, {}) is None
    assert clash(packed, same, {"x.bin": Receipt(A, 1, Proof.SHA256, 0.0)}) is None
    # Another address is no other content.
    assert clash(packed, [replace(source, url="http://else.test/") for source in same], {}) is None
    assert "x.bin has the content" in str(clash(packed, same, {"x.bin": Receipt(C, 1, Proof.SHA256, 0.0)}))
    assert clash(packed, same[:1], {}) == "y.bin is only in the bundle"
    assert clash(version(x=A), same, {}) == "y.bin is only here"
    assert clash(packed, [replace(same[0], sha256=C), same[1]], {}) is not None


def test_a_git_id_is_all_that_is_published_of_a_small_file_and_must_agree() -> None:
    (packed,) = version(x=A).files
    git_id, other = "1" * 40, "2" * 40
    ours = [replace(packed.source, sha256=None, git_id=git_id)]

    def of_bundle(known: str | None) -> PackedVersion:
        return replace(version(x=A), files=(replace(packed, source=replace(ours[0], git_id=known)),))

    assert clash(of_bundle(git_id), ours, {}) is None
    assert "x.bin has the git id 111111111111" in str(clash(of_bundle(other), ours, {}))
    assert "another or none" in str(clash(of_bundle(None), ours, {}))
    # Content that is here, or its sha256, tells more.
    assert clash(of_bundle(other), ours, {"x.bin": Receipt(A, 1, Proof.GIT, 0.0)}) is None
    assert clash(of_bundle(other), [replace(ours[0], sha256=A)], {}) is None
