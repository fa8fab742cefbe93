"""A signed URL is a credential: it is sent to its own origin, and stands nowhere else that people read."""

import hashlib
import json
import logging
from pathlib import Path

import asyncpg
import pytest

from llmgw_kit.errors import LlmgwError
from llmgw_mirror.core.versions import Source

from . import scripted
from .finding_world import looking_in
from .hub_registry import hub_registry
from .scripted import Act, Exchange, Upstream
from .world import World, content_of, until, world

MARK = "5ecretMark"
SIGNED = f"?X-Date=20261130&X-Signature={MARK}%2Fand%2Bmore"
#: As the scripted upstream sees it, and as a server may repeat it.
SEEN = f"?X-Date=20261130&X-Signature={MARK}/and+more"


async def garbage(x: Exchange) -> None:
    """No status line at all; the client's own error then names the URL that was asked."""
    await x.send(b"HTTP/1.1 2oo what\r\n\r\n")


async def bad_chunks(x: Exchange) -> None:
    """A body that breaks the rules of its encoding."""
    await x.head(200, Transfer_Encoding="chunked")
    await x.send(b"not a length\r\n")


async def repeats(x: Exchange) -> None:
    """A store that says in its refusal what was asked of it."""
    words = f"<Message>the signature {MARK}/and+more of {SIGNED} and {SEEN} has expired</Message>".encode()
    await x.head(403, Content_Length=len(words), Content_Type="application/xml")
    await x.send(words)


async def in_tables(dsn: str) -> list[str]:
    """The rows of any table that have the mark."""
    link = await asyncpg.connect(dsn)
    try:
        names = await link.fetch(
            "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        rows = [
            row["row"]
            for name in names
            for row in await link.fetch(f"SELECT to_jsonb(one)::text AS row FROM {name['name']} AS one")
        ]
    finally:
        await link.close()
    assert rows, "nothing was read"
    return [row for row in rows if MARK in row]


async def nowhere(here: World, dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """Neither told, nor logged, nor in a table, nor in the name of a file or beside a part."""
    view = await here.mirror.version("org/m", "v1")
    assert view is not None
    assert not any(MARK in (file.error or "") for file in view.files)
    entries = await here.built.history.newest(model=None, version=None, since=None, limit=99)
    assert not any(MARK in entry.text for entry in entries)
    await here.built.upkeep.look()
    assert await in_tables(dsn) == []
    assert [record.getMessage() for record in caplog.records if MARK in record.getMessage()] == []
    assert MARK not in caplog.text, "in a traceback"
    lying = list(here.store.root.rglob("*"))
    assert not any(MARK in str(path) for path in lying)
    assert not any(MARK in path.read_text() for path in lying if path.parent == here.store.parts)


@pytest.mark.parametrize("act", [garbage, bad_chunks, repeats, scripted.hang_up, scripted.status(500, b"no")])
@pytest.mark.parametrize("by_redirect", [False, True])
async def test_h10_a_signature_is_told_nowhere_when_a_fetch_fails(
    hub: Upstream, tmp_path: Path, migrated_dsn: str, caplog: pytest.LogCaptureFixture, act: Act,
    by_redirect: bool,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    hub.acts.extend([act] * 3)  # the client may try again by itself
    hub.acts_on["/plain"] = scripted.redirect(hub.url(f"/w{SIGNED}"))
    asked = hub.url("/plain") if by_redirect else hub.url(f"/w{SIGNED}")
    async with world(tmp_path / "store", dsn=migrated_dsn, attempts=1) as here:
        view = await here.fetch(Source("w", asked))
        assert view.files[0].error, "it failed, and says so"
        await nowhere(here, migrated_dsn, caplog)


async def test_h10_a_signature_is_told_nowhere_while_it_is_fetched(
    hub: Upstream, tmp_path: Path, migrated_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease is named after the content, and what is known of that is its URL."""
    caplog.set_level(logging.DEBUG)
    hub.files[f"/w{SEEN}"] = content_of(100_000)
    hub.acts_on[f"/w{SEEN}"] = scripted.stall(60_000)
    async with world(tmp_path / "store", dsn=migrated_dsn) as here:
        await here.mirror.fetch("org/m", "v1", [Source("w", hub.url(f"/w{SIGNED}"))])
        await here.received(60_000)
        assert here.parts()
        await nowhere(here, migrated_dsn, caplog)


async def test_what_an_older_release_left_of_a_file_is_gone_on_with(hub: Upstream, tmp_path: Path) -> None:
    """It wrote the URL beside the bytes; they are found all the same, and the URL goes."""
    content, url = content_of(2_000_000), hub.url(f"/w{SIGNED}")
    hub.files[f"/w{SEEN}"] = content
    hub.acts_on[f"/w{SEEN}"] = scripted.stall(1_500_000)
    async with world(tmp_path / "store") as here:
        await here.mirror.fetch("org/m", "v1", [Source("w", url)])
        await here.received(1_500_000)
    (part,) = here.parts()
    was = f"url:{url}"
    _, _, ending = part.name.partition(".")
    old = part.with_name(f"{hashlib.sha256(was.encode()).hexdigest()[:32]}.{ending}")
    label = json.loads(part.with_suffix(".json").read_text()) | {"key": was}
    part.with_suffix(".json").unlink()
    part.rename(old)
    old.with_suffix(".json").write_text(json.dumps(label))
    async with world(tmp_path / "store") as here:
        await here.built.upkeep.collect_parts()
        view = await here.settled()
        assert here.store.blob(view.files[0].sha256 or "").read_bytes() == content
        assert [request.first_byte for request in hub.requests] == [0, 1_500_000]
        await until(lambda: list(here.store.parts.iterdir()) == [])


@pytest.mark.parametrize("act", [garbage, bad_chunks, repeats, scripted.hang_up])
async def test_h10_a_signature_is_told_nowhere_when_the_registry_redirects_badly(
    hub: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture, act: Act
) -> None:
    caplog.set_level(logging.DEBUG)
    hub.acts.extend([act] * 3)  # the client may try again by itself
    async with hub_registry() as made, looking_in(made, tmp_path) as at:
        made.add("org/m", {"model.safetensors": b"w" * 400})
        # The listing itself is what leads astray.
        made.on("/api/models/org/m/revision/main", scripted.redirect(hub.url(f"/w{SIGNED}")))
        with pytest.raises(LlmgwError) as told:
            await at.finding.look("org/m", None)
        state = at.finding.state()
        assert state is not None
        for text in (told.value.text, *told.value.next_steps, state.trouble or "", caplog.text):
            assert MARK not in text
        assert hub.asked(f"/w{SEEN}")
