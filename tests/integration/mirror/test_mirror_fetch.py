"""Fetching against an upstream that cuts, lies, stalls and redirects."""

import asyncio
from pathlib import Path

import pytest

from llmgw_kit.testing.clock import FakeClock
from llmgw_mirror.core.versions import Source, WeightsState

from . import scripted
from .scripted import Upstream, upstream
from .world import World, content_of, sha256_of, until, world

BIG = content_of(3_000_000)
SHA = sha256_of(BIG)


def published(here: World) -> bytes:
    """The one content in the store."""
    (sha256,) = here.blobs()
    path = here.store.blob(sha256)
    assert path.stat().st_mode & 0o777 == 0o444
    return path.read_bytes()


async def test_a_whole_file(hub: Upstream, here: World) -> None:
    file = await here.fetch_one(hub.put("/w", BIG), sha256=SHA, size_bytes=len(BIG))
    assert (file.state, file.sha256, file.size_bytes) == (WeightsState.PRESENT, SHA, len(BIG))
    assert published(here) == BIG
    assert here.parts() == []
    assert hub.requests[0].headers["accept-encoding"] == "identity"


async def test_an_empty_file(hub: Upstream, here: World) -> None:
    file = await here.fetch_one(hub.put("/w", b""))
    assert (file.state, file.size_bytes) == (WeightsState.PRESENT, 0)


async def test_without_a_published_checksum_it_is_computed_and_said_so(hub: Upstream, here: World) -> None:
    file = await here.fetch_one(hub.put("/w", BIG))
    assert (file.sha256, file.as_received) == (SHA, True)
    checked = (await here.fetch(Source("w", hub.url("/w"), SHA), version="v2")).files[0]
    assert checked.as_received is False


async def test_cut_again_and_again_it_goes_on_where_it_was(hub: Upstream, here: World) -> None:
    """H7: a cut body is resumed, as often as it takes."""
    hub.acts.extend([scripted.cut(700_000)] * 4)
    file = await here.fetch_one(hub.put("/w", BIG), sha256=SHA)
    assert file.state is WeightsState.PRESENT
    assert [request.first_byte for request in hub.requests] == [0, 700_000, 1_400_000, 2_100_000, 2_800_000]
    assert all(request.headers["if-range"] == '"first"' for request in hub.requests[1:])
    assert published(here) == BIG


async def test_a_range_that_is_ignored_starts_again_from_0(hub: Upstream, here: World) -> None:
    hub.acts.extend([scripted.cut(1_000_000), scripted.ignore_range])
    file = await here.fetch_one(hub.put("/w", BIG))
    assert (file.state, file.size_bytes) == (WeightsState.PRESENT, len(BIG))  # H1: not longer
    assert published(here) == BIG


async def test_a_206_for_another_place_is_not_written(hub: Upstream, here: World) -> None:
    """H8: each range's Content-Range is looked at."""
    hub.acts.extend([scripted.cut(1_000_000), scripted.wrong_range])
    assert (await here.fetch_one(hub.put("/w", BIG))).state is WeightsState.PRESENT
    assert published(here) == BIG
    assert [request.first_byte for request in hub.requests] == [0, 1_000_000, 0]


async def test_a_file_that_changes_in_between_is_one_file_in_the_end(hub: Upstream, here: World) -> None:
    """H7: another ETag starts over; never the head of one and the tail of another."""
    other = content_of(2_500_000, seed=2)

    async def change(x: scripted.Exchange) -> None:
        await scripted.cut(1_000_000)(x)
        hub.files["/w"], hub.etags["/w"] = other, '"second"'

    hub.acts.append(change)
    file = await here.fetch_one(hub.put("/w", BIG))
    assert file.sha256 == sha256_of(other)
    assert published(here) == other


