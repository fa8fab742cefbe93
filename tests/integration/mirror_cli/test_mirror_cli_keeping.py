"""`llmgwctl mirror` verify, remove, restore, export, import, suggest: what is asked, shown, exited with."""

import json
from typing import Any

import pytest
import yaml

from llmgw.v1 import mirror_pb2 as pb
from llmgw.v1 import operator_pb2
from llmgw_controller.cli.mirror import removing
from llmgw_kit.errors import Conflict, NotFound, Unavailable
from llmgw_kit.testing.authority import Authority
from llmgw_kit.tls_watch import Side, WatchedTls
from tests.unit.cli import mirrored
from tests.unit.cli.mirrored import COMMIT, GB, NOW

QWEN = pb.ResolveVersionResponse(version=mirrored.version("qwen3-14b", *mirrored.shards(2)))
NAME = "qwen3-14b@40c0698"


def read(
    path: str, count: int, *, done: bool = False, trouble: str | None = None
) -> pb.VerifyVersionResponse:
    return pb.VerifyVersionResponse(
        path=path, read_bytes=count * GB, total_bytes=4 * GB, done=done, trouble=trouble
    )


A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_what_is_right_is_said_to_be(run, mirror):
    fake = mirror({
        "ResolveVersion": QWEN,
        "VerifyVersion": [read(A, 2), read(A, 4, done=True), read(B, 4, done=True)],
    })  # fmt: skip
    code, out, _ = run("mirror", "verify", NAME)
    assert code == 0
    assert "1 of 2 files, 4 of 8 GB" in out
    assert out.endswith("qwen3-14b @ 40c0698: every byte of 2 files is right\n")
    assert fake.requests("VerifyVersion")[0].version == COMMIT


def test_what_is_rotten_is_named_and_1(run, mirror):
    wrong = "read as 91f0…, published 44ab…; set aside and fetched again"
    mirror({
        "ResolveVersion": QWEN,
        "VerifyVersion": [read(A, 4, done=True, trouble=wrong), read(B, 4, done=True)],
    })  # fmt: skip
    code, out, _ = run("mirror", "verify", NAME)
    assert code == 1
    assert f"!! {A}: {wrong}" in out
    assert "1 file of 2 not as published" in out
    code, out, _ = run("mirror", "verify", NAME, "--output", "json")
    assert code == 1
    said = [json.loads(line) for line in out.splitlines()]
    assert [one["trouble"] for one in said] == [wrong, None]
    assert {one["schema"] for one in said} == {"llmgw.mirror-verify/1"}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch):
    """What the controller knows of nodes' disks; a real one is asked in the tests of the whole suite."""

    def held(*rows: operator_pb2.NodeWeights, unknown: str | None = None) -> None:
        monkeypatch.setattr(removing, "nodes_of", lambda *_: removing.Nodes(rows, unknown))

    return held


FREED = pb.RemoveVersionResponse(freed_bytes=8 * GB, restorable_until_unix_s=NOW + 86_400)


def test_a_version_that_replicas_have_open_is_not_removed_unforced(run, mirror, nodes):
    """M18: who maps it is named before anything is asked of the mirror."""
    nodes(operator_pb2.NodeWeights(node_id="h100-01", used_by=["qwen3-14b/1"], wanted=True))
    fake = mirror({"ResolveVersion": QWEN, "RemoveVersion": FREED})
    code, _, err = run("mirror", "remove", NAME)
    assert code == 1
    assert "is in use: qwen3-14b/1 on h100-01" in err
    assert f"llmgwctl mirror remove {NAME} --force" in err
    assert not fake.requests("RemoveVersion")
    code, out, _ = run("mirror", "remove", NAME, "--force")
    assert code == 0
    assert "mapped by qwen3-14b/1 on h100-01" in out
    assert f"llmgwctl mirror restore {NAME}" in out
    assert fake.requests("RemoveVersion")[0].force


def test_a_dry_run_names_them_and_removes_nothing(run, mirror, nodes):
    nodes(operator_pb2.NodeWeights(node_id="h100-01", used_by=["qwen3-14b/1"]))
    fake = mirror({"ResolveVersion": QWEN, "RemoveVersion": FREED})
    code, out, _ = run("mirror", "remove", NAME, "--dry-run")
    assert code == 0
    assert "would be removed" in out
    assert "mapped by qwen3-14b/1" in out
    assert fake.requests("RemoveVersion")[0].dry_run


