"""`llmgwctl weights` on a real node: weights brought, listed, refused, removed, brought again (case 39)."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import pytest

from tests.integration.agent.mirror_bench import FakeMirror, mirror
from tests.integration.asks.asks_bench import Node, ctl, model
from tests.integration.asks.conftest import Start
from tests.integration.controller.controller_bench import until

pytestmark = pytest.mark.timeout(240)

FILES = {"model.bin": os.urandom(200_000)}


def weighted(name: str, replicas: int = 0) -> dict[str, Any]:
    files = [
        {
            "path": path,
            "url": "file:///nowhere",
            "sha256": hashlib.sha256(data).hexdigest(),
            "size_bytes": len(data),
        }
        for path, data in FILES.items()
    ]
    return model(name, replicas=replicas, weights={"version": "v1", "files": files})


async def listed(node: Node) -> list[dict[str, Any]]:
    code, out, err = await ctl(node, "--output", "json", "weights", "list")
    assert code in (0, 1), err
    return list(json.loads(out)["weights"])


async def one(node: Node, **wanted: Any) -> dict[str, Any]:
    """The only version, once it is as wanted."""

    async def look() -> dict[str, Any] | None:
        found = await listed(node)
        same = len(found) == 1 and all(found[0][name] == value for name, value in wanted.items())
        return found[0] if same else None

    return dict(await until(f"weights are {wanted}", look))


@pytest.fixture
async def source():
    """The mirror that the node fetches from."""
    async with mirror("big", "v1", FILES) as found:
        yield found


async def up(start_node: Start, source: FakeMirror, *models: dict[str, Any]) -> Node:
    os.environ["LLMGW_AGENT_MIRROR"] = source.url
    try:
        node = start_node(models=list(models))
    finally:
        del os.environ["LLMGW_AGENT_MIRROR"]
    await node.controller.until_ready()

    async def heard() -> bool:
        return (await node.controller.status()).nodes.heard == 1

    await until("the node is heard", heard)
    return node


async def test_weights_are_brought_removed_and_brought_again(start_node: Start, source: FakeMirror) -> None:
    node = await up(start_node, source, weighted("big"))
    source.fetching_for = 1_000_000
    code, out, err = await ctl(node, "weights", "prefetch", "big", "--dry-run")
    assert (code, source.listings) == (0, 0), err
    assert "would be fetched" in out
    code, out, err = await ctl(node, "weights", "prefetch", "big")
    assert code == 0, err
    assert "asked    fetching big@v1" in out
    assert "next: llmgwctl weights list --model big" in out
    on_its_way = await one(node, fetching=True)
    assert (on_its_way["bytes"], on_its_way["complete"]) == (0, False)
    source.fetching_for = 0
    here = await one(node, complete=True)
    assert (here["bytes"], here["wanted"], here["used_by"], here["fetching"]) == (200_000, True, [], False)
    code, out, _ = await ctl(node, "weights", "prefetch", "big")
    assert "is there already" in out

    code, out, err = await ctl(node, "weights", "remove", "big", "v2")
    assert (code, out) == (64, "")
    assert "no connected node holds big v2" in err
    assert "held of big: v1" in err
    code, out, err = await ctl(
        node, "weights", "remove", "big", "v1", "--node", "node-t", "--node", "nowhere"
    )
    assert (code, out) == (64, "")
    assert "no node nowhere" in err
    assert len(await listed(node)) == 1, "one wrong name and nothing is done"
    code, out, _ = await ctl(node, "weights", "remove", "big", "v1", "--dry-run")
    assert (code, "would be removed" in out) == (0, True)
    code, out, _ = await ctl(node, "--output", "json", "weights", "remove", "big", "v1")
    said = json.loads(out)
    assert (code, said["freed_bytes"], said["changes"][0]["outcome"]) == (0, 200_000, "removed")
    folder = node.agents.data / "weights"
    assert [path for path in folder.rglob("*") if path.is_file()] == [], "nothing is left, also no cache"
    assert await listed(node) == []

    code, _, _ = await ctl(node, "weights", "prefetch", "big")
    await one(node, complete=True)
    kinds = [event.kind for event in await node.controller.events()]
    assert {"weights_removed", "weights_prefetch"} <= set(kinds)
    await node.until_quiet()


async def test_a_version_in_use_is_removed_only_by_force(start_node: Start, source: FakeMirror) -> None:
    node = await up(start_node, source, weighted("big", replicas=1))
    await node.until_ready("big")
    await one(node, used_by=["big/1"])
    code, out, err = await ctl(node, "weights", "remove", "big", "v1")
    assert (code, out) == (1, "")
    assert "big v1 is in use on node-t by big/1; nothing was removed" in err
    await one(node, complete=True)
    code, out, err = await ctl(node, "weights", "remove", "big", "v1", "--force")
    assert code == 0, err
    assert "0 B freed" in out
    assert "come free when big/1" in " ".join(out.split())
    assert await listed(node) == []
    assert (await node.until_ready("big")).replica_id == "big/1", "the engine goes on"


async def test_a_fetch_that_fails_is_told_in_the_list(start_node: Start, source: FakeMirror) -> None:
    node = await up(start_node, source, weighted("big"))
    source.failed = "checksum differs"
    code, _, err = await ctl(node, "weights", "prefetch", "big")
    assert code == 0, err

    async def failed() -> str | None:
        code, out, _ = await ctl(node, "weights", "list")
        return out if code == 1 else None

    out = await until("the failure is listed", failed)
    assert "FAILED" in out
    assert "checksum differs" in " ".join(out.split())
    assert all(len(line) <= 100 for line in out.splitlines())


async def test_a_node_that_is_away_is_told_and_the_call_fails(start_node: Start, source: FakeMirror) -> None:
    node = await up(start_node, source, weighted("big"))
    agent = node.agents.started[-1]
    agent.kill()

    async def refused() -> str | None:
        code, out, _ = await ctl(node, "weights", "prefetch", "big", "--node", "node-t")
        return out if code == 1 else None

    out = await until("it is away", refused)
    assert "node node-t is not connected" in out
