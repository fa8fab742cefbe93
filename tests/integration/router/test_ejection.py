"""Who is left alone, for what, for how long, and how it comes back: against real sockets."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from llmgw_kit.clock import SystemClock
from llmgw_router.adapters.probe import HttpProbe
from llmgw_router.board import Board, Source
from llmgw_router.core.config import INTERACTIVE, RoutingProfile
from llmgw_router.core.learned import Routes
from llmgw_router.core.table import EndpointRow
from llmgw_router.probing import keep_probing
from tests.integration.router.choosing import (
    Moody,
    ask,
    breaks,
    chat,
    config,
    fine,
    resets,
    silent,
    status,
    total,
    well,
)
from tests.integration.router.ends import code_of, dead_port
from tests.integration.router.harness import Router, endpoint, router
from tests.integration.router.upstream import SSE_HEAD, Connection, Upstream, chunk

#: Long enough that no test sees its end.
LASTING = config(cool_down_first_s=50.0, cool_down_most_s=50.0)


async def until_ejected(r: Router, times: int = 1) -> None:
    async with asyncio.timeout(20):
        while total(r, "ejections") < times:
            await ask(r)


@pytest.mark.parametrize("mood", [resets, breaks, status(b"500 Oops"), status(b"502 Bad")])
async def test_ho08_an_engine_that_fails_is_ejected_after_a_few(tmp_path: Path, mood: object) -> None:
    moody = Moody(mood)  # type: ignore[arg-type]
    async with (
        Upstream(moody) as bad,
        fine() as good,
        router(tmp_path, bad.port, good.port, config=LASTING) as r,
    ):
        await until_ejected(r)
        seen = len(bad.seen)
        for _ in range(20):
            assert (await ask(r)).status == 200
        assert len(bad.seen) == seen
        # Three failures in a row, or one more that came to it as a second choice.
        assert 3 <= seen <= 4


async def test_a_first_byte_that_does_not_come_counts(tmp_path: Path) -> None:
    profile = RoutingProfile(first_byte_s=0.5)
    rules = msgspec.structs.replace(LASTING, profiles={INTERACTIVE: profile})
    async with (
        Upstream(Moody(silent)) as bad,
        fine() as good,
        router(tmp_path, bad.port, good.port, config=rules) as r,
    ):
        await until_ejected(r)
        for _ in range(10):
            assert (await ask(r)).status == 200


@pytest.mark.parametrize("line", [b"400 Bad Request", b"404 Not Found", b"422 No", b"501 Not Implemented"])
async def test_what_a_caller_did_wrong_is_nobodys_failure(tmp_path: Path, line: bytes) -> None:
    async with (
        Upstream(Moody(status(line))) as a,
        fine() as b,
        router(tmp_path, a.port, b.port, config=LASTING) as r,
    ):
        for _ in range(40):
            await ask(r)
        assert len(a.seen) > 10
        assert (total(r, "ejections"), total(r, "ejections_spared")) == (0, 0)


async def test_clients_that_leave_are_nobodys_failure(tmp_path: Path) -> None:
    async with (
        Upstream(Moody(silent)) as up,
        fine() as b,
        router(tmp_path, up.port, b.port, config=LASTING) as r,
    ):
        left = 0
        while left < 8:
            client = await r.client()
            client.post(chat())
            try:
                await asyncio.wait_for(client.answer(), 0.05)
            except TimeoutError:
                left += 1
            client.close()
        await r.until(r.quiet)
        assert total(r, "ejections") == 0
        assert [activity.failed for _, activity in r.pool.activity()] == [0, 0]


async def test_an_engine_that_refuses_our_credential_is_an_alarm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        Upstream(Moody(status(b"401 Unauthorized"))) as stale,
        fine() as good,
        router(tmp_path, stale.port, good.port, config=LASTING) as r,
    ):
        for _ in range(20):
            assert (await ask(r)).status == 200
        assert len(stale.seen) == 1
        await r.until(lambda: total(r, "endpoints_denied") == 1)
        await r.until(lambda: "refuses this router's credential" in caplog.text)


async def test_an_only_endpoint_that_refuses_us_is_asked_on_and_told_of_once(tmp_path: Path) -> None:
    async with (
        Upstream(Moody(status(b"403 Forbidden"))) as stale,
        router(tmp_path, stale.port, config=LASTING) as r,
    ):
        for _ in range(5):
            answer = await ask(r)
            assert (answer.status, code_of(answer.body)) == (502, "upstream_denied")
        assert len(stale.seen) == 5
        await r.until(lambda: total(r, "ejections_spared") == 5)
        assert (total(r, "endpoints_denied"), total(r, "ejections")) == (1, 0)


async def test_never_the_last_one(tmp_path: Path) -> None:
    async with router(tmp_path, dead_port(), dead_port(), dead_port(), config=LASTING) as r:
        for _ in range(10):
            answer = await ask(r)
            # Somebody is always asked: an engine may have come back.
            assert (answer.status, code_of(answer.body)) == (502, "upstream_unreachable")
        await r.until(lambda: total(r, "ejections_spared") > 0)
        assert total(r, "ejections") == 2, "of three who are not there, all but the last"


async def test_engines_that_are_not_there_cost_no_request(tmp_path: Path) -> None:
    """Three of four refuse connections: more than may be ejected for their answers, and yet nobody waits for
    them. An endpoint that fails at once looks idle, and would be picked for ever."""
    ports = (dead_port(), dead_port(), dead_port())
    # Their time is over every few requests: each is tried again and again.
    rules = config(cool_down_first_s=0.05, cool_down_most_s=0.2)
    async with fine() as good, router(tmp_path, *ports, good.port, config=rules) as r:
        statuses = [(await ask(r)).status for _ in range(300)]
        # One that meets all three before anything is known of them is tried no fourth time; nobody after it.
        assert statuses.count(200) >= 299
        await r.until(lambda: total(r, "ejections") >= 3)
        assert total(r, "retries_over_budget") == 0


async def test_an_engine_that_fails_at_once_and_may_not_be_spared_gets_little(tmp_path: Path) -> None:
    failing = status(b"500 Internal Server Error")
    async with (
        Upstream(Moody(failing)) as one,
        Upstream(Moody(failing)) as two,
        fine() as good,
        router(tmp_path, one.port, two.port, good.port, config=LASTING) as r,
    ):
        for _ in range(60):
            await ask(r)
        await r.until(lambda: total(r, "ejections") == 1)
        await r.until(lambda: total(r, "ejections_spared") >= 1)
        before = len(good.seen)
        await asyncio.gather(*(ask(r) for _ in range(40)))
        assert len(good.seen) - before >= 30


@pytest.mark.parametrize("ending", ["an answer", "a refusal of the caller", "the client leaves", "never"])
async def test_ho25_every_end_of_a_trial_makes_room_for_the_next(tmp_path: Path, ending: str) -> None:
    moody = Moody(resets)
    # Only where nothing else frees the place may the lease do so.
    rules = config(cool_down_first_s=0.05, trial_s=0.3 if ending == "never" else 50.0)
    async with (
        Upstream(moody) as bad,
        fine() as good,
        router(tmp_path, bad.port, good.port, config=rules) as r,
    ):
        await until_ejected(r)
        moody.mood = {
            "an answer": well,
            "a refusal of the caller": status(b"400 Bad Request"),
        }.get(ending, silent)
        trials, seen = total(r, "trials"), len(bad.seen)
        patience: set[asyncio.Task[object]] = set()
        async with asyncio.timeout(20):
            # Requests until the trial is out; those that the silent engine holds are left or kept.
            while len(bad.seen) == seen:
                client = await r.client()
                client.post(chat())
                task: asyncio.Task[object] = asyncio.ensure_future(client.answer())
                await asyncio.wait({task}, timeout=0.1)
                if not task.done() and ending == "the client leaves":
                    task.cancel()
                    client.close()
                patience.add(task)
        if ending in ("an answer", "a refusal of the caller"):
            await r.until(lambda: total(r, "endpoints_back") == 1)
        else:
            moody.mood = well
            async with asyncio.timeout(20):
                while not total(r, "endpoints_back"):
                    assert (await ask(r)).status == 200
            assert total(r, "trials") >= trials + 2
        for task in patience:
            task.cancel()
        await asyncio.gather(*patience, return_exceptions=True)


async def test_retries_end_with_their_budget(tmp_path: Path) -> None:
    rules = config(retry_share=0.0, retry_min_per_s=0.5, eject_after=1000, eject_min_requests=10_000)
    async with (
        Upstream(Moody(resets)) as a,
        Upstream(Moody(resets)) as b,
        router(tmp_path, a.port, b.port, config=rules) as r,
    ):
        for _ in range(30):
            assert (await ask(r)).status == 502
        retried = len(a.seen) + len(b.seen) - 30
        # Ten seconds' worth at once, and what came while we asked.
        assert 5 <= retried <= 12
        await r.until(lambda: total(r, "retries_over_budget") == 30 - retried)
        await r.until(lambda: total(r, "retries_other") == retried)


async def test_no_retry_when_the_total_leaves_no_time_for_it(tmp_path: Path) -> None:
    rules = msgspec.structs.replace(
        config(), profiles={INTERACTIVE: RoutingProfile(total_s=0.2, first_byte_s=30.0)}
    )
    async with (
        Upstream(Moody(silent)) as a,
        Upstream(Moody(silent)) as b,
        router(tmp_path, a.port, b.port, config=rules) as r,
    ):
        answer = await ask(r)
        assert (answer.status, code_of(answer.body)) == (504, "deadline_exceeded")
        assert len(a.seen) + len(b.seen) == 1


async def test_a_total_that_ends_a_flowing_stream_blames_nobody(tmp_path: Path) -> None:
    async def flows(connection: Connection) -> None:
        await connection.send(SSE_HEAD)
        while True:
            await connection.send(chunk(b"data: {}\n\n"))
            await asyncio.sleep(0.01)

    rules = msgspec.structs.replace(LASTING, profiles={INTERACTIVE: RoutingProfile(total_s=0.1)})
    async with (
        Upstream(Moody(flows)) as a,
        Upstream(Moody(flows)) as b,
        router(tmp_path, a.port, b.port, config=rules) as r,
    ):
        for _ in range(8):
            assert b"deadline_exceeded" in (await ask(r)).body
        assert total(r, "ejections") == 0
        assert [activity.broken for _, activity in r.pool.activity()] == [0, 0]


class Watched(HttpProbe):
    """The real one, and whom it was asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    async def alive(self, endpoints: Sequence[EndpointRow]) -> frozenset[str]:
        found = await super().alive(endpoints)
        self.asked |= {row.endpoint_id for row in endpoints}
        return found