def test_without_a_controller_it_is_removed_and_said_that_nobody_knows(run, mirror):
    mirror({"ResolveVersion": QWEN, "RemoveVersion": FREED})
    code, out, _ = run("mirror", "remove", NAME, "--output", "json")
    assert code == 0
    assert "no controller answered" in json.loads(out)["nodes_unknown"]


def removed(version: str) -> pb.RemovedVersion:
    return pb.RemovedVersion(
        model="qwen3-14b", version=version, bytes=8 * GB, removed_at_unix_s=NOW,
        restorable_until_unix_s=NOW + 9,
    )  # fmt: skip


def test_a_removal_is_found_by_the_beginning_of_its_version(run, mirror):
    fake = mirror({
        "ListRemoved": pb.ListRemovedResponse(versions=[removed(COMMIT), removed("40c1" + "0" * 36)]),
        "RestoreVersion": pb.RestoreVersionResponse(version=QWEN.version),
    })  # fmt: skip
    code, out, _ = run("mirror", "restore", NAME)
    assert code == 0
    assert fake.requests("RestoreVersion")[0].version == COMMIT
    assert "restored: 8 GB" in out
    code, _, err = run("mirror", "restore", "qwen3-14b@40c")
    assert code == 1
    assert "'40c' begins 2 removed versions" in err
    code, _, err = run("mirror", "restore", "qwen3-14b@ffff")
    assert code == 64
    assert "llmgwctl mirror removed" in err


def progress(here: int, **more: Any) -> pb.BundleProgress:
    return pb.BundleProgress(
        done_bytes=here * GB, total_bytes=8 * GB, done_files=here // 4, total_files=2, **more
    )


BUNDLE = pb.Bundle(
    name="q.llmgw", bytes=8 * GB, sha256="12" * 32,
    versions=[pb.VersionName(model="qwen3-14b", version=COMMIT)],
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "call", "response"),
    [
        (["export", NAME, "--name", "q.llmgw"], "ExportBundle", pb.ExportBundleResponse),
        (["import", "q.llmgw"], "ImportBundle", pb.ImportBundleResponse),
    ],
)
def test_a_bundle_is_told_with_rate_and_estimate_and_at_the_end(run, mirror, words, call, response):
    told = [
        response(progress=progress(4, current_path=A, rate_bytes_s=112e6, eta_s=36)),
        response(progress=progress(8, done=True, bundle=BUNDLE)),
    ]
    fake = mirror({"ResolveVersion": QWEN, call: told})
    code, out, _ = run("mirror", *words)
    assert code == 0
    assert f"1 of 2 files, 4 of 8 GB, 112 MB/s, about 36 s, now {A}" in out
    assert "q.llmgw: 1 version, 8 GB" in out
    assert "sha256 1212" in out
    assert fake.requests(call)[0].name == "q.llmgw"
    code, out, _ = run("mirror", *words, "--output", "json", "--dry-run")
    said = [json.loads(line) for line in out.splitlines()]
    assert [one["done"] for one in said] == [False, True]
    assert said[1]["bundle"]["sha256"] == "12" * 32
    assert said[0]["dry_run"] is True


def test_a_bundle_that_broke_off_says_how_to_go_on(run, mirror):
    first = pb.ExportBundleResponse(progress=progress(4))
    mirror({"ResolveVersion": QWEN, "ExportBundle": [first, Unavailable("x", code="unreachable")]})
    code, _, err = run("mirror", "export", NAME, "--name", "q.llmgw", "--since", "p.llmgw")
    assert code == 2
    assert f"to go on: llmgwctl mirror export {NAME} --name q.llmgw --since p.llmgw" in err


def test_a_stream_that_ends_without_its_end_is_1(run, mirror):
    mirror({"ImportBundle": [pb.ImportBundleResponse(progress=progress(4))]})
    code, _, err = run("mirror", "import", "q.llmgw")
    assert code == 1
    assert "before it was done" in err


def test_a_suggestion_is_yaml_as_a_whole(run, mirror):
    notes = ["read in config.json: Qwen3ForCausalLM\nforged: true"]
    answer = pb.SuggestModelResponse(catalog_yaml="name: qwen3-14b\nprofiles: []\n", notes=notes)
    mirror({"ResolveVersion": QWEN, "SuggestModel": answer})
    code, out, _ = run("mirror", "suggest", NAME)
    assert code == 0
    assert yaml.safe_load(out) == {"name": "qwen3-14b", "profiles": []}
    assert (
        out.splitlines()[-1] == f"# next: llmgwctl mirror suggest {NAME} | llmgwctl model apply --dry-run -"
    )


