"""Where requests go, seen from both sides: prefixes, sessions, tiers, pools, and what is told of it."""

from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from llmgw_router.core.config import RoutingProfile
from llmgw_router.core.keys import KeyRow, digest_of
from tests.integration.router.choosing import LONG, Moody, ask, chat, config, fine, silent, total, well
from tests.integration.router.ends import code_of, dead_port
from tests.integration.router.harness import Router, endpoint, router
from tests.integration.router.upstream import Connection, Upstream


def shares(*engines: Upstream) -> list[int]:
    return [len(engine.seen) for engine in engines]


async def test_prompts_that_begin_alike_go_to_the_engine_that_knows_them(tmp_path: Path) -> None:
    async with (
        fine() as a,
        fine() as b,
        fine() as c,
        router(tmp_path, a.port, b.port, c.port, config=config()) as r,
    ):
        for topic in range(4):
            before = shares(a, b, c)
            for turn in range(6):
                # Neither the order of keys nor the temperature makes it another prompt.
                more: dict[str, object] = {"temperature": turn / 10, "stream": False}
                assert (await ask(r, chat(f"{topic} {LONG}{turn}", **more))).status == 200
            gained = sorted(now - then for now, then in zip(shares(a, b, c), before, strict=True))
            assert gained == [0, 0, 6]
        await r.until(lambda: total(r, "picks_by_prefix") == 4 * 5)


async def test_without_affinity_equals_share(tmp_path: Path) -> None:
    rules = config(prefix_affinity=False)
    async with fine() as a, fine() as b, router(tmp_path, a.port, b.port, config=rules) as r:
        for _ in range(24):
            await ask(r, chat(LONG))
        assert min(shares(a, b)) > 0


@pytest.mark.parametrize(
    ("more", "field"),
    [
        (b"x-session-id: s%d\r\n", None),
        (b"X-Session-ID:s%d\r\n", None),
        (b"", "prompt_cache_key"),
        (b"", "user"),
    ],
)
async def test_a_session_stays_where_it_is(tmp_path: Path, more: bytes, field: str | None) -> None:
    rules = config(session_fields=("prompt_cache_key", "user"))
    async with (
        fine() as a,
        fine() as b,
        fine() as c,
        router(tmp_path, a.port, b.port, c.port, config=rules) as r,
    ):
        used = set()
        for session in range(6):
            before = shares(a, b, c)
            for turn in range(4):
                body = chat(f"{turn} {LONG}", **({} if field is None else {field: f"s{session}"}))
                assert (await ask(r, body, more % session if more else b"")).status == 200
            gained = [now - then for now, then in zip(shares(a, b, c), before, strict=True)]
            assert sorted(gained) == [0, 0, 4]
            used.add(gained.index(4))
        assert len(used) > 1, "sessions are spread"


async def test_a_session_is_remembered_though_others_are_less_busy(tmp_path: Path) -> None:
    a, b = Moody(well), Moody(well)
    session = b"x-session-id: s\r\n"
    async with (
        AsyncExitStack() as stack,
        Upstream(a) as one,
        Upstream(b) as two,
        router(tmp_path, one.port, two.port, config=config()) as r,
    ):
        await ask(r, more=session)
        home = one if one.seen else two
        a.mood = b.mood = silent
        for n in range(4):
            # Each is held there, and makes it busier than the other, which has nothing to do.
            client = await stack.enter_async_context(await r.client())
            client.post(chat(), more=session)
            await r.until(lambda n=n: len(one.seen) + len(two.seen) == n + 2)
        assert len(home.seen) == 5


async def test_workers_agree_on_the_place_of_a_new_prompt(tmp_path: Path) -> None:
    async with fine() as a, fine() as b, router(tmp_path, a.port, b.port, config=config(), workers=2) as r:
        for _ in range(12):
            # A connection each, so that the kernel spreads them over the workers.
            await ask(r, chat(LONG))
            # Its load is taken back a moment after its last byte; loads decide before places do.
            await r.until(r.quiet)
        assert sorted(shares(a, b)) == [0, 12]


async def test_ho21_a_form_is_chosen_for_by_session_or_load_and_passes_whole(tmp_path: Path) -> None:
    form = (
        b'--B\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
        b'--B\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n\x00\xffRIFF\r\n--B--\r\n'
    )

    async def send(r: Router, more: bytes) -> int:
        async with await r.client() as client:
            client.send(
                b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: r\r\n"
                + more
                + b"content-type: multipart/form-data; boundary=B\r\ncontent-length: %d\r\n\r\n" % len(form)
                + form
            )
            return (await client.answer()).status

    async with fine() as a, fine() as b, router(tmp_path, a.port, b.port, config=config()) as r:
        for _ in range(3):
            assert await send(r, b"") == 200
            assert await send(r, b"x-session-id: s\r\n") == 200
        assert all(seen.body == form for seen in (*a.seen, *b.seen))
        sticky = [len([s for s in up.seen if s.all(b"x-session-id")]) for up in (a, b)]
        assert sorted(sticky) == [0, 3]


async def test_ho24_two_pools_of_one_model_keep_their_own_replicas(tmp_path: Path) -> None:
    rules = config(
        profiles={
            "east": RoutingProfile(name="east", pools=("e",)),
            "west": RoutingProfile(name="west", pools=("w",)),
        }
    )
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(fine()) for _ in range(4)]
        r = await stack.enter_async_context(router(tmp_path, config=rules))
        rows = [
            msgspec.structs.replace(endpoint(n, up.port), pool="ew"[n % 2]) for n, up in enumerate(engines)
        ]
        await r.push(rows)
        for _ in range(8):
            for profile in (b"east", b"west"):
                assert (await ask(r, chat(LONG), b"x-llmgw-profile: " + profile + b"\r\n")).status == 200
        east, west = shares(*engines[::2]), shares(*engines[1::2])
        assert sorted(east) == sorted(west) == [0, 8]
        await r.push(rows[:1])
        away = await ask(r, chat(LONG), b"x-llmgw-profile: west\r\n")
        assert (away.status, code_of(away.body)) == (503, "no_replica_available")
        assert b"pool" in away.body


