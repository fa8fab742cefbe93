"""The real program with a registry: its calls over gRPC, what a restart keeps, and the Hub's own clients as
the measure of the stand-in."""

from __future__ import annotations  # the stubs' asynchronous types exist in their type stubs only

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from llmgw.v1 import mirror_pb2 as pb
from llmgw_kit import rpc
from llmgw_kit.errors import InvalidRequest, NotConfigured, Unavailable
from llmgw_kit.testing.processes import Cage

from .hub_programs import GENERATIONS, HubClient
from .hub_registry import HubRegistry, hub_registry
from .scripted import status
from .test_mirror_process import Running, start
from .world import content_of, sha256_of

FILES = {
    "model.safetensors": content_of(400_000), "config.json": b'{"architectures": ["M"]}',
    "sub/notes v1.txt": b"notes",
    "pytorch_model.bin": content_of(1_000, seed=3),
}  # fmt: skip


@pytest.fixture
async def hub() -> AsyncIterator[HubRegistry]:
    async with hub_registry(prefix="/hub") as made:
        made.add("org/m", FILES, gated="auto", cardData={"license": "mit"})
        yield made


async def asked(running: Running, call: str, request: Any) -> Any:
    """One call; its error as callers see it."""
    async with running.stub() as stub:
        try:
            return await getattr(stub, call)(request, timeout=20)
        except grpc.aio.AioRpcError as e:
            raise rpc.error_from(e, peer="mirror") from None


async def test_an_operators_calls_from_search_to_fetch_and_again_after_a_restart(
    cage: Cage, tmp_path: Path, hub: HubRegistry
) -> None:
    running = await start(cage, tmp_path, registry_url=hub.base, registry_token="t")
    state = await asked(running, "GetRegistry", pb.GetRegistryRequest())
    assert (state.base_url, state.has_token, state.HasField("trouble")) == (hub.base, True, False)
    assert hub.requests == []
    found = await asked(running, "Search", pb.SearchRequest(words="org", limit=5))
    assert [(one.id, one.gated, one.downloads, one.HasField("odd")) for one in found.repositories] == [
        ("org/m", "auto", 42, False)
    ]
    fleet = [pb.FleetGpuClass(name="tiny", memory_bytes=1000, devices_per_node=1, nodes_per_fabric=1)]
    files = await asked(running, "ListFiles", pb.ListFilesRequest(repository="org/m", fleet=fleet))
    group = files.groups[0]
    assert (group.name, group.preselected, group.total_bytes) == ("safetensors", True, 400_000)
    assert group.files[0].sha256 == sha256_of(FILES["model.safetensors"])
    assert [one.code for one in group.warnings] == ["fits_no_class"]
    assert files.license == "mit"
    assert files.disk_free_bytes > 0
    assert [one.path for one in files.companions] == ["config.json", "sub/notes v1.txt"]

    order = pb.FetchRepositoryRequest(repository="org/m", revision=files.repository.commit, asked_by="ann")
    dry = pb.FetchRepositoryRequest(dry_run=True)
    dry.MergeFrom(order)
    told = await asked(running, "FetchRepository", dry)
    assert told.bytes_to_fetch == 400_000 + len(FILES["config.json"]) + len(FILES["sub/notes v1.txt"])
    assert told.version.state == pb.WEIGHTS_STATE_ABSENT
    assert (await asked(running, "ListVersions", pb.ListVersionsRequest())).versions == []
    version = (await asked(running, "FetchRepository", order)).version
    assert (version.model, version.version) == ("org/m", files.repository.commit[:12])
    assert (version.repository.id, version.repository.commit) == ("org/m", files.repository.commit)
    assert files.repository.revision == "main"
    running.child.stop(grace_s=10)

    running = await start(cage, tmp_path, registry_url=hub.base)
    again = await asked(running, "FetchRepository", order)
    assert {file.path for file in again.version.files} == {file.path for file in version.files}
    running.child.stop(grace_s=10)


async def test_refusals_travel_with_their_code_and_next_steps(
    cage: Cage, tmp_path: Path, hub: HubRegistry
) -> None:
    running = await start(cage, tmp_path, registry_url=hub.base)
    nothing = [pb.FleetGpuClass(name="x")]
    for call, request, code in [
        ("FetchRepository", pb.FetchRepositoryRequest(repository="org/m"), "gated"),
        ("ListFiles", pb.ListFilesRequest(repository="../x"), "bad_repository"),
        ("ListFiles", pb.ListFilesRequest(repository="org/m", fleet=nothing), "invalid_request"),
        ("Search", pb.SearchRequest(words="m", limit=0), "invalid_request"),
    ]:
        with pytest.raises(InvalidRequest) as told:
            await asked(running, call, request)
        assert told.value.code == code
    running.child.stop(grace_s=10)


async def test_a_registry_in_trouble_can_be_alerted_on(cage: Cage, tmp_path: Path, hub: HubRegistry) -> None:
    running = await start(cage, tmp_path, registry_url=hub.base)

    async def up() -> list[str]:
        text = (await running.get("/metrics", running.admin))[1].decode()
        return [line for line in text.splitlines() if line.startswith("llmgw_mirror_registry_up")]

    assert await up() == ["llmgw_mirror_registry_up 1.0"]
    hub.acts.append(status(503))
    with pytest.raises(Unavailable):
        await asked(running, "Search", pb.SearchRequest(words="m"))
    assert await up() == ["llmgw_mirror_registry_up 0.0"]
    state = await asked(running, "GetRegistry", pb.GetRegistryRequest())
    assert state.trouble == "it answers 503"
    assert state.tried_again_unix_s > state.trouble_since_unix_s
    running.child.stop(grace_s=10)


async def test_without_a_registry_the_calls_say_so(cage: Cage, tmp_path: Path) -> None:
    running = await start(cage, tmp_path)
    assert not (await asked(running, "GetRegistry", pb.GetRegistryRequest())).HasField("base_url")
    for call, request in [
        ("Search", pb.SearchRequest(words="m")),
        ("ListFiles", pb.ListFilesRequest(repository="org/m")),
        ("FetchRepository", pb.FetchRepositoryRequest(repository="org/m")),
    ]:
        with pytest.raises(NotConfigured) as told:
            await asked(running, call, request)
        assert told.value.code == "no_registry"
    running.child.stop(grace_s=10)


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_the_hubs_own_clients_take_the_stand_in_for_a_registry(
    tmp_path: Path, hub: HubRegistry, generation: int
) -> None:
    client = HubClient(generation, hub.base, tmp_path / "home")
    # The rows name the Hub's own transfer protocol, as the Hub's do; this registry does not speak it.
    said = await client.act("snapshot", repo="org/m", environment={"HF_HUB_DISABLE_XET": "1"})
    assert said["commit"] == hub.repos["org/m"].branches["main"]
    assert said["files"] == {path: sha256_of(content) for path, content in FILES.items()}
