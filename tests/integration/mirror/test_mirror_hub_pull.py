"""From a registry through the mirror into real clients: what an operator fetched, and what a client's demand
fetches where an operator allows that."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from llmgw_kit.clock import SystemClock
from llmgw_mirror.composition_finding import build_finders
from llmgw_mirror.fetching_repository import Order

from . import scripted
from .hub_programs import GENERATIONS
from .hub_registry import HubRegistry, hub_registry
from .hub_served import Served, safetensors, serving
from .scripted import Upstream
from .world import content_of, sha256_of

#: Clients start slowly where everything else is being tested at once.
pytestmark = pytest.mark.timeout(300)
generations = pytest.mark.parametrize("generation", GENERATIONS)

FILES = {
    "README.md": b"# a model\n",
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": safetensors(2, 1_000_000),
    "sub/notes.txt": b"notes",
}
QUANTISED = content_of(300_000, 9)


@pytest.fixture
async def registry() -> AsyncIterator[HubRegistry]:
    async with hub_registry(prefix="/hub") as made:
        made.add("org/m", {**FILES, "model-q4_k_m.gguf": QUANTISED})
        yield made


def served_from(registry: HubRegistry, hub: Upstream, folder: Path, *patterns: str) -> Any:
    return serving(folder, hub, registry_url=registry.base, pull_through=patterns)


async def order(served: Served, **asked: Any) -> str:
    """As an operator does; returns the commit."""
    finders = build_finders(served.here.settings, served.here.built, SystemClock())
    try:
        ordered = await finders.fetching.fetch(Order(**asked))
    finally:
        await finders.close()
    await served.here.settled(ordered.version.model, ordered.version.version)
    assert ordered.version.repository is not None
    return ordered.version.repository.commit


@generations
async def test_the_registry_the_mirror_and_a_client_agree_on_every_byte(
    registry: HubRegistry, hub: Upstream, tmp_path: Path, generation: int
) -> None:
    async with served_from(registry, hub, tmp_path) as served:
        commit = await order(served, repository="org/m")
        client = served.client(generation)
        got = await client.act("snapshot", repo="org/m")
        assert (got["commit"], got["files"]) == (commit, {p: sha256_of(c) for p, c in FILES.items()})
        # The same client at the registry itself: its cache names the files alike.
        direct = served.client(generation, name="direct")
        direct.endpoint = registry.base
        # Its rows name another store, for which the newest client leaves at once (H26).
        direct.environment["HF_HUB_DISABLE_XET"] = "1"
        await direct.act("snapshot", repo="org/m", ignore_patterns=["*.gguf"])
        names = [sorted(path.name for path in each.cached("blobs/*")) for each in (client, direct)]
        assert names[0] == names[1]
        # Known at the commit and not chosen: absent, and never remembered as such.
        error, _ = await client.refused("download", repo="org/m", path="model-q4_k_m.gguf")
        assert error in ("RemoteEntryNotFoundError", "EntryNotFoundError")
        error, _ = await client.refused("download", repo="org/m", path="never.txt")
        assert {path.name for path in client.cached("*") if ".no_exist" in path.parts} == {"never.txt"}


@generations
async def test_a_demand_is_fetched_where_that_is_allowed(
    registry: HubRegistry, hub: Upstream, tmp_path: Path, generation: int
) -> None:
    registry.add("other/m", FILES)
    async with served_from(registry, hub, tmp_path, "org/*") as served:
        client = served.client(generation)
        error, _ = await client.refused("info", repo="other/m")
        assert error == "RepositoryNotFoundError"
        assert not any("other" in request.path for request in registry.requests)
        info = await client.act("info", repo="org/m")
        assert info["sha"] == registry.repos["org/m"].branches["main"]
        await served.here.settled("org/m", info["sha"][:12])
        got = await client.act("snapshot", repo="org/m")
        assert got["files"] == {path: sha256_of(content) for path, content in FILES.items()}


@pytest.mark.parametrize("generation", [2])
async def test_a_snapshot_on_demand_waits_for_the_bytes(
    registry: HubRegistry, hub: Upstream, tmp_path: Path, generation: int
) -> None:
    async with served_from(registry, hub, tmp_path, "org/*") as served:
        got = await served.client(generation).act("snapshot", repo="org/m")
        assert got["files"] == {path: sha256_of(content) for path, content in FILES.items()}


@pytest.mark.parametrize("generation", [2, 0])
async def test_one_file_on_demand(
    registry: HubRegistry, hub: Upstream, tmp_path: Path, generation: int
) -> None:
    async with served_from(registry, hub, tmp_path, "org/*") as served:
        await order(served, repository="org/m")
        client = served.client(generation)
        got = await client.act("download", repo="org/m", path="model-q4_k_m.gguf")
        assert got["sha256"] == sha256_of(QUANTISED)
        assert client.cached(".no_exist/*") == []


async def test_many_clients_are_one_demand(registry: HubRegistry, hub: Upstream, tmp_path: Path) -> None:
    async with served_from(registry, hub, tmp_path, "org/*") as served:
        said = await asyncio.gather(*(served.ask("/api/models/org/m/revision/main") for _ in range(20)))
        assert {answer.status for answer in said} == {200}
        assert sum(request.path == "/api/models/org/m/revision/main" for request in registry.requests) == 1


@generations
async def test_the_registrys_refusals_keep_their_names(
    registry: HubRegistry, hub: Upstream, tmp_path: Path, generation: int
) -> None:
    """On plain http, where only X-Error-Code tells one from another."""
    gated = registry.add("org/gated", FILES, gated="manual")
    assert gated
    async with served_from(registry, hub, tmp_path, "org/*") as served:
        client = served.client(generation)
        said = await client.act(
            "several",
            acts=[
                {"act": "info", "repo": "org/none"},
                {"act": "info", "repo": "org/m", "revision": "none"},
                {"act": "info", "repo": "org/gated"},
            ],
        )
        assert [one["error"] for one in said[:2]] == ["RepositoryNotFoundError", "RevisionNotFoundError"]
        assert said[2]["error"] == "GatedRepoError", said[2]
        # A grant is lacking, and no request of another form would be better.
        assert (await served.ask("/api/models/org/gated")).status == 403


async def test_a_registry_that_is_away(registry: HubRegistry, hub: Upstream, tmp_path: Path) -> None:
    async with served_from(registry, hub, tmp_path, "org/*") as served:
        registry.acts.extend([scripted.status(500)] * 20)
        answer = await served.ask("/api/models/org/m")
        assert (answer.status, answer.code) == (503, "Unavailable")
        assert int(answer.headers["Retry-After"]) >= 1
