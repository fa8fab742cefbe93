"""The Hub's real clients against the mirror, given HF_ENDPOINT and nothing else; every byte is compared."""

import asyncio
import json
from pathlib import Path

import pytest

from .hub_programs import GENERATIONS
from .hub_served import COMMIT, FILES, HASHES, NEXT_COMMIT, Served, git_id, serving
from .scripted import Upstream
from .world import content_of, sha256_of

#: Clients start slowly where everything else is being tested at once.
pytestmark = pytest.mark.timeout(300)
generations = pytest.mark.parametrize("generation", GENERATIONS)

WEIGHTS = FILES["sub/deeper/weights.bin"]


@generations
async def test_a_snapshot_twice_and_then_offline(served: Served, generation: int) -> None:
    await served.have()
    client = served.client(generation)
    for environment in ({}, {}, {"HF_HUB_OFFLINE": "1"}):
        got = await client.act("snapshot", repo="org/m", environment=environment)
        assert (got["commit"], got["files"]) == (COMMIT, HASHES)
    assert client.cached("*.incomplete") == []
    # Files are named by what the registry itself would have said.
    blobs = {path.name for path in client.cached("blobs/*")}
    assert blobs == {
        HASHES[path] if path.endswith((".safetensors", ".bin")) else git_id(content)
        for path, content in FILES.items()
    }


@generations
async def test_the_command_line_downloads_into_a_folder(served: Served, generation: int) -> None:
    await served.have()
    client = served.client(generation)
    folder = served.folder / "here"
    code, out, err = await client.run(client.program("hf"), "download", "org/m", "--local-dir", folder)
    assert code == 0, out + err
    for path, content in FILES.items():
        assert (folder / path).read_bytes() == content
    chosen = served.folder / "chosen"
    argv = ["download", "org/m", "--include", "*.json", "--local-dir", chosen]
    code, out, err = await client.run(client.program("hf"), *argv)
    assert code == 0, out + err
    assert [path.name for path in chosen.iterdir() if path.is_file()] == ["config.json"]


@generations
async def test_a_client_killed_in_mid_download_goes_on(served: Served, generation: int) -> None:
    """H23: what is interrupted is never taken for whole."""
    big = {"config.json": b"{}", "model.safetensors": content_of(40_000_000, 8)}
    await served.have(big)
    client = served.client(generation)
    work = asyncio.create_task(client.act("snapshot", repo="org/m"))
    while not any(path.stat().st_size for path in client.cached("*.incomplete")):
        assert not work.done(), "the file came too fast to be interrupted"
        await asyncio.sleep(0.002)
    work.cancel()
    await asyncio.wait({work})
    assert work.cancelled(), "the client was not killed in time"
    got = await client.act("snapshot", repo="org/m")
    assert got["files"] == {path: sha256_of(content) for path, content in big.items()}
    assert (await client.act("snapshot", repo="org/m", environment={"HF_HUB_OFFLINE": "1"})) == got


@generations
async def test_single_files_by_branch_commit_and_tag(served: Served, generation: int) -> None:
    await served.have()
    await served.have({"config.json": b"second"}, commit=NEXT_COMMIT, revision="refs/pr/7")
    client = served.client(generation)
    paths = [*FILES, "config.json", "config.json", "config.json"]
    revisions = [*(None for _ in FILES), COMMIT, "refs/pr/7", NEXT_COMMIT]
    acts = [
        {"act": "download", "repo": "org/m", "path": path, "revision": revision}
        for path, revision in zip(paths, revisions, strict=True)
    ]
    said = await client.act("several", acts=acts)
    second = sha256_of(b"second")
    assert [one["result"]["sha256"] for one in said] == [
        *HASHES.values(), HASHES["config.json"], second, second
    ]  # fmt: skip
    assert client.cached(".no_exist/*") == []


