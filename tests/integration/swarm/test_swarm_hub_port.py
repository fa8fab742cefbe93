"""The node's loopback port: stock clients that know no certificate, before a mirror that wants one."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from llmgw_agent.adapters.fetching import FetchLimits, Weights
from llmgw_agent.adapters.fetching_pieces import InPieces
from llmgw_agent.adapters.mirror_edges import Edges, in_pieces, open_edges, serve_edges
from llmgw_agent.adapters.piece_client import PieceClient
from llmgw_agent.adapters.weights_store import WeightsStore
from llmgw_agent.core.weights import WeightsKey
from llmgw_agent.settings import AgentSettings
from llmgw_kit.clock import SystemClock
from llmgw_kit.errors import LlmgwError, StartupError
from llmgw_kit.testing.authority import Authority
from llmgw_kit.tls import server_context
from tests.integration.mirror.hub_programs import HubClient
from tests.integration.mirror.hub_served import COMMIT, FILES, HASHES, Answer, Served
from tests.integration.mirror.scripted import Upstream, upstream
from tests.integration.mirror.world import listening, world

pytestmark = pytest.mark.timeout(300)
WEIGHTS = "sub/deeper/weights.bin"
FILE = f"/org/m/resolve/{COMMIT}/{WEIGHTS}"


@dataclass
class Port:
    """An agent's own parts around the port."""

    served: Served
    edges: Edges
    weights: Weights
    base: str
    mirror: str

    async def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        url = URL(self.base + path, encoded=True)
        async with aiohttp.request(method, url, headers=given, allow_redirects=False) as answer:
            return Answer(answer.status, answer.headers, await answer.read())

    async def fetch(self) -> None:
        await self.weights.fetch(WeightsKey("org/m", COMMIT), (self.mirror,), lambda _: None)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def settings(authority: Authority, folder: Path, mirror: str, **more: object) -> AgentSettings:
    shown = authority.sign("node")
    return AgentSettings.model_validate(
        {
            "data_dir": folder, "mirror": mirror, "hub_listen": "127.0.0.1:0",
            "mirror_tls_ca": authority.cert, "mirror_tls_cert": shown.cert, "mirror_tls_key": shown.key,
            **more,
        }
    )  # fmt: skip


async def opened(stack: AsyncExitStack, given: AgentSettings) -> tuple[Edges, Weights, InPieces]:
    """As serving.py composes it, without engines."""
    clock, store = SystemClock(), WeightsStore(given.data_dir / "weights")
    edges = await open_edges(given, stack)
    pieces, sharing = in_pieces(given, edges, clock, "127.0.0.1")
    stack.push_async_callback(pieces.close)
    await serve_edges(given, edges, sharing, store, stack)
    limits = FetchLimits(reserve_bytes=0)
    return edges, Weights(store, edges.client(), clock, limits, given.mirrors, pieces), pieces


@pytest.fixture
async def hub() -> AsyncIterator[Upstream]:
    async with upstream() as made:
        yield made


@pytest.fixture
async def port(tmp_path: Path, hub: Upstream, authority: Authority) -> AsyncIterator[Port]:
    tls = server_context(authority.sign("mirror").trusting(authority.cert), what="the mirror")
    asked: list[str] = []
    async with (
        world(tmp_path / "store") as here,
        listening(here, tls=tls, asked=asked) as at,
        AsyncExitStack() as stack,
    ):
        served = Served(here, hub, at, tmp_path, asked)
        await served.have()
        mirror = f"https://{at}"
        edges, weights, _ = await opened(stack, settings(authority, tmp_path / "node", mirror))
        base = f"http://127.0.0.1:{edges.hub_sockets[0].getsockname()[1]}"
        yield Port(served, edges, weights, base, mirror)


@pytest.mark.parametrize("generation", [2, 1, 0])
async def test_a_stock_client_gets_every_byte_through_the_port(port: Port, generation: int) -> None:
    client = HubClient(generation, port.base, port.served.folder / f"home{generation}")
    got = await client.act("snapshot", repo="org/m")
    assert (got["commit"], got["files"]) == (COMMIT, HASHES)


async def test_a_stock_client_gets_weights_from_this_nodes_disk(port: Port) -> None:
    await port.fetch()
    before = port.served.here.answers
    assert before is not None
    sent = before.served.bytes
    client = HubClient(2, port.base, port.served.folder / "home")
    got = await client.act("snapshot", repo="org/m")
    assert got["files"] == HASHES
    weights = sum(len(data) for path, data in FILES.items() if path.endswith((".bin", ".safetensors")))
    assert before.served.bytes - sent <= sum(map(len, FILES.values())) - weights


async def test_without_a_certificate_the_mirror_answers_nobody(port: Port) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session:
        with pytest.raises(aiohttp.ClientError):
            async with session.get(port.mirror + FILE) as answer:
                await answer.read()


