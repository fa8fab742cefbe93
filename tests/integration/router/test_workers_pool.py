"""The process model: the port, the workers' lives, what they leave behind, and how they go."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import msgspec
import pytest

from llmgw_router.relay.ipc import ModelRow
from llmgw_router.supervisor.ports import PortTaken, reserve
from llmgw_router.supervisor.workers import PoolConfig, WorkerPool

from .harness import BODY, QUICK, Heard, endpoint, router
from .upstream import LAST, SSE_HEAD, Connection, Upstream, answering, chunk, json_answer


@pytest.mark.parametrize("shared", [False, True])
async def test_a_taken_port_is_an_error_that_names_it(tmp_path: Path, shared: bool) -> None:
    with socket.socket() as other:
        if shared:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        pool = WorkerPool(PoolConfig(workers=1, host="127.0.0.1", port=port, cold_socket=""), Heard())
        with pytest.raises(PortTaken, match=f"127.0.0.1:{port} is taken"):
            await pool.start()
        pool.close()


def test_two_that_start_in_the_same_instant_do_not_both_get_the_port() -> None:
    first = reserve("127.0.0.1", 0)
    port = first.sockets[0].getsockname()[1]
    try:
        # Nobody listens yet: for the kernel alone, both could have it.
        with pytest.raises(PortTaken, match=f"127.0.0.1:{port} is taken"):
            reserve("127.0.0.1", port)
    finally:
        first.close()
    reserve("127.0.0.1", port).close()


async def test_two_routers_do_not_share_a_port(tmp_path: Path) -> None:
    async with router(tmp_path) as first:
        pool = WorkerPool(PoolConfig(workers=1, host="127.0.0.1", port=first.port, cold_socket=""), Heard())
        with pytest.raises(PortTaken):
            await pool.start()
        pool.close()


async def test_star_listens_on_both_families(tmp_path: Path) -> None:
    pool = WorkerPool(PoolConfig(workers=1, host="*", port=0, cold_socket="", slot_capacity=4), Heard())
    await pool.start()
    try:
        assert len({address.port for address in pool.addresses}) == 1
        for address in pool.addresses:
            loopback = "::1" if address.family is socket.AF_INET6 else "127.0.0.1"
            _, writer = await asyncio.open_connection(loopback, address.port)
            writer.close()
    finally:
        await pool.stop()
        pool.close()


async def test_a_worker_imports_only_what_the_hot_path_needs(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import sys, uvloop, llmgw_router.relay.worker; print('\\n'.join(sys.modules))",
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    loaded = {name.partition(".")[0] for name in out.decode().split()}
    foreign = loaded - set(sys.stdlib_module_names) - {"__main__"}
    brought = {"cython_runtime", "typing_extensions"}  # by uvloop, and by msgspec where it is installed
    assert {name for name in foreign - brought if not name.startswith("_")} == {
        "llmgw_router",
        "uvloop",
        "httptools",
        "msgspec",
    }
    ours = {name for name in out.decode().split() if name.startswith("llmgw_router.")}
    assert all(name.split(".")[1] in ("core", "relay") for name in ours)


async def test_a_killed_worker_is_replaced_and_its_row_settled(tmp_path: Path) -> None:
    hang = asyncio.Event()

    async def hanging(connection: Connection) -> None:
        await connection.request()
        await hang.wait()
        await connection.send(json_answer())

    async with Upstream(hanging) as up, router(tmp_path, up.port) as r:
        (worker,) = r.pool.workers
        assert worker.pid is not None
        c = await r.client()
        c.post(BODY)
        await r.until(lambda: up.seen)
        ((_, before),) = r.pool.activity()
        assert before.in_flight == 1
        os.kill(worker.pid, signal.SIGKILL)
        # Connects while nobody accepts: waits in the socket that the pool keeps open.
        again = await r.client()
        again.post(BODY)
        await r.until(lambda: r.pool.workers[0].deaths == 1)
        ((_, after),) = r.pool.activity()
        assert after.last_touch_ns is not None
        assert before.last_touch_ns is not None
        assert after.last_touch_ns > before.last_touch_ns
        hang.set()
        assert (await again.answer()).status == 200
        await r.until(r.quiet)
        ((_, at_last),) = r.pool.activity()
        assert (at_last.in_flight, at_last.picks) == (0, 2)
        (successor,) = r.pool.workers
        assert successor.pid not in (None, worker.pid)
        assert successor.serving
        assert successor.applied_seq == r.heard.applies[-1]
        c.close()
        again.close()


async def test_requests_held_by_a_dead_worker_are_not_wanted_any_more(tmp_path: Path) -> None:
    row = ModelRow(name="m", activatable=True, hold_timeout_s=9.0, max_held=9)
    async with router(tmp_path, models=[row]) as r, await r.client() as c:
        c.post(BODY)
        await r.until(lambda: r.heard.wants)
        pid = r.pool.workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await r.until(lambda: r.heard.unwants == ["m"])


async def test_work_spreads_over_workers_and_loads_are_shared(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def gated(connection: Connection) -> None:
        while True:
            await connection.request()
            await gate.wait()
            await connection.send(json_answer())

    async with Upstream(gated) as up, router(tmp_path, workers=3) as r:
        # Six endpoints behind one address: what counts is how the picks fall.
        await r.push([endpoint(index, up.port) for index in range(6)])
        clients = []
        for number in range(1, 19):
            c = await r.client()
            c.post(BODY)
            clients.append(c)
            await r.until(lambda n=number: len(up.seen) == n)
            running = [activity.in_flight for _, activity in r.pool.activity()]
            # Each pick saw what all workers run: no two endpoints ever differ by more than one.
            assert sum(running) == number
            assert max(running) - min(running) <= 1, running
        gate.set()
        for c in clients:
            assert (await c.answer()).status == 200
            c.close()
        await r.until(lambda: r.pool.totals()["answers_2xx"] == 18)


async def test_a_drained_endpoint_is_told_when_its_last_request_ends(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def gated(connection: Connection) -> None:
        while True:
            await connection.request()
            await gate.wait()
            await connection.send(json_answer())

    async with (
        Upstream(gated) as old,
        Upstream(answering(json_answer())) as new,
        router(tmp_path, old.port) as r,
        await r.client() as c,
        await r.client() as d,
    ):
        c.post(BODY)
        await r.until(lambda: old.seen)
        await r.push([endpoint(0, old.port, draining=True), endpoint(1, new.port)])
        d.post(BODY)
        assert (await d.answer()).status == 200
        assert r.heard.drained_ids == []
        gate.set()
        assert (await c.answer()).status == 200
        await r.until(lambda: r.heard.drained_ids == ["e0@1"])
        # One that has nothing running is drained as soon as every worker knows.
        await r.push([endpoint(0, old.port, draining=True), endpoint(1, new.port, draining=True)])
        await r.until(lambda: r.heard.drained_ids == ["e0@1", "e1@1"])


async def test_a_removed_endpoint_finishes_and_its_slot_is_used_again(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def gated(connection: Connection) -> None:
        await connection.request()
        await gate.wait()
        await connection.send(json_answer())

    async with Upstream(gated) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.post(BODY)
        await r.until(lambda: up.seen)
        await r.push([])
        assert [(row.endpoint_id, a.in_flight) for row, a in r.pool.activity()] == [("e0@1", 1)]
        gate.set()
        assert (await c.answer()).status == 200
        # Sixteen slots: a hundred endpoints in turn fit only if the old ones are given back.
        for number in range(1, 100):
            await r.push([endpoint(number, up.port)])
        assert [row.endpoint_id for row, _ in r.pool.activity()] == ["e99@1"]
        await r.until(r.quiet)
        ((_, activity),) = r.pool.activity()
        assert (activity.picks, activity.last_touch_ns) == (0, None)


async def test_an_endpoint_that_comes_back_still_counts_what_runs_there(tmp_path: Path) -> None:
    """Away, back, away: its column is nobody else's while a stream of before is running."""
    gate = asyncio.Event()

    async def gated(connection: Connection) -> None:
        await connection.request()
        await gate.wait()
        await connection.send(json_answer())

    async with Upstream(gated) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.post(BODY)
        await r.until(lambda: up.seen)
        for rows in ([], [endpoint(0, up.port)], []):
            await r.push(rows)
            assert [(row.endpoint_id, a.in_flight) for row, a in r.pool.activity()] == [("e0@1", 1)]
        assert r.heard.drained_ids == []
        gate.set()
        assert (await c.answer()).status == 200
        await r.push([endpoint(1, up.port)])
        await r.until(lambda: [(row.endpoint_id, a.picks) for row, a in r.pool.activity()] == [("e1@1", 0)])