async def test_nothing_is_joined_without_proof(hub: Upstream, here: World) -> None:
    hub.acts.append(scripted.cut(1_000_000, etag=False))
    assert (await here.fetch_one(hub.put("/w", BIG))).state is WeightsState.PRESENT
    assert [request.first_byte for request in hub.requests] == [0, 0]


async def test_a_published_checksum_is_proof_enough_to_join(hub: Upstream, here: World) -> None:
    hub.acts.append(scripted.cut(1_000_000, etag=False))
    assert (await here.fetch_one(hub.put("/w", BIG), sha256=SHA)).state is WeightsState.PRESENT
    assert [request.first_byte for request in hub.requests] == [0, 1_000_000]


async def test_a_416_in_mid_file_starts_again(hub: Upstream, here: World) -> None:
    body = b"Range not satisfiable"
    hub.acts.extend([scripted.cut(1_000_000), scripted.status(416, body)])
    assert (await here.fetch_one(hub.put("/w", BIG), sha256=SHA)).state is WeightsState.PRESENT
    assert published(here) == BIG  # H3: the error's text is nowhere in it


async def test_an_upstream_that_never_gets_anywhere_fails_in_bounded_time(hub: Upstream, here: World) -> None:
    hub.acts.extend([scripted.cut(1000, etag=False)] * 30)
    file = await here.fetch_one(hub.put("/w", BIG))
    assert file.state is WeightsState.FAILED
    assert file.error is not None
    assert "gave up after 8 attempts without progress" in file.error
    assert len(hub.requests) <= 10


async def test_corrupt_content_is_removed_and_told(hub: Upstream, here: World) -> None:
    hub.acts.append(scripted.corrupt(1_234_567))
    file = await here.fetch_one(hub.put("/w", BIG), sha256=SHA)
    assert file.state is WeightsState.FAILED
    assert file.error is not None
    assert file.error.startswith("got sha256 ")
    assert f"expected {SHA}; removed — " in file.error
    assert "remove the version, then fetch it with what is right" in file.error
    assert here.parts() == []
    assert here.blobs() == []
    # Failed, it is tried again alone when asked for again.
    again = await here.fetch_one(hub.url("/w"), sha256=SHA)
    assert again.state is WeightsState.PRESENT
    assert len(hub.requests) == 2


async def test_a_bad_seam_costs_one_more_transfer_not_the_file(hub: Upstream, here: World) -> None:
    """H8: what several transfers made is fetched once more, whole, before it is given up."""
    hub.acts.extend([scripted.cut(1_000_000), scripted.corrupt(2_000_000)])
    file = await here.fetch_one(hub.put("/w", BIG), sha256=SHA)
    assert file.state is WeightsState.PRESENT
    assert [request.first_byte for request in hub.requests] == [0, 1_000_000, 0]


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (scripted.offers(2_999_999), "upstream offers 2999999 bytes, expected 3000000"),
        (scripted.chunked(extra=b"!"), "more than the expected 3000000 bytes; removed"),
        (scripted.compressed, "as gzip although identity"),
        (scripted.status(404, b"no such thing"), "upstream answered 404 (no such thing); check the URL"),
        (scripted.status(401), "401; it wants a login"),
        (scripted.status(403, b"<html>", Content_Type="text/html"), "403; the token may not read it"),
        (scripted.redirect("file:///etc/passwd"), "file URL"),
        (scripted.redirect("http://user:geheim@127.0.0.1:1/"), "carries a login"),
    ],
)
async def test_what_cannot_be_had_is_told_and_not_asked_for_again(
    hub: Upstream, here: World, act: scripted.Act, says: str
) -> None:
    hub.acts.append(act)
    file = await here.fetch_one(hub.put("/w", BIG), size_bytes=len(BIG))
    assert file.state is WeightsState.FAILED
    assert file.error is not None
    assert says in file.error
    assert len(hub.requests) == 1
    assert here.parts() == [] or all(part.stat().st_size == 0 for part in here.parts())


