"""Whatever a caller sends: it is refused before anything is done, and costs nobody else anything."""

from __future__ import annotations  # the stubs' asynchronous types exist in their type stubs only

import asyncio
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from llmgw.v1 import common_pb2, mirror_pb2
from llmgw_kit.clock import SystemClock
from llmgw_kit.testing.processes import Cage
from llmgw_mirror.core.history import Entry, Kind
from llmgw_mirror.core.versions import Repository, Source, Wish
from llmgw_mirror.rescan import rescan

from .scripted import Upstream
from .test_mirror_process import start
from .world import PATIENCE_S, World, content_of, until, world

COMMIT = "ab" * 20
SERVICE = mirror_pb2.DESCRIPTOR.services_by_name["MirrorService"]
F = FieldDescriptor

WORDS = ["\0", "a\0b", "x" * 10_000_000, "\u202egnp", "😀" * 300, "../../etc", " ", "-", "'; --", "%00"]
VALUES: dict[int, Sequence[object]] = {
    F.TYPE_STRING: WORDS,
    F.TYPE_UINT32: [0, 2**32 - 1],
    F.TYPE_UINT64: [0, 2**62, 2**63, 2**64 - 1],
    F.TYPE_DOUBLE: [float("nan"), float("inf"), -1e300, 1e18, -5.0, 253_402_300_800.0],
}
#: Answers that say what is wrong; UNAVAILABLE: of the registry, which is away.
MEANT = {
    grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE,
}  # fmt: skip


def usual(message: Message, url: str) -> Message:
    """A request that is fine, by its fields' names."""
    said = {
        "model": "org/m", "version": "v1", "repository": "org/r", "revision": "main", "asked_by": "ada",
        "name": "b.tar" if "Bundle" in message.DESCRIPTOR.name else "H200", "path": "w", "url": url,
        "id": "org/r", "commit": COMMIT, "memory_bytes": 2**37, "limit": 5, "words": "llama",
        "since_unix_s": 1.0, "dry_run": True,
    }  # fmt: skip
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            inner: Any = getattr(message, field.name)
            usual(inner.add() if field.is_repeated else inner, url)
            if not field.is_repeated:
                inner.SetInParent()
        elif field.name in said and not field.is_repeated:
            setattr(message, field.name, said[field.name])
    return message


def planted(message: Any) -> Iterator[tuple[str, object]]:
    """Each field of text or numbers, with each hostile value; the message is as before at the end."""
    for field in message.DESCRIPTOR.fields:
        inner = getattr(message, field.name)
        if field.message_type is not None:
            for where, value in planted(inner[0] if field.is_repeated else inner):
                yield f"{field.name}.{where}", value
            continue
        for value in VALUES.get(field.type, ()):
            if field.is_repeated:
                inner.append(value)
                yield field.name, value
                del inner[:]
            else:
                setattr(message, field.name, value)
                yield field.name, value
        if not field.is_repeated:
            message.ClearField(field.name) if field.has_presence else setattr(message, field.name, inner)


async def asked(stub: Any, method: Any, request: Message) -> grpc.StatusCode:
    """How a call ends, or begins to answer."""
    call = getattr(stub, method.name)(request, timeout=30)
    try:
        if method.server_streaming:
            await call.read()
            call.cancel()
        else:
            await call
    except grpc.aio.AioRpcError as e:
        return e.code()
    return grpc.StatusCode.OK


async def rows(dsn: str, statement: str) -> list[Any]:
    link: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(dsn)
    try:
        return [tuple(row) for row in await link.fetch(statement)]
    finally:
        await link.close()


async def test_no_value_in_any_call_is_a_bug(
    cage: Cage, hub: Upstream, tmp_path: Path, migrated_dsn: str
) -> None:
    (tmp_path / "bundles").mkdir()
    mirror = await start(
        cage, tmp_path, dsn=migrated_dsn, bundle_dir=str(tmp_path / "bundles"), pass_interval_s=0.2,
        registry_url="http://127.0.0.1:1", attempts=1,
    )  # fmt: skip
    url = hub.put("/w", content_of(1000))
    wrong: list[str] = []
    done = 0
    async with mirror.stub() as stub:
        for method in SERVICE.methods:
            request = usual(getattr(mirror_pb2, method.input_type.name)(), url)
            for where, value in planted(request):
                code = await asked(stub, method, request)
                done += 1
                if code not in MEANT:
                    wrong.append(f"{method.name} {where}={str(value)[:20]!r}: {code.name}")
                if mirror.child.code is not None:
                    pytest.fail(f"the mirror ended after {method.name} {where}:\n{mirror.child.tail()}")
        assert wrong == []
        assert done > 300
        last = mirror_pb2.FetchRequest(
            model="org/last", version="v", files=[common_pb2.WeightsSource(path="w", url=url)]
        )
        await stub.Fetch(last, timeout=10)
        async with asyncio.timeout(PATIENCE_S):
            recorded = "SELECT state FROM weights_files WHERE model = 'org/last'"
            while await rows(migrated_dsn, recorded) != [("present",)]:
                await asyncio.sleep(0.05)
        listed = await stub.ListVersions(mirror_pb2.ListVersionsRequest(), timeout=30)
        assert not [
            one for version in listed.versions for one in version.warnings if one.code == "not_recorded"
        ]
    assert "Traceback" not in mirror.child.tail()


