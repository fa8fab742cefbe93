"""Engines behind TLS: verified, by an authority of our own; and what is said of one that fails that."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from llmgw_kit.errors import StartupError
from llmgw_router.adapters.probe import HttpProbe
from llmgw_router.core.config import UpstreamTls, WorkerConfig
from llmgw_router.relay.ipc import EndpointRow
from llmgw_router.settings_edges import check_origins, check_tls

from .authority import Authority, Pair, TlsUpstream
from .harness import BODY, QUICK, STEP_S, endpoint, router
from .upstream import SSE_HEAD, Connection, Script, answering, chunk, json_answer

HERE = "IP:127.0.0.1,DNS:engine.example"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def engine(pair: Pair, script: Script | None = None) -> TlsUpstream:
    made = TlsUpstream(script or answering(json_answer()))
    made.pair = pair
    return made


def row(port: int, **more: object) -> EndpointRow:
    return msgspec.structs.replace(endpoint(0, port), tls=True, **more)


def trusting(ca: Path | None, **more: str) -> WorkerConfig:
    return WorkerConfig(limits=QUICK, upstream_tls=UpstreamTls(ca=str(ca) if ca else None, **more))


async def test_a_verified_engine_answers_and_its_connection_is_kept(tmp_path: Path, ca: Authority) -> None:
    up = engine(ca.sign("good", names=HERE))
    async with up, router(tmp_path, config=trusting(ca.cert)) as r:
        await r.push([row(up.port)])
        async with await r.client() as c:
            for _ in range(5):
                c.post(BODY)
                assert (await c.answer()).body == b'{"ok":true}'
    assert up.connections == 1
    assert up.seen[0].one(b"host") == b"127.0.0.1:%d" % up.port


async def test_a_stream_comes_through_as_it_is_and_ends_when_the_client_leaves(
    tmp_path: Path, ca: Authority
) -> None:
    """W18, W31 over TLS."""
    gone: list[float] = []

    async def streaming(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        gone.append(await connection.closed_by_peer())

    up = engine(ca.sign("stream", names=HERE), streaming)
    async with up, router(tmp_path, config=trusting(ca.cert)) as r:
        await r.push([row(up.port)])
        async with await r.client() as c:
            c.post(BODY)
            await c.head()
            assert await c.chunk() == b"data: 1\n\n"
            left = asyncio.get_running_loop().time()
        await r.until(lambda: gone)
        # Far below every deadline that would end it otherwise, and far above what a busy machine takes.
        assert gone[0] - left < 5.0
        await r.until(r.quiet)


async def test_a_stream_that_dies_is_told(tmp_path: Path, ca: Authority) -> None:
    """W24 over TLS."""

    async def dying(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        await asyncio.sleep(0.03)
        connection.fin()

    up = engine(ca.sign("dies", names=HERE), dying)
    async with up, router(tmp_path, config=trusting(ca.cert)) as r, await r.client() as c:
        await r.push([row(up.port)])
        c.post(BODY)
        assert b"stream_interrupted" in (await c.answer()).body


async def test_a_certificate_that_is_not_accepted_is_named(tmp_path: Path, ca: Authority) -> None:
    """W13: unreachable, with the reason; and not a byte of the request has gone there."""
    other = Authority(tmp_path / "other", "other")
    cases = {
        "unable to get local issuer certificate": (other.sign("alien", names=HERE), {}),
        "certificate has expired": (ca.sign("over", names=HERE, days="-1"), {}),
        "IP address mismatch, certificate is not valid for '127.0.0.1'": (
            ca.sign("named", names="DNS:x"),
            {},
        ),
        "Hostname mismatch, certificate is not valid for 'engine.example'": (
            ca.sign("elsewhere", names="IP:127.0.0.1"),
            {"tls_name": "engine.example"},
        ),
    }
    for reason, (pair, more) in cases.items():
        up = engine(pair)
        async with up, router(tmp_path, config=trusting(ca.cert)) as r, await r.client() as c:
            await r.push([row(up.port, **more)])
            c.post(BODY)
            answer = await c.answer()
            error = json.loads(answer.body)["error"]
            assert (answer.status, error["code"]) == (502, "upstream_unreachable")
            assert f"its certificate is not accepted: {reason}" in error["message"]
        assert up.seen == []


async def test_the_systems_authorities_do_not_know_ours(tmp_path: Path, ca: Authority) -> None:
    up = engine(ca.sign("unknown", names=HERE))
    async with up, router(tmp_path, config=trusting(None)) as r, await r.client() as c:
        await r.push([row(up.port)])
        c.post(BODY)
        assert (await c.answer()).status == 502
        # An authority of this one endpoint is enough, and takes effect with the table.
        await r.push([row(up.port, tls_ca=str(ca.cert), tls_name="engine.example")])
        async with asyncio.timeout(20):
            while True:
                c.post(BODY)
                if (await c.answer()).status == 200:
                    break
                await asyncio.sleep(0.1)


async def test_plain_http_where_tls_is_spoken_and_the_other_way(tmp_path: Path, ca: Authority) -> None:
    up = engine(ca.sign("mixed", names=HERE))
    async with up, router(tmp_path, config=trusting(ca.cert)) as r, await r.client() as c:
        await r.push([msgspec.structs.replace(row(up.port), tls=False)])
        c.post(BODY)
        assert (await c.answer()).status == 502
    assert up.seen == []


async def test_a_certificate_of_ours_is_shown_where_one_is_asked_for(tmp_path: Path, ca: Authority) -> None:
    own = ca.sign("router", names="DNS:router.example")
    up = engine(ca.sign("asking", names=HERE))
    up.asks_for = ca.cert
    async with up:
        config = trusting(ca.cert, cert=str(own.cert), key=str(own.key))
        async with router(tmp_path, config=config) as r, await r.client() as c:
            await r.push([row(up.port)])
            c.post(BODY)
            assert (await c.answer()).status == 200
        async with router(tmp_path, config=trusting(ca.cert)) as r, await r.client() as c:
            await r.push([row(up.port)])
            c.post(BODY)
            answer = await c.answer()
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "upstream_unreachable")
    assert len(up.seen) == 1


async def test_a_file_of_authorities_that_was_replaced_counts_from_the_next_reload(
    tmp_path: Path, ca: Authority
) -> None:
    """No setting differs: the same configuration is put in force again."""
    file = tmp_path / "ca.pem"
    file.write_bytes(Authority(tmp_path / "old", "old").cert.read_bytes())
    up = engine(ca.sign("renewed", names=HERE))
    config = trusting(file)
    async with up, router(tmp_path, config=config) as r, await r.client() as c:
        await r.push([row(up.port)])
        c.post(BODY)
        assert (await c.answer()).status == 502
        file.write_bytes(ca.cert.read_bytes())
        r.pool.reconfigure(config)
        async with asyncio.timeout(STEP_S):
            # Until the endpoint's rest after its failure is over.
            while True:
                c.post(BODY)
                if (await c.answer()).status == 200:
                    break


async def test_health_checks_trust_what_requests_trust(tmp_path: Path, ca: Authority) -> None:
    """An engine that is only asked whether it lives is verified too, by what a reload may have changed."""
    up = engine(ca.sign("health", names=HERE))
    async with up:
        plain, known = row(up.port), row(up.port, tls_ca=str(ca.cert), tls_name="engine.example")
        assert await HttpProbe().alive([plain]) == frozenset()
        assert await HttpProbe().alive([known]) == {known.endpoint_id}
        trusted = [UpstreamTls()]
        probe = HttpProbe(lambda: trusted[0])
        assert await probe.alive([plain]) == frozenset()
        trusted[0] = UpstreamTls(ca=str(ca.cert))
        assert await probe.alive([plain]) == {plain.endpoint_id}
        # The same name, and another authority behind it since.
        file = tmp_path / "ca.pem"
        file.write_bytes(Authority(tmp_path / "other", "other").cert.read_bytes())
        trusted[0] = UpstreamTls(ca=str(file))
        assert await probe.alive([plain]) == frozenset()
        file.write_bytes(ca.cert.read_bytes())
        assert await probe.alive([plain]) == frozenset()
        trusted[0] = UpstreamTls(ca=str(file))
        assert await probe.alive([plain]) == {plain.endpoint_id}
    assert {seen.line for seen in up.seen} == {b"GET /health HTTP/1.1"}


def test_files_that_cannot_be_used_are_told_at_start(tmp_path: Path, ca: Authority) -> None:
    pair = ca.sign("files", names=HERE)
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("-----BEGIN NOTHING-----\n")
    missing = str(tmp_path / "missing.pem")
    check_tls(UpstreamTls(ca=str(ca.cert), cert=str(pair.cert), key=str(pair.key)), [str(ca.cert)])
    check_tls(UpstreamTls(), [])
    for tls, of_endpoints, said in (
        (UpstreamTls(ca=missing), [], "missing.pem"),
        (UpstreamTls(ca=str(garbage)), [], "garbage.pem"),
        (UpstreamTls(), [missing], "missing.pem"),
        (UpstreamTls(key=str(pair.key)), [], "without upstream_cert"),
        (UpstreamTls(cert=str(pair.cert), key=str(garbage)), [], "garbage.pem"),
        (UpstreamTls(cert=str(ca.cert), key=str(pair.key)), [], "KEY_VALUES_MISMATCH"),
    ):
        with pytest.raises(StartupError) as refused:
            check_tls(tls, of_endpoints)
        assert said in refused.value.text


def test_origins_are_origins() -> None:
    check_origins(["*", "https://app.example", "http://localhost:3000"])
    for one in ("app.example", "https://app.example/", "https://app.example/x", "", "https://a b"):
        with pytest.raises(StartupError, match="no origin"):
            check_origins([one])
