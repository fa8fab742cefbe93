"""The Hub's protocol by bare requests: headers, ranges, links, and what is refused. H24 to H28."""

from pathlib import Path

import pytest

from llmgw_mirror.core.hub import own_commit
from llmgw_mirror.core.versions import Source

from .hub_programs import GENERATIONS
from .hub_served import COMMIT, FILES, HASHES, NEXT_COMMIT, Served, git_id, serving
from .scripted import Upstream
from .world import sha256_of

#: Clients start slowly where everything else is being tested at once.
pytestmark = pytest.mark.timeout(300)

WEIGHTS = FILES["sub/deeper/weights.bin"]
SIZE = len(WEIGHTS)
FILE = f"/org/m/resolve/{COMMIT}/sub/deeper/weights.bin"
SHA = sha256_of(WEIGHTS)


@pytest.fixture
async def full(served: Served) -> Served:
    await served.have()
    return served


@pytest.mark.parametrize("method", ["HEAD", "GET"])
async def test_h24_h25_every_header_at_once_and_no_redirect(full: Served, method: str) -> None:
    answer = await full.ask(FILE, method, Accept_Encoding="gzip, br")
    assert answer.status == 200
    assert answer.headers["X-Repo-Commit"] == COMMIT
    assert answer.headers["ETag"] == answer.headers["X-Linked-ETag"] == f'"{SHA}"'
    assert answer.headers["Content-Length"] == answer.headers["X-Linked-Size"] == str(SIZE)
    assert answer.headers["Accept-Ranges"] == "bytes"
    for absent in ("Content-Encoding", "Location", "Transfer-Encoding", "Link"):
        assert absent not in answer.headers
    assert answer.body == (b"" if method == "HEAD" else WEIGHTS)


async def test_files_outside_lfs_carry_their_git_id(full: Served) -> None:
    answer = await full.ask(f"/org/m/resolve/{COMMIT}/config.json")
    assert answer.headers["ETag"] == f'"{git_id(FILES["config.json"])}"'
    assert answer.body == FILES["config.json"]
    again = await full.ask(f"/org/m/resolve/{COMMIT}/config.json", If_None_Match=answer.headers["ETag"])
    assert (again.status, again.headers["X-Repo-Commit"]) == (304, COMMIT)


async def test_h26_nothing_leads_to_another_store(full: Served) -> None:
    """Whatever a client would follow around the mirror is absent: headers, and fields of rows."""
    said = [await full.ask(FILE, "HEAD")]
    said += [
        await full.ask(f"/api/models/org/m/{path}")
        for path in (f"tree/{COMMIT}?recursive=1&expand=1", f"revision/{COMMIT}?blobs=1", "refs")
    ]
    said.append(await full.post(f"/api/models/org/m/paths-info/{COMMIT}", json={"paths": list(FILES)}))
    for answer in said:
        assert answer.status == 200
        assert not [name for name in answer.headers if "xet" in name.lower()]
        assert b"xet" not in answer.body.lower()


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=100-", 100, SIZE),
        ("bytes=-7", SIZE - 7, SIZE),
        (f"bytes=1000-{SIZE * 3}", 1000, SIZE),
        (f"bytes={SIZE - 1}-{SIZE - 1}", SIZE - 1, SIZE),
    ],
)
async def test_h28_ranges(full: Served, asked: str, start: int, end: int) -> None:
    """As hf_transfer, aria2 and readers of safetensors headers ask for them."""
    answer = await full.ask(FILE, Range=asked)
    assert answer.status == 206
    assert answer.headers["Content-Range"] == f"bytes {start}-{end - 1}/{SIZE}"
    assert answer.headers["X-Repo-Commit"] == COMMIT
    assert answer.headers["X-Linked-Size"] == str(SIZE)
    assert answer.body == WEIGHTS[start:end]


@pytest.mark.parametrize("asked", [f"bytes={SIZE}-", "bytes=-0"])
async def test_h28_ranges_that_cannot_be_had(full: Served, asked: str) -> None:
    answer = await full.ask(FILE, Range=asked)
    assert answer.status == 416
    assert answer.headers["Content-Range"] == f"bytes */{SIZE}"
    assert answer.headers["X-Repo-Commit"] == COMMIT


async def test_a_file_in_parts_as_aria2_asks_for_it(full: Served) -> None:
    step = 250_000
    parts = [
        await full.ask(FILE, Range=f"bytes={at}-{at + step - 1}", If_Range=f'"{SHA}"')
        for at in range(0, SIZE, step)
    ]
    assert {part.status for part in parts} == {206}
    assert b"".join(part.body for part in parts) == WEIGHTS


