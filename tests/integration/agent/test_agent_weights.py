"""Weights come from the mirror: whole, verified, resumed, refused where they could harm."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from llmgw.v1 import agent_pb2 as pb
from llmgw.v1.common_pb2 import WeightsRef
from tests.integration.agent.agent_bench import Agents, OneTest, controller, eventually
from tests.integration.agent.mirror_bench import mirror

pytestmark = pytest.mark.asyncio(loop_scope="module")
RUN, STOP = pb.SHARD_WISH_RUN, pb.SHARD_WISH_STOP
SERVING, EXITED = pb.SHARD_STATE_SERVING, pb.SHARD_STATE_EXITED
FILES = {"sub/config.json": b"{}", "model.bin": os.urandom(300_000), "empty": b""}


def weighted(one: OneTest, shard_id: str, *urls: str, entry: str | None = None) -> pb.ShardSpec:
    ref = WeightsRef(model=one.model, version="v1")
    if entry is not None:
        ref.entry_file = entry
    return one.engine(shard_id, weights=ref, mirror_urls=urls)


def published(one: OneTest) -> Path:
    return one.agents.data / "weights" / one.model.replace("/", "%2F") / "v1" / "files"


async def test_weights_are_fetched_verified_and_published_before_the_start(one: OneTest) -> None:
    async with mirror(one.model, "v1", FILES, fetching_for=3) as source:
        one.want((weighted(one, "s1", source.url), RUN))
        await one.in_state("s1", SERVING)
        assert one.history("s1")[0] == pb.SHARD_STATE_FETCHING
        assert {str(p.relative_to(published(one))) for p in published(one).rglob("*") if p.is_file()} == {
            *FILES
        }
        for path, data in FILES.items():
            assert (published(one) / path).read_bytes() == data
        await eventually(lambda: one.held(), "weights are told")
        held = one.held()[0]
        assert (held.model, held.version, held.bytes, held.complete) == (one.model, "v1", 300_002, True)


async def test_a_broken_off_file_is_resumed_where_it_stopped(one: OneTest) -> None:
    async with mirror(one.model, "v1", FILES, cut_after=100_000) as source:
        one.want((weighted(one, "s1", source.url), RUN))
        await one.in_state("s1", SERVING)
        resumed = [asked for asked in source.ranges if asked is not None]
        assert len(resumed) == 1
        start = int(resumed[0].removeprefix("bytes=").rstrip("-"))
        assert 0 < start <= 100_000
        assert (published(one) / "model.bin").read_bytes() == FILES["model.bin"]


async def test_a_fetch_goes_on_after_the_agents_death(agents: Agents) -> None:
    large = {"model.bin": os.urandom(10 << 20)}
    async with (
        controller() as leader,
        mirror("org/model", "v1", large, cut_after=9 << 20, stall=True) as source,
    ):
        own = OneTest(leader, agents, "")
        first = agents.start(leader.address)
        leader.want((weighted(own, "s1", source.url), RUN))
        partial = agents.data / "weights" / ".partial" / "org%2Fmodel" / "v1" / "files" / "model.bin"
        await eventually(lambda: partial.exists() and partial.stat().st_size >= 4 << 20, "the first part")
        first.kill()
        await first.wait(10)
        agents.start(leader.address)
        await leader.in_state("s1", SERVING)
        assert (published(own) / "model.bin").read_bytes() == large["model.bin"]
        assert source.ranges[0] is None
        assert int(str(source.ranges[1]).removeprefix("bytes=").rstrip("-")) >= 4 << 20


async def test_wrong_bytes_are_never_started_from_and_fetched_again(one: OneTest) -> None:
    async with mirror(one.model, "v1", {"f": b"right" * 100}, corrupt=1) as source:
        one.want((weighted(one, "s1", source.url), RUN))
        await one.in_state("s1", SERVING)
        assert (published(one) / "f").read_bytes() == b"right" * 100
        assert len(source.ranges) == 2


async def test_the_next_mirror_is_asked_when_one_is_down(one: OneTest) -> None:
    async with mirror(one.model, "v1", FILES) as source:
        one.want((weighted(one, "s1", "http://127.0.0.1:9", source.url), RUN))
        await one.in_state("s1", SERVING)


async def test_with_the_weights_here_no_mirror_is_needed(one: OneTest) -> None:
    async with mirror(one.model, "v1", FILES) as source:
        first = weighted(one, "s1", source.url)
        one.want((first, RUN))
        await one.in_state("s1", SERVING)
        asked = source.listings
        second = weighted(one, "s2", source.url)
        one.want((first, RUN), (second, RUN))
        await one.in_state("s2", SERVING)
        assert source.listings == asked
    one.want((second, RUN), (weighted(one, "s3", source.url), RUN))
    await one.in_state("s3", SERVING)


async def test_two_shards_that_want_the_same_fetch_it_once(one: OneTest) -> None:
    async with mirror(one.model, "v1", FILES, fetching_for=2) as source:
        one.want((weighted(one, "s1", source.url), RUN), (weighted(one, "s2", source.url), RUN))
        await one.in_state("s1", SERVING)
        await one.in_state("s2", SERVING)
        assert len(source.ranges) == 2, "each file once, and none for the empty one"


async def test_weights_changed_on_disk_are_seen_and_fetched_again(one: OneTest) -> None:
    async with mirror(one.model, "v1", FILES) as source:
        spec = weighted(one, "s1", source.url)
        one.want((spec, RUN))
        await one.in_state("s1", SERVING)
        one.want((spec, STOP))
        await one.in_state("s1", EXITED)
        victim = published(one) / "model.bin"
        seen = victim.stat()
        victim.write_bytes(b"\0" * 300_000)
        os.utime(victim, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        one.want((weighted(one, "s2", source.url), RUN))
        await one.in_state("s2", SERVING)
        assert victim.read_bytes() == FILES["model.bin"]


@pytest.mark.parametrize("harm", ["deleted", "cut", "its folder deleted"])
async def test_case_39_weights_that_went_are_seen_before_an_engine_opens_them(
    one: OneTest, harm: str
) -> None:
    async with mirror(one.model, "v1", FILES) as source:
        spec = weighted(one, "s1", source.url)
        one.want((spec, RUN))
        await one.in_state("s1", SERVING)
        one.want((spec, STOP))
        await one.in_state("s1", EXITED)
        victim = published(one) / "model.bin"
        if harm == "deleted":
            victim.unlink()
        elif harm == "cut":
            os.truncate(victim, 1000)
        else:
            shutil.rmtree(published(one))
        one.want((weighted(one, "s2", source.url), RUN))
        shard = await one.in_state("s2", SERVING)
        assert victim.read_bytes() == FILES["model.bin"]
        assert shard.fetch_s > 0.0
        one.want()
        await one.in_state("s2", EXITED)
        (published(one) / "sub" / "config.json").unlink()
    # And with a mirror that has them no more: told, and nothing is launched.
    async with mirror(one.model, "v1", FILES, failed="gone upstream") as source:
        one.want((weighted(one, "s3", source.url), RUN))
        gone = await one.in_state("s3", EXITED)
        assert gone.exit.reason == "weights_failed"
        assert not gone.HasField("pid")


async def test_touched_but_unchanged_weights_are_hashed_and_kept(one: OneTest) -> None:
    async with mirror(one.model, "v1", FILES) as source:
        one.want((weighted(one, "s1", source.url), RUN))
        await one.in_state("s1", SERVING)
        asked = len(source.ranges)
        os.utime(published(one) / "model.bin")
        one.want((weighted(one, "s2", source.url), RUN))
        await one.in_state("s2", SERVING)
        assert len(source.ranges) == asked


async def test_removal_is_refused_while_in_use_and_tells_the_bytes_freed(one: OneTest) -> None:
    async with mirror(one.model, "v1", FILES) as source:
        spec = weighted(one, "s1", source.url)
        one.want((spec, RUN))
        await one.in_state("s1", SERVING)
        remove = pb.RemoveWeights(command_id="c1", model=one.model, version="v1")
        one.say(remove_weights=remove)
        refused = (await eventually(lambda: one.results, "an answer"))[0]
        assert not refused.accepted
        assert f"in use by {one.name('s1')}" in refused.message
        one.want((spec, STOP))
        await one.in_state("s1", EXITED)
        one.say(remove_weights=remove)
        done = (await eventually(lambda: one.results[1:], "the second answer"))[0]
        assert done.accepted
        assert "300002 bytes freed" in done.message
        await eventually(lambda: not one.held(), "no weights are told any more")
        assert not published(one).exists()
        one.say(remove_weights=remove)
        again = (await eventually(lambda: one.results[2:], "the third answer"))[0]
        assert not again.accepted


async def test_an_entry_file_that_is_not_there_fails_with_its_name(one: OneTest) -> None:
    async with mirror(one.model, "v1", FILES) as source:
        one.want((weighted(one, "s1", source.url, entry="other.gguf"), RUN))
        gone = await one.in_state("s1", EXITED)
        assert gone.exit.reason == "weights_failed"
        assert "other.gguf" in gone.exit.message


async def test_what_the_mirror_could_not_fetch_fails_with_its_words(one: OneTest) -> None:
    async with mirror(one.model, "v1", FILES, failed="f: upstream says 401") as source:
        one.want((weighted(one, "s1", source.url), RUN))
        gone = await one.in_state("s1", EXITED)
        assert gone.exit.reason == "weights_failed"
        assert "upstream says 401" in gone.exit.message


async def test_a_hostile_listing_is_refused_and_nothing_is_written(one: OneTest) -> None:
    digest = hashlib.sha256(b"x").hexdigest()
    hostile = {
        "model": one.model, "version": "v1", "state": "present",
        "files": [{"path": "../../../evil", "size": 1, "sha256": digest}],
    }  # fmt: skip
    async with mirror(one.model, "v1", {"f": b"x"}, listing=hostile) as source:
        one.want((weighted(one, "s1", source.url), RUN))
        gone = await one.in_state("s1", EXITED)
        assert gone.exit.reason == "weights_failed"
        assert "not a path inside a version" in gone.exit.message
        assert not list(one.agents.folder.rglob("evil"))


async def test_a_version_larger_than_the_disk_is_refused_before_a_byte_is_written(one: OneTest) -> None:
    huge = {
        "model": one.model, "version": "v1", "state": "present",
        "files": [{"path": "f", "size": 1 << 60, "sha256": "0" * 64}],
    }  # fmt: skip
    async with mirror(one.model, "v1", {"f": b"x"}, listing=huge) as source:
        one.want((weighted(one, "s1", source.url), RUN))
        gone = await one.in_state("s1", EXITED)
        assert gone.exit.reason == "weights_failed"
        assert "disk full" in gone.exit.message
        assert not source.ranges


async def test_a_stop_ends_a_fetch_that_never_would(one: OneTest) -> None:
    async with mirror(one.model, "v1", FILES, fetching_for=10_000) as source:
        spec = weighted(one, "s1", source.url)
        one.want((spec, RUN))
        shard = await one.shard("s1", lambda s: s.progress > 0, "the mirror's own progress")
        assert shard.progress == 0.125, "a quarter of the mirror's half"
        one.want((spec, STOP))
        gone = await one.in_state("s1", EXITED)
        assert gone.exit.reason == "stopped"
