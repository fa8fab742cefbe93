"""What the Hub's clients make of files that are on their way, that failed, or that nobody chose.

The kinds of H19 and H23 are impossible here: nothing that is not whole is ever taken for a model."""

import asyncio

import pytest

from . import scripted
from .hub_programs import GENERATIONS
from .hub_served import COMMIT, NEXT_COMMIT, Served
from .scripted import Act, Exchange
from .world import content_of, sha256_of, until

#: Clients start slowly where everything else is being tested at once.
pytestmark = pytest.mark.timeout(300)
generations = pytest.mark.parametrize("generation", GENERATIONS)

CONFIG, WEIGHTS = b'{"model_type": "llama"}', content_of(3_000_000, 4)
FILES = {"config.json": CONFIG, "model.safetensors": WEIGHTS}
HASHES = {path: sha256_of(content) for path, content in FILES.items()}
RESOLVE = f"/org/m/resolve/{COMMIT}"


def held(after: int, go: asyncio.Event) -> Act:
    """Send `after` bytes, and the rest when told."""

    async def act(x: Exchange) -> None:
        await x.head(200, Content_Length=len(x.content), ETag=x.etag)
        await x.send(x.content[:after])
        while not (go.is_set() or x.upstream.over.is_set()):
            await asyncio.sleep(0.005)
        await x.send(x.content[after:])

    return act


async def half(served: Served, go: asyncio.Event, **more: str) -> None:
    """The configuration is here, a third of the weights, and no more until told."""
    served.hub.acts_on[served.path_of(WEIGHTS)] = held(1_000_000, go)
    await served.put(FILES, **more)
    await served.here.received(1_000_000)
    await until(lambda: len(served.here.blobs()) >= 1)


async def test_a_file_on_its_way_says_when_to_ask_again(served: Served) -> None:
    await half(served, asyncio.Event())
    for method in ("HEAD", "GET"):
        answer = await served.ask(f"{RESOLVE}/model.safetensors", method)
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.code == "OnItsWay"
        assert answer.headers["X-Repo-Commit"] == COMMIT
        assert "1000000 of 3000000 bytes are here" in answer.headers["X-Error-Message"]
    # What is verified is served, by itself.
    assert (await served.ask(f"{RESOLVE}/config.json")).body == CONFIG


async def test_h23_a_listing_waits_until_something_is_whole(served: Served) -> None:
    go = asyncio.Event()
    await half(served, go)
    info = await served.ask("/api/models/org/m/revision/main?blobs=true")
    assert (info.status, info.json["sha"], info.json["siblings"]) == (200, COMMIT, [])
    for path in (f"tree/{COMMIT}?recursive=true", "tree/main", "commits/main"):
        answer = await served.ask(f"/api/models/org/m/{path}")
        assert (answer.status, answer.code) == (503, "OnItsWay")
        assert int(answer.headers["Retry-After"]) >= 1
    assert (await served.post(f"/api/models/org/m/paths-info/{COMMIT}", json={"paths": ["a"]})).status == 503
    assert (await served.ask("/api/models")).json == []
    assert (await served.ask("/api/models/org/m/refs")).json["branches"] == []
    go.set()
    await served.here.settled("org/m", COMMIT)
    info = await served.ask("/api/models/org/m/revision/main")
    assert [row["rfilename"] for row in info.json["siblings"]] == list(FILES)


@pytest.mark.parametrize("generation", [2, 0])
async def test_clients_wait_for_a_file_that_is_on_its_way(served: Served, generation: int) -> None:
    """They retry a 503: the newest as Retry-After says, the oldest in its own rhythm, 1.0 not at all."""
    go = asyncio.Event()
    await half(served, go)
    client = served.client(generation)
    work = asyncio.create_task(
        client.act("download", repo="org/m", path="model.safetensors", revision=COMMIT)
    )
    await _asked(served, "/model.safetensors")
    go.set()
    assert (await work)["sha256"] == sha256_of(WEIGHTS)


async def _asked(served: Served, ending: str) -> None:
    """A client of this test has asked for it."""
    await until(lambda: any(path.endswith(ending) for path in served.asked))


@pytest.mark.parametrize("generation", [2])
async def test_a_snapshot_waits_for_the_listing(served: Served, generation: int) -> None:
    go = asyncio.Event()
    await half(served, go)
    work = asyncio.create_task(served.client(generation).act("snapshot", repo="org/m"))
    await _asked(served, f"/tree/{COMMIT}")
    go.set()
    assert (await work)["files"] == HASHES


@pytest.mark.parametrize("generation", [1, 0])
async def test_h23_clients_that_cannot_wait_fail_aloud(served: Served, generation: int) -> None:
    """Also with half a folder of their own, which they would return for most other answers."""
    go = asyncio.Event()
    await half(served, go)
    client = served.client(generation)
    assert (await client.act("download", repo="org/m", path="config.json"))["sha256"] == sha256_of(CONFIG)
    error, text = await client.refused("snapshot", repo="org/m")
    assert error == "HfHubHTTPError"
    assert "on its way" in text
    go.set()
    await served.here.settled("org/m", COMMIT)
    assert (await client.act("snapshot", repo="org/m"))["files"] == HASHES


