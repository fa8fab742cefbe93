"""Limits of the wire are settings that can change at run time, and are what workers are told."""

import re
from pathlib import Path

import pytest

from llmgw_kit.errors import StartupError
from llmgw_kit.settings import load
from llmgw_router.core.config import Limits
from llmgw_router.core.errors import CODES
from llmgw_router.reload import WHILE_RUNNING
from llmgw_router.serving import stop_note
from llmgw_router.settings import RouterSettings

DOCS = Path(__file__).parents[3] / "docs"
LIMITS = (
    "request_head_s",
    "request_body_idle_s",
    "keepalive_s",
    "upstream_idle_s",
    "max_head_bytes",
    "max_body_bytes",
)


def made(**flags: object) -> RouterSettings:
    return load(RouterSettings, config=None, flags=flags)


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_of_the_wire_is_a_setting_with_the_default_of_the_core_w54_w55(name: str) -> None:
    assert getattr(made(), name) == getattr(Limits(), name)
    assert getattr(made(**{name: 4321}).worker_config().limits, name) == 4321
    assert name in WHILE_RUNNING
    with pytest.raises(StartupError, match=name.replace("_", "-")):
        made(**{name: 0})


def test_the_wire_page_names_the_settings_and_what_is_none() -> None:
    page = (DOCS / "router-wire.md").read_text()
    assert all(f"`{name}`" in page for name in LIMITS)


def test_the_metrics_page_lists_every_code_of_a_refusal() -> None:
    page = (DOCS / "metrics.md").read_text()
    listed = page.partition("`llmgw_router_refusals_total{code}` has ")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(CODES)


def test_a_stop_without_a_delay_is_told_at_the_start() -> None:
    said = stop_note(made())
    assert said is not None
    assert "unready_s" in said
    assert "Kubernetes" in said
    assert stop_note(made(unready_s=5.0)) is None