async def test_drain_finishes_what_runs(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def streaming(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        await gate.wait()
        await connection.send(chunk(b"data: [DONE]\n\n") + LAST)

    async with Upstream(streaming) as up, router(tmp_path, up.port) as r:
        c, kept = await r.client(), await r.client()
        kept.post(b'{"model":"nope"}')
        assert (await kept.answer()).status == 404
        c.post(BODY)
        await c.head()
        assert await c.chunk() == b"data: 1\n\n"
        port = r.port
        # Longer than the second after which a client tries again whose beginning was refused.
        draining = asyncio.create_task(r.pool.drain(10.0, grace_s=2.5))
        with pytest.raises(ConnectionRefusedError):
            while True:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
        # Within the grace a kept connection is served a last time, and told so.
        kept.post(b'{"model":"nope"}')
        answer = await kept.answer()
        assert answer.status == 404
        assert answer.one(b"connection") == b"close"
        assert await kept.ended()
        assert not draining.done()
        gate.set()
        assert await c.chunk() == b"data: [DONE]\n\n"
        assert await c.chunk() == b""
        await asyncio.wait_for(draining, 5)
        assert r.pool.workers[0].pid is None
        assert r.pool.workers[0].deaths == 0
        c.close()
        kept.close()


async def test_drain_refuses_after_the_grace_and_cuts_at_the_deadline(tmp_path: Path) -> None:
    async def endless(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        await connection.closed_by_peer()

    row = ModelRow(name="cold", activatable=True, hold_timeout_s=9.0, max_held=9)
    async with Upstream(endless) as up, router(tmp_path, up.port, models=[row, ModelRow(name="m")]) as r:
        c, held = await r.client(), await r.client()
        c.post(BODY)
        await c.head()
        assert await c.chunk() == b"data: 1\n\n"
        held.post(b'{"model":"cold"}')
        await r.until(lambda: r.heard.wants)
        draining = asyncio.create_task(r.pool.drain(0.5, grace_s=0.0))
        answer = await held.answer()
        assert (answer.status, answer.one(b"retry-after"), answer.one(b"connection")) == (503, b"1", b"close")
        assert b"router_stopping" in answer.body
        last = await c.chunk()
        assert b"router_stopping" in last
        assert await c.chunk() == b""
        await asyncio.wait_for(draining, 5)
        c.close()
        held.close()


async def test_without_its_supervisor_a_worker_finishes_and_goes(tmp_path: Path) -> None:
    """The channel's end is all a worker sees of a supervisor that was killed."""
    program = """
import asyncio, sys
from llmgw_router.supervisor.workers import PoolConfig, WorkerPool
class Nobody:
    def __getattr__(self, name): return lambda *a: None
async def main():
    config = PoolConfig(workers=1, host="127.0.0.1", port=0, cold_socket="", slot_capacity=4)
    pool = WorkerPool(config, Nobody())
    await pool.start()
    print(pool.addresses[0].port, pool.workers[0].pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    port, pid = (int(word) for word in (await process.stdout.readline()).split())
    process.kill()
    await process.wait()
    pidfd_gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        pass
    else:
        loop.add_reader(fd, pidfd_gone.set)
        await asyncio.wait_for(pidfd_gone.wait(), 5)
        loop.remove_reader(fd)
        os.close(fd)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_worker_leaves_only_at_its_supervisors_word(tmp_path: Path) -> None:
    async with Upstream(answering(json_answer())) as up, router(tmp_path, up.port) as r:
        pid = r.pool.workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        for _ in range(2):
            async with await r.client() as c:
                c.post(BODY)
                assert (await c.answer()).status == 200
        assert r.pool.workers[0].pid == pid


async def test_connections_in_the_queue_are_served_before_the_listener_closes(tmp_path: Path) -> None:
    async with Upstream(answering(json_answer())) as up, router(tmp_path, up.port) as r:
        pid = r.pool.workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        waiting = [await r.client() for _ in range(20)]
        for c in waiting:
            c.post(BODY)
        draining = asyncio.create_task(r.pool.drain(5.0, grace_s=1.0))
        await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGCONT)
        for c in waiting:
            answer = await c.answer()
            assert (answer.status, answer.one(b"connection")) == (200, b"close")
            c.close()
        await asyncio.wait_for(draining, 8)


async def test_access_records(tmp_path: Path) -> None:
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port, access_log=True) as r,
        await r.client() as c,
    ):
        c.post(BODY, path=b"/v1/chat/completions?key=secret", more=b"x-request-id: mine\r\n")
        assert (await c.answer()).status == 200
        c.post(b'{"model":"nope"}')
        assert (await c.answer()).status == 404
        await r.until(lambda: len(r.heard.records) == 2)
    first, second = r.heard.records
    assert (first.request_id, first.method, first.path) == ("mine", "POST", "/v1/chat/completions")
    assert (first.status, first.model, first.endpoint_id, first.code) == (200, "m", "e0@1", None)
    assert (first.bytes_in, first.bytes_out) == (len(BODY), 11)
    assert first.ttft_ms is not None
    assert 0 < first.ttft_ms <= first.duration_ms
    assert (second.status, second.code, second.model, second.endpoint_id) == (
        404,
        "model_not_found",
        None,
        None,
    )
    assert second.ttft_ms is None


async def test_totals_go_on_over_a_workers_death(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(QUICK, sweep_s=0.01)
    async with Upstream(answering(json_answer())) as up, router(tmp_path, up.port, limits=limits) as r:
        async with await r.client() as c:
            c.post(BODY)
            assert (await c.answer()).status == 200
        await r.until(lambda: r.pool.totals()["answers_2xx"] == 1)
        pid = r.pool.workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await r.until(lambda: r.pool.workers[0].serving and r.pool.workers[0].pid != pid)
        async with await r.client() as c:
            c.post(BODY)
            assert (await c.answer()).status == 200
            await r.until(lambda: r.pool.totals()["answers_2xx"] == 2)
            assert r.pool.totals()["connections_open"] == 1


async def test_workers_killed_under_load_cost_only_their_own_connections(tmp_path: Path) -> None:
    async def slowly(connection: Connection) -> None:
        while True:
            await connection.request()
            await asyncio.sleep(0.005)
            await connection.send(json_answer())

    async with Upstream(slowly) as up, router(tmp_path, up.port, workers=3) as r:
        outcomes = {"answered": 0, "lost": 0}
        going = True

        async def caller() -> None:
            while going:
                # The connection too: one that waits in the queue of a worker that dies is reset with it.
                try:
                    async with await r.client() as c:
                        for _ in range(5):
                            c.post(BODY)
                            assert (await c.answer()).status == 200
                            outcomes["answered"] += 1
                except (ConnectionError, asyncio.IncompleteReadError):
                    outcomes["lost"] += 1

        callers = [asyncio.create_task(caller()) for _ in range(8)]
        for round_ in range(6):
            # Also one that has only just come back: twice in a row, and its socket goes with it.
            victim = (0, 1, 1, 1, 2, 0)[round_]
            await r.until(lambda n=victim: r.pool.workers[n].serving)
            pid = r.pool.workers[victim].pid
            assert pid is not None
            answered = outcomes["answered"]
            os.kill(pid, signal.SIGKILL)
            await r.until(lambda n=answered: outcomes["answered"] > n + 20)
        going = False
        await asyncio.wait_for(asyncio.gather(*callers), 20)
        await r.until(lambda: all(worker.serving for worker in r.pool.workers))
        await r.until(r.quiet)
        assert sum(worker.deaths for worker in r.pool.workers) == 6
        # A death costs what its worker was doing: at most what eight callers can have had there.
        assert outcomes["lost"] <= 6 * 8
        assert all(activity.failed == activity.broken == 0 for _, activity in r.pool.activity())
        await r.until(lambda: r.pool.totals()["connections_open"] == 0)