@pytest.mark.parametrize(
    "revision",
    ["main", "HEAD", COMMIT, COMMIT[:7], "refs%2Fheads%2Fmain", "refs/heads/main"],
)
async def test_spellings_of_a_revision(full: Served, revision: str) -> None:
    answer = await full.ask(f"/org/m/resolve/{revision}/config.json")
    assert (answer.status, answer.headers["X-Repo-Commit"]) == (200, COMMIT)


async def test_refs_with_slashes(served: Served) -> None:
    await served.have()
    await served.have({"config.json": b"pr"}, commit=NEXT_COMMIT, revision="refs/pr/1")
    for path in ("/org/m/resolve/refs%2Fpr%2F1/config.json", "/org/m/resolve/refs/pr/1/config.json"):
        assert (await served.ask(path)).body == b"pr"
    said = (await served.ask("/api/models/org/m/refs?include_prs=1")).json
    assert said["pullRequests"] == [{"name": "1", "ref": "refs/pr/1", "targetCommit": NEXT_COMMIT}]
    assert [row["name"] for row in said["branches"]] == ["main"]
    # Newest first, and only what was there before the revision.
    history = (await served.ask("/api/models/org/m/commits/refs%2Fpr%2F1")).json
    assert [row["id"] for row in history] == [NEXT_COMMIT, COMMIT]


@pytest.mark.parametrize("word", ["true", "True", "TRUE", "1"])
async def test_booleans_without_regard_to_case(full: Served, word: str) -> None:
    deep = (await full.ask(f"/api/models/org/m/tree/{COMMIT}?recursive={word}")).json
    assert len(deep) == 8
    blobs = (await full.ask(f"/api/models/org/m?blobs={word}")).json["siblings"]
    weights = next(row for row in blobs if row["rfilename"] == "model.safetensors")
    assert weights["lfs"]["sha256"] == HASHES["model.safetensors"]


@pytest.mark.parametrize("word", ["false", "False", "0", ""])
async def test_booleans_that_are_not_set(full: Served, word: str) -> None:
    assert len((await full.ask(f"/api/models/org/m/tree/{COMMIT}?recursive={word}")).json) == 5
    assert set((await full.ask(f"/api/models/org/m?blobs={word}")).json["siblings"][0]) == {"rfilename"}


@pytest.mark.parametrize("spelled", ["expand=sha&expand=siblings", "expand[]=sha&expand[]=siblings"])
async def test_expand_in_both_spellings(full: Served, spelled: str) -> None:
    said = (await full.ask(f"/api/models/org/m?{spelled}")).json
    assert set(said) == {"_id", "id", "modelId", "sha", "siblings"}


async def test_paths_info_as_a_form_and_as_json(full: Served) -> None:
    url = f"/api/models/org/m/paths-info/{COMMIT}"
    named = ["sub/deeper", "config.json", "none", "config.json", "sub/"]
    form = [("paths", path) for path in named] + [("expand", "True")]
    for answer in (
        await full.post(url, data=form),
        await full.post(url, json={"paths": named, "expand": True}),
    ):
        assert [(row["type"], row["path"]) for row in answer.json] == [
            ("directory", "sub/deeper"), ("file", "config.json"), ("directory", "sub")
        ]  # fmt: skip
        assert answer.json[1]["lastCommit"]["id"] == COMMIT
    many = await full.post(url, data=b"&".join([b"paths=a"] * 10_001))
    assert (many.status, many.code) == (400, "BadRequest")
    one = await full.post(url, json={"paths": "config.json"})
    assert [row["path"] for row in one.json] == ["config.json"]
    for body in (b"[1]", b"{", b'{"paths": [1]}', b"\xff"):
        headers = {"Content-Type": "application/json"}
        refused = await full.post(url, data=body, headers=headers)
        assert (refused.status, refused.code) == (400, "BadRequest"), body


async def test_folders_are_listed_one_level_or_all(full: Served) -> None:
    async def listed(path: str) -> list[str]:
        return [row["path"] for row in (await full.ask(f"/api/models/org/m/tree/main{path}")).json]

    assert await listed("/sub") == ["sub/deeper", "sub/\u00e4 b.txt"]
    assert await listed("/sub%2Fdeeper") == ["sub/deeper/weights.bin"]
    assert await listed("/sub?recursive=1") == ["sub/deeper", "sub/deeper/weights.bin", "sub/\u00e4 b.txt"]
    missing = await full.ask("/api/models/org/m/tree/main/su")
    assert (missing.status, missing.code) == (404, "EntryNotFound")
    assert "X-Repo-Commit" not in missing.headers