async def test_a_lower_tier_is_used_only_when_the_higher_has_nobody(tmp_path: Path) -> None:
    async with (
        fine() as high,
        fine() as low,
        router(tmp_path, config=config(cool_down_first_s=30.0, cool_down_most_s=30.0)) as r,
    ):
        rows = [endpoint(0, high.port), msgspec.structs.replace(endpoint(1, low.port), tier=1)]
        await r.push(rows)
        for _ in range(10):
            await ask(r)
        assert shares(high, low) == [10, 0]
        rows[0] = msgspec.structs.replace(rows[0], port=dead_port())
        await r.push(rows)
        for _ in range(10):
            assert (await ask(r)).status == 200
        assert shares(high, low) == [10, 10]


# --- x-llmgw-decision


async def test_a_decision_is_shown_where_the_settings_say_so(tmp_path: Path) -> None:
    async with fine() as a, fine() as b:
        async with router(tmp_path, a.port, b.port, config=config()) as r:
            assert (await ask(r)).all(b"x-llmgw-decision") == []
        async with router(tmp_path, a.port, b.port, config=config(explain=True)) as r:
            first = (await ask(r, chat(LONG))).one(b"x-llmgw-decision").decode()
            again = (await ask(r, chat(LONG + "more"))).one(b"x-llmgw-decision").decode()
            assert "policy=place; attempt=1; known=0/2048" in first
            assert "policy=prefix; attempt=1; known=2048/2048; load=0" in again
            assert first.split(";")[0] == again.split(";")[0] in ("replica=e0@1", "replica=e1@1")
        async with router(tmp_path, a.port, config=config(explain=True)) as r:
            assert (await ask(r)).one(b"x-llmgw-decision").startswith(b"replica=e0@1; policy=only")
        # Engines cannot speak in our name, nor clients.
        for engine in (a, b):
            assert all(not seen.all(b"x-llmgw-decision") for seen in engine.seen)


async def test_with_keys_only_a_key_that_may_sees_decisions(tmp_path: Path) -> None:
    rules = msgspec.structs.replace(config(explain=True), keys_required=True)
    async with fine() as a, fine() as b, router(tmp_path, a.port, b.port, config=rules) as r:
        rows = [
            KeyRow(digest=digest_of(key), key_id=key.decode(), explain=key == b"sk-may")
            for key in (b"sk-may", b"sk-not")
        ]
        r.pool.push_keys(rows, whole=True)
        may = await ask(r, more=b"authorization: Bearer sk-may\r\n")
        may_not = await ask(r, more=b"authorization: Bearer sk-not\r\n")
        assert (may.status, may_not.status) == (200, 200)
        assert len(may.all(b"x-llmgw-decision")) == 1
        assert may_not.all(b"x-llmgw-decision") == []


async def test_a_retry_says_whom_it_passed_over(tmp_path: Path) -> None:
    async with (
        fine() as a,
        router(
            tmp_path,
            dead_port(),
            a.port,
            config=config(explain=True, cool_down_first_s=30.0, cool_down_most_s=30.0),
        ) as r,
    ):
        lines = {(await ask(r)).one(b"x-llmgw-decision") for _ in range(12)}
        assert all(line.startswith(b"replica=e1@1; ") for line in lines)
        assert any(b"skipped=e0@1:tried" in line and b"attempt=2" in line for line in lines)
        assert any(b"skipped=e0@1:unreachable" in line and b"attempt=1" in line for line in lines)


async def test_choices_are_kept_for_the_admin_only_where_asked_for(tmp_path: Path) -> None:
    async with (
        fine() as a,
        fine() as b,
        router(tmp_path, a.port, b.port, config=config(keep_decisions=3)) as r,
    ):
        for _ in range(5):
            assert (await ask(r, chat(LONG))).all(b"x-llmgw-decision") == []
        await r.until(lambda: len(r.pool.choices.decisions) == 3)
        assert r.pool.choices.decisions[-1].policy == "prefix"
        r.pool.reconfigure(config())
        await r.until(lambda: r.pool.choices.decisions.maxlen == 0)


async def test_a_full_engine_is_made_up_for_within_the_pools_of_the_profile(tmp_path: Path) -> None:
    rules = config(
        prefix_affinity=False,
        profiles={"east": RoutingProfile(name="east", pools=("e",), queue_s=0.0)},
    )
    east = b"x-llmgw-profile: east\r\n"

    async def holds(connection: Connection) -> None:
        await connection.request()
        await connection.closed_by_peer()

    async with (
        Upstream(holds) as inside,
        fine() as outside,
        router(tmp_path, config=rules) as r,
        await r.client() as waiting,
    ):
        rows = [
            msgspec.structs.replace(endpoint(n, up.port), pool="ew"[n], concurrency=1)
            for n, up in enumerate((inside, outside))
        ]
        await r.push(rows)
        waiting.post(chat(), more=east)
        await r.until(lambda: len(inside.seen) == 1)
        assert (await ask(r, chat(), east)).status == 503
        assert len(outside.seen) == 0
        assert (await ask(r)).status == 200
