"""The page of metrics, held against what a program shows: every name on the one is on the other."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"


def written(service: str) -> set[str]:
    """Names in the part of the page about this service."""
    _, _, part = PAGE.read_text().partition(f"# Metrics of the {service}\n")
    assert part, f"the page has no part about the {service}"
    return set(re.findall(r"`(llmgw_[a-z_]+)(?:\{[a-z_,]+\})?`", part.partition("\n# ")[0]))


def scraped(text: str) -> set[str]:
    """Names of a scrape, those of counters with their `_total`. Each series says what it is. When a counter
    began (`_created`) is the library's to tell."""
    ours = [one for one in text_string_to_metric_families(text) if one.name.startswith("llmgw_")]
    assert all(one.documentation for one in ours)
    names = {f"{one.name}_total" if one.type == "counter" else one.name for one in ours}
    return {name for name in names if not name.endswith("_created")}