async def test_pages_lead_on_the_callers_own_base_url(full: Served) -> None:
    url, seen = f"/api/models/org/m/tree/{COMMIT}?recursive=true&limit=3", []
    headers = {"Host": "mirror.test:81"}
    while True:
        answer = await full.ask(url, **headers)
        seen += [row["path"] for row in answer.json]
        link = answer.headers.get("Link")
        if link is None:
            break
        assert link.startswith("<http://mirror.test:81/api/models/org/m/tree/")
        assert link.endswith('>; rel="next"')
        url = link[1 : link.index(">")].removeprefix("http://mirror.test:81")
    assert seen == sorted([*FILES, "sub", "sub/deeper"])


async def test_links_through_a_proxy_that_says_what_it_took_away(full: Served) -> None:
    url = f"/api/models/org/m/tree/{COMMIT}?recursive=true&limit=3&expand[]=x"
    told = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "hub.test", "X-Forwarded-Prefix": "/models/"}
    link = (await full.ask(url, **told)).headers["Link"]
    assert link.startswith(f"<https://hub.test/models/api/models/org/m/tree/{COMMIT}?recursive=true&limit=3&")
    assert "expand%5B%5D=x" in link
    for odd in ({"X-Forwarded-Host": "a b"}, {"X-Forwarded-Prefix": "/x>;"}, {"Host": "a/b"}):
        assert (await full.ask(url, **odd)).status == 400


async def test_models_by_pages(served: Served) -> None:
    for n in range(5):
        await served.have({"config.json": b"%d" % n}, repo=f"org/m{n}")
    first = await served.ask("/api/models?limit=2&full=true")
    assert [row["id"] for row in first.json] == ["org/m0", "org/m1"]
    assert first.json[0]["sha"] == COMMIT
    second = await served.ask(first.headers["Link"].split(str(served.at))[1].split(">")[0])
    assert [row["id"] for row in second.json] == ["org/m2", "org/m3"]
    newest = await served.ask("/api/models?sort=createdAt&limit=1")
    assert [row["id"] for row in newest.json] == ["org/m4"]
    assert "siblings" not in newest.json[0]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/org/m/resolve/main/..%2f..%2fstore.json", 400, "BadRequest"),
        ("/org/m/resolve/main/../../store.json", 400, "BadRequest"),
        ("/org/m/resolve/main//etc/passwd", 400, "BadRequest"),
        ("/org/m/resolve/main/a%00b", 400, "BadRequest"),
        ("/org/m/resolve/main/a%0d%0aX-Evil:%201", 400, "BadRequest"),
        ("/org/m/resolve/main/%ff", 400, "BadRequest"),
        ("/org/m/resolve/a%00b%0d%0aX-Evil:%201/config.json", 404, "RevisionNotFound"),
        ("/org/%0d%0aX-Evil:%201/resolve/main/config.json", 404, "RepoNotFound"),
        ("/..%2f../m/resolve/main/config.json", 404, "RepoNotFound"),
        ("/org/M/resolve/main/config.json", 404, "RepoNotFound"),
        ("/datasets/org/m/resolve/main/config.json", 404, "RepoNotFound"),
        ("/datasets/m/resolve/main/config.json", 404, "RepoNotFound"),
        ("/api/spaces/org/m", 404, "RepoNotFound"),
        ("/api/models/org/m/revision/" + "x" * 3000, 404, "RevisionNotFound"),
        ("/api/models/org/m/tree/main/..%2f..", 400, "BadRequest"),
        ("/api/models/org/m/nonsense", 404, "UnknownCall"),
    ],
)
async def test_what_is_refused(full: Served, path: str, status: int, code: str) -> None:
    answer = await full.ask(path)
    assert (answer.status, answer.code) == (status, code)
    message = answer.headers["X-Error-Message"]
    assert message.isascii()
    assert message.isprintable()
    assert len(message) <= 600
    assert "X-Evil" not in answer.headers
    assert "X-Repo-Commit" not in answer.headers
    assert answer.json["error"]


async def test_nothing_can_be_changed(full: Served) -> None:
    for path in ("/api/repos/create", "/api/models/org/m/commit/main", "/api/validate-yaml"):
        answer = await full.post(path, json={})
        assert (answer.status, answer.code) == (403, "ReadOnly")
    assert (await full.ask(FILE, "POST")).status == 405
    assert (await full.ask("/org/m/blob/main/config.json")).status == 404


