"""The calls about what is here, at the real program; mirrors that die or freeze beside each other; rescan."""

from __future__ import annotations  # the stubs' asynchronous types exist in their type stubs only

import asyncio
import json
from pathlib import Path
from typing import Any

import asyncpg
import grpc.aio
import pytest

from llmgw.v1 import mirror_pb2
from llmgw_kit import rpc
from llmgw_kit.errors import Conflict, InvalidRequest, NotFound
from llmgw_kit.testing.processes import Cage

from . import scripted
from .scripted import Upstream
from .test_mirror_process import Running, configured, run, source, start
from .world import PATIENCE_S, content_of, sha256_of

BIG = content_of(3_000_000)
SHA = sha256_of(BIG)
INDEX = json.dumps({"weight_map": {"t": "w.bin", "u": "lost.bin"}}).encode()
COMMIT = "ab" * 20


async def here(mirror: Running, hub: Upstream) -> None:
    """Two versions: one from a repository with an index that names a file nobody has, one beside it."""
    hub.put("/w", BIG)
    hub.put("/i", INDEX)
    files = [
        source("w.bin", hub.url("/w"), sha256=SHA),
        source("w.bin.index.json", hub.url("/i"), companion=True),
    ]
    async with mirror.stub() as stub:
        request = mirror_pb2.FetchRequest(
            model="org/m", version="rel-first", files=files, asked_by="ada",
            repository=mirror_pb2.Repository(id="org/r", commit=COMMIT, revision="main"),
        )  # fmt: skip
        await stub.Fetch(request, timeout=10)
        other = [source("w.bin", hub.url("/w"), sha256=SHA)]
        await stub.Fetch(
            mirror_pb2.FetchRequest(model="org/m", version="rel-second", files=other), timeout=10
        )
    for version in ("rel-first", "rel-second"):
        await present(mirror, version)


async def present(mirror: Running, version: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await mirror.get(f"/v1/weights/org%2Fm/{version}"))[0] != 200:
            await asyncio.sleep(0.02)


async def test_the_calls_about_what_is_here(cage: Cage, hub: Upstream, tmp_path: Path) -> None:
    mirror = await start(cage, tmp_path)
    await here(mirror, hub)
    async with mirror.stub() as stub:
        listed = await stub.ListVersions(mirror_pb2.ListVersionsRequest(model="org/m"), timeout=10)
        first, second = listed.versions
        assert first.verified_at_unix_s > 1_700_000_000
        (warning,) = first.warnings
        assert (warning.code, warning.blocks) == ("missing_shard", False)
        assert "lost.bin" in warning.text
        assert not second.warnings

        async def resolve(**names: str) -> str:
            try:
                found = await stub.ResolveVersion(mirror_pb2.ResolveVersionRequest(**names), timeout=10)
            except grpc.aio.AioRpcError as e:
                raise rpc.error_from(e, peer="mirror") from None
            return found.version.version

        assert await resolve(model="org/m", version="rel-f") == "rel-first"
        assert await resolve(repository="org/r") == "rel-first"
        assert await resolve(repository="org/r", revision=COMMIT[:8]) == "rel-first"
        with pytest.raises(Conflict, match="rel-first, org/m rel-second"):
            await resolve(model="org/m", version="rel-")
        with pytest.raises(InvalidRequest, match="which version is meant"):
            await resolve(model="org/m", revision="main")

        verify = mirror_pb2.VerifyVersionRequest(model="org/m", version="rel-first")
        words = [word async for word in stub.VerifyVersion(verify, timeout=60)]
        assert [word.path for word in words if word.done] == ["w.bin", "w.bin.index.json"]
        assert not any(word.HasField("trouble") for word in words)

        gone = await stub.RemoveVersion(
            mirror_pb2.RemoveVersionRequest(model="org/m", version="rel-first", asked_by="bob"), timeout=10
        )
        assert (gone.freed_bytes, gone.shared_bytes) == (len(INDEX), len(BIG))
        (kept,) = (await stub.ListRemoved(mirror_pb2.ListRemovedRequest(), timeout=10)).versions
        assert (kept.version, kept.asked_by, kept.bytes) == ("rel-first", "bob", len(INDEX) + len(BIG))
        assert kept.restorable_until_unix_s == gone.restorable_until_unix_s
        back = await stub.RestoreVersion(
            mirror_pb2.RestoreVersionRequest(model="org/m", version="rel-first"), timeout=10
        )
        assert back.version.state == mirror_pb2.WEIGHTS_STATE_PRESENT
        with pytest.raises(grpc.aio.AioRpcError) as absent:
            await stub.RestoreVersion(
                mirror_pb2.RestoreVersionRequest(model="org/m", version="rel-first"), timeout=10
            )
        assert isinstance(rpc.error_from(absent.value, peer="mirror"), NotFound)

        history = mirror_pb2.ListHistoryRequest(model="org/m", version="rel-first")
        entries = (await stub.ListHistory(history, timeout=10)).entries
        kinds = [entry.kind for entry in reversed(entries)]
        assert kinds == ["asked", "published", "published", "verified", "removed", "restored"]
        history.limit = 0
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ListHistory(history, timeout=10)
        assert isinstance(rpc.error_from(refused.value, peer="mirror"), InvalidRequest)
    status, body = await mirror.get("/metrics", mirror.admin)
    assert status == 200
    assert b"llmgw_mirror_proved_bytes_total 3.0" in body
    for name in (
        b"quarantined_total 0.0",
        b"readers_cut_total 0.0",
        b"oldest_proof_age_seconds",
        b"restorable_bytes 0.0",
    ):
        assert b"llmgw_mirror_" + name in body, name
    mirror.child.stop()


