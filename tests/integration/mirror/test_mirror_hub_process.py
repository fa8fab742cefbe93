"""The real program serves a real client of the Hub, before and after it was killed."""

from pathlib import Path

import pytest

from llmgw.v1 import common_pb2, mirror_pb2
from llmgw_kit.testing.processes import Cage

from .hub_programs import HubClient
from .hub_served import COMMIT, git_id
from .scripted import Upstream
from .test_mirror_process import Running, start
from .world import PATIENCE_S, content_of, sha256_of

#: Programs start slowly where everything else is being tested at once.
pytestmark = pytest.mark.timeout(300)

FILES = {"config.json": b"{}", "model.safetensors": content_of(3_000_000, 6)}


async def snapshot(mirror: Running, folder: Path) -> object:
    got = await HubClient(2, f"http://{mirror.http}", folder).act("snapshot", repo="org/m")
    return got["files"]


async def test_a_client_of_the_real_program(cage: Cage, hub: Upstream, tmp_path: Path) -> None:
    first = await start(cage, tmp_path)
    sources = [
        common_pb2.WeightsSource(
            path=path, url=hub.put(f"/{path}", content), git_id=git_id(content), size_bytes=len(content)
        )
        for path, content in FILES.items()
    ]
    place = mirror_pb2.Repository(id="org/m", commit=COMMIT, revision="main")
    async with first.stub() as stub:
        request = mirror_pb2.FetchRequest(model="org/m", version="v1", files=sources, repository=place)
        await stub.Fetch(request, timeout=10)
    assert (await first.settled())[0] == 200
    hashes = {path: sha256_of(content) for path, content in FILES.items()}
    assert await snapshot(first, tmp_path / "one") == hashes
    for page in ("/healthz", "/readyz", "/v1/weights/org%2Fm/v1"):
        assert (await first.get(page))[0] == 200
    first.child.kill()
    await first.child.wait(PATIENCE_S)
    second = await start(cage, tmp_path, hub_prefix="/hub")
    got = await HubClient(2, f"http://{second.http}/hub", tmp_path / "two").act("snapshot", repo="org/m")
    assert got["files"] == hashes
    second.child.stop()