async def test_heads_ranges_and_lengths_are_as_the_mirrors(port: Port) -> None:
    whole = FILES[WEIGHTS]
    for own in (False, True):
        if own:
            await port.fetch()
        head = await port.ask(FILE, "HEAD")
        assert (head.status, head.headers["Content-Length"]) == (200, str(len(whole)))
        assert head.headers["X-Repo-Commit"] == COMMIT
        got = await port.ask(FILE)
        assert (got.status, got.body) == (200, whole)
        assert got.headers["X-Repo-Commit"] == COMMIT
        assert got.headers["ETag"] == f'"{HASHES[WEIGHTS]}"'
        ranges = {"5-9": whole[5:10], "100-": whole[100:], "-7": whole[-7:], "5-99999999": whole[5:]}
        for asked, wanted in ranges.items():
            part = await port.ask(FILE, Range=f"bytes={asked}")
            assert (part.status, part.body) == (206, wanted), (own, asked)
            assert part.headers["Content-Range"].endswith(f"/{len(whole)}")
        beyond = await port.ask(FILE, Range=f"bytes={len(whole)}-")
        assert (beyond.status, beyond.headers["Content-Range"]) == (416, f"bytes */{len(whole)}")
        stale = await port.ask(FILE, Range="bytes=5-9", If_Range='"other"')
        assert (stale.status, stale.body) == (200, whole)
        same = await port.ask(FILE, If_None_Match=f'"{HASHES[WEIGHTS]}"')
        assert same.status == 304
        missing = await port.ask(f"/org/m/resolve/{COMMIT}/none.bin", "HEAD")
        assert (missing.status, missing.code) == (404, "EntryNotFound")


async def test_what_this_node_holds_costs_the_mirror_a_head_once(port: Port) -> None:
    await port.fetch()
    port.served.asked.clear()
    for _ in range(3):
        assert (await port.ask(FILE)).body == FILES[WEIGHTS]
    assert port.served.asked == [FILE]


async def test_a_file_that_changed_on_this_disk_is_asked_of_the_mirror(port: Port) -> None:
    await port.fetch()
    victim = port.weights.store.folder(WeightsKey("org/m", COMMIT)) / "files" / WEIGHTS
    victim.write_bytes(b"\0" * len(FILES[WEIGHTS]))
    assert (await port.ask(FILE)).body == FILES[WEIGHTS]


async def test_no_credential_of_a_client_reaches_the_mirror(port: Port) -> None:
    answer = await port.ask("/api/whoami-v2", Authorization="Bearer hf_secret", Cookie="a=b")
    bare = await port.ask("/api/whoami-v2")
    assert (answer.status, answer.body) == (bare.status, bare.body)


async def test_links_to_further_pages_lead_back_through_the_port(port: Port) -> None:
    for n in range(3):
        await port.served.have({"w.bin": bytes([n])}, repo=f"org/more{n}", commit=f"{n}" * 40)
    page = await port.ask("/api/models?limit=1")
    assert page.headers["Link"].startswith(f"<{port.base}/api/models?")


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/api/models"), ("GET", "/v1/weights/a/b"), ("GET", "/")]
)
async def test_nothing_but_the_hubs_protocol_passes(port: Port, method: str, path: str) -> None:
    port.served.asked.clear()
    assert (await port.ask(path, method)).status == 404
    assert port.served.asked == []


async def test_a_mirror_that_is_away_is_told_and_to_be_asked_again(
    tmp_path: Path, authority: Authority
) -> None:
    async with AsyncExitStack() as stack:
        edges, _, _ = await opened(stack, settings(authority, tmp_path, "https://127.0.0.1:9"))
        url = f"http://127.0.0.1:{edges.hub_sockets[0].getsockname()[1]}{FILE}"
        for method in ("HEAD", "GET"):
            async with aiohttp.request(method, url) as answer:
                assert answer.status == 503
                assert answer.headers["Retry-After"] == "5"
                assert "does not answer" in answer.headers["X-Error-Message"]


async def test_nodes_share_under_the_certificates_of_their_mirror(port: Port, authority: Authority) -> None:
    async with AsyncExitStack() as stack:
        giving = settings(authority, port.served.folder / "gives", port.mirror, peer_listen="127.0.0.1:0")
        edges, first, _ = await opened(stack, giving)
        _, second, taken = await opened(stack, settings(authority, port.served.folder / "takes", port.mirror))
        key = WeightsKey("org/m", COMMIT)
        await first.fetch(key, (port.mirror,), lambda _: None)
        knows = PieceClient(edges.mirrors, edges.peers)
        count = len(FILES) - 1  # one piece each, the empty file none
        async with asyncio.timeout(20):
            while (1 << count) - 1 not in (await knows.speak(port.mirror, key, None, 0, count)).have.values():
                await asyncio.sleep(0.02)
        await second.fetch(key, (port.mirror,), lambda _: None)
        assert taken.from_peers > 0
        # A stranger without a certificate gets nothing.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        at = f"https://127.0.0.1:{edges.peer_sockets[0].getsockname()[1]}/v1/peers/org%2Fm/{COMMIT}"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as stranger:
            with pytest.raises(aiohttp.ClientError):
                async with stranger.get(URL(at, encoded=True)) as answer:
                    await answer.read()
        async with edges.peers.get(URL(at, encoded=True)) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("missing", ["mirror_tls_ca", "mirror_tls_cert", "mirror_tls_key"])
async def test_m24_tls_files_that_cannot_be_used_stop_the_start(
    tmp_path: Path, authority: Authority, missing: str
) -> None:
    given = settings(authority, tmp_path, "https://mirror.test:8071", **{missing: tmp_path / "absent.pem"})
    async with AsyncExitStack() as stack:
        with pytest.raises(StartupError, match=r"absent\.pem"):
            await open_edges(given, stack)


def test_the_port_is_for_this_machine_and_needs_a_mirror() -> None:
    with pytest.raises((ValueError, LlmgwError), match="not of this machine alone"):
        AgentSettings.model_validate({"hub_listen": "0.0.0.0:8072", "mirror": "http://mirror.test:1"})
    with pytest.raises((ValueError, LlmgwError), match="set mirror too"):
        AgentSettings.model_validate({"hub_listen": "127.0.0.1:8072"})
