"""Responses asked for by their ids: at the replica that holds them, from any worker (ADR 0026)."""

import itertools
import json
from pathlib import Path

import pytest

from .ends import dead_port
from .harness import Client, Router, endpoint, router
from .upstream import LAST, SSE_HEAD, Connection, Script, Upstream, chunk, json_answer

#: Each prompt has a place of its own among the replicas.
_numbers = itertools.count()


def engine(name: str, *, holds: frozenset[str] = frozenset()) -> Script:
    """Answers with responses of its own, and knows no others."""
    made = set(holds)

    async def script(connection: Connection) -> None:
        while True:
            seen = await connection.request()
            method, target, _ = seen.line.decode().split(" ")
            path = target.partition("?")[0]
            if path == "/v1/responses":
                wanted = json.loads(seen.body)
                made.add(one := f"resp_{name}{len(made)}")
                event = json.dumps({"type": "response.created", "response": {"id": one}}).encode()
                if wanted.get("stream"):
                    last = b'event: response.completed\ndata: {"type":"response.completed"}\n\n'
                    events = chunk(b"event: response.created\ndata: " + event + b"\n\n") + chunk(last)
                    await connection.send(SSE_HEAD + events + LAST)
                else:
                    await connection.send(json_answer(json.dumps({"id": one, "by": name}).encode()))
            elif path.split("/")[3] in made:
                told = {
                    "id": path.split("/")[3],
                    "by": name,
                    "method": method,
                    "path": path,
                    "bytes": len(seen.body),
                }
                await connection.send(json_answer(json.dumps(told).encode()))
            else:
                error = b'{"error":{"message":"Response not found at %b"}}' % name.encode()
                await connection.send(json_answer(error, status=b"404 Not Found"))

    return script


async def create(c: Client, *, more: bytes = b"", stream: bool = False) -> str:
    asked = b'{"model":"m","input":"hi %d"' % next(_numbers) + (b',"stream":true' if stream else b"") + more
    c.post(asked + b"}", path=b"/v1/responses")
    body = (await c.answer()).body
    return str(
        json.loads(body.split(b"data: ")[1].split(b"\n")[0])["response"]["id"]
        if stream
        else json.loads(body)["id"]
    )


async def ask(r: Router, path: str, method: str = "GET", more: bytes = b"") -> tuple[int, dict[str, object]]:
    async with await r.client() as c:
        c.send(b"%b %b HTTP/1.1\r\nhost: r\r\n%b\r\n" % (method.encode(), path.encode(), more))
        answer = await c.answer()
        return answer.status, json.loads(answer.body)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_whichever_worker_is_asked_the_holder_answers(tmp_path: Path, stream: bool) -> None:
    a, b = Upstream(engine("a")), Upstream(engine("b"))
    async with a, b, router(tmp_path, a.port, b.port, workers=2) as r:
        made: list[str] = []
        while len(made) < 8 or len({one[5] for one in made}) < 2:
            async with await r.client() as c:
                made.append(await create(c, stream=stream))
            assert len(made) < 80
        before = len(a.seen) + len(b.seen)
        for one in made:
            for method, path in (
                ("GET", f"/v1/responses/{one}"),
                ("GET", f"/v1/responses/{one}/input_items?limit=1"),
                ("POST", f"/v1/responses/{one}/cancel"),
                ("DELETE", f"/v1/responses/{one}"),
            ):
                status, told = await ask(r, path, method)
                assert (status, told["by"], told["method"]) == (200, one[5], method)
                assert told["path"] == path.partition("?")[0]
        # Nobody was asked in vain.
        assert len(a.seen) + len(b.seen) == before + 4 * len(made)
        await r.until(r.quiet)


async def test_a_response_that_nobody_remembers_is_asked_for_in_turn(tmp_path: Path) -> None:
    """Made by another router, or before a restart; a replica that is down stops nothing."""
    a, b = Upstream(engine("a")), Upstream(engine("b", holds=frozenset({"resp_old"})))
    async with a, b, router(tmp_path, a.port, b.port) as r:
        for _ in range(6):
            assert (await ask(r, "/v1/responses/resp_old"))[1]["by"] == "b"
        asked = len(a.seen)
        # Once at most: the answer that was found is remembered like one that was made here.
        assert asked <= 1
        status, told = await ask(r, "/v1/responses/resp_none")
        assert (status, list(told)) == (404, ["error"])
        assert (len(a.seen), a.seen[-1].line) == (asked + 1, b"GET /v1/responses/resp_none HTTP/1.1")
        await r.push([endpoint(0, dead_port()), endpoint(1, b.port)])
        for _ in range(4):
            assert (await ask(r, "/v1/responses/resp_old"))[1]["by"] == "b"
        await r.until(r.quiet)


async def test_a_response_goes_on_where_the_one_before_it_is(tmp_path: Path) -> None:
    """previous_response_id: its engine alone has what was said."""
    a, b, d = Upstream(engine("a")), Upstream(engine("b")), Upstream(engine("c"))
    async with a, b, d, router(tmp_path, a.port, b.port, d.port) as r, await r.client() as c:
        for _ in range(3):
            last = await create(c)
            first = last[5]
            for _ in range(6):
                last = await create(c, more=b',"previous_response_id":"%b"' % last.encode())
                assert last[5] == first
        # What is not there, or is no id, decides nothing and is the engine's to judge.
        assert await create(c, more=b',"previous_response_id":"resp_none"')
        assert await create(c, more=b',"previous_response_id":[7]')


async def test_a_holder_that_rests_is_told_as_that_one_alone(tmp_path: Path) -> None:
    """Its engine has asked to be left alone; the others have not, and have nothing to go on with."""

    async def tired(connection: Connection) -> None:
        await connection.request()
        await connection.send(json_answer(b'{"id":"resp_tired","by":"a"}'))
        while True:
            await connection.request()
            head = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 40\r\ncontent-length: 0\r\n\r\n"
            await connection.send(head)

    async with (
        Upstream(tired) as a,
        Upstream(engine("b")) as b,
        router(tmp_path, a.port, b.port) as r,
        await r.client() as c,
    ):
        while await create(c) != "resp_tired":
            pass
        asked = b'{"model":"m","input":"go on","previous_response_id":"resp_tired"}'
        c.post(asked, path=b"/v1/responses")
        await c.answer()
        c.post(asked, path=b"/v1/responses")
        refused = await c.answer()
        assert refused.status == 503
        told = json.loads(refused.body)["error"]["message"]
        assert "The replica that holds what this request goes on with" in told
        assert "Every replica" not in told
        # The others are asked as ever, also by what the worker remembers of the model.
        assert await create(c)


async def test_without_any_replica_there_is_nothing_to_find(tmp_path: Path) -> None:
    async with router(tmp_path) as r:
        status, told = await ask(r, "/v1/responses/resp_1")
        error = told["error"]
        assert isinstance(error, dict)
        assert (status, error["code"], error["type"]) == (404, "response_not_found", "invalid_request_error")


async def test_a_holder_that_is_gone_is_told(tmp_path: Path) -> None:
    """HO08: nobody else has it, so nobody else is asked, and nobody says that there is no such response."""
    a, b = Upstream(engine("a")), Upstream(engine("b"))
    async with a, b, router(tmp_path, a.port) as r, await r.client() as c:
        made = await create(c)
        await r.push([endpoint(0, dead_port()), endpoint(1, b.port)])
        status, told = await ask(r, f"/v1/responses/{made}")
        error = told["error"]
        assert isinstance(error, dict)
        assert (status, error["code"]) == (502, "upstream_unreachable")
        assert b.seen == []
        await r.until(r.quiet)