@generations
async def test_what_the_api_tells(served: Served, generation: int) -> None:
    await served.have(unchosen=("not-chosen.gguf",))
    await served.have({"a.gguf": b"gguf"}, repo="org/other", commit=NEXT_COMMIT, revision=None)
    await served.have({"config.json": b"old"}, repo="gpt2", commit=NEXT_COMMIT, revision="v1")
    client = served.client(generation)
    ask = [
        {"act": "info", "repo": "org/m", "files_metadata": True},
        {"act": "info", "repo": "org/m", "revision": COMMIT},
        {"act": "files", "repo": "org/m"},
        {"act": "tree", "repo": "org/m", "recursive": False},
        {"act": "tree", "repo": "org/m", "path": "sub", "recursive": True, "expand": True},
        {"act": "exists", "repo": "org/m", "names": ["config.json", "not-chosen.gguf", "none"],
         "revisions": ["main", COMMIT, "other"]},
        {"act": "paths", "repo": "org/m", "names": ["config.json", "sub", "none"], "expand": True},
        {"act": "refs", "repo": "org/m", "include_pull_requests": True},
        {"act": "models"},
        {"act": "models", "search": "other", "limit": 3},
        {"act": "models", "author": "org", "filter": "gguf", "sort": "downloads", "full": True},
        {"act": "commits", "repo": "org/m"},
        {"act": "whoami", "token": "hf_anything"},
        {"act": "tensors", "repo": "org/m"},
        {"act": "info", "repo": "gpt2", "revision": "v1"},
    ]  # fmt: skip
    results = [one.get("result", one) for one in await client.act("several", acts=ask)]
    info, pinned, files, top, below, exists, paths, refs, *lists = results
    assert (info["id"], info["sha"], info["gated"]) == ("org/m", COMMIT, False)
    assert info["tags"] == ["pytorch", "safetensors"]
    assert set(info["siblings"]) == set(pinned["siblings"]) == set(files) == set(FILES)
    size, blob, sha256 = info["siblings"]["model.safetensors"]
    assert (size, sha256) == (len(FILES["model.safetensors"]), HASHES["model.safetensors"])
    assert len(blob) == 40
    config = FILES["config.json"]
    assert info["siblings"]["config.json"] == [len(config), git_id(config), None]
    assert [row[0] for row in top] == ["README.md", "config.json", "empty.txt", "model.safetensors", "sub"]
    assert [row[0] for row in below] == ["sub/deeper", "sub/deeper/weights.bin", "sub/\u00e4 b.txt"]
    assert below[1] == ["sub/deeper/weights.bin", len(WEIGHTS), sha256_of(WEIGHTS), COMMIT]
    assert exists == {"repo": True, "files": [True, False, False], "revisions": [True, True, False]}
    assert [row[0] for row in paths] == ["config.json", "sub"]
    assert refs["branches"] == {"main": ["refs/heads/main", COMMIT]}
    everything, other, quantised, commits, name, tensors, old = lists
    assert everything == ["gpt2", "org/m", "org/other"]
    assert other == quantised == ["org/other"]
    assert commits == [COMMIT]
    assert name == "mirror"
    assert tensors == {"model.safetensors": ["t1"]}
    assert list(old["siblings"]) == ["config.json"]


@generations
async def test_the_file_system_reads_seeks_and_walks(served: Served, generation: int) -> None:
    await served.have()
    client = served.client(generation)
    path = "sub/deeper/weights.bin"
    got = await client.act("filesystem", repo="org/m", path=path, glob="**/*.bin", offset=777_777, count=4096)
    assert bytes.fromhex(got["middle"]) == WEIGHTS[777_777 : 777_777 + 4096]
    assert bytes.fromhex(got["end"]) == WEIGHTS[-5:]
    assert (got["size"], got["sha256"]) == (len(WEIGHTS), sha256_of(WEIGHTS))
    assert got["glob"] == [f"org/m/{path}"]
    assert got["find"] == sorted(f"org/m/{name}" for name in FILES)
    assert got["walk"]["sub"] == [["deeper"], ["\u00e4 b.txt"]]
    assert got["missing"] is False


@pytest.mark.parametrize("generation", [0])
async def test_hf_transfer_reads_ranges_side_by_side(served: Served, generation: int) -> None:
    big = {"model.safetensors": content_of(25_000_000, 5)}
    await served.have(big)
    client = served.client(generation)
    client.environment["HF_HUB_ENABLE_HF_TRANSFER"] = "1"
    got = await client.act("snapshot", repo="org/m")
    assert got["files"] == {path: sha256_of(content) for path, content in big.items()}


@generations
async def test_below_a_prefix_and_over_several_pages(hub: Upstream, tmp_path: Path, generation: int) -> None:
    async with serving(tmp_path, hub, hub_prefix="/hub/v1") as served:
        files = [f"folder/{n:04}.txt" for n in range(60)]
        served.lay(files, b"x")
        client = served.client(generation, prefix="/hub/v1")
        asked = {"act": "tree", "repo": "org/m", "recursive": True, "expand": True}
        tree, snapshot = await client.act("several", acts=[asked, {"act": "snapshot", "repo": "org/m"}])
        # Fifty rows a page: a link was followed, and it led through the prefix.
        assert [row[0] for row in tree["result"]] == ["folder", *files]
        assert set(snapshot["result"]["files"]) == set(files)
        # Nodes ask without it, and links lead back without it.
        page = await served.ask(f"/api/models/org/m/tree/{COMMIT}?recursive=1&expand=1")
        assert f"http://{served.at}/api/models/" in page.headers["Link"]
        assert (await served.ask("/org/m/resolve/main/folder/0001.txt")).body == b"x"


@pytest.mark.parametrize("generation", [0])
async def test_transformers_finds_configuration_and_tokenizer(served: Served, generation: int) -> None:
    """It asks for many files that a repository may lack; those that it has and nobody chose count as lacking
    for now, and are not remembered."""
    vocabulary = {"hello": 0, "world": 1, "[UNK]": 2}
    tokenizer = {
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }  # fmt: skip
    files = {
        "config.json": b'{"model_type": "llama", "hidden_size": 64}',
        "tokenizer.json": json.dumps(tokenizer).encode(),
        "tokenizer_config.json": b'{"tokenizer_class": "PreTrainedTokenizerFast"}',
    }
    await served.have(files, unchosen=("chat_template.jinja", "special_tokens_map.json"))
    client = served.client(generation)
    got = await client.act("transformers", repo="org/m")
    assert got == {"type": "llama", "ids": [0, 1]}
    remembered = {path.name for path in client.cached("*") if ".no_exist" in path.parts}
    assert remembered
    assert not {"chat_template.jinja", "special_tokens_map.json"} & remembered
    again = await client.act("transformers", repo="org/m", environment={"HF_HUB_OFFLINE": "1"})
    assert again == got
