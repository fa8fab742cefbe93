"""Exports and imports by the real program, killed in the middle of both."""

from __future__ import annotations  # the stubs' asynchronous types exist in their type stubs only

import asyncio
import random
import subprocess
from pathlib import Path

import grpc.aio

from llmgw.v1 import mirror_pb2
from llmgw_kit import rpc
from llmgw_kit.errors import NotConfigured
from llmgw_kit.testing.processes import Cage

from .test_mirror_process import Running, source, start
from .world import PATIENCE_S, sha256_of

HUGE = random.Random(7).randbytes(48 << 20)
SMALL = b"{}"
VERSIONS = [mirror_pb2.VersionName(model="org/m", version="v1")]


async def export(mirror: Running) -> mirror_pb2.BundleProgress:
    """Until it is done; the last word of the stream."""
    async with mirror.stub() as stub:
        request = mirror_pb2.ExportBundleRequest(versions=VERSIONS, name="b.tar", asked_by="anna")
        said = [one.progress async for one in stub.ExportBundle(request, timeout=PATIENCE_S)]
    assert said[-1].done
    return said[-1]


async def begin(mirror: Running, call: str) -> None:
    """Until the first word, then a moment of work, then SIGKILL."""
    async with mirror.stub() as stub:
        if call == "export":
            stream = stub.ExportBundle(mirror_pb2.ExportBundleRequest(versions=VERSIONS, name="b.tar"))
        else:
            stream = stub.ImportBundle(mirror_pb2.ImportBundleRequest(name="b.tar"))
        await anext(aiter(stream))
        mirror.child.kill()
        await mirror.child.wait(PATIENCE_S)


async def test_kill_9_in_an_export_and_in_an_import(cage: Cage, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / "huge.bin").write_bytes(HUGE)
    (given / "small.json").write_bytes(SMALL)
    bundles = tmp_path / "bundles"
    here = {"bundle_dir": str(bundles), "file_roots": [str(given)]}

    one = await start(cage, tmp_path, "one", **here)
    await one.fetch(
        source("huge.bin", f"file://{given}/huge.bin", sha256=sha256_of(HUGE)),
        source("small.json", f"file://{given}/small.json"),
    )
    assert (await one.settled())[0] == 200
    await begin(one, "export")
    one = await start(cage, tmp_path, "one", **here)
    done = await export(one)
    assert (done.done_bytes, done.done_files) == (done.total_bytes, done.total_files)
    await asyncio.to_thread(one.child.stop, grace_s=PATIENCE_S)
    assert sorted(path.name for path in bundles.iterdir()) == ["b.tar", "b.tar.manifest.json", "b.tar.sha256"]
    subprocess.run(["sha256sum", "--check", "--quiet", "b.tar.sha256"], cwd=bundles, check=True)

    # Another cluster: another store, no files given, no network.
    there = {"bundle_dir": str(bundles), "data_dir": str(tmp_path / "other")}
    two = await start(cage, tmp_path, "two", **there)
    await begin(two, "import")
    two = await start(cage, tmp_path, "two", **there)
    status, said = await two.settled()
    assert (status, said["state"]) == (200, "present"), said
    assert await two.get("/v1/weights/org%2Fm/v1/files/huge.bin") == (200, HUGE)
    async with two.stub() as stub:
        listed = await stub.ListBundles(mirror_pb2.ListBundlesRequest(), timeout=10)
        assert [(one.name, one.partial, one.sha256 == done.bundle.sha256) for one in listed.bundles] == [
            ("b.tar", False, True)
        ]
        planned = [
            one.progress
            async for one in stub.ImportBundle(mirror_pb2.ImportBundleRequest(name="b.tar", dry_run=True))
        ]
        assert [one.done for one in planned] == [True]


async def test_without_a_folder_the_calls_say_so(cage: Cage, tmp_path: Path) -> None:
    mirror = await start(cage, tmp_path)
    async with mirror.stub() as stub:
        assert not (await stub.ListBundles(mirror_pb2.ListBundlesRequest(), timeout=10)).HasField("folder")
        try:
            await anext(aiter(stub.ImportBundle(mirror_pb2.ImportBundleRequest(name="b.tar"), timeout=10)))
        except grpc.aio.AioRpcError as e:
            told = rpc.error_from(e, peer="mirror")
        assert isinstance(told, NotConfigured)
        assert told.code == "no_bundle_folder"
        assert told.next_steps[0].startswith("set bundle_dir")
