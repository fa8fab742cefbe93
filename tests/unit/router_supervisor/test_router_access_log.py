"""Lines of the access log, and the spans of the same record."""

import asyncio
import contextlib
import json
import os
from pathlib import Path

import msgspec
import pytest

from llmgw_kit.testing.clock import FakeClock
from llmgw_router.adapters import access_log
from llmgw_router.adapters.access_log import AccessLog, line
from llmgw_router.relay.ipc import AccessRecord, ModelCount, TraceIds
from llmgw_router.spans import export, spans
from llmgw_router.supervisor.model_counts import ModelCounts

RECORD = AccessRecord(
    at_unix_s=1_800_000_010.5,
    request_id="r1",
    method="POST",
    path="/v1/chat/completions",
    status=200,
    code=None,
    model="org/m",
    endpoint_id="e@1",
    bytes_in=10,
    bytes_out=20,
    ttft_ms=400.0,
    duration_ms=2000.0,
    retries=1,
    alias="m",
    profile="batch",
    hold_ms=250.0,
    connect_ms=3.5,
    sent_ms=250.0,
    chunks=7,
    trace=TraceIds("a" * 32, "b" * 16, "c" * 16, "d" * 16),
)


def test_a_line_has_every_key_whatever_is_known() -> None:
    full = json.loads(line(RECORD))
    bare = json.loads(
        line(AccessRecord(1.0, "r", "GET", "/", 404, "unknown_url", None, None, 0, 0, None, 0.1, 0))
    )
    assert list(full) == list(bare)
    assert (full["trace"], full["sampled"], full["hold_ms"], full["alias"]) == ("a" * 32, True, 250.0, "m")
    assert (bare["trace"], bare["sampled"], bare["tokens_in"], bare["queue_ms"]) == (None, False, None, None)


def test_an_unsampled_callers_trace_is_named_too() -> None:
    record = msgspec.structs.replace(RECORD, trace=None, traceparent=f"00-{'e' * 32}-{'f' * 16}-00")
    told = json.loads(line(record))
    assert (told["trace"], told["sampled"]) == ("e" * 32, False)


async def test_a_file_gets_whole_lines_and_is_opened_anew_when_it_was_moved(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    log = AccessLog(path, FakeClock().monotonic_s)
    log.offer([RECORD, RECORD])
    await log.flush()
    path.rename(tmp_path / "a.1")
    log.offer([RECORD])
    await log.flush()
    log.to(tmp_path / "b.jsonl")
    log.offer([RECORD])
    await log.flush()
    await log.close()
    assert [len((tmp_path / name).read_text().splitlines()) for name in ("a.1", "a.jsonl", "b.jsonl")] == [
        2,
        1,
        1,
    ]
    assert (path.stat().st_mode & 0o777, log.written, log.dropped) == (0o640, 4, 0)


async def test_what_cannot_be_written_or_kept_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    log = AccessLog(tmp_path / "no" / "folder", clock.monotonic_s)
    for _ in range(3):
        log.offer([RECORD, RECORD])
        await log.flush()
    assert (log.written, log.dropped) == (0, 6)
    assert len(caplog.records) == 1
    await clock.advance(access_log.REPEAT_S)
    log.offer([RECORD])
    await log.flush()
    assert len(caplog.records) == 2
    # A destination that takes nothing for a while costs lines, not memory.
    monkeypatch.setattr(access_log, "MOST_WAITING", 5)
    log.offer([RECORD] * 4)
    log.offer([RECORD] * 4)
    assert log.dropped == 7 + 3


@pytest.mark.timeout(30)
async def test_a_pipe_that_nobody_reads_holds_no_stop(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = AccessLog(pipe, FakeClock().monotonic_s, close_s=0.0)
    running = asyncio.create_task(log.run())
    log.offer([RECORD] * 1000)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    log.offer([RECORD] * 10)
    await asyncio.wait_for(log.close(), 10)
    assert (log.written, log.dropped) == (0, 1010)
    os.close(reader)


async def test_a_pipe_that_is_read_slowly_gets_whole_lines(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = AccessLog(pipe, FakeClock().monotonic_s)
    log.offer([RECORD] * 500)
    writing = asyncio.create_task(log.flush())
    got = b""
    while not writing.done():
        await asyncio.sleep(0)
        with contextlib.suppress(BlockingIOError):
            got += os.read(reader, 3000)
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(reader, 65536):
            got += piece
    await log.close()
    assert got == line(RECORD) * 500
    os.close(reader)


def test_spans_tell_the_wait_the_engine_and_the_whole() -> None:
    root, wait, engine = spans(RECORD)
    at = {name: int(span["startTimeUnixNano"]) for name, span in (("r", root), ("w", wait), ("e", engine))}
    assert at["r"] == at["w"] == 1_800_000_008_500_000_000
    assert at["e"] - at["r"] == 250_000_000
    assert (wait["name"], wait["parentSpanId"], engine["parentSpanId"]) == ("hold", "b" * 16, "b" * 16)
    assert len({root["spanId"], wait["spanId"], engine["spanId"]}) == 3
    assert engine["events"][0]["name"] == "connected"
    assert root["parentSpanId"] == "d" * 16


FAILED = {
    "our own error": (503, "no_replica_available", None, True),
    "the engine's": (500, None, "e@1", True),
    "cut in mid-stream": (200, "stream_interrupted", "e@1", True),
    "left by its client": (499, None, "e@1", False),
    "cut off as it took nothing": (499, "client_stalled", "e@1", False),
    "the caller's fault": (404, None, "e@1", False),
}


@pytest.mark.parametrize(("status", "code", "endpoint_id", "error"), FAILED.values(), ids=FAILED.keys())
def test_what_counts_as_an_error(status: int, code: str | None, endpoint_id: str | None, error: bool) -> None:
    record = msgspec.structs.replace(RECORD, status=status, code=code, endpoint_id=endpoint_id)
    root = spans(record)[0]
    assert ("status" in root) is error
    assert len(spans(record)) == (1 if endpoint_id is None else 3)


def test_an_unsampled_record_has_no_spans_and_the_export_names_the_service() -> None:
    assert spans(msgspec.structs.replace(RECORD, trace=None)) == []
    body = export(spans(RECORD), service_name="router", version="1", instance="host-1")
    [resource] = body["resourceSpans"]
    assert {"key": "service.name", "value": {"stringValue": "router"}} in resource["resource"]["attributes"]
    json.dumps(body)


def test_counts_by_model_add_up_and_their_number_is_bounded() -> None:
    counts = ModelCounts(most=2)
    for name in ("a", "b", "a", "c", "d"):
        counts.add([ModelCount(name, 1, 0, 0, 0, 2, 10, 5, 1, 3, 7, 8)])
    totals = counts.totals()
    assert list(totals) == ["a", "b", "other"]
    assert (totals["a"].answers_2xx, totals["a"].client_gone, totals["a"].tokens_output) == (2, 4, 16)
    assert totals["other"].duration_sum_us == 20
