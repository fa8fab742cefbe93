"""Driving an engine to see what it carries: which levels, how many requests, when more brings no more.

Pure; `loops/driving.py` asks and measures. Closed loop: at a level of n, n requests are in flight all
the time, each followed by another when it ends.
"""

from dataclasses import dataclass

#: A level must bring so much more than the best before it, or the next is not tried.
GROWTH_LEAST = 1.05
#: More than this share of failed requests ends the run: what is over its limit is not measured.
FAILED_MOST = 0.1
#: No level beyond, whatever it still brings.
CONCURRENCY_MOST = 512
#: Of a level nobody gave a number of requests: enough for a p95 that is more than one request.
REQUESTS_LEAST = 8
REQUESTS_PER_SLOT = 4

_WORDS = ("river", "stone", "lamp", "cloud", "train", "garden", "letter", "window", "music", "harbour")


@dataclass(frozen=True)
class Load:
    """What a benchmark asks for."""

    #: Rising; empty: 1, 2, 4, ... while throughput still grows.
    concurrency: tuple[int, ...]
    #: None: by REQUESTS_LEAST and REQUESTS_PER_SLOT.
    requests_per_level: int | None
    prompt_tokens: int
    output_tokens: int
    #: What is in flight then is given up, and has failed.
    level_timeout_s: float


@dataclass(frozen=True)
class Answer:
    """One request that was answered in full. Seconds."""

    ttft_s: float
    #: From the first token to the last.
    tokens_s: float
    output_tokens: int
    #: As the engine counted; None: it did not tell.
    prompt_tokens: int | None = None

    @property
    def inter_token_s(self) -> float | None:
        """Mean between tokens; None with fewer than two."""
        return self.tokens_s / (self.output_tokens - 1) if self.output_tokens > 1 else None


@dataclass(frozen=True)
class Progress:
    concurrency: int
    finished: int
    requests: int


@dataclass(frozen=True)
class Level:
    """One level as measured. `requests` were answered, `failed` were not."""

    concurrency: int
    requests: int
    failed: int
    seconds: float
    output_tokens: int
    ttft_s: tuple[float, ...]
    inter_token_s: tuple[float, ...]
    #: What one of the failed met.
    failure: str | None = None

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds if self.seconds > 0 else 0.0


def next_level(load: Load, done: tuple[Level, ...]) -> int | None:
    """The concurrency to try after these; None: enough was seen."""
    if done and _overloaded(done[-1]):
        return None
    if load.concurrency:
        return load.concurrency[len(done)] if len(done) < len(load.concurrency) else None
    if not done:
        return 1
    before = max((level.tokens_per_s for level in done[:-1]), default=0.0)
    if done[-1].tokens_per_s < GROWTH_LEAST * before:
        return None
    doubled = done[-1].concurrency * 2
    return doubled if doubled <= CONCURRENCY_MOST else None


def _overloaded(level: Level) -> bool:
    return level.failed > FAILED_MOST * (level.requests + level.failed)


def requests_at(load: Load, concurrency: int) -> int:
    """How many requests a level makes: at least one for each slot, or a level would measure another one."""
    wanted = load.requests_per_level or max(REQUESTS_LEAST, REQUESTS_PER_SLOT * concurrency)
    return max(concurrency, wanted)


def level_of(concurrency: int, answers: list[Answer], problems: list[str], seconds: float) -> Level:
    """Put together what came of one level."""
    between = [answer.inter_token_s for answer in answers]
    return Level(
        concurrency=concurrency,
        requests=len(answers),
        failed=len(problems),
        seconds=seconds,
        output_tokens=sum(answer.output_tokens for answer in answers),
        ttft_s=tuple(answer.ttft_s for answer in answers),
        inter_token_s=tuple(one for one in between if one is not None),
        failure=problems[-1] if problems else None,
    )


def words_for(tokens: int, *, asked_words: int, counted: int | None) -> int:
    """How many words make so many tokens, after a prompt of `asked_words` was counted as `counted` tokens.
    Vocabularies differ, and a chat template adds its own; without a count a word is taken for a token."""
    return tokens if not counted else max(1, round(tokens * asked_words / counted))


def prompt(number: int, words: int) -> str:
    """So many plain English words.

    It begins with its number, so that no engine finds it in a cache of prefixes."""
    text = [
        f"{number}:",
        *(_WORDS[(number * 7 + i * (1 + number % 3)) % len(_WORDS)] for i in range(words - 1)),
    ]
    return " ".join(text[:words])