@pytest.mark.parametrize("name", ["a\0b", "x" * 201, "two\nlines"])
async def test_who_asks_is_checked_before_anything_is_done(
    cage: Cage, hub: Upstream, tmp_path: Path, name: str, migrated_dsn: str
) -> None:
    mirror = await start(cage, tmp_path, dsn=migrated_dsn)
    async with mirror.stub() as stub:
        wanted = [common_pb2.WeightsSource(path="w", url=hub.put("/w", b"w"))]
        calls: list[tuple[Any, Message]] = [
            (stub.Fetch, mirror_pb2.FetchRequest(model="m", version="v", files=wanted, asked_by=name)),
            (stub.RemoveVersion, mirror_pb2.RemoveVersionRequest(model="m", version="v", asked_by=name)),
        ]
        for call, request in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(request, timeout=10)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not (await stub.ListVersions(mirror_pb2.ListVersionsRequest(), timeout=10)).versions


def bad(here: World, version: str = "bad") -> None:
    """Stored by the release before these checks."""
    place = Repository("org/r", COMMIT, "x\0y")
    here.store.create(Wish("org/m", version, 0.0, (Source("w", "http://127.0.0.1:1/w"),), place))


async def test_a_stored_version_that_no_ledger_takes_costs_itself_only(
    hub: Upstream, tmp_path: Path, migrated_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path / "store", dsn=migrated_dsn, attempts=1) as here:
        bad(here)
        await here.fetch(Source("w", hub.put("/w", b"w")), version="good")
        await until(lambda: len(here.built.flights) == 0)
        with caplog.at_level(logging.ERROR):
            for _ in range(3):
                await here.built.upkeep.once()
        recorded = "SELECT version FROM weights_versions"
        assert await rows(migrated_dsn, recorded) == [("good",)]
        assert sum("not recorded" in line.getMessage() for line in caplog.records) <= 2, "once for each state"
        told = {one.view.version: one.warnings for one in await here.built.keepers.keeping.versions()}
        assert [one.code for one in told["bad"]] == ["not_recorded"]
        assert told["good"] == ()
    report = await rescan(here.settings, SystemClock(), hash_all=False, progress=print)
    trouble = {finding.view.version: finding.trouble for finding in report.findings}
    assert any("not recorded" in text for text in trouble["bad"])
    assert trouble["good"] == ()
    assert await rows(migrated_dsn, recorded) == [("good",)]


async def test_a_version_that_fails_by_a_bug_leaves_the_others_their_pass(
    hub: Upstream, tmp_path: Path, migrated_dsn: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    async with world(tmp_path / "store", dsn=migrated_dsn, attempts=1) as here:
        for version in ("broken", "good"):
            await here.fetch(Source("w", hub.put("/w", b"w")), version=version)
        await until(lambda: len(here.built.flights) == 0)
        real = here.built.flights.view

        def view(vid: str, stored: Any) -> Any:
            if stored.wish.version == "broken":
                raise RuntimeError("a bug")
            return real(vid, stored)

        monkeypatch.setattr(here.built.flights, "view", view)
        await here.built.upkeep.begin()
        await here.built.upkeep.once()
        assert await rows(migrated_dsn, "SELECT version FROM weights_versions") == [("good",)]
        assert "a bug" in caplog.text, "with its traceback"


async def test_a_line_of_history_that_no_store_takes_is_logged(tmp_path: Path, migrated_dsn: str) -> None:
    async with world(tmp_path / "store", dsn=migrated_dsn) as here:
        await here.built.history.note(Entry(0.0, Kind.FAILED, "m", "v", "a\0b"))
        await here.built.history.note(Entry(0.0, Kind.FAILED, "m", "v", "fine"))
        assert [line.text for line in await here.built.history.newest(
            model=None, version=None, since=None, limit=10)] == ["fine"]  # fmt: skip


@pytest.mark.parametrize("said", ['{"model": "org/m"}', '{"model": "org/m", "version": "v", "files": 3}'])
async def test_a_version_that_the_disk_tells_wrong_costs_itself_only(
    hub: Upstream, tmp_path: Path, migrated_dsn: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its content is kept: nothing is given back while somebody may still need it."""
    async with world(tmp_path / "store", dsn=migrated_dsn) as here:
        await here.fetch(Source("w", hub.put("/w", b"w")), version="good")
        await until(lambda: len(here.built.flights) == 0)
        odd = here.store.versions / ("0" * 32)
        odd.mkdir()
        (odd / "wish.json").write_text(said)
        await here.built.upkeep.begin()
        await here.built.upkeep.once()
        assert [one.view.version for one in await here.built.keepers.keeping.versions()] == ["good"]
        assert await rows(migrated_dsn, "SELECT version FROM weights_versions") == [("good",)]
        assert "0" * 32 in caplog.text
        assert len(here.blobs()) == 1