async def test_ho12_health_checks_outlive_a_reload_for_old_and_new_replicas(tmp_path: Path) -> None:
    rules = config(cool_down_first_s=50.0, cool_down_most_s=50.0, probe_s=0.05, eject_most_share=0.7)
    probe = Watched()
    async with fine() as a, router(tmp_path, config=rules, workers=2) as r:
        board = Board(r.pool, SystemClock())
        checks = asyncio.ensure_future(keep_probing(r.pool, board, probe, SystemClock()))

        async def reload(*rows: EndpointRow) -> None:
            before = len(r.heard.applies)
            board.publish(Routes(endpoints={row.endpoint_id: row for row in rows}), Source.STATIC)
            await r.until(lambda: len(r.heard.applies) > before)

        async def ask_until(true: Callable[[], bool]) -> None:
            async with asyncio.timeout(20):
                while not true():
                    assert (await ask(r)).status == 200

        old, broken = endpoint(0, a.port), endpoint(1, dead_port())
        await reload(old, broken)
        await ask_until(lambda: "e1@1" in probe.asked)
        # Both workers put it aside, though one of them may never have asked it.
        await r.until(lambda: total(r, "ejections") == 2)
        r.pool.reconfigure(rules)
        # One more replica, which dies only now.
        late = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = late.sockets[0].getsockname()[1]
        await reload(old, broken, endpoint(2, port))
        late.close()
        await late.wait_closed()
        probe.asked.clear()
        await ask_until(lambda: total(r, "ejections") == 4)
        await r.until(lambda: probe.asked == {"e1@1", "e2@1"})
        # It comes back long before its time is over, and no client's request was risked for that.
        again = Upstream(Moody(well))
        again._tasks = set()
        server = await asyncio.start_server(again._serve, "127.0.0.1", port)
        await r.until(lambda: total(r, "endpoints_back") == 2)
        await r.until(lambda: r.pool.suspects == {"e1@1"})
        assert all(seen.line.startswith(b"GET /health") for seen in again.seen)
        server.close()
        checks.cancel()
        await asyncio.gather(checks, return_exceptions=True)


async def test_a_reused_address_does_not_inherit_the_past(tmp_path: Path) -> None:
    moody = Moody(resets)
    async with (
        Upstream(moody) as bad,
        fine() as good,
        router(tmp_path, bad.port, good.port, config=LASTING) as r,
    ):
        await until_ejected(r)
        moody.mood = well
        fresh = msgspec.structs.replace(endpoint(0, bad.port), endpoint_id="e0@2", group_epoch=2)
        await r.push([fresh, endpoint(1, good.port)])
        seen = len(bad.seen)
        for _ in range(20):
            assert (await ask(r)).status == 200
        assert len(bad.seen) > seen
