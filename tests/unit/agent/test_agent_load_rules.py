"""Which levels a benchmark drives, how many requests each makes, and when it has seen enough."""

import pytest

from llmgw_agent.core.load import (
    CONCURRENCY_MOST,
    Answer,
    Level,
    Load,
    level_of,
    next_level,
    prompt,
    requests_at,
    words_for,
)


def load(*concurrency: int, requests: int | None = None) -> Load:
    return Load(concurrency, requests, prompt_tokens=16, output_tokens=8, level_timeout_s=10)


def level(concurrency: int, tokens_per_s: float, *, requests: int = 10, failed: int = 0) -> Level:
    return Level(concurrency, requests, failed, 1.0, int(tokens_per_s), (0.1,), (0.01,))


@pytest.mark.parametrize(
    ("measured", "following"),
    [
        ([], 1),
        ([100], 2),
        ([100, 190], 4),
        ([100, 190, 195], None),  # less than 5 % more: it is full
        ([100, 190, 150], None),
    ],
)
def test_levels_double_while_throughput_grows(measured: list[float], following: int | None) -> None:
    done = tuple(level(2**i, rate) for i, rate in enumerate(measured))
    assert next_level(load(), done) == following


def test_named_levels_are_driven_as_named_and_no_other() -> None:
    asked = load(1, 3, 9)
    done: tuple[Level, ...] = ()
    seen = []
    while (concurrency := next_level(asked, done)) is not None:
        seen.append(concurrency)
        done = (*done, level(concurrency, 1.0))
    assert seen == [1, 3, 9], "also when throughput does not grow"


def test_a_level_that_fails_is_the_last() -> None:
    assert next_level(load(1, 2, 4), (level(1, 5, requests=9, failed=1),)) == 2
    assert next_level(load(1, 2, 4), (level(1, 5, requests=8, failed=2),)) is None


def test_levels_end_somewhere_whatever_they_bring() -> None:
    done: tuple[Level, ...] = ()
    while (concurrency := next_level(load(), done)) is not None:
        done = (*done, level(concurrency, 100.0 * concurrency))
    assert done[-1].concurrency == CONCURRENCY_MOST


@pytest.mark.parametrize(
    ("asked", "concurrency", "made"), [(None, 1, 8), (None, 4, 16), (3, 1, 3), (3, 8, 8), (50, 8, 50)]
)
def test_a_level_makes_enough_requests_to_be_that_level(
    asked: int | None, concurrency: int, made: int
) -> None:
    assert requests_at(load(requests=asked), concurrency) == made


def test_a_level_is_put_together_from_what_was_answered() -> None:
    answers = [Answer(0.2, 0.9, 10), Answer(0.1, 0.0, 1)]
    found = level_of(2, answers, ["refused"] * 3, 4.0)
    assert (found.requests, found.failed, found.output_tokens, found.tokens_per_s) == (2, 3, 11, 2.75)
    assert found.failure == "refused"
    assert found.ttft_s == (0.2, 0.1)
    assert found.inter_token_s == (pytest.approx(0.1),), "one token has nothing between"


@pytest.mark.parametrize(
    ("tokens", "words", "counted", "then"),
    [(256, 256, None, 256), (256, 256, 256, 256), (24, 24, 126, 5), (8, 8, 400, 1), (100, 100, 80, 125)],
)
def test_prompts_are_as_long_as_the_engines_vocabulary_makes_them(
    tokens: int, words: int, counted: int | None, then: int
) -> None:
    assert words_for(tokens, asked_words=words, counted=counted) == then


def test_prompts_have_their_length_and_differ_from_the_first_word() -> None:
    made = [prompt(number, 40) for number in range(200)]
    assert {len(one.split()) for one in made} == {40}
    assert len({one.split()[0] for one in made}) == 200
    assert prompt(3, 1) == "3:"
