"""The stall measure, and the words an exit is told with."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.core.progress import Numbers, Progress, moved, observed
from llmgw_agent.core.reasons import REASONS, recognised
from llmgw_agent.core.shard import Ended

AGENT = Path(__file__).parents[3] / "services" / "agent" / "src" / "llmgw_agent"
UNKNOWN = None


def stalled(*readings: tuple[float, int, float | None] | tuple[float, None]) -> float | None:
    """After readings of (at, running, work); (at, None) is one that could not be had."""
    progress: Progress | None = None
    at = 0.0
    for reading in readings:
        at = reading[0]
        numbers = None if len(reading) == 2 else Numbers(reading[1], reading[2])
        progress = observed(progress, numbers, at)
    return None if progress is None else progress.stalled_s(at)


@pytest.mark.parametrize(
    ("case", "readings", "expected"),
    [
        ("at rest", [(0, 0, 5.0), (60, 0, 5.0)], 0.0),
        ("first seen with requests", [(60, 3, 5.0)], 0.0),
        ("gets on", [(0, 1, 5.0), (30, 1, 6.0), (60, 1, 9.0)], 0.0),
        ("stands still", [(0, 1, 5.0), (5, 1, 6.0), (65, 2, 6.0)], 60.0),
        ("came after a rest", [(0, 0, 5.0), (60, 1, 5.0)], 0.0),
        ("came after a rest and stands", [(0, 0, 5.0), (60, 1, 5.0), (70, 1, 5.0)], 10.0),
        ("all left", [(0, 1, 5.0), (60, 1, 5.0), (65, 0, 5.0)], 0.0),
        ("started anew", [(0, 1, 5.0), (60, 1, 0.0)], 0.0),
        ("no counter", [(0, 1, None), (60, 1, None)], UNKNOWN),
        ("cannot be read", [(0, 1, 5.0), (60, 1, 5.0), (65, None)], UNKNOWN),
        ("readable again", [(0, 1, 5.0), (30, None), (60, 1, 5.0)], 0.0),
    ],
)
def test_case_31_only_requests_with_still_counters_are_a_stall(
    case: str, readings: list[tuple[float, int, float | None]], expected: float | None
) -> None:
    assert stalled(*readings) == expected, case


def test_movement_is_a_counter_that_differs_between_two_readings() -> None:
    still, on = Progress(1, 5.0, 0.0), Progress(0, 6.0, 1.0)
    assert moved(still, on)
    assert not moved(still, still)
    assert not moved(None, on)
    assert not moved(on, None)


@given(st.lists(st.tuples(st.floats(0.1, 60), st.none() | st.integers(0, 2), st.integers(0, 2)), min_size=1))
def test_a_stall_is_never_longer_than_the_unbroken_watch(
    steps: list[tuple[float, int | None, int]],
) -> None:
    progress, at, watched_since = None, 0.0, None
    for wait, running, work in steps:
        at += wait
        progress = observed(progress, None if running is None else Numbers(running, work), at)
        if progress is None:
            watched_since = None
            continue
        watched_since = at if watched_since is None or not progress.running else watched_since
        assert 0.0 <= progress.stalled_s(at) <= at - watched_since


CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
GGML = "alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory"
ALLOC = "terminate called after throwing an instance of 'std::bad_alloc'"
VLLM = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"


@pytest.mark.parametrize(
    ("ended", "last_words", "oom_killed", "reason"),
    [
        (Ended(code=1), "scripted crash", False, "crashed"),
        (Ended(code=1), CUDA, False, "out_of_memory"),
        (Ended(code=1), GGML, False, "out_of_memory"),
        (Ended(code=1), VLLM, False, "out_of_memory"),
        (Ended(signal=6), ALLOC, False, "out_of_memory"),
        (Ended(signal=9), "", True, "out_of_memory"),
        (Ended(signal=9), "", False, "crashed"),
        (Ended(signal=11), "", True, "crashed"),
        (Ended(), "", True, "out_of_memory"),
        (Ended(), "", False, "crashed"),
        (Ended(code=0), "a client said: out of memory", False, "crashed"),
        (Ended(code=1), "ModuleNotFoundError: No module named 'xllamacpp'", False, "engine_absent"),
        (Ended(code=1), "ModuleNotFoundError: No module named 'vllm.plugin'", False, "engine_absent"),
        (Ended(code=1), "ModuleNotFoundError: No module named 'mine'", False, "crashed"),
    ],
)  # fmt: skip
def test_an_end_is_recognised_by_how_it_was_and_what_was_said_last(
    ended: Ended, last_words: str, reason: str, *, oom_killed: bool
) -> None:
    assert recognised(ended, last_words, oom_killed=oom_killed) == reason
    assert reason in REASONS


def _words_said() -> set[str]:
    """First arguments of Exit(...) and ShardFailed(...), reasons of request_stop(...) and of adoption."""
    said: set[str] = set()
    for path in [*(AGENT / "core").glob("*.py"), *(AGENT / "loops").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            taken = node.args[:1] if name in ("Exit", "ShardFailed", "request_stop", "Stop") else []
            taken += [word.value for word in node.keywords if name == "Adoption" and word.arg == "reason"]
            for argument in taken:
                found = (one for one in ast.walk(argument) if isinstance(one, ast.Constant))
                said |= {
                    one.value for one in found if isinstance(one.value, str) and one.value.isidentifier()
                }
    return said


def test_every_word_the_agent_says_of_an_exit_stands_in_the_table_and_in_the_readme() -> None:
    said = _words_said()
    assert {"stopped", "never_ready", "rebooted", "weights_failed", "absent"} <= said, "the walk finds them"
    assert said <= REASONS.keys(), said - REASONS.keys()
    readme = (AGENT.parents[1] / "README.md").read_text()
    for word, (concerns, text) in REASONS.items():
        assert f"| `{word}` | {concerns.value} | {text} |" in readme, word