async def test_a_token_is_taken_and_goes_nowhere(full: Served) -> None:
    answer = await full.ask(FILE, "HEAD", Authorization="Bearer hf_secret")
    assert answer.status == 200
    assert not [request for request in full.hub.requests if "authorization" in request.headers]
    assert (await full.ask("/api/whoami-v2")).status == 401
    assert (await full.ask("/api/whoami-v2", Authorization="Bearer x")).json["name"] == "mirror"


async def test_versions_of_one_commit_are_united(served: Served) -> None:
    safe = {"config.json": b"{}", "model.safetensors": b"safe"}
    await served.have(safe, version="safe", unchosen=("model.gguf", "later.bin"))
    await served.have({"config.json": b"{}", "model.gguf": b"gguf"}, version="gguf", revision=None)
    listed = (await served.ask("/api/models/org/m")).json["siblings"]
    assert [row["rfilename"] for row in listed] == ["config.json", "model.gguf", "model.safetensors"]
    assert (await served.ask("/org/m/resolve/main/model.gguf")).body == b"gguf"
    later = await served.ask("/org/m/resolve/main/later.bin")
    assert (later.status, later.code) == (404, "EntryNotFound")
    assert "X-Repo-Commit" not in later.headers
    never = await served.ask("/org/m/resolve/main/never.bin")
    assert (never.status, never.code) == (404, "EntryNotFound")
    assert never.headers["X-Repo-Commit"] == COMMIT


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_version_of_plain_urls_is_a_repository_too(served: Served, generation: int) -> None:
    """Models that come from no registry, under their own name, at a commit made of their content."""
    for version, content in (("v1", b"one"), ("v2", b"two")):
        files = [Source(f"{name}.bin", served.hub.put(f"/{name}{version}", content)) for name in "ab"]
        await served.here.mirror.fetch("local/llama", version, files)
        await served.here.settled("local/llama", version)
    client = served.client(generation)
    commits = {}
    for revision, content in (("v1", b"one"), ("v2", b"two"), (None, b"two")):
        got = await client.act("snapshot", repo="local/llama", revision=revision)
        assert got["files"] == {"a.bin": sha256_of(content), "b.bin": sha256_of(content)}
        commits[revision] = got["commit"]
    assert commits[None] == commits["v2"] != commits["v1"]
    head = await served.ask("/local/llama/resolve/v1/a.bin", "HEAD")
    assert head.headers["ETag"] == f'"{sha256_of(b"one")}"'
    assert (await served.ask("/local/llama/resolve/v1/c.bin")).headers["X-Repo-Commit"] == commits["v1"]
    assert len(own_commit([])) == 40


async def test_a_name_that_no_client_could_ask_for_is_left_out(served: Served) -> None:
    source = Source("a.bin", served.hub.put("/a", b"a"))
    await served.here.mirror.fetch("three/part/name", "v1", [source])
    await served.here.settled("three/part/name", "v1")
    assert (await served.ask("/api/models")).json == []


async def test_a_removed_version_is_gone_at_once(full: Served) -> None:
    assert (await full.ask(FILE, "HEAD")).status == 200
    await full.here.removed("org/m", COMMIT)
    answer = await full.ask(FILE, "HEAD")
    assert (answer.status, answer.code) == (404, "RepoNotFound")


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_the_wall_of_fifty_gigabytes(hub: Upstream, tmp_path: Path, generation: int) -> None:
    """Newer clients refuse a large file only if they are told its size; older ones need the size. The real
    limit is lowered on both sides; the file has holes."""
    big, limit = 6_000_000, 5_000_000
    content = b"\0" * big
    async with serving(tmp_path, hub, hub_big_bytes=limit) as served:
        await served.have({"model.safetensors": content})
        head = await served.ask("/org/m/resolve/main/model.safetensors", "HEAD")
        assert head.headers["Content-Length"] == str(big)
        agents = {"hf_hub/2.4.0": False, "vllm/1; hf_hub/3.0; python/3": False, "hf_hub/1.0.1": True}
        for agent, told in (agents | {"hf_hub/0.36.0": True, "aria2/1.36": True}).items():
            head = await served.ask("/org/m/resolve/main/model.safetensors", "HEAD", User_Agent=agent)
            assert head.status == 200
            assert ("Content-Length" in head.headers) is ("X-Linked-Size" in head.headers) is told, agent
            assert head.headers["X-Linked-ETag"] == f'"{sha256_of(content)}"'
        client = served.client(generation)
        asked = {"act": "walled", "limit": limit, "repo": "org/m", "path": "model.safetensors"}
        [said] = await client.act("several", acts=[asked])
        if generation == 2:
            assert said["result"]["sha256"] == sha256_of(content)
        else:
            assert "too large" in said["text"], said
