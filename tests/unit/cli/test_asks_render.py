"""What an engine printed cannot move the cursor; weights, benchmarks and capacity fit 100 columns."""

import itertools
import json

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import bench, capacity, weights
from llmgw_controller.cli.page import Page
from llmgw_controller.cli.terminal import LINE_MOST, Lines
from llmgw_kit.text import visible

INFO = pb.ViewInfo(cluster="c", at_unix_s=1_900_000_000, age_s=2, leader_name="l", term=3, store="memory")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttab\n", "plain\ttab\n"),
        ("\x1b[31mred\x1b[0m", "^[[31mred^[[0m"),
        ("\x1b]0;title\x07", "^[]0;title^G"),
        ("\x9b2J", "<9B>2J"),
        ("a\x7fb\x00", "a^?b^@"),
        ("10 %\r20 %\r\ndone", "10 %\n20 %\ndone"),
        ("abc\u202edef\u200b", "abc<U+202E>def<U+200B>"),
        ("größe 世界 🙂", "größe 世界 🙂"),
    ],
)
def test_controls_are_shown_and_letters_left_alone(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_nothing_that_is_shown_can_hurt(text: str) -> None:
    shown = visible(text)
    assert not [c for c in shown if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) <= 0x9F]
    assert "\x1b" not in shown


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6))
def test_lines_do_not_depend_on_where_the_pieces_were_cut(data: bytes, cuts: list[int]) -> None:
    whole = Lines()
    expected = whole.take(data) + whole.rest()
    pieces = Lines()
    got: list[str] = []
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for begin, end in itertools.pairwise(edges):
        got += pieces.take(data[begin:end])
    assert [line for line in got + pieces.rest() if line] == [line for line in expected if line]


def test_a_line_end_cut_in_two_is_one() -> None:
    lines = Lines()
    assert lines.take(b"a\r") == []
    assert lines.take(b"\nb\n") == ["a", "b"]


def test_a_line_that_never_ends_is_shown_in_parts_and_not_kept() -> None:
    lines = Lines()
    shown = lines.take(b"x" * (10 * LINE_MOST))
    assert len(shown) == 9
    assert {len(line) for line in shown} == {LINE_MOST}
    assert len(lines._rest) == LINE_MOST


def rendered(draw, answer) -> tuple[list[str], object]:
    page = Page(ascii_only=True)
    result = draw(page, answer)
    lines = page.plain().split("\n")
    assert all(len(line) <= 100 for line in lines), max(lines, key=len)
    return lines, result


def held(node: str, **changes: object) -> pb.NodeWeights:
    plain = {"model": "m", "version": "b" * 64, "bytes": 15_000_000_000, "complete": True, "wanted": True}
    return pb.NodeWeights(node_id=node, **{**plain, **changes})


def test_a_list_of_weights_says_what_is_on_its_way_what_failed_and_what_could_go() -> None:
    long = "a-model-with-a-very-long-name-that-somebody-gave-it"
    answer = pb.ListWeightsResponse(
        info=INFO,
        weights=[
            held("node-with-a-very-long-name-1", model=long, used_by=[f"{long}/1", f"{long}/2"]),
            held("n2", complete=False, fetching=True, progress=0.43, disk_free_bytes=10**12),
            held("n3", complete=False, error="mirror http://m: checksum differs " * 5),
            held("n4", wanted=False, version="old"),
            held("n5", complete=False),
        ],
    )
    lines, code = rendered(weights.render_list, answer)
    text = "\n".join(lines)
    assert code == 1
    assert "5 versions on 5 nodes, 75 GB" in lines[0]
    for piece in ("fetching 43 %", "FAILED", "partial", "complete", "checksum differs", "n2 1 TB"):
        assert piece in text
    assert "Nobody wants 1 of them, 15 GB." in text
    assert "next: llmgwctl weights remove m old --dry-run" in text
    said = weights.list_json(answer)
    assert said["schema"] == "llmgw.weights/1"
    assert [one["progress"] for one in said["weights"]] == [None, 0.43, None, None, None]
    json.dumps(said)