async def test_a_mirror_frozen_past_its_lease_wakes_to_find_the_work_done(
    cage: Cage, hub: Upstream, tmp_path: Path, migrated_dsn: str
) -> None:
    """SIGSTOP in mid-transfer: the other takes over, and the first does no harm when it goes on."""
    opened = asyncio.Event()

    async def half(x: scripted.Exchange) -> None:
        await x.head(200, Content_Length=len(BIG), ETag=x.etag)
        await x.send(BIG[:2_000_000])
        await opened.wait()
        await x.send(BIG[2_000_000:])

    hub.acts.append(half)
    shared: dict[str, Any] = {"dsn": migrated_dsn, "lease_ttl_s": 2.0}
    one = await start(cage, tmp_path, "one", **shared)
    await one.fetch(source("w.bin", hub.put("/w", BIG)))
    await one.settled(at_least=2_000_000)
    # Not before: it would see the version in the store, and perhaps have the lease first.
    two = await start(cage, tmp_path, "two", **shared)
    await asyncio.to_thread(one.child.pause)
    status, said = await two.settled()
    assert (status, said["state"]) == (200, "present")
    assert hub.requests[1].first_byte >= 1 << 20
    opened.set()
    one.child.resume()
    for mirror in (one, two):
        assert (await mirror.settled())[0] == 200
        assert await mirror.get("/v1/weights/org%2Fm/v1/files/w.bin") == (200, BIG)
    store = tmp_path / "store"
    assert [path.name for path in store.glob("blobs/sha256/*/*")] == [SHA]
    async with asyncio.timeout(PATIENCE_S):
        while list((store / "parts").iterdir()):
            await asyncio.sleep(0.05)
    assert len(hub.requests) == 2
    for mirror in (one, two):
        assert await asyncio.to_thread(mirror.child.stop, grace_s=PATIENCE_S) == 0


RECORDED = (
    "SELECT model, version, repository, commit_id, revision, extract(epoch FROM created_at)::int8 AS created",
    "SELECT model, version, path, url, state, sha256, size_bytes, proof, companion, expected_sha256",
)


async def recorded(dsn: str) -> list[list[Any]]:
    link: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(dsn)
    try:
        versions = await link.fetch(f"{RECORDED[0]} FROM weights_versions ORDER BY 1, 2")
        files = await link.fetch(f"{RECORDED[1]} FROM weights_files ORDER BY 1, 2, 3")
        verified = await link.fetchval("SELECT count(verified_at) FROM weights_versions")
        return [[tuple(row) for row in versions], [tuple(row) for row in files], [verified]]
    finally:
        await link.close()


async def test_a_lost_database_is_rebuilt_from_the_store(
    cage: Cage, hub: Upstream, tmp_path: Path, migrated_dsn: str
) -> None:
    mirror = await start(cage, tmp_path, dsn=migrated_dsn)
    await here(mirror, hub)
    async with mirror.stub() as stub:
        await stub.RemoveVersion(
            mirror_pb2.RemoveVersionRequest(model="org/m", version="rel-second"), timeout=10
        )
    async with asyncio.timeout(PATIENCE_S):
        while len((before := await recorded(migrated_dsn))[0]) != 1 or before[2] != [1]:
            await asyncio.sleep(0.05)
    assert await asyncio.to_thread(mirror.child.stop, grace_s=PATIENCE_S) == 0
    link: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(migrated_dsn)
    await link.execute("TRUNCATE weights_versions, weights_files, weights_leases, weights_history")
    await link.close()
    config = configured(tmp_path, dsn=migrated_dsn)
    ended = await asyncio.to_thread(run, "rescan", "--config", str(config))
    assert ended.returncode == 0, ended.stderr
    assert "org/m rel-first: present, 2 of 2 files" in ended.stdout
    assert "1 removed version can be restored" in ended.stdout
    assert "belong to no version" not in ended.stdout
    assert await recorded(migrated_dsn) == before
