"""Browsers (W48): off, OPTIONS is a 405; on, a page of an allowed origin may ask and read."""

from pathlib import Path

from llmgw_router.core.config import WorkerConfig
from llmgw_router.core.keys import KeyRow, digest_of

from .harness import BODY, QUICK, Answer, Router, router
from .surface import EACH, path_of
from .upstream import LAST, SSE_HEAD, Upstream, answering, chunk, json_answer

PAGE = b"origin: https://app.example\r\n"
KEY = b"sk-llmgw-of-a-test-x"
ON = WorkerConfig(
    limits=QUICK, cors_origins=("https://app.example", "http://localhost:3000"), keys_required=True
)
ALLOW = b"access-control-allow-origin"


async def preflight(r: Router, path: bytes, origin: bytes = PAGE) -> Answer:
    async with await r.client() as c:
        c.send(
            b"OPTIONS %b HTTP/1.1\r\nhost: r\r\n%baccess-control-request-method: POST\r\n"
            b"access-control-request-headers: authorization,content-type\r\n\r\n" % (path, origin)
        )
        return await c.answer()


def let_in(r: Router) -> None:
    r.pool.push_keys([KeyRow(digest=digest_of(KEY), key_id="k1")], whole=True)


async def test_off_nothing_is_answered_and_nothing_allowed(tmp_path: Path) -> None:
    engine = json_answer(more=b"access-control-allow-origin: *\r\naccess-control-allow-credentials: true\r\n")
    async with Upstream(answering(engine)) as up, router(tmp_path, up.port) as r:
        refused = await preflight(r, b"/v1/chat/completions")
        assert (refused.status, refused.one(b"allow"), refused.all(ALLOW)) == (405, b"POST", [])
        async with await r.client() as c:
            c.post(BODY, more=PAGE)
            answer = await c.answer()
            assert answer.status == 200
            # An engine speaks for itself, not for the router that asks for keys.
            assert not [name for name, _ in answer.headers if name.lower().startswith(b"access-control")]


async def test_on_a_question_is_answered_without_a_key(tmp_path: Path) -> None:
    async with Upstream(answering(json_answer())) as up, router(tmp_path, up.port, config=ON) as r:
        let_in(r)
        for route, _ in EACH:
            answer = await preflight(r, path_of(route))
            assert (answer.status, answer.one(ALLOW)) == (204, b"https://app.example")
            assert answer.one(b"access-control-allow-methods") == b", ".join(route.methods)
            assert answer.one(b"access-control-allow-headers") == b"authorization,content-type"
            assert answer.one(b"vary") == b"origin"
            assert answer.one(b"x-request-id")
        assert (await preflight(r, b"/v1/models")).one(b"access-control-allow-methods") == b"GET, HEAD"
        assert up.seen == []


async def test_on_answers_may_be_read_by_allowed_pages_only(tmp_path: Path) -> None:
    stream = SSE_HEAD + chunk(b"data: [DONE]\n\n") + LAST
    async with Upstream(answering(stream)) as up, router(tmp_path, up.port, config=ON) as r:
        let_in(r)
        bearer = b"authorization: Bearer " + KEY + b"\r\n"
        for more, status, allowed in (
            (PAGE + bearer, 200, [b"https://app.example"]),
            (PAGE, 401, [b"https://app.example"]),
            (b"origin: https://evil.example\r\n" + bearer, 200, []),
            (bearer, 200, []),
        ):
            async with await r.client() as c:
                c.post(BODY, more=more)
                answer = await c.answer()
                assert (answer.status, answer.all(ALLOW)) == (status, allowed)
                if allowed:
                    exposed = answer.one(b"access-control-expose-headers")
                    for name in (b"x-request-id", b"retry-after", b"x-ratelimit-remaining-tokens"):
                        assert name in exposed
        refused = await preflight(r, b"/v1/embeddings", b"origin: https://evil.example\r\n")
        assert (refused.status, refused.all(ALLOW)) == (405, [])


async def test_any_origin_is_a_star_and_other_pages_of_ours_are_never_shared(tmp_path: Path) -> None:
    cold = Upstream(answering(json_answer()))
    cold.path = str(tmp_path / "cold.sock")
    config = WorkerConfig(limits=QUICK, cors_origins=("*",))
    async with cold, router(tmp_path, config=config) as r, await r.client() as c:
        for path, allowed in (
            (b"/v1/models", [b"*"]),
            (b"/v1/models/a%2Fb", [b"*"]),
            (b"/login", []),
            (b"/v1x", []),
        ):
            c.send(b"GET %b HTTP/1.1\r\nhost: r\r\n%b\r\n" % (path, PAGE))
            answer = await c.answer()
            assert (answer.status, answer.all(ALLOW)) == (200, allowed)
        assert (await preflight(r, b"/login")).all(ALLOW) == []