@generations
async def test_h23_a_revision_that_failed_is_none(served: Served, generation: int) -> None:
    """H19 besides: a version with a missing shard is not a smaller model."""
    served.hub.acts_on[served.path_of(WEIGHTS)] = scripted.status(404)
    await served.put(FILES)
    await served.here.settled("org/m", COMMIT)
    client = served.client(generation)
    assert (await client.act("download", repo="org/m", path="config.json"))["sha256"] == sha256_of(CONFIG)
    for revision in ("main", COMMIT):
        error, text = await client.refused("snapshot", repo="org/m", revision=revision)
        assert error == "RevisionNotFoundError", text
        assert "model.safetensors: upstream answered 404" in text
        assert "an operator has to fetch it again" in text
    error, text = await client.refused("download", repo="org/m", path="model.safetensors", revision=COMMIT)
    assert error == "LocalEntryNotFoundError"
    assert "upstream answered 404" in text
    assert client.cached(".no_exist/*") == []


@generations
async def test_an_update_on_its_way_leaves_the_old_one_in_place(served: Served, generation: int) -> None:
    await served.have({"config.json": b"old"})
    go = asyncio.Event()
    served.hub.acts_on[served.path_of(WEIGHTS)] = held(1_000_000, go)
    await served.put(FILES, commit=NEXT_COMMIT)
    await served.here.received(1_000_000)
    client = served.client(generation)
    assert (await client.act("snapshot", repo="org/m"))["commit"] == COMMIT
    go.set()
    await served.here.settled("org/m", NEXT_COMMIT)
    got = await client.act("snapshot", repo="org/m")
    assert (got["commit"], got["files"]) == (NEXT_COMMIT, HASHES)


@generations
async def test_only_what_the_repository_lacks_is_remembered_as_missing(
    served: Served, generation: int
) -> None:
    """The trap of negative caching: `.no_exist` outlives everything that an operator may do later."""
    await served.have(FILES, unchosen=("later.gguf",))
    client = served.client(generation)
    for path, remembered in (("later.gguf", False), ("never.txt", True)):
        error, text = await client.refused("download", repo="org/m", path=path)
        assert error in ("RemoteEntryNotFoundError", "EntryNotFoundError")
        assert ("operators choose what is mirrored" in text) is not remembered
        assert bool(client.cached(f".no_exist/{COMMIT}/{path}")) is remembered
        assert bool(client.cached(f"{COMMIT}/{path}")) is remembered
    await served.have({"later.gguf": b"gguf"}, version="second")
    assert (await client.act("download", repo="org/m", path="later.gguf"))["sha256"] == sha256_of(b"gguf")


@generations
async def test_exceptions_are_the_right_ones_on_plain_http(served: Served, generation: int) -> None:
    await served.have(FILES)
    client = served.client(generation)
    acts = [
        {"act": "info", "repo": "org/none"},
        {"act": "download", "repo": "org/none", "path": "config.json"},
        {"act": "snapshot", "repo": "none"},
        {"act": "info", "repo": "org/m", "revision": "none"},
        {"act": "download", "repo": "org/m", "path": "config.json", "revision": "none"},
        {"act": "tree", "repo": "org/m", "path": "no/folder"},
        {"act": "whoami"},
    ]
    said = await client.act("several", acts=acts)
    errors = [one["error"] for one in said]
    assert errors[0] == errors[1] == "RepositoryNotFoundError"
    # A snapshot looks into its cache after any refusal but that of a revision; it names the reason still.
    assert errors[2] in ("LocalEntryNotFoundError", "RepositoryNotFoundError")
    assert "RepositoryNotFoundError" in [errors[2], *(name for name, _ in said[2]["causes"])]
    assert errors[3] == errors[4] == "RevisionNotFoundError"
    assert errors[5] in ("RemoteEntryNotFoundError", "EntryNotFoundError")
    assert errors[6] in ("LocalTokenNotFoundError", "HfHubHTTPError")
    for one in said[:2]:
        assert "operators choose what is mirrored" in one["text"]
    assert client.cached(".no_exist/*") == []


async def test_a_first_client_is_not_kept_waiting(served: Served) -> None:
    """Newer clients ask once a day for something else, for three seconds; any answer will do."""
    for path in (
        "/api/agent-harnesses",
        "/api/whatever/else",
        "/api/",
        "/api",
        "/api/models/org/m/xet-read-token/main",
    ):
        answer = await served.ask(path)
        assert answer.status == 404, path


@generations
async def test_a_damaged_file_is_not_served(served: Served, generation: int) -> None:
    """H27: what was verified once and is set aside since is on its way again."""
    await served.have(FILES)
    assert (await served.ask(f"{RESOLVE}/model.safetensors", "HEAD")).status == 200
    served.here.store.set_aside(sha256_of(WEIGHTS))
    go = asyncio.Event()
    served.hub.acts_on[served.path_of(WEIGHTS)] = held(0, go)
    for method in ("HEAD", "GET"):
        assert (await served.ask(f"{RESOLVE}/model.safetensors", method)).status == 503
    go.set()
    await served.here.settled("org/m", COMMIT)
    client = served.client(generation)
    assert (await client.act("snapshot", repo="org/m"))["files"] == HASHES