async def test_a_body_with_no_end_is_refused(hub: Upstream, here: World) -> None:
    hub.acts.append(scripted.endless)
    file = await here.fetch_one(hub.put("/w", BIG))
    assert file.error is not None
    assert "cut short could not be told" in file.error
    hub.acts.append(scripted.endless)
    proven = (await here.fetch(Source("w", hub.url("/w"), SHA), version="v2")).files[0]
    assert proven.state is WeightsState.PRESENT


async def test_chunks_without_their_last_are_a_cut(hub: Upstream, here: World) -> None:
    hub.acts.append(scripted.chunked(cut_short=True))
    file = await here.fetch_one(hub.put("/w", BIG))
    assert (file.state, file.size_bytes) == (WeightsState.PRESENT, len(BIG))
    assert len(hub.requests) == 2


async def test_passing_troubles_pass(hub: Upstream, here: World) -> None:
    hub.acts.extend([scripted.hang_up, scripted.status(500), scripted.status(502, b"<html>")])
    assert (await here.fetch_one(hub.put("/w", BIG))).state is WeightsState.PRESENT
    assert len(hub.requests) == 4


async def test_a_port_where_nobody_is(here: World) -> None:
    file = await here.fetch_one("http://127.0.0.1:1/w?signature=geheim")
    assert file.state is WeightsState.FAILED
    assert file.error is not None
    assert "http://127.0.0.1:1/w?… does not answer" in file.error
    assert "geheim" not in file.error


async def test_redirects_and_who_sees_the_token(hub: Upstream, tmp_path: Path) -> None:
    async with upstream() as cdn:
        cdn.put("/blob", BIG)
        hub.files["/w"] = hub.files["/inner"] = b""
        hub.acts.extend(
            [scripted.redirect("/inner?same=origin", 307), scripted.redirect(cdn.url("/blob"), 302)]
        )
        origin = f"http://127.0.0.1:{hub.port}"
        async with world(tmp_path / "store", upstream_tokens={origin: "geheim"}) as here:
            file = await here.fetch_one(hub.url("/w"), sha256=SHA)
        assert file.state is WeightsState.PRESENT
        assert [r.headers.get("authorization") for r in hub.requests] == ["Bearer geheim"] * 2  # H11
        assert hub.requests[1].path == "/inner?same=origin"
        assert [r.headers.get("authorization") for r in cdn.requests] == [None]  # H10


async def test_a_resumed_file_asks_the_first_address_again(hub: Upstream, here: World) -> None:
    """A signed address expires; the one the operator gave does not."""
    async with upstream() as cdn:
        cdn.put("/blob", BIG)
        cdn.acts.append(scripted.cut(1_000_000))
        hub.files["/w"] = b""
        hub.acts.extend([scripted.redirect(cdn.url("/blob"))] * 2)
        assert (await here.fetch_one(hub.url("/w"), sha256=SHA)).state is WeightsState.PRESENT
        assert [r.first_byte for r in cdn.requests] == [0, 1_000_000]
        assert len(hub.requests) == 2


async def test_redirects_in_a_circle_end(hub: Upstream, here: World) -> None:
    hub.acts.extend([scripted.redirect("/w")] * 30)
    file = await here.fetch_one(hub.put("/w", BIG))
    assert file.error is not None
    assert "no more are followed" in file.error
    assert len(hub.requests) == 11


async def test_retry_after_holds_the_whole_origin_back(
    hub: Upstream, tmp_path: Path, fake_clock: FakeClock
) -> None:
    """H12: one 429 is obeyed for every file of that origin, and not for others."""
    async with upstream() as other, world(tmp_path / "store", clock=fake_clock) as here:
        hub.acts.append(scripted.status(429, Retry_After=100))
        await here.mirror.fetch("m", "v", [Source("a", hub.put("/a", BIG))])
        await until(lambda: here.built.tally.requests == {"askagain": 1})
        await fake_clock.until_asleep(2)  # the lease's keeper and the pause
        await here.mirror.fetch("m", "w", [Source("b", hub.put("/b", BIG))])
        elsewhere = await here.fetch(Source("c", other.put("/c", BIG)), version="x")
        assert elsewhere.state is WeightsState.PRESENT
        await fake_clock.advance(98)
        assert len(hub.requests) == 1
        await fake_clock.advance(3)
        for version in ("v", "w"):
            assert (await here.settled("m", version)).state is WeightsState.PRESENT
        assert len(hub.requests) == 3


