"""docs/router-wire.md is a promise to clients: it knows every code we can utter, with its status."""

import re
from pathlib import Path

from llmgw_router.core.config import Limits, RoutingProfile
from llmgw_router.core.errors import KINDS, WRITE_STALL
from llmgw_router.core.routes import ROUTES

PAGE = (Path(__file__).parents[3] / "docs" / "router-wire.md").read_text()
ROWS = {(int(status), code) for status, code in re.findall(r"^\| (\d{3}) \| `(\w+)` \|", PAGE, re.MULTILINE)}


def test_every_route_is_on_the_page() -> None:
    table = PAGE.partition("## What is served")[2].partition("\n- ")[0]
    assert {route.path.decode() for route in ROUTES} == {
        path for path in re.findall(r"`(/[^` ]*)`", table) if not path.startswith("/v1/models")
    }


def test_every_refusal_is_on_the_page() -> None:
    in_band = {"stream_interrupted", "stream_idle_timeout"}
    said = {(kind.status, kind.code or "null") for kind in KINDS if kind is not WRITE_STALL}
    assert {row for row in said if row[1] not in in_band} == ROWS
    for code in (*in_band, WRITE_STALL.label):
        assert f"`{code}`" in PAGE


def test_the_limits_on_the_page_are_the_defaults() -> None:
    limits, profile = Limits(), RoutingProfile()
    assert f"head took over {limits.request_head_s:g} s" in PAGE
    assert f"({limits.max_body_bytes >> 20} MiB)" in PAGE
    assert f"head over {limits.max_head_bytes >> 10} KiB" in PAGE
    assert f"connecting took over {profile.connect_s:g} s" in PAGE
    assert profile.first_byte_s == 600
    assert profile.idle_s == profile.write_stall_s == 120
    assert profile.total_s == 3600
    assert f"closed after {limits.keepalive_s:g} s without a request" in PAGE