def test_no_weights_anywhere_is_a_line() -> None:
    lines, code = rendered(weights.render_list, pb.ListWeightsResponse(info=INFO))
    assert (lines[1], code) == (
        "no node holds any weights; to bring some there: llmgwctl weights prefetch MODEL",
        0,
    )


def run(**changes: object) -> pb.BenchmarkRun:
    percent = pb.Percentiles(p50=0.0123, p90=1.5, p95=2.25, p99=100.0)
    points = [
        pb.BenchmarkPoint(
            concurrency=level, requests=8, failed=0, seconds=3.5, output_tokens_per_s=level * 1234.5,
            requests_per_s=2, ttft_s=percent, inter_token_s=percent,
        )
        for level in (1, 512)
    ]  # fmt: skip
    plain = {
        "run_id": 12345, "at_unix_s": 1_800_000_000, "model": "m" * 60, "profile": "p" * 60,
        "gpu_class": "H100",
        "gpus": 16, "engine": "vllm", "points": points,
    }  # fmt: skip
    return pb.BenchmarkRun(**{**plain, **changes})


def test_runs_are_listed_with_why_they_say_nothing_any_more() -> None:
    answer = pb.ListBenchmarksResponse(
        info=INFO, runs=[run(), run(stale_because="weights changed: a then, b now")]
    )
    lines, _ = rendered(bench.render_list, answer)
    assert "2 runs, 1 stale" in lines[0]
    assert any("says nothing any more: weights changed" in line for line in lines)
    said = bench.list_json(answer)["runs"]
    assert [one["stale_because"] for one in said] == [None, "weights changed: a then, b now"]
    assert said[0]["engine_version"] is None, "empty on the wire is unknown"


def test_a_level_is_a_line_under_its_head() -> None:
    line = bench._level(run().points[1])
    assert len(line) <= 100
    assert len(line) == len(bench._Table.HEAD)
    without = pb.BenchmarkPoint()
    without.CopyFrom(run().points[0])
    without.ClearField("inter_token_s")
    assert bench._level(without).split()[-2:] == ["-", "-"]


@pytest.mark.parametrize(
    ("lines", "status"),
    [([], 2), ([pb.CapacityLine(profile="p")], 0), ([pb.CapacityLine(profile="p", stale_because="x")], 1)],
)
def test_capacity_exits_by_what_is_known(lines: list[pb.CapacityLine], status: int) -> None:
    assert capacity.exit_code(pb.CapacityResponse(info=INFO, lines=lines)) == status


def test_capacity_adds_up_from_column_to_column() -> None:
    line = pb.CapacityLine(
        profile="p", gpu_class="H100", run_id=3, concurrent_per_replica=12, replicas_running=2,
        replicas_on_free=3, replicas_after_reclaim=4, output_tokens_per_s_per_replica=345.67,
    )  # fmt: skip
    answer = pb.CapacityResponse(info=INFO, model="chat", lines=[line], warnings=["w " * 100])
    lines, _ = rendered(capacity.render_capacity, answer)
    assert "chat carries 24 at a time now" in lines[0]
    row = next(one for one in lines if one.startswith("p "))
    assert "24 (2)" in row
    assert "60 (5)" in row
    assert "108 (9)" in row
    assert capacity.capacity_json(answer, exit_code=0)["lines"][0]["concurrent_now"] == 24


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2s", 2.0), ("50ms", 0.05), ("0.5s", 0.5), ("2", None), ("-1s", None), ("fast", None)],
)
def test_latencies_are_read_with_their_unit(text: str, seconds: float | None) -> None:
    if seconds is None:
        with pytest.raises(click.UsageError):
            capacity.Latency().convert(text, None, None)
    else:
        assert capacity.Latency().convert(text, None, None) == pytest.approx(seconds)
