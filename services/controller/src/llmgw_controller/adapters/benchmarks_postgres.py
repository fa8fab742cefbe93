"""Benchmark runs in Postgres: a run is one JSON document beside the columns it is looked for by."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from llmgw_controller.core.benchmarks import BenchmarkPoint, BenchmarkRun, Percentiles
from llmgw_controller.ports import BENCHMARKS_KEPT

#: Names of the document's form; another form is another number, and rows of unknown forms are left out.
FORM = 1

_INSERT = """
INSERT INTO benchmark_runs (model, profile, gpu_class, at, run)
VALUES ($1, $2, $3, to_timestamp($4), $5::jsonb) RETURNING run_id
"""

#: Of each model, profile and class the newest stay.
_PRUNE = f"""
DELETE FROM benchmark_runs WHERE run_id IN (
    SELECT run_id FROM benchmark_runs WHERE model = $1 AND profile = $2 AND gpu_class = $3
     ORDER BY at DESC, run_id DESC OFFSET {BENCHMARKS_KEPT})
"""

_SELECT = """
SELECT run_id, extract(epoch FROM at)::float8 AS at, run FROM benchmark_runs
 WHERE $1::text IS NULL OR model = $1 ORDER BY at DESC, run_id DESC
"""


async def put(connection: Any, run: BenchmarkRun) -> int:
    """Insert a run and forget what it is one too many of; its number."""
    named = (run.model, run.profile, run.gpu_class)
    run_id: int = await connection.fetchval(_INSERT, *named, run.at, json.dumps(to_document(run)))
    await connection.execute(_PRUNE, *named)
    return run_id


async def load(connection: Any, model: str | None) -> list[BenchmarkRun]:
    """Newest first."""
    rows = await connection.fetch(_SELECT, model)
    documents = ((row["run_id"], row["at"], json.loads(row["run"])) for row in rows)
    return [
        from_document(document, run_id=run_id, at=at)
        for run_id, at, document in documents
        if document["form"] == FORM
    ]


def to_document(run: BenchmarkRun) -> dict[str, Any]:
    """What is stored of it beside its number and time."""
    document = asdict(run)
    del document["run_id"], document["at"]
    return {"form": FORM, **document}


def from_document(document: Mapping[str, Any], *, run_id: int, at: float) -> BenchmarkRun:
    """The other way. Raises KeyError and TypeError for what `to_document` never wrote."""
    fields = {name: value for name, value in document.items() if name not in ("form", "points", "args")}
    return BenchmarkRun(
        run_id=run_id,
        at=at,
        args=tuple(document["args"]),
        points=tuple(_point(one) for one in document["points"]),
        **fields,
    )


def _point(one: Mapping[str, Any]) -> BenchmarkPoint:
    between = one["inter_token_s"]
    return BenchmarkPoint(
        **{name: value for name, value in one.items() if name not in ("ttft_s", "inter_token_s")},
        ttft_s=Percentiles(**one["ttft_s"]),
        inter_token_s=Percentiles(**between) if between is not None else None,
    )