async def test_a_file_that_waits_gives_its_place_to_another(
    hub: Upstream, tmp_path: Path, fake_clock: FakeClock
) -> None:
    hub.acts.append(scripted.status(503, Retry_After=100))
    async with upstream() as other, world(tmp_path / "store", clock=fake_clock, parallel_fetches=1) as here:
        await here.mirror.fetch("m", "v", [Source("a", hub.put("/a", BIG))])
        await until(lambda: here.built.tally.requests == {"askagain": 1})
        elsewhere = await here.fetch(Source("c", other.put("/c", BIG)), version="x")
        assert elsewhere.state is WeightsState.PRESENT
        await fake_clock.advance(101)
        assert (await here.settled("m", "v")).state is WeightsState.PRESENT


async def test_an_absurd_retry_after_fails_the_file(hub: Upstream, here: World) -> None:
    hub.acts.append(scripted.status(503, Retry_After=99_999))
    file = await here.fetch_one(hub.put("/w", BIG))
    assert file.error is not None
    assert "asks to wait 99999 s" in file.error


async def test_silence_is_cut_by_the_clock_and_resumed(
    hub: Upstream, tmp_path: Path, fake_clock: FakeClock
) -> None:
    """H13: bytes stop, the socket stays open. Judged by bytes gained in a window."""
    hub.acts.append(scripted.stall(1_000_000))
    async with world(tmp_path / "store", clock=fake_clock, stall_window_s=30) as here:
        await here.mirror.fetch("org/m", "v1", [Source("w", hub.put("/w", BIG), SHA)])
        await here.received(1_000_000)
        await fake_clock.advance(29)
        assert len(hub.requests) == 1
        # The first window had its million bytes; the second has none.
        await fake_clock.advance(32)
        await until(lambda: len(hub.requests) == 2 or fake_clock.sleepers >= 2)
        await fake_clock.advance(1)
        assert (await here.settled()).state is WeightsState.PRESENT
        assert [request.first_byte for request in hub.requests] == [0, 1_000_000]


async def test_a_silent_head_is_cut_too(hub: Upstream, tmp_path: Path, fake_clock: FakeClock) -> None:
    hub.acts.append(scripted.silent)
    async with world(tmp_path / "store", clock=fake_clock) as here:
        await here.mirror.fetch("org/m", "v1", [Source("w", hub.put("/w", BIG), SHA)])
        await until(lambda: len(hub.requests) == 1)
        await fake_clock.advance(31)
        await until(lambda: fake_clock.sleepers >= 2)
        await fake_clock.advance(1)
        assert (await here.settled()).state is WeightsState.PRESENT


async def test_progress_is_told_while_it_moves(hub: Upstream, here: World) -> None:
    opened = asyncio.Event()

    async def slow(x: scripted.Exchange) -> None:
        await x.head(200, Content_Length=len(BIG), ETag=x.etag)
        await x.send(BIG[:1_500_000])
        await opened.wait()
        await x.send(BIG[1_500_000:])

    hub.acts.append(slow)
    await here.mirror.fetch("org/m", "v1", [Source("w", hub.put("/w", BIG))])
    view = await here.received(1_500_000)
    assert (view.state, view.received_bytes, view.total_bytes) == (WeightsState.FETCHING, 1_500_000, len(BIG))
    opened.set()
    assert (await here.settled()).state is WeightsState.PRESENT
    assert await here.built.downloads.now() == []
