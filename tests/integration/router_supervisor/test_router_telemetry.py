"""Metrics against their page, and spans at a collector: both as somebody outside sees them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client.parser import text_string_to_metric_families

from llmgw_kit.testing.processes import Cage
from tests import metrics_page

from .process import ask, call, chat, engine, get, metric_at_least, running
from .routing_bench import until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def test_every_name_on_the_scrape_is_on_its_page_and_the_other_way_round(
    cage: Cage, tmp_path: Path
) -> None:
    async with (
        engine(cage, tmp_path, "m") as url,
        running(cage, tmp_path, "--endpoint", f"a={url}=m") as router,
    ):
        await router.ready()
        assert (await ask(router, "m")).status == 200
        await metric_at_least(
            router.admin_url, 'llmgw_router_model_requests_total{code_class="2xx",model="m"}', 1
        )
        text = (await get(f"{router.admin_url}/metrics")).body.decode()
    families = {one.name: one for one in text_string_to_metric_families(text)}
    written = metrics_page.written("router")
    assert metrics_page.scraped(text) - written == set()
    # Said only by a controller, by Redis, by a database, where usage is recorded, or while tracing is on.
    elsewhere = {name for name in written if name.startswith("llmgw_fleet_")} | {
        "llmgw_router_routes_term",
        "llmgw_router_routes_version",
        "llmgw_router_routes_age_seconds",
        "llmgw_router_controller_followed",
        "llmgw_router_activity_failures_total",
        "llmgw_router_activity_age_seconds",
        "llmgw_router_mirror_reachable",
        "llmgw_router_spans_total",
        "llmgw_router_api_keys",
        "llmgw_router_api_keys_age_seconds",
        "llmgw_router_tokens_total",
        "llmgw_router_model_tokens_total",
        "llmgw_router_usage_requests_total",
        "llmgw_router_usage_lines_lost_total",
        "llmgw_router_usage_records_total",
        "llmgw_router_usage_sink_silent_seconds",
    }
    assert written - metrics_page.scraped(text) == elsewhere
    for one in families.values():
        if one.type == "histogram" and one.name.startswith("llmgw_"):
            counts = [sample.value for sample in one.samples if sample.name.endswith("_bucket")]
            assert counts == sorted(counts)
            assert one.documentation


@dataclass
class Collector:
    """Takes what OTLP/HTTP brings; says what a script tells it to, and 200 after that."""

    says: list[int] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    async def traces(self, request: web.Request) -> web.Response:
        status = self.says.pop(0) if self.says else 200
        if status == 200:
            self.bodies.append(await request.json())
            self.headers.append(dict(request.headers))
        return web.json_response({}, status=status)

    @property
    def spans(self) -> list[dict[str, Any]]:
        return [
            span
            for body in self.bodies
            for resource in body["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@asynccontextmanager
async def serving(path: str, handler: Handler) -> AsyncIterator[str]:
    """One POST route on loopback; gives its base URL."""
    app = web.Application()
    app.router.add_post(path, handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def collector(*says: int) -> AsyncIterator[Collector]:
    made = Collector(says=list(says))
    async with serving("/v1/traces", made.traces) as made.url:
        yield made


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


@dataclass
class Engine:
    """Streams three events to everybody, and remembers with which headers it was asked."""

    seen: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.seen.append({name.lower(): value for name, value in request.headers.items()})
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        for text in (b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n"):
            await answer.write(text)
            await asyncio.sleep(0.02)
        return answer


@asynccontextmanager
async def scripted() -> AsyncIterator[Engine]:
    made = Engine()
    async with serving("/v1/chat/completions", made.chat) as made.url:
        yield made


async def test_a_sampled_request_is_one_trace_from_its_caller_through_us_to_the_engine(
    cage: Cage, tmp_path: Path
) -> None:
    """W49: the context goes on; spans and the engine's header name the same ids; a collector that is away
    for a moment has lost nothing."""
    config = tmp_path / "router.yaml"
    async with scripted() as up, collector(503, 200) as there:
        config.write_text(
            yaml.safe_dump(
                {
                    "endpoints": [f"a={up.url}=m"],
                    "tracing": {"endpoint": there.url, "ratio": 0.0, "headers": {"x-token": "s3cret"}},
                }
            )
        )
        async with running(cage, tmp_path, "--config", str(config)) as router:
            await router.ready()
            url = f"{router.url}/v1/chat/completions"
            body = chat("m", stream=True)
            for flags, more in (("00", {}), ("01", {"tracestate": "v=1"})):
                headers = {"traceparent": f"00-{TRACE}-{SPAN}-{flags}", "x-request-id": f"r{flags}", **more}
                assert (await call("POST", url, body=body, headers=headers)).status == 200
            assert (await call("POST", url, body=body)).status == 200
            await until(lambda: bool(there.spans), "spans at the collector")
            assert "s3cret" not in json.dumps((await get(f"{router.admin_url}/admin/config")).json)
            await metric_at_least(router.admin_url, 'llmgw_router_spans_total{result="exported"}', 2)
            await metric_at_least(router.admin_url, "llmgw_router_traces_sampled_total", 1)
    unsampled, sampled, without = up.seen
    assert unsampled["traceparent"] == f"00-{TRACE}-{SPAN}-00"
    assert "traceparent" not in without
    assert sampled["tracestate"] == "v=1"
    root, below = there.spans
    assert (root["traceId"], root["parentSpanId"], root["kind"]) == (TRACE, SPAN, 2)
    assert (below["traceId"], below["parentSpanId"], below["kind"]) == (TRACE, root["spanId"], 3)
    assert sampled["traceparent"] == f"00-{TRACE}-{below['spanId']}-01"
    assert root["name"] == "chat m"
    told = attributes(root)
    assert (told["gen_ai.operation.name"], told["gen_ai.request.model"]) == ("chat", "m")
    assert (told["http.response.status_code"], told["llmgw.request.id"]) == ("200", "r01")
    assert [one["name"] for one in root["events"]] == ["first_byte"]
    assert int(root["startTimeUnixNano"]) <= int(below["startTimeUnixNano"]) < int(below["endTimeUnixNano"])
    assert there.headers[0]["x-token"] == "s3cret"
    assert "status" not in root


async def test_tracing_off_passes_a_context_as_it_came(cage: Cage, tmp_path: Path) -> None:
    async with (
        scripted() as up,
        running(cage, tmp_path, "--endpoint", f"a={up.url}=m") as router,
    ):
        await router.ready()
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "v=1"}
        url = f"{router.url}/v1/chat/completions"
        assert (await call("POST", url, body=chat("m", stream=True), headers=headers)).status == 200
    assert up.seen[0]["traceparent"] == headers["traceparent"]
    assert up.seen[0]["tracestate"] == "v=1"