@pytest.mark.parametrize(
    ("call", "words", "schema"),
    [
        ("Search", ["search", "qwen", "3"], "llmgw.mirror-search/1"),
        ("ListFiles", ["files", "Qwen/Qwen3-14B"], "llmgw.mirror-files/1"),
        ("GetRegistry", ["registry"], "llmgw.mirror-registry/1"),
        ("ListVersions", ["versions", "qwen3-14b"], "llmgw.mirror-versions/1"),
        ("ListRemoved", ["removed"], "llmgw.mirror-removed/1"),
        ("ListHistory", ["history", "--since", "3h"], "llmgw.mirror-history/1"),
        ("ListBundles", ["bundles"], "llmgw.mirror-bundles/1"),
    ],
)
def test_what_only_looks_has_json_with_a_schema(run, mirror, call, words, schema):
    empty = {
        "Search": mirrored.found(), "ListFiles": mirrored.files(), "GetRegistry": mirrored.registry(),
        "ListVersions": pb.ListVersionsResponse(), "ListRemoved": pb.ListRemovedResponse(),
        "ListHistory": pb.ListHistoryResponse(), "ListBundles": pb.ListBundlesResponse(),
    }  # fmt: skip
    mirror({call: empty[call]})
    code, out, _ = run("mirror", *words, "--output", "json")
    said = json.loads(out)
    assert said["schema"] == schema
    # A listing that blocks is trouble, and so is a model of which nothing is here.
    assert code == (1 if call in ("ListFiles", "ListVersions") else 0)
    assert said.get("exit_code", code) == code
    code, out, _ = run("mirror", *words)
    assert out.startswith("data 0 s old")


def test_downloads_are_told_with_all_their_files(run, mirror):
    """What is missing says little without what is here."""
    part = mirrored.qwen()
    del part.files[:2]
    mirror({
        "ListDownloads": pb.ListDownloadsResponse(versions=[part]),
        "ListVersions": mirrored.versions(),
        "GetRegistry": mirrored.registry_away(),
    })  # fmt: skip
    code, out, _ = run("mirror", "downloads")
    assert code == 1, "the registry is away"
    assert "fetching: 3 of 5 files present" in out


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFound("'abcd' of 'm' is not here", code="unknown_version", next_steps=["list them"]), 64),
        (Conflict("'abcd' may mean 2 versions", code="ambiguous", next_steps=["give more of it"]), 1),
    ],
)
def test_a_name_that_means_nothing_or_two_things_is_refused_by_the_mirror(run, mirror, error, status):
    mirror({"ResolveVersion": error})
    for words in (
        ["verify", "m@abcd"],
        ["remove", "m@abcd"],
        ["suggest", "m@abcd"],
        ["fetch", "--retry", "m@abcd"],
    ):
        code, _, err = run("mirror", *words)
        assert code == status
        assert error.text in err


def test_over_mutual_tls_only_whom_both_know(run, tls_mirror, tmp_path):
    authority = Authority(tmp_path / "ca")
    served, mine = authority.sign("mirror"), authority.sign("operator")
    files = served.trusting(authority.cert)
    address = tls_mirror(
        {"ListVersions": pb.ListVersionsResponse()}, WatchedTls(files, Side.SERVER, what="t")
    )
    shown = ["--tls-ca", str(authority.cert), "--tls-cert", str(mine.cert), "--tls-key", str(mine.key)]
    code, out, _ = run("mirror", "versions", "--mirror", address, *shown)
    assert code == 0
    assert "0 versions" in out
    stranger = Authority(tmp_path / "other", "other")
    shown[1] = str(stranger.cert)
    code, _, err = run("mirror", "versions", "--mirror", address, *shown)
    assert code == 2
    assert "or its certificate was not trusted" in err
    code, _, err = run("mirror", "versions", "--mirror", address)
    assert code == 2
    assert "one that speaks TLS wants --tls-ca" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tls-ca", "/does/not/exist"], "authority /does/not/exist cannot be used: No such file"),
        (["--tls-cert", "/x"], "the key is missing"),
        (["--tls-name", "mirror"], "--tls-name goes with --tls-ca"),
    ],
)
def test_m24_tls_files_that_do_not_fit_are_64_and_reach_no_mirror(run, mirror, words, said):
    fake = mirror({})
    code, _, err = run("mirror", "versions", *words)
    assert code == 64
    assert said in err
    assert not fake.asked
