"""The scripted registry itself: what other tests stand on answers as the Hub does."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from .hub_registry import HubRegistry, hub_registry
from .scripted import corrupt, status

WEIGHTS = b"weights" * 100


@pytest.fixture
async def registry() -> AsyncIterator[HubRegistry]:
    async with hub_registry(prefix="/hub") as made:
        made.add("org/m", {"config.json": b"{}", "model.safetensors": WEIGHTS, "sub/a b.txt": b"text"})
        yield made


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


async def test_info_with_blobs_names_the_real_size_and_the_sha256(
    registry: HubRegistry, session: aiohttp.ClientSession
) -> None:
    async with session.get(f"{registry.base}/api/models/org/m/revision/main?blobs=True") as answer:
        rows = {row["rfilename"]: row for row in (await answer.json())["siblings"]}
    row, file = rows["model.safetensors"], registry.repos["org/m"].commits
    assert row["size"] == row["lfs"]["size"] == len(WEIGHTS)
    assert row["blobId"] != row["lfs"]["sha256"]
    assert "lfs" not in rows["config.json"]
    assert list(file) == [registry.repos["org/m"].branches["main"]]


async def test_search_pages_follow_the_callers_own_base(
    registry: HubRegistry, session: aiohttp.ClientSession
) -> None:
    for n in range(25):
        registry.add(f"org/n{n}", {})
    found, url = [], f"{registry.base}/api/models?search=org&limit=10"
    while url:
        async with session.get(url) as answer:
            found += [row["id"] for row in await answer.json()]
            url = str(answer.links["next"]["url"]) if "next" in answer.links else ""
    assert len(found) == len(set(found)) == 26


@pytest.mark.parametrize("path", ["config.json", "model.safetensors", "sub/a b.txt"])
async def test_every_file_is_reached_through_its_redirects(
    registry: HubRegistry, session: aiohttp.ClientSession, path: str
) -> None:
    commit = registry.repos["org/m"].branches["main"]
    async with session.get(f"{registry.base}/org/m/resolve/main/{path}") as answer:
        assert answer.status == 200
        assert await answer.read() == registry.repos["org/m"].commits[commit][path].content
        assert len(answer.history) == 1


async def test_the_second_origin_refuses_a_token(
    registry: HubRegistry, session: aiohttp.ClientSession
) -> None:
    url = f"{registry.base}/org/m/resolve/main/model.safetensors"
    async with session.head(url, allow_redirects=False) as answer:
        to, commit = answer.headers["Location"], answer.headers["X-Repo-Commit"]
    assert commit == registry.repos["org/m"].branches["main"]
    async with session.get(to, headers={"Authorization": "Bearer t"}) as answer:
        assert answer.status == 400
    async with session.get(to, headers={"Range": "bytes=7-13"}) as answer:
        assert (answer.status, await answer.read()) == (206, b"weights")


async def test_acts_on_a_path_and_on_a_files_bytes(
    registry: HubRegistry, session: aiohttp.ClientSession
) -> None:
    registry.on("/api/models", status(503))
    registry.on_content("model.safetensors", corrupt(3))
    async with session.get(f"{registry.base}/api/models") as answer:
        assert answer.status == 503
    async with session.get(f"{registry.base}/org/m/resolve/main/model.safetensors") as answer:
        body = await answer.read()
    assert len(body) == len(WEIGHTS)
    assert body != WEIGHTS


async def test_gated_and_private_and_a_bad_token(
    registry: HubRegistry, session: aiohttp.ClientSession
) -> None:
    registry.add("org/gated", {"w.bin": b"w"}, gated="manual").granted = {"good"}
    registry.add("org/secret", {}).private = True
    registry.tokens = {"good", "other"}
    told = []
    for path, token in [
        ("org/gated/resolve/main/w.bin", None), ("org/gated/resolve/main/w.bin", "other"),
        ("api/models/org/gated", None), ("api/models/org/secret", None), ("api/models/org/secret", "other"),
        ("api/models/org/gated", "bad"),
    ]:  # fmt: skip
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with session.get(f"{registry.base}/{path}", headers=headers) as answer:
            told.append((answer.status, answer.headers.get("X-Error-Code")))
    assert told == [
        (401, "GatedRepo"), (403, "GatedRepo"), (200, None),
        (401, "RepoNotFound"), (404, "RepoNotFound"), (401, None),
    ]  # fmt: skip
